"""The options of a batch, and how the native library wants them.

`GameSpec` and `KnownResets` are the structures of these names in `native/batch.h`, `NativeOptions`
is its `Options`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import numpy as np
import torch

from rlbatch._checks import check_bool, check_integer, check_number
from rlbatch.envs.atari.console_settings import as_stored
from rlbatch.envs.atari.games import RAM_BYTES, SYSTEM_SEED, Game
from rlbatch.envs.atari.native_library import ConsoleConfig, console_config

# How many of these a `GameSpec` can hold, as the constants of these names (`kMostLeft`, ...) in
# `native/batch.h`.
_MOST_LEFT, _MOST_KEY_BYTES, _MOST_KEYS, _MOST_NEEDS = 31, 3, 16, 3
MOST_THREADS = 4096
_LARGEST_STEP = 1 << 20  # Of counts that are multiplied: larger ones are mistakes.

LARGEST = 2**31 - 1  # Of an int32.
# How far a paddle is turned; ALE would take any, and beyond this its way in one frame overflows.
MOST_STRENGTH = 1000.0

_OBS_TYPES = ("pixels", "rgb", "ram")


@dataclass(frozen=True)
class Settings:
    """The options of the environments of a batch, named as ale-py's.

    Raises:
        TypeError: A value is not of its type.
        ValueError: A value is out of its range.
    """

    obs_type: str = "pixels"
    frameskip: int = 4
    grayscale: bool = True
    stack_num: int = 4
    img_height: int = 84
    img_width: int = 84
    maxpool: bool = True
    noop_max: int = 30
    use_fire_reset: bool = True
    episodic_life: bool = False
    life_loss_info: bool = False
    reward_clipping: bool = True
    max_num_frames_per_episode: int | None = 108_000
    repeat_action_probability: float = 0.0
    full_action_space: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.obs_type, str) or self.obs_type not in _OBS_TYPES:
            raise ValueError(f"obs_type: expected one of {_OBS_TYPES}, got {self.obs_type!r}")
        for field in dataclasses.fields(self):
            if field.type == "bool":
                check_bool(field.name, getattr(self, field.name))
        for name in ("frameskip", "stack_num", "img_height", "img_width"):
            check_count(name, getattr(self, name), 1)
        check_count("noop_max", self.noop_max, 0)
        if self.max_num_frames_per_episode is not None:
            check_count("max_num_frames_per_episode", self.max_num_frames_per_episode, 1, LARGEST)
        check_number("repeat_action_probability", self.repeat_action_probability, 0, 1)
        n_bytes = math.prod(self.observation_shape)
        if n_bytes > LARGEST:
            raise ValueError(
                f"stack_num: expected observations of at most {LARGEST} bytes, got {n_bytes}"
            )
        self._normalize()

    def _normalize(self) -> None:
        """Makes Python's own numbers of NumPy's, so that equal options look alike."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            kind = {"bool": bool, "float": float, "str": str}.get(str(field.type), int)
            if value is not None:
                object.__setattr__(self, field.name, kind(value))

    @property
    def is_ram(self) -> bool:
        """Whether the RAM is observed, and nothing drawn."""
        return self.obs_type == "ram"

    @property
    def is_rgb(self) -> bool:
        """Whether observations have colours."""
        return self.obs_type == "rgb" or (self.obs_type == "pixels" and not self.grayscale)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """The shape of one observation."""
        if self.is_ram:
            return (RAM_BYTES,)
        return (self.stack_num, self.img_height, self.img_width) + (3,) * self.is_rgb


# None stands for the default, among several too.
OneOrSeveral = int | Sequence[int | None] | None


class AtariOptions(TypedDict, total=False):
    """The options of `AtariEnv`, which tells what they mean, for editors and type checkers."""

    obs_type: Literal["pixels", "rgb", "ram"]
    frameskip: int
    grayscale: bool
    stack_num: int
    img_height: int
    img_width: int
    maxpool: bool
    noop_max: int
    use_fire_reset: bool
    episodic_life: bool
    life_loss_info: bool
    reward_clipping: bool
    max_num_frames_per_episode: int | None
    repeat_action_probability: float
    full_action_space: bool
    mode: OneOrSeveral
    difficulty: OneOrSeveral
    num_threads: int
    decorrelate_steps: int


def games_in_turn(
    games: Sequence[Game],
    mode: OneOrSeveral,
    difficulty: OneOrSeveral,
    n_envs: int,
    first: int | None = None,
) -> list[Game]:
    """Returns the games that environments play, in turn, each in its mode and difficulty.

    Args:
        games: Taken in turn.
        mode: One for all, or a list of several that are taken in turn; None for the default.
        difficulty: The same.
        n_envs: How many environments there are.
        first: How many there are in the processes before, where others may come after; None where
            there are no other processes.

    Raises:
        TypeError: A mode or a difficulty is not an integer.
        ValueError: A game has no such mode or difficulty, or without other processes there are
            more of one than environments.
    """
    modes, difficulties = _several(mode), _several(difficulty)
    given = {"games": len(games), "mode": len(modes), "difficulty": len(difficulties)}
    for name, n_given in given.items():
        if n_given < 1 or (first is None and n_given > n_envs):
            raise ValueError(
                f"{name}: expected a list of 1 to {n_envs}, one per environment, got {n_given}"
            )
    first = first or 0
    n_different = min(math.lcm(*given.values()), n_envs)
    return [
        _played(games[i % len(games)], modes[i % len(modes)], difficulties[i % len(difficulties)])
        for i in range(first, first + n_different)
    ]


def _several(values: Any) -> Sequence[int | None]:
    if isinstance(values, (np.ndarray, torch.Tensor)):
        values = values.tolist()
    return values if isinstance(values, (list, tuple, range)) else [values]


def _played(game: Game, mode: int | None, difficulty: int | None) -> Game:
    """Returns a game in a mode and a difficulty.

    Raises:
        TypeError: One is not an integer.
        ValueError: It has no such mode or difficulty.
    """
    chosen = {"mode": (mode, game.modes), "difficulty": (difficulty, game.difficulties)}
    for name, (value, known) in chosen.items():
        if value is None:
            continue
        check_count(name, value, 0, LARGEST)
        if value not in known:
            raise ValueError(f"{name}: expected one of {game.name}'s {known}, got {value!r}")
    mode = game.modes[0] if mode is None else int(mode)
    return dataclasses.replace(game, mode=mode, difficulty=int(difficulty or 0))


def check_count(name: str, value: Any, least: int, most: int = _LARGEST_STEP) -> None:
    """Checks that a value is an integer from a range; by default mistakes alone are above it.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is too small or too large.
    """
    check_integer(name, value, least, most)


class NativeOptions(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("observation_type", "stack", "height", "width")),
        *((name, ctypes.c_int32) for name in ("frame_skip", "maxpool", "noop_max", "fire_reset")),
        *((name, ctypes.c_int32) for name in ("episodic_life", "life_loss_info", "clip_reward")),
        ("max_frames", ctypes.c_int32),
        ("repeat_probability", ctypes.c_float),
    ]


class GameSpec(ctypes.Structure):
    _fields_ = [
        ("config", ConsoleConfig),
        *((name, ctypes.c_int32) for name in ("default_mode", "mode", "difficulty", "has_fire")),
        ("n_actions", ctypes.c_int32),
        ("actions", ctypes.c_int32 * 18),
        *((name, ctypes.c_int32) for name in ("n_timers", "most_acts", "n_left")),
        *((name, ctypes.c_int32 * _MOST_LEFT) for name in ("left_at", "left_bits")),
        *((name, ctypes.c_int32 * _MOST_KEY_BYTES) for name in ("key_at", "key_bits")),
        *((name, ctypes.c_int32 * _MOST_NEEDS) for name in ("needed_at", "needed_bits")),
        *((name, ctypes.c_int32 * _MOST_NEEDS) for name in ("needed_from", "needed_to")),
    ]


_N_TIMERS = 75  # `kTimers` in `native/riot.h`.


class KnownResets(ctypes.Structure):
    """Where the resets of a game lead to: `KnownResets` in `native/batch.h`."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("n_ends", "n_acts", "n_holds", "n_draws")),
        ("end_of", ctypes.c_uint8 * (_MOST_KEYS * _N_TIMERS)),
    ]

    @property
    def n_states(self) -> int:
        """How many states they lead to."""
        return (self.n_acts + 1) * self.n_holds * self.n_ends


def game_spec(
    game: Game, rom_size: int, actions: tuple[int, ...], knows_all: bool = False
) -> GameSpec:
    n_timers = {"nothing": 1, "timer": _N_TIMERS, "play": 0}[game.reset_depends_on]
    is_one = n_timers == 1 and not game.reset_key
    left, key = game.left_by_reset, dict(game.reset_key)
    needs = [tuple(need[i] for need in game.reset_needs) for i in range(4)]
    return GameSpec(
        config=console_config(game, rom_size, SYSTEM_SEED, game.paddle_max),
        default_mode=game.modes[0],
        mode=game.mode,
        difficulty=game.difficulty,
        has_fire=1 in actions and 1 in game.legal_actions,
        n_actions=len(actions),
        actions=tuple(actions),
        n_timers=n_timers if game.is_default and (is_one or knows_all) else 0,
        most_acts=game.reset_acts,
        n_left=len(left),
        left_at=left,
        left_bits=tuple(0xFF & ~key.get(at, 0) for at in left),
        key_at=tuple(key),
        key_bits=tuple(key.values()),
        needed_at=needs[0],
        needed_bits=needs[1],
        needed_from=needs[2],
        needed_to=needs[3],
    )


def native_options(settings: Settings) -> NativeOptions:
    return NativeOptions(
        observation_type=2 if settings.is_ram else int(settings.is_rgb),  # `ObservationType` there.
        stack=1 if settings.is_ram else settings.stack_num,
        height=settings.img_height,
        width=settings.img_width,
        frame_skip=settings.frameskip,
        maxpool=settings.maxpool,
        noop_max=settings.noop_max,
        fire_reset=settings.use_fire_reset,
        episodic_life=settings.episodic_life,
        life_loss_info=settings.life_loss_info,
        clip_reward=settings.reward_clipping,
        max_frames=settings.max_num_frames_per_episode or 0,
        repeat_probability=as_stored(settings.repeat_action_probability),
    )
