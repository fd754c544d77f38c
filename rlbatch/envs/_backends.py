"""What `GymEnv` steps: a list of environments, or one vector environment.

Both step environments by number and return NumPy arrays. They know nothing of which episodes
still run. Arrays returned by a step may be overwritten by the next; first observations are not.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorWrapper,
)
from gymnasium.wrappers.vector import NormalizeObservation

from rlbatch.dicttensor import DictTensor
from rlbatch.envs._values import FLAG, REWARD, cast, check, checked, part_of, stack, stack_numbers
from rlbatch.envs.base import VecEnv, seeds_in
from rlbatch.envs.spaces import Leaf, action_leaves, assemble, observation_leaves
from rlbatch.errors import EnvContractError, KeyMismatchError, add_environment_note
from rlbatch.seeding import derived_seed, env_seeds

Arrays = dict[str, np.ndarray]

_OF_GYMNASIUM = SyncVectorEnv, AsyncVectorEnv

# What Gymnasium's `step` returns.
_STEP = "(observation, reward, terminated, truncated, info)"


class Result(NamedTuple):
    """What a step led to, one row per environment that was stepped."""

    frames: Arrays
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class Backend(Protocol):
    """Steps environments by number.

    Attributes:
        observation_space: Of one environment.
        action_space: Of one environment.
        observation_leaves: Its leaves by key, as in `Result.frames`.
        action_leaves: Its leaves by key; actions are one array per leaf, in this order.
        n_envs: How many environments there are.
        resets_late: An environment resets in the step after its last, not in `restart`.
    """

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    observation_leaves: dict[str, Leaf]
    action_leaves: dict[str, Leaf]
    n_envs: int
    resets_late: bool

    def seed(self, seed: int | Sequence[int]) -> None:
        """Has the next `reset` begin with seeds."""

    def reset(self, env_info: DictTensor) -> Arrays:
        """Resets all, with seeds if there are new ones; returns their first observations."""

    def step(self, numbers: Sequence[int], actions: list[np.ndarray]) -> Result:
        """Steps some environments; a terminal observation is the true one."""

    def restart(self, numbers: Sequence[int]) -> Arrays:
        """Returns first observations of environments whose episode has just ended."""

    def reset_some(self, numbers: Sequence[int]) -> Arrays:
        """Resets environments wherever they are; returns their first observations."""

    def close(self) -> None:
        """Closes the environments."""


def backend(gym_env: Any, seed: int | Sequence[int] | None, plays_on: bool) -> Backend:
    """Returns the backend for what a user passes to `GymEnv`.

    Args:
        gym_env: A list of environments, or a vector environment.
        seed: Of the first reset.
        plays_on: Whether some are stepped and others not.

    Raises:
        TypeError: `gym_env` is neither a list of environments nor a vector environment.
        ValueError: The list is empty; or a vector environment answers for some of its environments
            alone, or cannot forget a pending reset.
    """
    if isinstance(gym_env, VectorEnv):
        return Vector(gym_env, seed, plays_on)
    if not isinstance(gym_env, (list, tuple)):
        hint = "; a VecEnv needs no wrapper" if isinstance(gym_env, VecEnv) else ""
        raise TypeError(
            "gym_env: expected a list of gymnasium environments or a VectorEnv, got "
            f"{gym_env!r}{hint}"
        )
    if not gym_env:
        raise ValueError("gym_env: expected at least one environment, got an empty list")
    return EnvList(list(gym_env), seed)


class EnvList:
    """A list of environments, stepped one after the other."""

    resets_late = False

    def __init__(self, envs: list[gymnasium.Env], seed: int | Sequence[int] | None):
        _check_list(envs)
        self.envs, self.n_envs = envs, len(envs)
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space
        self.observation_leaves = observation_leaves(self.observation_space)
        self.action_leaves = action_leaves(self.action_space)
        self._seeds: Sequence[int | None] = [None] * len(envs)
        if seed is not None:
            self.seed(seed)
        self._options: list[dict[str, Any] | None] = [None] * len(envs)
        self._has_nested_actions = _is_nested(self.action_space)

    def seed(self, seed: int | Sequence[int]) -> None:
        self._seeds = env_seeds(seed, self.n_envs)

    def reset(self, env_info: DictTensor) -> Arrays:
        self._seeds = _seeds_in(env_info) or self._seeds
        columns = {key: tensor.tolist() for key, tensor in env_info.items() if key != "seed"}
        self._options = [
            {key: column[number] for key, column in columns.items()} or None
            for number in range(self.n_envs)
        ]
        for env, seed in zip(self.envs, self._seeds, strict=True):
            if seed is not None:
                _seed_actions(env, seed)
        frames = self._reset(range(self.n_envs), self._seeds)
        self._seeds = [None] * self.n_envs
        return frames

    def restart(self, numbers: Sequence[int]) -> Arrays:
        return self._reset(numbers, [None] * self.n_envs)

    def _reset(self, numbers: Sequence[int], seeds: Sequence[int | None]) -> Arrays:
        frames = []
        for number in numbers:
            options = self._options[number]
            try:
                answer = self.envs[number].reset(
                    seed=seeds[number],
                    options=copy.deepcopy(options),  # It may change them.
                )
                _check_answer("reset", "(observation, info)", answer, 2)
            except (Exception, SystemExit) as error:
                add_environment_note(error, number)
                raise
            frames.append(answer[0])
        return self._batch(numbers, frames)

    def reset_some(self, numbers: Sequence[int]) -> Arrays:
        return self.restart(numbers)

    def step(self, numbers: Sequence[int], actions: list[np.ndarray]) -> Result:
        values, results = self._values(actions), []
        try:
            for number, action in zip(numbers, values, strict=True):
                results.append(self.envs[number].step(action))
        except (Exception, SystemExit) as error:
            add_environment_note(error, numbers[len(results)])
            raise
        frames, *rest, _ = _columns(numbers, results)
        return Result(self._batch(numbers, frames), *stack_numbers(numbers, *rest))

    def close(self) -> None:
        with ExitStack() as closing:  # Closes all of them, even if one raises.
            for number in range(self.n_envs):
                closing.callback(self._close, number)

    def _close(self, number: int) -> None:
        try:
            self.envs[number].close()
        except Exception as error:
            add_environment_note(error, number)
            raise

    def _values(self, actions: list[np.ndarray]) -> Sequence[Any]:
        """Returns one action per environment, as a value of the action space."""
        columns = map(_values, self.action_leaves.values(), actions)
        if self._has_nested_actions:
            return [assemble(self.action_space, iter(row)) for row in zip(*columns, strict=True)]
        return next(columns)

    def _batch(self, numbers: Sequence[int], frames: Sequence[Any]) -> Arrays:
        return {
            key: stack(key, leaf, numbers, frames) for key, leaf in self.observation_leaves.items()
        }


def _seeds_in(env_info: DictTensor) -> list[int]:
    """Returns the seeds of a reset, none where it brings none.

    Raises:
        ValueError: One is negative.
    """
    seeds = seeds_in(env_info)
    if any(seed < 0 for seed in seeds):
        raise ValueError(f"env_info: seed: expected integers of at least 0, got {seeds}")
    return seeds


def _seed_actions(env: gymnasium.Env, seed: int) -> None:
    """Seeds the action spaces of an environment and its wrappers, as `reset` does not."""
    env.action_space.seed(seed)
    if isinstance(env, gymnasium.Wrapper):
        _seed_actions(env.env, seed)


class Vector:
    """One vector environment, in any of Gymnasium's autoreset modes.

    All of its environments step in every call. Those that were not asked for play on unseen,
    with the action of one that was, and draw from their random streams as long as others run. So
    that these do not matter, no episode that is seen goes on in such a stream: from the seeds that
    a reset was given follow those of the resets after it.
    """

    def __init__(self, env: VectorEnv, seed: int | Sequence[int] | None, plays_on: bool):
        self.env, self.n_envs = env, env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.observation_leaves = observation_leaves(self.observation_space)
        self.action_leaves = action_leaves(self.action_space)
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.resets_late = self._mode is AutoresetMode.NEXT_STEP
        own = env.unwrapped
        n_answers = getattr(own, "batch_size", self.n_envs)  # As both AtariVectorEnv have.
        if n_answers != self.n_envs:
            raise ValueError(
                f"gym_env: expected a vector environment that steps all {self.n_envs} of its "
                f"environments at once, got batch_size={n_answers}"
            )
        if self.resets_late and isinstance(own, AsyncVectorEnv) and not own.shared_memory:
            # Its worker forgets a pending reset only where the memory is shared.
            raise ValueError(
                "gym_env: expected AsyncVectorEnv to share its memory in the mode NEXT_STEP, got "
                "shared_memory=False, which swallows the first step after a reset"
            )
        self._seeds: list[int] | None = None
        self._plays_on, self._n_resets = plays_on, 0
        self._roots: list[int] = []  # The last seeds that were given.
        if seed is not None:
            self.seed(seed)
        self._ended = np.zeros(self.n_envs, np.bool_)

    def seed(self, seed: int | Sequence[int]) -> None:
        self._seeds = env_seeds(seed, self.n_envs)

    def reset(self, env_info: DictTensor) -> Arrays:
        """Resets all; see `Backend`.

        Raises:
            ValueError: There are options in `env_info`.
        """
        options = [key for key in env_info if key != "seed"]
        if options:
            raise ValueError(
                f"env_info: expected seed alone for a vector environment, got {options}; "
                "options per environment need a list of environments"
            )
        self._seeds = _seeds_in(env_info) or self._seeds
        if self._seeds:
            self._roots, self._n_resets = self._seeds, 0
        elif self._plays_on:
            self._n_resets += 1
            self._seeds = [derived_seed(root, self._n_resets) for root in self._roots]
        self._seeded_reset() if self._seeds else self._reset()
        self._seeds, self._ended = None, np.zeros(self.n_envs, np.bool_)
        return _copies(self._frames(range(self.n_envs)))

    def restart(self, numbers: Sequence[int]) -> Arrays:
        if self._mode is AutoresetMode.DISABLED:
            return self.reset_some(numbers)
        return self._frames(numbers)

    def reset_some(self, numbers: Sequence[int]) -> Arrays:
        """Resets some; see `Backend`.

        Raises:
            NotImplementedError: The environment may reset all of them, or none.
        """
        own = self.env.unwrapped
        if not (self._mode is AutoresetMode.DISABLED or isinstance(own, _OF_GYMNASIUM)):
            raise NotImplementedError(
                "reset_where: expected a list of environments, SyncVectorEnv, AsyncVectorEnv or "
                f"the mode DISABLED, got {type(own).__name__} in the mode {self._mode.name}"
            )
        if _has_wrapper(self.env, NormalizeObservation):
            raise NotImplementedError(
                "reset_where: expected wrappers that let some environments be reset, got "
                "NormalizeObservation, which resets all or none"
            )
        mask = np.zeros(self.n_envs, np.bool_)
        mask[numbers] = True
        self._reset(options={"reset_mask": mask})
        self._ended &= ~mask
        return self._frames(numbers)

    def step(self, numbers: Sequence[int], actions: list[np.ndarray]) -> Result:
        if self._mode is AutoresetMode.DISABLED and self._ended.any():
            self.restart(np.flatnonzero(self._ended).tolist())
        batch = assemble(self.action_space, iter(self._for_all(numbers, actions)))
        try:
            self._observation, *rest, info = self.env.step(batch)
        except (Exception, SystemExit) as error:
            self._note(error)
            raise
        if self._mode is not AutoresetMode.SAME_STEP:
            self._check_resets_nothing(info)
        reward, terminated, truncated = (np.asarray(column) for column in rest)
        check("reward", REWARD, reward, (self.n_envs,))
        check("terminated", FLAG, terminated, (self.n_envs,))
        check("truncated", FLAG, truncated, (self.n_envs,))
        terminated = cast("terminated", FLAG, terminated)
        truncated = cast("truncated", FLAG, truncated)
        self._ended = np.logical_or(terminated, truncated)
        frames = self._frames(numbers)
        if self._mode is AutoresetMode.SAME_STEP and self._ended.any():
            frames = _copies(frames)
            self._write_final(frames, numbers, info)
        columns = (_rows_of(column, numbers) for column in (reward, terminated, truncated))
        return Result(frames, *columns)

    def close(self) -> None:
        self.env.close()

    def _reset(self, **arguments: Any) -> None:
        try:
            self._observation, _ = self.env.reset(**arguments)
        except (Exception, SystemExit) as error:
            self._note(error)
            raise

    def _seeded_reset(self) -> None:
        """Seeds every environment; or, where that is not possible, all of them with one seed."""
        if isinstance(self.env.unwrapped, _OF_GYMNASIUM):
            self._reset(seed=self._seeds)
            return
        # Atari's take signed integers of 32 bits.
        seeds: Any = np.array([seed % 2**31 for seed in self._seeds or ()])
        with suppress(Exception):  # As of most others, which take one integer.
            self._observation, _ = self.env.reset(seed=seeds)
            return
        self._reset(seed=int(seeds[0]) % (2**31 - self.n_envs))  # Some count on from there.

    def _for_all(self, numbers: Sequence[int], actions: list[np.ndarray]) -> list[np.ndarray]:
        """Returns an action for every environment: a copy, in which it may write."""
        if len(numbers) == self.n_envs:
            return [array.copy() for array in actions]
        rows = np.zeros(self.n_envs, np.int64)
        rows[numbers] = np.arange(len(numbers))
        return [array[rows] for array in actions]

    def _frames(self, numbers: Sequence[int]) -> Arrays:
        """Returns the last observations, over which the environment may write the next ones."""
        frames = {}
        for key, leaf in self.observation_leaves.items():
            frame = np.asarray(leaf.of(self._observation))
            check(key, leaf, frame, (self.n_envs, *leaf.shape))
            frames[key] = cast(key, leaf, _rows_of(frame, numbers))
        return frames

    def _check_resets_nothing(self, info: dict[str, Any]) -> None:
        """Stops at what comes with the first observation of the next episode.

        Raises:
            EnvContractError: The environment is in another mode than it says.
        """
        for key in ("final_obs", "final_observation"):  # The latter before Gymnasium 1.1.
            if key in info:
                raise EnvContractError(
                    f"{key}: expected none in the info of a step in the mode {self._mode.name}, "
                    'got one: set metadata["autoreset_mode"] of the environment to '
                    "AutoresetMode.SAME_STEP"
                )

    def _write_final(self, frames: Arrays, numbers: Sequence[int], info: dict[str, Any]) -> None:
        """Writes terminal observations over the first ones of the episodes that came after.

        Raises:
            KeyMismatchError: The info has none.
        """
        ended = [(row, number) for row, number in enumerate(numbers) if self._ended[number]]
        if ended and "final_obs" not in info:
            raise KeyMismatchError(f"final_obs: expected in the info of a step, got {list(info)}")
        for row, number in ended:
            try:
                for key, leaf in self.observation_leaves.items():
                    frames[key][row] = self._final(key, leaf, info["final_obs"], number)
            except Exception as error:
                add_environment_note(error, number)
                raise

    def _final(self, key: str, leaf: Leaf, final: Any, number: int) -> np.ndarray:
        # Gymnasium has an array of observations; others have an observation of arrays.
        batched = isinstance(final, (dict, tuple))
        part = part_of(key, leaf, final)[number] if batched else part_of(key, leaf, final[number])
        return checked(f"final_obs: {key}", leaf, part)

    def _note(self, error: BaseException) -> None:
        """Marks an exception with the number of the environment, where that can be found."""
        number = _failed(self.env.unwrapped, error)
        if number is not None:
            add_environment_note(error, number)


def _has_wrapper(env: VectorEnv, kind: type[VectorWrapper]) -> bool:
    while isinstance(env, VectorWrapper):
        if isinstance(env, kind):
            return True
        env = env.env
    return False


def _rows_of(array: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
    """Returns the rows of some environments, whose numbers rise."""
    return array if len(numbers) == len(array) else array[numbers]


def _copies(arrays: Arrays) -> Arrays:
    return {key: array.copy() for key, array in arrays.items()}


def _failed(env: VectorEnv, error: BaseException) -> int | None:
    if isinstance(env, AsyncVectorEnv):  # It lets go of the pipe to a worker that failed.
        failed = [number for number, pipe in enumerate(env.parent_pipes) if pipe is None]
        return failed[0] if len(failed) == 1 else None
    if isinstance(env, SyncVectorEnv):  # A method of the environment is on the stack.
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        for frame in reversed(frames):  # Its first argument, whatever the name, is the object.
            owner = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
            for number, one in enumerate(env.envs):
                if owner is one:
                    return number
    return None


def _check_answer(where: str, expected: str, answer: Any, n: int) -> None:
    if not (isinstance(answer, tuple) and len(answer) == n):
        found = f"{len(answer)} values" if isinstance(answer, tuple) else repr(answer)
        raise EnvContractError(f"{where}: expected {expected}, as of Gymnasium, got {found}")


def _columns(numbers: Sequence[int], results: list[Any]) -> list[tuple]:
    """Returns the five parts of what environments have answered to a step.

    Raises:
        EnvContractError: One has answered something else.
    """
    try:
        columns = list(zip(*results, strict=True))
    except (TypeError, ValueError):
        columns = []
    if len(columns) != 5:
        for number, result in zip(numbers, results, strict=True):  # Which of them was it?
            try:
                _check_answer("step", _STEP, result, 5)
            except EnvContractError as error:
                add_environment_note(error, number)
                raise
    return columns


def _check_list(envs: list[Any]) -> None:
    first: dict[int, int] = {}
    for number, env in enumerate(envs):
        where = f"gym_env[{number}]"
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"{where}: expected a gymnasium.Env, got {env!r}")
        if first.setdefault(id(env), number) != number:
            raise ValueError(f"{where}: expected another object than gym_env[{first[id(env)]}]")
        for name in ("observation_space", "action_space"):
            if not hasattr(env, name):
                raise TypeError(f"{where}: expected an environment with {name}, got {env!r}")
            expected, found = getattr(envs[0], name), getattr(env, name)
            if found != expected:
                raise ValueError(
                    f"{where}.{name}: expected {expected}, as in gym_env[0], got {found}"
                )


def _is_nested(space: gymnasium.Space) -> bool:
    return isinstance(space, (spaces.Dict, spaces.Tuple))


def _values(leaf: Leaf, array: np.ndarray) -> list[Any]:
    """Returns the rows of an array as values of the leaf's space."""
    if isinstance(leaf.space, spaces.Discrete):
        return list(array)  # NumPy integers: `Discrete.contains` takes twice as long for an int.
    array = array.copy()  # An environment may write into its action; `last_action` is the array.
    return [array[row, ...] for row in range(len(array))]
