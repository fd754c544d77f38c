"""Kernels from files with code for a GPU, and environments that run on them."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import re
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from rlbatch.envs.atari import device_code, find_game
from rlbatch.envs.atari.games import Game
from scripts.elf import Elf
from scripts.sass.decoder import Decoder, SassError
from scripts.sass.player import Instruction, load_player

ARCHITECTURE = "sm_90"


class Constants(NamedTuple):
    """Where a kernel finds what it begins with in constant bank 0; -1 for nowhere."""

    parameters: int
    n_threads: int
    shared: int
    local: int
    stack: int


_AMPERE = Constants(0x160, 0x0, 0x18, 0x20, 0x28)
# Of the architectures that are known here.
ARCHITECTURES = {
    **dict.fromkeys(("sm_75", "sm_80", "sm_86"), _AMPERE),
    "sm_90": _AMPERE._replace(parameters=0x210, shared=-1),
    **dict.fromkeys(("sm_100", "sm_120"), Constants(0x380, 0x360, -1, 0x2F8, 0x37C)),
}

# First-level cache of a multiprocessor, in KB, of which shared memory takes one of these parts.
# Source: CUDA C++ Programming Guide, chapter "Compute Capabilities", 9.0, "Shared Memory"; a block
# takes 1 KB more than it asks for.
_CACHE_KB, _PARTS_KB = 256, (0, 8, 16, 32, 64, 100, 132, 164, 196, 228)
_LINE = 128

_CONSTANTS = 0x400


def _disassembled(cubin: Path) -> str:
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise SassError(f"{error}; pip install nvidia-cuda-nvdisasm") from error
    program = next(file.locate() for file in files if file.name == "nvdisasm")
    os.chmod(program, 0o755)  # An installer may have left that out.
    command = [str(program), "-c", "-hex", str(cubin)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SassError(f"{' '.join(command)}: expected a disassembly, got {result.stderr}")
    return result.stdout


def _readable(name: str) -> str:
    """Returns the names in a mangled one, without those of the namespaces and of templates."""
    parts, rest = [], name.partition("_ZN")[2].lstrip("K")
    while match := re.match(r"\d+", rest):
        end = match.end() + int(match[0])
        parts.append(rest[match.end() : end])
        rest = rest[end:]
    return "::".join(parts[2:]) or name


class Program:
    """The kernels of a file, decoded.

    Args:
        cubin: The file, of code for one of `ARCHITECTURES`.

    Attributes:
        code: By kernel: its instructions.
        functions: By kernel: names and first instructions of itself and of what it calls, in order.

    Raises:
        SassError: There is no disassembler, or something in the code is not known.
    """

    def __init__(self, cubin: Path):
        self._elf = Elf(cubin.read_bytes())
        self.code: dict[str, ctypes.Array[Instruction]] = {}
        self.functions: dict[str, list[tuple[str, int]]] = {}
        for part in re.split(r"\n\s*\.section\s+\.text\.", _disassembled(cubin))[1:]:
            self._add(re.match(r"\w+", part)[0], part)  # type: ignore[index]
        self._globals = np.frombuffer(self._elf.section(".nv.global.init") + bytes(64), np.uint8)
        self.addresses = self._relocated()

    def _add(self, kernel: str, text: str) -> None:
        lines: list[tuple[str, int]] = []
        upper: list[int] = []
        labels: dict[str, int] = {}
        for line in text.splitlines():
            if match := re.match(r"([.$\w]+):$", line.strip()):
                labels[match[1]] = len(lines)
            elif match := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?);\s*/\* 0x(\w+) \*/", line):
                lines.append((match[1], int(match[2], 16)))
            elif match := re.match(r"\s*/\* 0x(\w+) \*/$", line):
                upper.append(int(match[1], 16))
        self.code[kernel] = (Instruction * len(lines))(
            *(
                Decoder(line, low, high, labels).decode()
                for (line, low), high in zip(lines, upper, strict=True)
            )
        )
        names = [name for name in labels if name == kernel or name.startswith("$")]
        self.functions[kernel] = [(_readable(name), labels[name]) for name in names]

    def _relocated(self) -> np.ndarray:
        """Returns constant bank 4: the addresses of global variables."""
        bank = bytearray(self._elf.section(".nv.constant4") + bytes(16))
        symbols = self._elf.symbols()
        entries = list(struct.iter_unpack("<QQq", self._elf.section(".rela.nv.constant4")))
        for offset, what in struct.iter_unpack("<QQ", self._elf.section(".rel.nv.constant4")):
            entries.append((offset, what, *struct.unpack_from("<q", bank, offset)))
        for offset, what, more in entries:
            address = self._globals.ctypes.data + symbols[what >> 32].value + more
            struct.pack_into("<Q", bank, offset, address)
        return np.frombuffer(bytes(bank), np.uint8)

    def tables(self, kernel: str) -> np.ndarray:
        """Returns constant bank 2 of a kernel: where indirect jumps go."""
        return np.frombuffer(self._elf.section(f".nv.constant2.{kernel}") + bytes(16), np.uint8)


def _cache_lines(n_threads: int, n_shared: int, n_warps: int) -> int:
    """Returns the lines of the cache that each of a multiprocessor's warps has, in equal shares."""
    blocks = max(1, n_warps // -(-n_threads // 32))
    taken = min(part for part in _PARTS_KB if part >= min(blocks * (n_shared / 1024 + 1), 228))
    return 1024 * (_CACHE_KB - taken) // (_LINE * n_warps)


class SassKernels:
    """The kernels of a game, played on a CPU; as `device_code.Kernels`.

    Args:
        game: The game.
        seed: See `played`.
        n_warps: See `played`.
        architecture: See `played`.

    Attributes:
        program: The code.
        sizes: See `device_code.Kernels`.
    """

    def __init__(self, game: Game, seed: int, n_warps: int, architecture: str):
        self._seed, self._n_warps, self._places = seed, n_warps, ARCHITECTURES[architecture]
        self.program = Program(device_code.cubin_path(device_code.defines(game), architecture))
        self.forget()
        self.sizes = device_code.sizes_of(self, torch.device("cpu"))

    def forget(self) -> None:
        """Begins to count anew."""
        self._counts = {
            name: np.zeros((len(code), 4), np.uint64) for name, code in self.program.code.items()
        }

    def counts(self, kernel: str) -> np.ndarray:
        """Returns [instructions, 4] int64: issue slots, threads in them, cycles, lines fetched."""
        return self._counts[kernel].astype(np.int64)

    def shares(self, kernel: str) -> dict[str, float]:
        """Returns the functions of a kernel and their shares of its cycles, the largest first."""
        cycles, found = self.counts(kernel)[:, 2], dict[str, float]()
        functions = self.program.functions[kernel]
        ends = [*(begin for _, begin in functions[1:]), len(cycles)]
        for (name, begin), end in zip(functions, ends, strict=True):
            found[name] = found.get(name, 0) + cycles[begin:end].sum() / cycles.sum()
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def launch(
        self, name: str, n_blocks: int, n_threads: int, n_shared: int, *arguments: np.generic
    ) -> None:
        """Plays a kernel."""
        constants = np.zeros(_CONSTANTS, np.uint8)
        at, *places = self._places
        for argument in arguments:
            raw = np.frombuffer(argument.tobytes(), np.uint8)
            at = -(-at // len(raw)) * len(raw)
            constants[at : at + len(raw)] = raw
            at += len(raw)
        player = load_player()
        arrays = (
            constants,
            self.program.tables(name),
            self.program.addresses,
            player.latencies,
            self._counts[name],
            np.array(places, np.int32),
        )
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in arrays)
        shape = n_blocks, n_threads, n_shared, _cache_lines(n_threads, n_shared, self._n_warps)
        player.play(self.program.code[name], *pointers, *shape, self._seed)


@contextlib.contextmanager
def played(
    seed: int = 0, n_warps: int = 8, architecture: str = ARCHITECTURE
) -> Iterator[Callable[[str], SassKernels]]:
    """Lets environments on the CPU run on kernels that are played; gives those of a game.

    Args:
        seed: If not 0, threads of a warp that have parted take turns at random, so that it shows
            where one of them relies on what another has done; counts mean less then.
        n_warps: How many share the first-level cache of a multiprocessor.
        architecture: One of `ARCHITECTURES`; what is counted is a model of the H100's alone.
    """
    found: dict[tuple[str, ...], SassKernels] = {}

    def kernels_of(game: Game) -> SassKernels:
        key = device_code.defines(game)
        if key not in found:
            found[key] = SassKernels(game, seed, n_warps, architecture)
        return found[key]

    before, variable = device_code.device_kernels, os.environ.get(device_code.GRID_VARIABLE)
    device_code.device_kernels = lambda games, device: [kernels_of(game) for game in games]
    os.environ[device_code.GRID_VARIABLE] = "1"
    try:
        yield lambda name: kernels_of(find_game(name))
    finally:
        device_code.device_kernels = before
        if variable is None:
            del os.environ[device_code.GRID_VARIABLE]
        else:
            os.environ[device_code.GRID_VARIABLE] = variable
