"""One console behind the method names of `ale_py.ALEInterface`: for scripts that drive one game.

The methods mean what they mean in ale-py 0.12.1, so a script changes its import and no more:

    from rlbatch.envs.atari import Console

    console = Console()
    console.setInt("random_seed", 1)
    console.loadROM("pong")  # Or a path, or the content of a file.
    while not console.game_over():
        reward = console.act(console.getMinimalActionSet()[0])

Where ale-py ends the process or runs into undefined memory (no such file, no ROM loaded, frame
skips below 1), there is an error. Known to differ are:

- `restoreState` brings back which action sticky actions repeat; in ale-py that stays as it is.
- What a reset plays to begin a game (in berzerk, for one) takes one frame per act here; in ale-py
  `frame_skip` and the limit of an episode apply to it.
- With `truncate_on_loss_of_life` the lives are compared with those that the game's rule begins
  with, as in ale-py: amidar, bank_heist, demon_attack and turmoil are truncated from the first
  frame on, mario_bros never. For atlantis2 ale-py has no such number and compares with anything.
- After `restoreState`, `getScreen` is the picture of that state; in ale-py it is the one before.
- After `restoreState` the frame goes on that was under way when the state was saved, if one was, as
  after some resets of qbert and tetris and while tic_tac_toe_3d thinks; in ale-py it is the one
  that was under way when it is restored. In miniature_golf `restoreState` brings back what the
  next reward is made from, which ale-py does not save.
- In yars_revenge some pixels of the frame after `restoreState`, and in amidar, koolaid and trondead
  if the state is the one that a reset ends with: here they are those of a console that went on. A
  program that had stopped at an illegal instruction goes on after `restoreState`; in ale-py it does
  not.
- Of double_dunk, which frames a reset plays where sticky actions have a probability over 0.99.
"""

from __future__ import annotations

import ctypes
import enum
import logging
import operator
import os
import struct
import time
import weakref
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from rlbatch._checks import as_float
from rlbatch.envs.atari._options import MOST_STRENGTH
from rlbatch.envs.atari.console_settings import DEFAULTS, INT32, Setting, as_stored, check_setting
from rlbatch.envs.atari.console_state import ConsoleState, ale_state
from rlbatch.envs.atari.games import (
    ACTIONS,
    GAMES,
    PADDLE_MAX,
    RAM_BYTES,
    SCREEN_WIDTH,
    Game,
)
from rlbatch.envs.atari.native_library import console_config, load_library
from rlbatch.envs.atari.roms import RomLike, identify, open_rom, rom_content
from rlbatch.errors import CallOrderError, DtypeMismatchError, ShapeError

_log = logging.getLogger(__name__)

Action = enum.IntEnum("Action", ACTIONS, start=0)  # type: ignore[misc]
Action.__doc__ = "The 18 actions by ALE's names and numbers."


class _Field(enum.IntEnum):
    """What `rlb_console_get` and `rlb_console_set` count from 0."""

    repeat_action_probability = 0
    frame_skip = 1
    max_num_frames_per_episode = 2
    truncate_on_loss_of_life = 3
    reward_min = 4
    reward_max = 5
    mode = 6
    difficulty = 7
    lives = 8
    terminal = 9
    truncated = 10
    frame_number = 11
    episode_frame_number = 12
    height = 13


# Settings that the native code keeps under the same name.
_NATIVE_SETTINGS = [field for field in _Field if field <= _Field.reward_max]


class Console:
    """One Atari 2600 with one game, equal to ale-py's, frame by frame.

    Settings (`setInt` and so on) are kept and come into force with the next `loadROM`, as in
    ale-py; mode and difficulty are properties of the game and go back to their defaults there.
    A console holds one to three hundred KiB of native memory, which go when it does. It belongs to
    one thread at a time.

    Args:
        game: Loaded at once, if given; see `loadROM`.

    Example:
        >>> console = Console("pong")
        >>> reward = sum(console.act(Action.NOOP) for _ in range(600))
        >>> reward, console.getScreenRGB().shape, console.game_over()
        (-3, (210, 160, 3), False)
    """

    def __init__(self, game: RomLike | None = None):
        self._settings = dict(DEFAULTS)
        self._game: Game | None = None
        self._rom = b""
        self._handle: int | None = None
        self._library: Any = None
        self._free: Any = None
        if game is not None:
            self.loadROM(game)

    # Settings

    def getInt(self, key: str) -> int:
        """Returns a setting as an integer, 0 for a text; -1 if there is none of that name."""
        value = self._settings.get(key, -1)
        return int(value) if not isinstance(value, str) else 0

    def getFloat(self, key: str) -> float:
        """Returns a setting as a 32-bit number, 0 for a text; -1 if there is none of that name."""
        value = self._settings.get(key, -1.0)
        return float(np.float32(value)) if not isinstance(value, str) else 0.0

    def getBool(self, key: str) -> bool:
        """Returns whether a setting is on; False if there is none of that name."""
        return self._settings.get(key, False) in (True, "1")

    def getString(self, key: str) -> str:
        """Returns a setting as text; empty if there is none of that name."""
        value = self._settings.get(key, "")
        return value if isinstance(value, str) else f"{value:g}" if value % 1 else str(int(value))

    def setInt(self, key: str, value: int) -> None:
        """Sets an integer, for the next `loadROM`.

        Args:
            key: `random_seed` (-1: the time of day), `system_random_seed`, `frame_skip`,
                `max_num_frames_per_episode` (0: no limit), `reward_min`, `reward_max` or
                `paddle_max`.
            value: 32 bits with a sign.

        Raises:
            KeyError: No setting of that name is an integer.
            TypeError: `value` is not an integer.
            ValueError: It is out of range, or this setting cannot be changed.
        """
        value = _number(key, value)
        if value not in INT32:
            raise ValueError(f"{key}: expected a 32-bit integer, got {value}")
        if key == "frame_skip" and value < 1:
            raise ValueError(f"{key}: expected at least 1, got {value}")
        self._set(key, value)

    def setFloat(self, key: str, value: float) -> None:
        """Sets a number, for the next `loadROM`.

        Args:
            key: `repeat_action_probability`.
            value: In [0, 1]; rounded to 32 bits and six digits.

        Raises:
            KeyError: No setting of that name is such a number.
            TypeError: `value` is not a number.
            ValueError: It is out of range.
        """
        value = as_stored(as_float(key, value))
        if not 0 <= value <= 1:
            raise ValueError(f"{key}: expected a number in [0, 1], got {value}")
        self._set(key, value)

    def setBool(self, key: str, value: bool) -> None:
        """Switches a setting on or off, for the next `loadROM`.

        Args:
            key: `truncate_on_loss_of_life`; others exist, but cannot be switched on.
            value: Whether it is to be on.

        Raises:
            KeyError: No setting of that name can be on or off.
            TypeError: `value` is not a bool.
            ValueError: This setting cannot be changed.
        """
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{key}: expected a bool, got {value!r}")
        self._set(key, bool(value))

    def setString(self, key: str, value: str) -> None:
        """Sets a text; there is none that has an effect here.

        Raises:
            KeyError: No setting of that name is a text.
            TypeError: `value` is not a string.
            ValueError: This setting cannot be changed.
        """
        if not isinstance(value, str):
            raise TypeError(f"{key}: expected a str, got {value!r}")
        self._set(key, value)

    def _set(self, key: str, value: Setting) -> None:
        check_setting(key, value)
        self._settings[key] = value

    @staticmethod
    def setLoggerMode(mode: int) -> None:
        """Sets what is logged.

        Args:
            mode: 0 everything, 1 warnings and errors, 2 errors; or ale-py's `LoggerMode`.

        Raises:
            TypeError: It is neither.
            ValueError: There is no such mode.
        """
        levels = (logging.INFO, logging.WARNING, logging.ERROR)
        number = _number("mode", mode)
        if not 0 <= number < len(levels):
            raise ValueError(f"mode: expected 0 to {len(levels) - 1}, got {number}")
        logging.getLogger("rlbatch.envs.atari").setLevel(levels[number])

    def __reduce__(self) -> Any:
        raise TypeError(
            "Console: expected no copy of it, whose memory is native, got copy or pickle; "
            "cloneSystemState and restoreSystemState carry the game over"
        )

    # The game

    @staticmethod
    def isSupportedROM(rom: RomLike) -> str | None:
        """Returns the name of the game whose ROM this file is, going by its MD5; None if of none.

        Raises:
            RomError: It cannot be read.
        """
        game = identify(rom_content(rom)[0])
        return game.name if game else None

    def loadROM(self, rom: RomLike, *, rule: str | None = None) -> None:
        """Puts in a cartridge, switches the console on and resets the game.

        A known MD5 decides which game it is. Anything else runs as well, even random bytes, with
        the scoring of the game that `rule` or the name of the file says; all that is not scoring
        has defaults then, and the television format is detected.

        Args:
            rom: A path; the name of a game, to take the file that ale-py brings; or the bytes.
            rule: Whose scoring an unknown ROM gets.

        Raises:
            RomError: There is no such file, it is no cartridge, or nothing says which game it is.
            ValueError: There is no such game, or `rule` names another one than the MD5.
            BuildError: There is neither a native library nor a compiler to make it.
        """
        content, game = open_rom(rom, rule)
        library = load_library()
        settings = self._settings
        # ALE keeps what two of the games set here, and the next game plays with it.
        if game.paddle_max != PADDLE_MAX:
            settings["paddle_max"] = game.paddle_max
        paddle_max = self.getInt("paddle_max")
        if paddle_max < 0:
            paddle_max = game.paddle_max
        config = console_config(
            game,
            len(content),
            self.getInt("system_random_seed") % 2**32,
            paddle_max,
            detect_format=game.md5 != GAMES[game.name].md5,
        )
        handle = library.rlb_console_new(content, ctypes.byref(config))
        if not handle:
            raise ValueError(f"{game.name}: expected a configuration in range, got one that is not")
        if self._free is not None:
            self._free()
        self._library, self._handle, self._game, self._rom = library, handle, game, content
        self._free = weakref.finalize(self, library.rlb_console_free, handle)
        self._free.atexit = False  # A daemon thread may be in a call then.
        for field in _NATIVE_SETTINGS:
            library.rlb_console_set(handle, field, float(settings[field.name]))
        library.rlb_console_set(handle, _Field.mode, float(game.modes[0]))
        seed = self.getInt("random_seed")
        library.rlb_console_load(handle, (int(time.time()) if seed == -1 else seed) % 2**32)

    def reset_game(self) -> None:
        """Starts the next episode."""
        self._library_for("reset_game").rlb_console_reset(self._handle)

    def act(self, action: int, paddle_strength: float = 1.0) -> int:
        """Plays `frame_skip` frames with one action; none if the game is over.

        Args:
            action: Number of an action, whether the game knows it or not; not a place in
                `getMinimalActionSet`.
            paddle_strength: How far a paddle is turned, as a share of the most in a frame.

        Returns:
            The sum of the rewards, between the settings `reward_min` and `reward_max`.

        Raises:
            TypeError: `action` is not an integer, or the strength not a number.
            ValueError: There is no such action, or the strength is absurd.
        """
        library = self._library_for("act")
        action = _number("action", action)
        if not 0 <= action < len(ACTIONS):
            raise ValueError(f"action: expected 0 to {len(ACTIONS) - 1}, got {action}")
        paddle_strength = as_float("paddle_strength", paddle_strength)
        if not abs(paddle_strength) <= MOST_STRENGTH:
            raise ValueError(f"paddle_strength: expected one in [0, 1], got {paddle_strength}")
        return library.rlb_console_act(self._handle, action, paddle_strength)

    def game_over(self, with_truncation: bool = True) -> bool:
        """Returns whether the episode has ended; a limit on it counts unless told otherwise."""
        is_over = bool(self._get(_Field.terminal))
        return is_over or bool(with_truncation and self.game_truncated())

    def game_truncated(self) -> bool:
        """Returns whether a limit has ended the episode."""
        return bool(self._get(_Field.truncated))

    def lives(self) -> int:
        """Returns the lives that are left; in games without them 0, or 1 until the game ends."""
        return self._get(_Field.lives)

    def getFrameNumber(self) -> int:
        """Returns the frames since the ROM was loaded."""
        return self._get(_Field.frame_number)

    def getEpisodeFrameNumber(self) -> int:
        """Returns the frames since the last reset."""
        return self._get(_Field.episode_frame_number)

    def getLegalActionSet(self) -> list[Action]:
        """Returns the actions that the game accepts."""
        return [Action(number) for number in self._loaded("getLegalActionSet").legal_actions]

    def getMinimalActionSet(self) -> list[Action]:
        """Returns the actions that have an effect in the game."""
        return [Action(number) for number in self._loaded("getMinimalActionSet").minimal_actions]

    # Modes and difficulties

    def getAvailableModes(self) -> list[int]:
        """Returns the modes of the game; the first is the default."""
        return list(self._loaded("getAvailableModes").modes)

    def getAvailableDifficulties(self) -> list[int]:
        """Returns the difficulties of the game."""
        return list(self._loaded("getAvailableDifficulties").difficulties)

    def getMode(self) -> int:
        """Returns the mode that the next reset plays in."""
        return self._get(_Field.mode)

    def getDifficulty(self) -> int:
        """Returns the difficulty."""
        return self._get(_Field.difficulty)

    def setMode(self, mode: int) -> None:
        """Chooses a mode, for the next `reset_game`.

        Raises:
            ValueError: The game has no such mode.
        """
        self._choose(_Field.mode, mode, self._loaded("setMode").modes)

    def setDifficulty(self, difficulty: int) -> None:
        """Sets the difficulty switches, for the next frame.

        Raises:
            ValueError: The game has no such difficulty.
        """
        self._choose(_Field.difficulty, difficulty, self._loaded("setDifficulty").difficulties)

    def _choose(self, field: _Field, value: int, choices: tuple[int, ...]) -> None:
        value = _number(field.name, value)
        if value not in choices:
            raise ValueError(f"{field.name}: expected one of {list(choices)}, got {value}")
        self._library.rlb_console_set(self._handle, field, float(value))

    # What is seen: arrays that belong to the caller

    def getScreenDims(self) -> tuple[int, int]:
        """Returns the height and the width of the screen in pixels."""
        return self._get(_Field.height), SCREEN_WIDTH

    def getScreen(self, array: np.ndarray | None = None) -> np.ndarray | None:
        """Returns the screen, [height, 160] uint8, as places in the television's palette.

        Args:
            array: Written to instead; None is returned then.
        """
        return self._screen(array, (), self._copy_screen)

    def getScreenRGB(self, array: np.ndarray | None = None) -> np.ndarray | None:
        """Returns the screen in colour, [height, 160, 3] uint8.

        Args:
            array: Written to instead; None is returned then.
        """
        library = self._library_for("getScreenRGB")
        return self._screen(array, (3,), library.rlb_console_rgb)

    def getScreenGrayscale(self, array: np.ndarray | None = None) -> np.ndarray | None:
        """Returns the screen in grey, [height, 160] uint8.

        Args:
            array: Written to instead; None is returned then.
        """
        library = self._library_for("getScreenGrayscale")
        return self._screen(array, (), library.rlb_console_gray)

    def _screen(self, array: np.ndarray | None, channels: tuple, write: Any) -> np.ndarray | None:
        shape = (*self.getScreenDims(), *channels)
        out = np.empty(shape, np.uint8) if array is None else _writable(array, shape)
        write(self._handle, out.ctypes.data)
        return out if array is None else None

    def _copy_screen(self, handle: int, out: int) -> None:
        size = self._get(_Field.height) * SCREEN_WIDTH
        ctypes.memmove(out, self._library.rlb_console_screen(handle), size)

    def saveScreenPNG(self, path: str | os.PathLike) -> None:
        """Writes the screen as a PNG file, each pixel twice as wide as it is high, as on a set."""
        image = np.empty((*self.getScreenDims(), 3), np.uint8)
        self.getScreenRGB(image)
        Path(path).write_bytes(_png(image.repeat(2, axis=1)))

    def getRAMSize(self) -> int:
        """Returns the bytes of RAM."""
        return RAM_BYTES

    def getRAM(self, array: np.ndarray | None = None) -> np.ndarray | None:
        """Returns the RAM, [128] uint8, from address 80h.

        Args:
            array: Written to instead; None is returned then.
        """
        library = self._library_for("getRAM")
        shape = (RAM_BYTES,)
        out = np.empty(shape, np.uint8) if array is None else _writable(array, shape)
        ctypes.memmove(out.ctypes.data, library.rlb_console_ram(self._handle), RAM_BYTES)
        return out if array is None else None

    def setRAM(self, index: int, value: int) -> None:
        """Changes one byte of RAM.

        Raises:
            TypeError: They are no integers.
            ValueError: There is no such byte, or `value` is none.
        """
        library = self._library_for("setRAM")
        index, value = _number("index", index), _number("value", value)
        if not 0 <= index < RAM_BYTES:
            raise ValueError(f"index: expected 0 to {RAM_BYTES - 1}, got {index}")
        if not 0 <= value < 256:
            raise ValueError(f"value: expected 0 to 255, got {value}")
        library.rlb_console_set_ram(self._handle, index, value)

    # States

    def cloneState(self, include_rng: bool = False) -> ConsoleState:
        """Returns the present state.

        Args:
            include_rng: Whether the random numbers of sticky actions are to be repeated too,
                after it has been restored. Those of the console itself always are.
        """
        library = self._library_for("cloneState")
        buffer = ctypes.create_string_buffer(
            library.rlb_console_state_size(self._handle, include_rng)
        )
        library.rlb_console_save(self._handle, buffer, include_rng)
        counters = (
            self.getFrameNumber(),
            self.getEpisodeFrameNumber(),
            self.getMode(),
            self.getDifficulty(),
        )
        return ConsoleState.pack(self._loaded("cloneState").md5, counters, buffer.raw)

    def restoreState(self, state: ConsoleState) -> None:
        """Goes back to a state, of this console or of another one with the same game.

        Raises:
            TypeError: It is not a `ConsoleState`.
            ValueError: It is the state of another game, or of another version of rlbatch.
        """
        md5 = self._loaded("restoreState").md5
        if not isinstance(state, ConsoleState):
            raise TypeError(f"state: expected a ConsoleState, got {state!r}")
        if state.md5 != md5:
            raise ValueError(f"state: expected one of the ROM {md5}, got one of {state.md5}")
        data = state.data
        if self._library.rlb_console_restore(self._handle, data, len(data)):
            raise ValueError(f"state: expected the format of this version, got {len(data)} bytes")

    def cloneSystemState(self) -> ConsoleState:
        """Returns the present state with its random numbers."""
        return self.cloneState(include_rng=True)

    def restoreSystemState(self, state: ConsoleState) -> None:
        """Goes back to a state, see `restoreState`."""
        self.restoreState(state)

    def from_ale(self, ale: Any) -> None:
        """Goes to where a console of ale-py is, random numbers included.

        ale-py's states lack a little, such as the action that is being repeated and pictures but
        the last. Both consoles are the same from there on, except for pictures, until a frame has
        drawn all of one: after some resets, and while Tic-Tac-Toe 3D thinks. Of Miniature Golf they
        lack what the next reward is made from.

        Args:
            ale: An `ale_py.ALEInterface` with the same ROM, and the same settings for sticky
                actions if these are to be the same.

        Raises:
            CallOrderError: No ROM is loaded.
            ValueError: `ale` has another game, or no game.
            TypeError: It is not an `ale_py.ALEInterface`.
        """
        md5 = self._loaded("from_ale").md5
        state, screen = ale_state(ale, md5, self.getScreenDims())
        pointer = screen.ctypes.data
        if self._library.rlb_console_import(self._handle, md5.encode(), state, len(state), pointer):
            raise ValueError(f"ale: expected a state of the ROM {md5}, got another game's")

    def _get(self, field: _Field) -> int:
        return int(self._library_for(field.name).rlb_console_get(self._handle, field))

    def _library_for(self, what: str) -> Any:
        self._loaded(what)
        return self._library

    def _loaded(self, what: str) -> Game:
        if self._game is None:
            raise CallOrderError(f"{what}: expected loadROM to be called first, got no ROM")
        return self._game


def _number(name: str, value: Any) -> int:
    """Returns an integer, given one or a value of an enumeration, as ale-py's are.

    Raises:
        TypeError: It is neither.
    """
    try:
        return operator.index(value.value if isinstance(value, enum.Enum) else value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from None


def _writable(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the array after checking that native code may write that shape of bytes to it.

    Raises:
        TypeError: It is not an array.
        DtypeMismatchError: It is not uint8.
        ShapeError: It has another shape.
        ValueError: It is not contiguous, or not writable.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"array: expected a numpy array, got {type(array).__name__}")
    if array.dtype != np.uint8:
        raise DtypeMismatchError(f"array: expected uint8, got {array.dtype}")
    if array.shape != shape:
        raise ShapeError(f"array: expected shape {shape}, got {array.shape}")
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise ValueError("array: expected one that is contiguous and writable, got another")
    return array


def _png(image: np.ndarray) -> bytes:
    """Returns an [H, W, 3] uint8 image as a PNG file.

    Source:
        Portable Network Graphics (PNG) Specification, 3rd ed., sections 5 and 11.
    """
    height, width, _ = image.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # Each begins with its filter: none.
    rows[:, 1:] = image.reshape(height, -1)
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
