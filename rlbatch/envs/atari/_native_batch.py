"""A batch of environments in the native library: jobs in, arrays out.

`AtariEnv` and `AtariVectorEnv` give it the shape that their users know.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import logging
import math
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlbatch._memory import free_memory
from rlbatch.envs.atari._batch import HEADER_BYTES, Batch
from rlbatch.envs.atari._options import (
    MOST_THREADS,
    GameSpec,
    KnownResets,
    NativeOptions,
    Settings,
    check_count,
    game_spec,
    native_options,
)
from rlbatch.envs.atari.build import usable_cores
from rlbatch.envs.atari.console_state import ale_state
from rlbatch.envs.atari.games import RAM_BYTES, SCREEN_WIDTH, Game
from rlbatch.envs.atari.native_library import check_size, load_library
from rlbatch.envs.atari.roms import read_rom
from rlbatch.errors import CallOrderError, ShapeError

_log = logging.getLogger(__name__)


class JobKind(enum.IntEnum):
    """What an environment is to do: `JobKind` in `native/host_batch.h`."""

    STEP = 0
    RESET = 1
    LOAD = 2
    STEP_THROUGH = 3
    LOOK = 4
    START_COUNT = 5


class Imported(enum.IntEnum):
    """What became of a console of ale-py: `Imported` in `native/host_batch.h`."""

    WHOLE = 0
    OF_ANOTHER_GAME = 1
    WITH_OTHER_PADDLES = 2


_JOB = np.dtype(
    [
        *((name, np.int32) for name in ("env", "kind", "action")),
        ("strength", np.float32),
        ("seed", np.uint32),
    ]
)

# In the order of `Outputs`; observations are apart.
_RESULTS = {
    **dict.fromkeys(("reward", "reward_raw", "lives", "after_lives", "frame_number"), np.int32),
    **dict.fromkeys(("episode_frame_number", "episode_length", "last_action"), np.int32),
    "episode_return": np.float64,
    **dict.fromkeys(("terminated", "truncated", "life_lost", "has_ended"), np.bool_),
}


class _Outputs(ctypes.Structure):
    _fields_ = [
        ("observations", ctypes.c_void_p),
        ("after_observations", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _RESULTS),
        ("has_all_after", ctypes.c_int32),
    ]


@functools.cache
def _library() -> ctypes.CDLL:
    """Returns the host library.

    Raises:
        BuildError: It is missing, or knows other structures than those here.
    """
    library = load_library()
    structures = {"GameSpec": GameSpec, "Options": NativeOptions, "KnownResets": KnownResets}
    for name, structure in {**structures, "Outputs": _Outputs}.items():
        check_size(library, name, ctypes.sizeof(structure))
    check_size(library, "Job", _JOB.itemsize)
    return library


class NativeBatch(Batch):
    """Environments that the threads of the native library step.

    It owns the threads and all memory of the environments until `close`, or until it is collected.

    Args:
        games: Their games; environment i plays `games[i % len(games)]`.
        n_envs: How many there are.
        settings: What is the same for all of them.
        num_threads: How many threads, of which the caller's is one while it waits for results; 0
            for one per core that this process may use.
        actions: Numbers of the actions that can be chosen; None for those of `games`.
        knows_all: Whether resets are known beforehand also where they depend on the timer or on
            a key: it takes up to a second per game. See NOTE [ known resets ] in `native/batch.h`.
            All threads find them, and end with that: the caller's alone steps.

    Attributes:
        results: [n_envs] per name, written by every job except for the observations; environment i
            has row i. They are written over by the next job. See NOTE [ results of a step that
            resets ] in `native/host_batch.h`.

    Raises:
        TypeError, ValueError: An argument, or an option for one of the games, is out of range.
        MemoryError: The environments do not fit in memory.
        RomError, BuildError: There is no ROM or no library.
    """

    def __init__(
        self,
        games: Sequence[Game],
        n_envs: int,
        settings: Settings,
        num_threads: int = 0,
        *,
        actions: tuple[int, ...] | None = None,
        knows_all: bool = False,
    ):
        check_count("num_threads", num_threads, 0, MOST_THREADS)
        super().__init__(games, n_envs, settings, actions)
        self._library = _library()
        n_finders = num_threads or usable_cores()
        n_threads = 1 if knows_all else min(n_finders, n_envs)
        self._check_memory(n_finders if knows_all else n_threads)
        self.results: dict[str, np.ndarray] = {
            name: np.zeros(n_envs, dtype) for name, dtype in _RESULTS.items()
        }
        self._jobs = np.zeros(n_envs, _JOB)
        self._all_ids = np.arange(n_envs, dtype=np.int32)
        addresses = {name: array.ctypes.data for name, array in self.results.items()}
        self._outputs = _Outputs(**addresses)
        self._in_use: Any = ()  # What the library writes to.
        self._handle = self._start(n_threads, n_finders, knows_all)
        self._lock = threading.Lock()  # The library has one caller at a time.
        self._made_in = os.getpid()
        arguments = self._library, self._handle, self._made_in
        self._finalizer = weakref.finalize(self, _free_at_last, self._lock, *arguments)

    def _check_memory(self, n_threads: int) -> None:
        """Checks that there is memory for what is taken at once: the library has no way back.

        Raises:
            MemoryError: There is less.
        """
        n_bytes = self._library.rlb_size_of(b"Slot") + math.prod(self.shape[1:])
        if not self.settings.is_ram:
            n_bytes += 2 * SCREEN_WIDTH * max(game.height for game in self.games)
        n_bytes = self.n_envs * n_bytes + n_threads * self._library.rlb_size_of(b"Scratch")
        free = free_memory()
        if free is not None and n_bytes > free:
            raise MemoryError(
                f"n_envs: expected environments that fit into {free:,} bytes of memory, got "
                f"{self.n_envs} that take {n_bytes:,} with num_threads={n_threads}"
            )

    def _start(self, n_threads: int, n_finders: int, knows_all: bool) -> int:
        games = self.games
        roms = [read_rom(game) for game in games]
        specs = [
            game_spec(game, len(rom), self.actions, knows_all)
            for game, rom in zip(games, roms, strict=True)
        ]
        game_of = [games.index(game) for game in self.game_of]
        handle = self._library.rlb_batch_new(
            self.n_envs,
            len(games),
            (GameSpec * len(games))(*specs),
            (ctypes.c_char_p * len(games))(*roms),
            (ctypes.c_int32 * self.n_envs)(*game_of),
            ctypes.byref(native_options(self.settings)),
            n_threads,
            n_finders,
        )
        if not handle:
            raise ValueError(f"AtariEnv: expected options that make sense, got {self.settings}")
        n_started = self._library.rlb_batch_threads(handle)
        if n_started < n_threads:
            _log.warning(
                "num_threads: expected %d, but the system allows no more than %d (ulimit -u); "
                "steps are slower", n_threads, n_started,
            )  # fmt: skip
        return handle

    def close(self) -> None:
        """Ends the threads and releases the memory.

        Raises:
            CallOrderError: Another thread is in the middle of a call.
        """
        with self._alone("close"):
            if self._finalizer.detach():
                _free(self._library, self._handle, self._made_in)

    def _alone(self, where: str) -> threading.Lock:
        """Returns what keeps other threads out, for a `with`.

        Of which Python makes sure that Ctrl-C does not leave it locked.

        Raises:
            CallOrderError: One is in a call.
        """
        if self._lock.locked():
            raise CallOrderError(f"{where}: expected one thread at a time, got a call of another")
        return self._lock

    # --- Jobs. ---

    def run(
        self,
        kind: JobKind | np.ndarray,
        observations: np.ndarray,
        after: np.ndarray | None = None,
        *,
        has_all_after: bool = False,
        **columns: Any,
    ) -> None:
        """Gives every environment a job, and waits for all of them.

        Args:
            kind: One for all, or one each.
            observations: [n_envs, ...] uint8, written.
            after: The same, for `STEP_THROUGH`: written with the observation before a reset, in
                the rows of environments that reset.
            has_all_after: Write all its rows.
            columns: `action` (places in `actions`), `strength` (of a paddle), `seed`.

        Raises:
            CallOrderError: It is closed, jobs are under way, or another thread is in a call.
        """
        with self._alone("run"):
            self.check_idle("run")
            self._point(observations, after, has_all_after)
            jobs = self._filled(self._all_ids, kind, columns)
            outputs = ctypes.byref(self._outputs)
            self._library.rlb_batch_run(self._handle, self.n_envs, jobs.ctypes.data, outputs)

    def send(
        self,
        ids: np.ndarray,
        kind: JobKind | np.ndarray,
        observations: np.ndarray,
        after: np.ndarray | None = None,
        **columns: Any,
    ) -> None:
        """Gives some environments, none of which has one, a job each; see `run`.

        Args:
            ids: [n] their numbers. `kind` and `columns` have one row for each of them.
            kind: See `run`.
            observations: [n_envs, ...] uint8, as `after`: written until the job is received.
            after: See `run`.
            columns: See `run`.

        Raises:
            CallOrderError: It is closed, or another thread is in a call.
        """
        with self._alone("send"):
            self.check_open("send")
            self._point(observations, after, False)
            jobs = self._filled(ids, kind, columns)
            self._in_use, self._sent_in = (observations, after), os.getpid()
            outputs = ctypes.byref(self._outputs)
            # The library copies the jobs.
            self._library.rlb_batch_send(self._handle, len(ids), jobs.ctypes.data, outputs)

    def recv(self, n: int) -> np.ndarray:
        """Waits for `n` of the jobs that were sent; returns who finished, [n] int32, in order.

        Raises:
            CallOrderError: It is closed, fewer jobs than that are under way, another thread is in a
                call, or this process was forked meanwhile.
        """
        with self._alone("recv"):
            self.check_open("recv")
            if n > self.n_pending:
                raise CallOrderError(f"recv: expected {n} jobs under way, got {self.n_pending}")
            if os.getpid() != self._sent_in:  # The threads that are at work are another's.
                raise CallOrderError(
                    "recv: expected the process that gave the environments their actions, got one "
                    "that was forked from it meanwhile"
                )
            ids = np.empty(n, np.int32)
            # By itself: after it Ctrl-C comes, which leaves all as if nobody had waited.
            self._library.rlb_batch_wait(self._handle, n)
            self._library.rlb_batch_recv(self._handle, n, ids.ctypes.data)
            return ids

    @property
    def n_pending(self) -> int:
        """Jobs that were sent and not received."""
        return self._library.rlb_batch_under_way(self._handle) if self._finalizer.alive else 0

    def _filled(
        self, ids: np.ndarray, kind: JobKind | np.ndarray, columns: dict[str, Any]
    ) -> np.ndarray:
        """Returns one job, a row, for each of these environments."""
        jobs = self._jobs[ids] if len(ids) < self.n_envs else self._jobs
        for name, values in {"env": ids, "kind": kind, "strength": 1, **columns}.items():
            jobs[name] = values
        return jobs

    def _point(
        self, observations: np.ndarray, after: np.ndarray | None, has_all_after: bool
    ) -> None:
        self._outputs.observations = self._address(observations)
        self._outputs.after_observations = None if after is None else self._address(after)
        self._outputs.has_all_after = has_all_after and after is not None

    def _address(self, array: np.ndarray) -> int:
        # The library writes there: an array of another form would be written past its end.
        form = array.shape == self.shape and array.dtype == np.uint8
        if not (form and array.flags.c_contiguous and array.flags.writeable):
            raise ShapeError(
                f"observations: expected {self.shape} uint8 in one piece, "
                f"got {array.shape} {array.dtype}"
            )
        return array.ctypes.data

    # --- Looking in, while no job is under way. ---

    def ram(self, ids: list[int]) -> torch.Tensor:
        """Returns copies of the RAMs, [n, 128] uint8."""
        out = np.empty((len(ids), RAM_BYTES), np.uint8)
        with self._alone("get_ram"):
            self.check_idle("get_ram")
            for row, number in zip(out, ids, strict=True):
                address = self._library.rlb_batch_ram(self._handle, number)
                ctypes.memmove(row.ctypes.data, address, RAM_BYTES)
        return torch.from_numpy(out)

    def render(self, ids: list[int]) -> np.ndarray:
        """Returns the pictures on the screens, [n, height, 160, 3] uint8.

        Raises:
            ValueError: There are no pictures, or they differ in height.
        """
        if self.settings.is_ram:
            raise ValueError(
                "render: expected obs_type pixels or rgb, got ram, which draws nothing"
            )
        if not ids:
            raise ValueError("ids: expected at least one environment, got none")
        with self._alone("render"):
            self.check_idle("render")
            heights = {self._library.rlb_batch_height(self._handle, number) for number in ids}
            if len(heights) != 1:
                raise ValueError(f"render: expected screens of one height, got {sorted(heights)}")
            out = np.empty((len(ids), heights.pop(), SCREEN_WIDTH, 3), np.uint8)
            for row, number in zip(out, ids, strict=True):
                self._library.rlb_batch_rgb(self._handle, number, row.ctypes.data)
        return out

    def bytes_per_env(self) -> int:
        """Returns the bytes that the largest environment takes now."""
        with self._alone("bytes_per_env"):
            self.check_idle("bytes_per_env")
            return self._library.rlb_batch_bytes(self._handle)

    # --- States. ---

    def save(self, ids: list[int]) -> torch.Tensor:
        """Returns the states of some environments, [n, n_bytes] uint8."""
        with self._alone("get_state"):
            self.check_idle("get_state")
            n_bytes = self._library.rlb_batch_state_size(self._handle)
            rows = np.empty((len(ids), HEADER_BYTES + n_bytes), np.uint8)
            for row, number in zip(rows, ids, strict=True):
                self._library.rlb_batch_save(self._handle, number, row[HEADER_BYTES:].ctypes.data)
        states = torch.from_numpy(rows)
        self.write_headers(ids, states)
        return states

    def restore(
        self, ids: list[int], states: torch.Tensor, seeds: np.ndarray | None = None
    ) -> None:
        """Writes states that `save` returned, for the same games and options.

        Args:
            ids: Where to.
            states: One each.
            seeds: Of the random streams from here on, one each; None: those of the states go on.

        Raises:
            ShapeError: They are not [len(ids), n_bytes] uint8.
            ValueError: One is damaged, or of another game, other options or another version.
        """
        with self._alone("set_state"):
            self.check_idle("set_state")
            n_bytes = self._library.rlb_batch_state_size(self._handle)
            bodies = self._bodies(ids, states, n_bytes, seeds).numpy()
            for body, number in zip(bodies, ids, strict=True):
                self._library.rlb_batch_restore(self._handle, number, body.ctypes.data)

    def power_on(self, game: int) -> bytes:
        """Returns where power-on of a game leads to: `PowerOn` in `native/batch.h`."""
        described = ctypes.create_string_buffer(self._library.rlb_size_of(b"PowerOn"))
        self._library.rlb_batch_power_on(self._handle, game, described)
        return described.raw

    def known_resets(self, game: int) -> KnownResets:
        """Returns where the resets of a game lead to.

        See NOTE [ known resets ] in `native/batch.h`.
        """
        described = KnownResets()
        self._library.rlb_batch_known_resets(self._handle, game, ctypes.byref(described))
        return described

    def known_states(self, game: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the consoles that the resets of a game lead to.

        Returns:
            [n_states, n_bytes] uint8; and [n_states] int32, of each the first that shows the same.
        """
        n = self.known_resets(game).n_states
        states = np.empty((n, self._library.rlb_size_of(b"State")), np.uint8)
        firsts = np.empty(n, np.int32)
        self._library.rlb_batch_list_known(
            self._handle, game, states.ctypes.data, firsts.ctypes.data
        )
        return states, firsts

    def save_known(self, game: int, state: int, row: np.ndarray) -> None:
        """Writes an environment that the resets of a game lead to.

        Args:
            game: Which game.
            state: Which of its states.
            row: [n_bytes] uint8, as `save` returns it, but without a header.
        """
        self._library.rlb_batch_save_known(self._handle, game, state, row.ctypes.data)

    def from_ale(self, ids: list[int], ale: Any) -> None:
        """Puts environments where a console of ale-py is; see `AtariEnv.from_ale`.

        Raises:
            CallOrderError: A job is under way, it is closed, or another thread is in a call.
            ValueError: `ale` has another game, or plays it in another mode or difficulty, or with
                other paddles.
        """
        found = {}
        for game in dict.fromkeys(self.game_of[number] for number in ids):
            found[game] = ale_state(ale, game.md5, (game.height, SCREEN_WIDTH))
            self._check_mode(game, ale.cloneState())
        with self._alone("from_ale"):
            self.check_idle("from_ale")
            for number in ids:
                self._import(number, *found[self.game_of[number]])

    def _import(self, number: int, state: bytes, screen: np.ndarray) -> None:
        game = self.game_of[number]
        arguments = game.md5.encode(), state, len(state), screen.ctypes.data
        imported = self._library.rlb_batch_import(self._handle, number, *arguments)
        if imported == Imported.OF_ANOTHER_GAME:
            raise ValueError(f"ale: expected {game.name}, got another game")
        if imported == Imported.WITH_OTHER_PADDLES:
            raise ValueError(
                f"ale: expected paddles of up to {game.paddle_max} ohms, as of {game.name}, got "
                "others, maybe of a game that was loaded before; take a new interface"
            )

    def _check_mode(self, game: Game, state: Any) -> None:
        expected = game.mode, game.difficulty
        found = state.getCurrentMode(), state.getDifficulty()
        if found != expected:  # Its next episodes would be others than those of the rest.
            raise ValueError(
                f"ale: expected mode {expected[0]} and difficulty {expected[1]}, as of the "
                f"environments, got mode {found[0]} and difficulty {found[1]}"
            )

    def check_open(self, where: str) -> None:
        """Checks that it is open.

        Raises:
            CallOrderError: It is closed.
        """
        if not self._finalizer.alive:
            raise CallOrderError(f"{where}: expected an open environment, got a closed one")

    def check_idle(self, where: str) -> None:
        """Checks that no job is under way.

        Raises:
            CallOrderError: One is, or it is closed.
        """
        self.check_open(where)
        if n_pending := self.n_pending:
            raise CallOrderError(
                f"{where}: expected no steps under way, got {n_pending}; call recv first"
            )


def _free(library: Any, handle: int, process: int) -> None:
    if os.getpid() == process:  # A forked child has not the threads that this would wait for.
        library.rlb_batch_free(handle)


def _free_at_last(lock: threading.Lock, library: Any, handle: int, process: int) -> None:
    # When the interpreter ends a daemon thread may be in a call; then the system frees it.
    if lock.acquire(blocking=False):
        try:
            _free(library, handle, process)
        finally:
            lock.release()
