"""What one console was at one moment, as bytes that pickle and compare."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np


class ConsoleState:
    """A console at one moment, as `Console.cloneState` returns it: bytes that pickle and compare.

    Args:
        serialized: What `serialize` returned.

    Raises:
        ValueError: These are no such bytes, or they have been changed.
        TypeError: They are no bytes at all.

    Example:
        >>> from rlbatch.envs.atari import Console
        >>> console = Console("pong")
        >>> state = console.cloneState()
        >>> _ = console.act(3)
        >>> console.restoreState(ConsoleState(state.serialize()))
        >>> console.getFrameNumber() == state.getFrameNumber()
        True
    """

    _HEADER = struct.Struct("<8s16s4iI")  # Mark, MD5, four counters as below, checksum.
    _MARK = b"RLBATCH1"

    def __init__(self, serialized: bytes):
        if not isinstance(serialized, (bytes, bytearray, memoryview)):
            raise TypeError(f"serialized: expected bytes, got {serialized!r}")
        serialized = bytes(serialized)
        header = serialized[: self._HEADER.size]
        if len(header) < self._HEADER.size or not header.startswith(self._MARK):
            raise ValueError(
                f"serialized: expected a serialized ConsoleState, got {len(serialized)} other bytes"
            )
        _, self._md5, *counters, checksum = self._HEADER.unpack(header)
        self._frame_number, self._episode_frame_number, self._mode, self._difficulty = counters
        self._serialized = serialized
        found = self._checksum(self._serialized)
        if found != checksum:
            raise ValueError(f"serialized: expected checksum {checksum:08x}, got {found:08x}")

    @classmethod
    def pack(cls, md5: str, counters: tuple[int, int, int, int], data: bytes) -> ConsoleState:
        """Returns the state made of the native code's bytes.

        Args:
            md5: MD5 of the ROM, 32 hexadecimal digits.
            counters: Frame number, episode's frame number, mode, difficulty.
            data: What `rlb_console_save` wrote.
        """
        fields = (cls._MARK, bytes.fromhex(md5), *counters)
        checksum = cls._checksum(cls._HEADER.pack(*fields, 0) + data)
        return cls(cls._HEADER.pack(*fields, checksum) + data)

    @classmethod
    def _checksum(cls, serialized: bytes) -> int:
        # Of everything but the checksum itself, which is last in the header.
        start = zlib.crc32(serialized[: cls._HEADER.size - 4])
        return zlib.crc32(serialized[cls._HEADER.size :], start)

    @property
    def md5(self) -> str:
        """MD5 of the ROM, 32 hexadecimal digits."""
        return self._md5.hex()

    @property
    def data(self) -> bytes:
        """The native code's bytes."""
        return self._serialized[self._HEADER.size :]

    def serialize(self) -> bytes:
        """Returns the state as bytes, from which `ConsoleState` makes an equal one."""
        return self._serialized

    def getFrameNumber(self) -> int:
        """Returns the frames since the ROM was loaded."""
        return self._frame_number

    def getEpisodeFrameNumber(self) -> int:
        """Returns the frames since the last reset."""
        return self._episode_frame_number

    def getCurrentMode(self) -> int:
        """Returns the game's mode."""
        return self._mode

    def getDifficulty(self) -> int:
        """Returns the game's difficulty."""
        return self._difficulty

    def equals(self, other: ConsoleState) -> bool:
        """Returns whether both are the same state of the same game."""
        return self == other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsoleState):
            return NotImplemented
        return self._serialized == other._serialized

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple:
        return ConsoleState, (self._serialized,)

    def __repr__(self) -> str:
        return f"ConsoleState({self.md5}, frame {self._frame_number}, {len(self.data)} bytes)"


def ale_state(ale: Any, md5: str, dims: tuple[int, int]) -> tuple[bytes, np.ndarray]:
    """Returns the state of a console of ale-py, and its screen.

    Args:
        ale: An `ale_py.ALEInterface`.
        md5: MD5 of the ROM that it should have.
        dims: Height and width of that game's screen.

    Returns:
        The bytes that ale-py serializes, random numbers included, and palette indices, `dims`
        uint8.

    Raises:
        ValueError: The screen has another size, or there is no ROM.
        TypeError: `ale` is something else.
    """
    if not any(base.__module__.startswith("ale_py") for base in type(ale).__mro__):
        raise TypeError(f"ale: expected an ale_py.ALEInterface, got {ale!r}")
    try:
        ale.getLegalActionSet()  # Without a ROM the screen would end the process.
    except RuntimeError as error:
        raise ValueError(f"ale: expected the ROM {md5}, got none") from error
    screen = np.ascontiguousarray(ale.getScreen(), np.uint8)
    if screen.shape != dims:
        raise ValueError(f"ale: expected the ROM {md5}, screen {dims}, got screen {screen.shape}")
    return ale.cloneState(include_rng=True).serialize(), screen
