"""A batch of environments in the memory of a GPU: kernels and the tensors they work on."""

from __future__ import annotations

import contextlib
import ctypes
import enum
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from rlbatch.envs.atari import build, device_code
from rlbatch.envs.atari._batch import HEADER_BYTES, Batch
from rlbatch.envs.atari._native_batch import NativeBatch
from rlbatch.envs.atari._options import Settings, game_spec, native_options
from rlbatch.envs.atari.games import RAM_BYTES, Game
from rlbatch.envs.atari.native_library import load_library
from rlbatch.envs.atari.roms import read_rom
from rlbatch.errors import CallOrderError

_WARP = 32
# Four warps share a program in shared memory, which leaves more to the cache that it is a part of.
_STEP_THREADS = 4 * _WARP
# Of a multiprocessor, to be given environments first. It runs sixteen at once (`RLB_KERNEL` in
# `native/device.cu`), but more than eight, with fewer environments each, take longer: they share a
# cache of instructions, which is too small.
_WARPS_AT_LEAST = 8
# Shared memory that CUDA takes for itself in every block, and that of a multiprocessor of Turing,
# which has the least. Source: CUDA C++ Programming Guide, chapter "Compute Capabilities".
_BLOCK_BYTES, _LEAST_SHARED_BYTES = 1024, 64 * 1024
_LOOK_THREADS = 128
_MAX_ROM = 16384 + 8  # `kMaxRom` in `native/cart.h`.
_MAX_UNSEEN = 16  # `kMaxUnseen` in `native/batch.h`.
_STATES_AT_ONCE = 128  # Of known resets, which are copied to the device.
_LINE = 16  # Bytes; `Pictures` begin at a multiple of it.


class DeviceJob(enum.IntEnum):
    """What an environment is to do: `DeviceJob` in `native/device.h`."""

    NONE = 0
    STEP = 1
    RESET = 2
    LOAD = 3
    START_COUNT = 4
    RESTART = 5


_RESULTS = {
    **dict.fromkeys(("reward", "reward_raw", "lives", "frame_number"), torch.int32),
    **dict.fromkeys(("episode_frame_number", "episode_length", "last_action"), torch.int32),
    "episode_return": torch.float64,
    **dict.fromkeys(("terminated", "truncated", "life_lost", "has_ended"), torch.bool),
}
_SHARED = ("states", "generators", "noops", "episodes", "pictures", "views", "records")


class _KernelBatch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("game", "options", "resize", "rom")),
        *((name, ctypes.c_void_p) for name in ("resets", "power_on")),
        *((name, ctypes.c_void_p) for name in ("known_states", "known_pictures", "known_at")),
        *((name, ctypes.c_void_p) for name in _SHARED),
        *((name, ctypes.c_void_p) for name in ("logs", "ring", *_RESULTS, "errors")),
        *((name, ctypes.c_int32) for name in ("n_envs", "first", "stride", "n_records")),
    ]


class DeviceBatch(Batch):
    """Environments that the kernels step. PyTorch owns all memory.

    Args:
        games: Their games; environment i plays `games[i % len(games)]`.
        n_envs: How many there are.
        settings: What is the same for all of them.
        device: Where they are. Kernels run on PyTorch's current stream of it.
        num_threads: Of the host, to find where resets lead to; 0 for one per core.
        actions: Numbers of the actions that can be chosen; None for those of `games`.

    Attributes:
        device: As above.
        results: [n_envs] per name, on the device; written over by the next step.
        n_warps: Over how many warps the environments are spread, until these are full. Those of a
            warp wait for each other, so the fewer they are, the sooner they are done.

    Raises:
        TypeError, ValueError: An argument, or an option for one of the games, is out of range.
        RomError, BuildError: There is no ROM, or the kernels cannot be compiled.
    """

    def __init__(
        self,
        games: Sequence[Game],
        n_envs: int,
        settings: Settings,
        device: torch.device,
        num_threads: int = 0,
        actions: tuple[int, ...] | None = None,
    ):
        super().__init__(games, n_envs, settings, actions)
        self.device = device
        self._in_turn = list(games)  # A game may be there twice.
        self._kernels = device_code.device_kernels(self._in_turn, device)
        self._streams = [_current_stream(device)]  # The memory's own, and others that use it.
        self._is_open = self._is_whole = True
        self.n_warps = min(_n_warps(device, kernels.sizes) for kernels in self._kernels)
        is_alone = device.type == "cpu" or len(self._in_turn) == 1
        self._sides = [] if is_alone else [torch.cuda.Stream(device) for _ in self._in_turn]
        self._batches: list[torch.Tensor] = []  # A `KernelBatch` for each of the games,
        self._kept: list[dict[str, torch.Tensor]] = []  # and what it points to.
        host = NativeBatch(
            games, len(games), settings, num_threads, actions=self.actions, knows_all=True
        )
        self._allocate()
        for number in range(len(games)):
            self._batches.append(self._describe(number, host))
        host.close()

    @torch.inference_mode(False)  # Else what is made here could not be written to outside of it.
    def _allocate(self) -> None:
        n, sizes, settings = self.n_envs, self._kernels[0].sizes, self.settings
        has_unseen = not settings.is_ram and 2 < settings.frameskip <= _MAX_UNSEEN
        self._n_records = settings.frameskip if has_unseen else 0
        bytes_of = {
            "states": sizes["State"],
            "generators": sizes["Generators"],
            "noops": sizes["Mt19937"],
            "episodes": sizes["Episode"],
            "pictures": 0 if settings.is_ram else sizes["Pictures"],
            "views": sizes["View"],
            "records": self._n_records * sizes["State"],
        }
        self._shared = {name: self._bytes(n, size) for name, size in bytes_of.items()}
        # Games do not share warps.
        n_warps = [-(-self._n_of(i) // _WARP) for i in range(len(self._in_turn))]
        self._logs = [self._bytes(_WARP * warps, sizes["Log"]) for warps in n_warps]
        self._ring = self._bytes(n, int(np.prod(self.shape[1:])))
        self.results = {
            name: torch.zeros(n, dtype=dtype, device=self.device)
            for name, dtype in _RESULTS.items()
        }
        self._errors = torch.zeros(2, dtype=torch.int32, device=self.device)

    def _bytes(self, n: int, size: int) -> torch.Tensor:
        return torch.zeros((n, size), dtype=torch.uint8, device=self.device)

    def _place_of(self, number: int) -> int:
        """Returns where one of the games in turn is among `games`, each of which is there once."""
        return self.games.index(self._in_turn[number])

    def _n_of(self, game: int) -> int:
        """Returns how many environments play a game."""
        return len(range(game, self.n_envs, len(self._in_turn)))

    def _describe(self, number: int, host: NativeBatch) -> torch.Tensor:
        """Returns a `KernelBatch` for the kernels of a game, and keeps what it points to."""
        game = self._in_turn[number]
        rom = read_rom(game)
        image = rom * 2 if game.cart == "2K" else rom
        parts = {
            "game": bytes(game_spec(game, len(rom), self.actions)),
            "options": bytes(native_options(self.settings)),
            "resize": self._resize(game),
            "resets": bytes(host.known_resets(self._place_of(number))),
            "power_on": host.power_on(self._place_of(number)),
            "rom": image.ljust(_MAX_ROM, b"\0")[:_MAX_ROM],
        }
        tensors = {
            name: self.uploaded(np.frombuffer(part, np.uint8)) for name, part in parts.items()
        }
        tensors |= {**self._shared, "logs": self._logs[number], "ring": self._ring, **self.results}
        tensors["errors"] = self._errors
        tensors |= self._known_states(number, host, tensors)
        self._kept.append(tensors)
        stride = len(self._in_turn)
        counts = {"n_envs": self.n_envs, "first": number, "stride": stride}
        return self._described(tensors, **counts, n_records=self._n_records)

    def _described(self, tensors: dict[str, torch.Tensor], **counts: int) -> torch.Tensor:
        """Returns a `KernelBatch` of these arrays and numbers; of those left out, of 0.

        Raises:
            BuildError: The kernels know another `KernelBatch`.
        """
        pointers = {name: tensor.data_ptr() or None for name, tensor in tensors.items()}
        described = _KernelBatch(**pointers, **counts)
        expected, found = ctypes.sizeof(described), self._kernels[0].sizes["KernelBatch"]
        if expected != found:
            raise build.BuildError(
                f"device.cu: expected a KernelBatch of {expected} bytes, as here, got {found}"
            )
        return self.uploaded(np.frombuffer(bytes(described), np.uint8))

    def _known_states(
        self, number: int, host: NativeBatch, tensors: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Returns `KnownStates` of a game. Of states that show the same, one has the pictures."""
        states, firsts = host.known_states(self._place_of(number))
        shown = np.unique(firsts)
        pictures = self._known_pictures(number, host, shown.tolist(), tensors)
        begins = np.cumsum([0, *map(len, pictures)])
        return {
            "known_states": self.uploaded(states),
            "known_pictures": self.uploaded(np.frombuffer(b"".join(pictures), np.uint8)),
            "known_at": self.uploaded(begins[np.searchsorted(shown, firsts)].astype(np.int32)),
        }

    def _known_pictures(
        self, number: int, host: NativeBatch, numbers: list[int], tensors: dict[str, torch.Tensor]
    ) -> list[bytes]:
        """Returns the `Pictures` of some states that the resets of a game lead to.

        The kernels make them, in memory of their own; as many of their `bytes` are kept as are
        taken, and as keep those behind them in line.
        """
        if self.settings.is_ram:
            return []
        sizes, kernels = self._kernels[0].sizes, self._kernels[number]
        rooms = {"states": sizes["State"], "pictures": sizes["Pictures"]}
        made = {name: self._bytes(_STATES_AT_ONCE, size) for name, size in rooms.items()}
        batch, found = self._described(tensors | made), []  # Of no environments: n_envs is 0.
        # The same memory for all, as what is fresh costs more than what is written to it.
        rows = np.empty((_STATES_AT_ONCE, self._state_bytes()), np.uint8)
        for begin in range(0, len(numbers), _STATES_AT_ONCE):
            part = numbers[begin : begin + _STATES_AT_ONCE]
            for state, row in zip(part, rows, strict=False):
                host.save_known(self._place_of(number), state, row)
            bodies = torch.from_numpy(rows[: len(part)]).to(self.device)
            self._run_on_states("rlb_restore", kernels, batch, range(len(part)), bodies)
            for row in made["pictures"][: len(part)].cpu().numpy():
                (head,) = row[sizes["head_at"] :][:4].view(np.int32)
                found.append(row[: -(-(sizes["bytes_at"] + head) // _LINE) * _LINE].tobytes())
        return found

    def _resize(self, game: Game) -> bytes:
        library = load_library()
        buffer = ctypes.create_string_buffer(library.rlb_size_of(b"Resize"))
        if not self.settings.is_ram:
            size = self.settings.img_height, self.settings.img_width
            if not library.rlb_resize(game.height, *size, buffer):
                raise ValueError(f"AtariEnv: expected options that make sense, got {self.settings}")
        return buffer.raw

    def uploaded(self, array: np.ndarray) -> torch.Tensor:
        """Returns a copy of an array on the device."""
        return torch.from_numpy(array.copy()).to(self.device)

    def close(self) -> None:
        """Releases the memory, when the kernels have ended, and tells what has gone wrong."""
        if not self._is_open:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._is_open = False
        self._shared, self._batches, self._kept, self._logs = {}, [], [], []
        self._ring, self.results = self._bytes(0, 0), {}
        self._check_errors()

    # --- Kernels; none of these waits. ---

    @contextlib.contextmanager
    def left_whole(self, where: str) -> Iterator[None]:
        """Launches kernels that only together leave the environments as others may find them.

        Raises:
            CallOrderError: It is closed; or, except for a reset, an exception has come between such
                kernels before: Ctrl-C, or memory that ran out.
        """
        self.check_open(where)
        self._check_whole(where)
        self._is_whole = False
        yield
        self._is_whole = True

    def _check_whole(self, where: str) -> None:
        if not self._is_whole and where != "reset":
            raise CallOrderError(
                f"{where}: expected whole environments, got some that an exception has left in the "
                "middle of a step or of set_state; reset"
            )

    def step(
        self,
        jobs: torch.Tensor | DeviceJob,
        *,
        actions: torch.Tensor | None = None,
        seeds: torch.Tensor | None = None,
    ) -> None:
        """Gives every environment a job.

        Args:
            jobs: [n_envs] uint8, of `DeviceJob`; or one for all.
            actions: [n_envs] int64: places in `actions`, of those that step.
            seeds: [n_envs] uint32, of those that load.
        """
        self.check_open("step")
        job, of_each = (jobs, None) if isinstance(jobs, DeviceJob) else (DeviceJob.NONE, jobs)
        pointers = (_pointer(one) for one in (of_each, actions, seeds))
        arguments: list[np.generic] = [np.int32(job), *pointers]
        for i, kernels, batch in self._side_by_side():
            n = self._n_of(i)
            n_lanes = min(_WARP, n, -(-self.n_envs // self.n_warps))
            n_threads = _STEP_THREADS if n_lanes == _WARP else n_lanes
            n_shared = kernels.sizes["NearMemory"] + n_threads * kernels.sizes["NearRAM"]
            n_blocks = -(-n // n_threads)
            kernels.launch("rlb_step", n_blocks, n_threads, n_shared, _pointer(batch), *arguments)
        self._note_stream()

    def new_observations(self) -> torch.Tensor:
        """Returns room for what `observe` writes."""
        return torch.empty(self.shape, dtype=torch.uint8, device=self.device)

    def observe(self, out: torch.Tensor) -> None:
        """Writes the stacks of observations, [n_envs, *observation_shape] uint8."""
        self.check_open("observe")
        shared = 0 if self.settings.is_ram else self._kernels[0].sizes["Image"]
        for i, kernels, batch in self._side_by_side():
            n = self._n_of(i)
            kernels.launch("rlb_observe", n, _LOOK_THREADS, shared, _pointer(batch), _pointer(out))
        self._note_stream()

    def _side_by_side(self) -> Iterator[tuple[int, device_code.Kernels, torch.Tensor]]:
        """Yields the games; what is launched for one of them does not wait for the others.

        It begins after what the current stream has begun, which then waits for all of it.
        """
        games = zip(range(len(self._kernels)), self._kernels, self._batches, strict=True)
        if not self._sides:
            yield from games
            return
        current = torch.cuda.current_stream(self.device)
        try:
            for side, game in zip(self._sides, games, strict=True):
                side.wait_stream(current)
                with torch.cuda.stream(side):
                    yield game
        finally:
            for side in self._sides:
                current.wait_stream(side)

    def _note_stream(self) -> None:
        """Lets what the current stream has begun end before the memory is anybody else's."""
        stream = _current_stream(self.device)
        if stream is None or stream in self._streams:
            return
        self._streams.append(stream)
        for tensor in (*self._batches, *(one for kept in self._kept for one in kept.values())):
            tensor.record_stream(stream)

    # --- Looking in; these wait for the device. ---

    def ram(self, ids: list[int]) -> torch.Tensor:
        """Returns copies of the RAMs, [n, 128] uint8."""
        self.check_idle("get_ram")
        begin = self._kernels[0].sizes["ram_at"]
        return self._shared["states"][ids, begin : begin + RAM_BYTES]

    def render(self, ids: list[int]) -> np.ndarray:
        """Returns the pictures on the screens, [n, height, 160, 3] uint8; see `NativeBatch`.

        Raises:
            ValueError: There are no pictures, or they differ in height.
        """
        self.check_idle("render")
        return self._on_host(ids or [0]).render(list(range(len(ids))))  # Which refuses none.

    def from_ale(self, ids: list[int], ale: Any) -> None:
        """Puts environments where a console of ale-py is; see `AtariEnv.from_ale`."""
        self.check_idle("from_ale")
        if not ids:
            return
        batch = self._on_host(ids)
        everyone = list(range(len(ids)))
        batch.from_ale(everyone, ale)
        self.restore(ids, batch.save(everyone))

    def _on_host(self, ids: list[int]) -> NativeBatch:
        """Returns a batch of the native library with these environments."""
        games = [self.game_of[i] for i in ids]
        batch = NativeBatch(games, len(ids), self.settings, 1, actions=self.actions)
        batch.restore(list(range(len(ids))), self.save(ids))
        return batch

    def save(self, ids: list[int]) -> torch.Tensor:
        """Returns the states of some environments, [n, n_bytes] uint8; see `NativeBatch`."""
        self.check_idle("get_state")
        saved = self._bytes(len(ids), self._state_bytes())
        self._per_state("rlb_save", ids, saved)
        states = torch.cat([self._bytes(len(ids), HEADER_BYTES), saved], dim=1)
        self.write_headers(ids, states)
        return states

    def restore(
        self, ids: list[int], states: torch.Tensor, seeds: np.ndarray | None = None
    ) -> None:
        """Writes states that `save`, here or on the CPU, returned; see `NativeBatch`."""
        self.check_idle("set_state")
        bodies = self._bodies(ids, states, self._state_bytes(), seeds).contiguous()
        with self.left_whole("set_state"):
            self._per_state("rlb_restore", ids, bodies)

    def _per_state(self, name: str, ids: list[int], bodies: torch.Tensor) -> None:
        if len(self._in_turn) == 1:  # Without a copy: of many environments these are gigabytes.
            self._run_on_states(name, self._kernels[0], self._batches[0], ids, bodies)
            return
        for i in range(len(self._in_turn)):
            rows = [row for row, number in enumerate(ids) if number % len(self._in_turn) == i]
            part = bodies[rows].contiguous()
            self._run_on_states(
                name, self._kernels[i], self._batches[i], [ids[row] for row in rows], part
            )
            if name == "rlb_save":  # What is restored is the caller's, and only read.
                bodies[rows] = part

    def _run_on_states(
        self,
        name: str,
        kernels: device_code.Kernels,
        batch: torch.Tensor,
        ids: Sequence[int],
        bodies: torch.Tensor,
    ) -> None:
        """Saves environments of a game, or restores them."""
        if not len(ids):
            return
        numbers = self.uploaded(np.array(ids, np.int32))
        arguments = _pointer(numbers), _pointer(bodies), np.int64(bodies.shape[1])
        kernels.launch(name, len(ids), _LOOK_THREADS, 0, _pointer(batch), *arguments)
        self._note_stream()

    def _state_bytes(self) -> int:
        sizes, ring = self._kernels[0].sizes, int(np.prod(self.shape[1:]))
        image = 0 if self.settings.is_ram else sizes["Image"]
        names = ("State", "Generators", "Mt19937", "Episode")
        return sum(sizes[name] for name in names) + 3 * image + ring

    def bytes_per_env(self) -> int:
        """Returns the bytes that an environment takes, its observation stack included."""
        self.check_open("bytes_per_env")
        per_env = sum(tensor.shape[1] for tensor in (*self._shared.values(), self._ring))
        results = sum(tensor.element_size() for tensor in self.results.values())
        return per_env + results + self._kernels[0].sizes["Log"]

    def check_open(self, where: str) -> None:
        """Checks that it is open.

        Raises:
            CallOrderError: It is closed.
        """
        if not self._is_open:
            raise CallOrderError(f"{where}: expected an open environment, got a closed one")

    def check_idle(self, where: str) -> None:
        """Waits for the device, and checks that nothing has gone wrong so far.

        Raises:
            CallOrderError: It is closed, or not whole; see `left_whole`.
            ValueError: There was an action that does not exist.
            RuntimeError: More was on a screen than there is memory for.
        """
        self.check_open(where)
        self._check_whole(where)
        self._check_errors()

    def _check_errors(self) -> None:
        lost, wrong = self._errors.tolist()
        self._errors.zero_()
        n = len(self.actions)
        of_actions = ValueError(
            f"action: expected numbers from 0 to {n - 1}, got others, some step before"
        )
        if lost:
            raise RuntimeError(
                "AtariEnv: expected screens that fit into the memory of a picture, got one that "
                "does not; observations since the last check may be wrong. Please report the game"
            ) from (of_actions if wrong else None)
        if wrong:
            raise of_actions


def _n_warps(device: torch.device, sizes: dict[str, int]) -> int:
    """Returns over how many warps environments are spread; 1 to fill each, where the CPU plays.

    They do not share a program in shared memory. Those for which that is too small would only run
    when others have ended.
    """
    if device.type == "cpu":
        return 1
    properties = torch.cuda.get_device_properties(device)
    # Older versions of PyTorch do not tell it.
    shared = getattr(properties, "shared_memory_per_multiprocessor", _LEAST_SHARED_BYTES)
    n_fit = shared // (sizes["NearMemory"] + _WARP * sizes["NearRAM"] + _BLOCK_BYTES)
    return max(1, min(_WARPS_AT_LEAST, n_fit)) * properties.multi_processor_count


def _current_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Returns PyTorch's current stream of a GPU; None where the CPU plays one."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def _pointer(tensor: torch.Tensor | None) -> np.uint64:
    return np.uint64(0 if tensor is None else tensor.data_ptr())
