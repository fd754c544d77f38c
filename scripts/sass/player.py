"""The player's library, its instructions and its model of time."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from pathlib import Path

import numpy as np

from rlbatch.envs.atari import build

# Cycles until a result can be used, assumed; of loads, if the first-level cache answers. Operations
# that are not here have a fixed latency, which the compiler has encoded as a stall; and how long a
# source register is read, and how long the second-level cache takes to answer.
LATENCIES = {
    **dict.fromkeys(("LD", "LDL"), 36),
    **dict.fromkeys(("LDS", "LDC"), 30),
    **dict.fromkeys(("REDUX", "SHFL", "S2R"), 24),
    **dict.fromkeys(("I2F_64", "F2I_64", "F2F_64", "MUFU_RCP", "MUFU_RCP64"), 20),
    **dict.fromkeys(("I2F", "F2I", "FLO", "POPC", "BREV"), 16),
    **dict.fromkeys(("R2UR", "VOTE", "BMOV_GET", "BMOV_SET", "RET", "BRX"), 12),
    **dict.fromkeys(("ST", "STL", "STS", "DADD", "DMUL", "DFMA", "DSETP"), 10),
    **dict.fromkeys(("BRA", "CALL"), 8),
}
_FIXED_LATENCY, _READ_LATENCY, MISS_LATENCY = 5, 12, 250

_FOLDER = Path(__file__).parent


class Source(ctypes.Structure):
    """What an instruction reads."""

    _fields_ = [
        *((name, ctypes.c_uint8) for name in ("kind", "negated", "inverted", "absolute")),
        *((name, ctypes.c_uint32) for name in ("value", "bank")),
    ]


class Predicate(ctypes.Structure):
    """A truth value of every thread."""

    _fields_ = [("index", ctypes.c_uint8), ("negated", ctypes.c_uint8)]


class Instruction(ctypes.Structure):
    """An instruction, as in `machine.h`."""

    _fields_ = [
        ("operation", ctypes.c_uint16),
        ("guard", Predicate),
        *((name, ctypes.c_uint8) for name in ("target", "target_is_uniform", "n_predicates")),
        ("predicates", ctypes.c_uint8 * 2),
        *((name, ctypes.c_uint8) for name in ("n_sources", "n_conditions", "comparison", "size")),
        *((name, ctypes.c_uint8) for name in ("is_signed", "padding")),
        ("sources", Source * 4),
        ("conditions", Predicate * 3),
        *((name, ctypes.c_uint32) for name in ("flags", "table", "second_table")),
        *((name, ctypes.c_int32) for name in ("offset", "to", "immediate")),
        *((name, ctypes.c_uint8) for name in ("stall", "write_barrier", "read_barrier", "waits")),
    ]


class Player:
    """The player, compiled once per process.

    Attributes:
        play: Plays a kernel; see `player.cpp`.
        operations: Numbers of the operations, by name.
        flags: Bits of the flags, by name.
        latencies: [operations + 2] uint16, cycles: see `LATENCIES`.
    """

    def __init__(self) -> None:
        sources = sorted([*_FOLDER.glob("*.h"), _FOLDER / "player.cpp"])
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()[:16]
        path = build.cache_folder() / f"sass-{digest}.so"
        if not path.exists():
            build.compile_library(path, flags=("-frounding-math",), source=_FOLDER / "player.cpp")
        library = ctypes.CDLL(str(path))
        library.sass_operations.restype = ctypes.c_char_p
        library.sass_flags.restype = ctypes.c_char_p
        library.sass_play.restype = None
        self.play = library.sass_play
        names = library.sass_operations().decode().split()
        self.operations = {name: k for k, name in enumerate(names)}
        flags = library.sass_flags().decode().split()
        self.flags = {name: 1 << k for k, name in enumerate(flags)}
        latencies = [LATENCIES.get(name, _FIXED_LATENCY) for name in names]
        self.latencies = np.array([*latencies, _READ_LATENCY, MISS_LATENCY], np.uint16)


@functools.cache
def load_player() -> Player:
    """Returns the player."""
    return Player()
