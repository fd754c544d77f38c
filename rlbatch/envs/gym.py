"""Gymnasium environments as a `VecEnv`.

`GymEnv` runs every environment to the end of its episode, `GymEnvInf` starts the next episode at
once. Both take a list of environments or one `gymnasium.vector.VectorEnv`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv

from rlbatch._checks import check_has_keys, check_is
from rlbatch.dicttensor import DictTensor
from rlbatch.envs._backends import Arrays, Result, backend
from rlbatch.envs._values import cast
from rlbatch.envs.base import Observation, VecEnv, check_chosen, checked_env_info
from rlbatch.envs.spaces import Leaf
from rlbatch.errors import (
    CallOrderError,
    DeviceMismatchError,
    DtypeMismatchError,
    EnvContractError,
    ShapeError,
    add_environment_note,
)

_log = logging.getLogger(__name__)


class GymEnv(VecEnv):
    """Gymnasium environments that each run one episode per `reset`.

    Observations are on the CPU, and keep the dtypes of the observation space. Beside what
    `VecEnv` lists they hold `frame`, or the parts of a nested space under their paths
    (`camera/left`, `0`). Actions are cast to the dtypes of the action space. What an environment
    returns as `info` is dropped.

    In a list, an exception that an environment raises carries the environment's number as its
    attribute `environment`; with Gymnasium's own vector environments, where that can be found out.

    Args:
        gym_env: A list of environments with equal spaces, or one vector environment with any
            autoreset mode. They are closed with this one. A vector environment always steps all
            its environments: in `GymEnv`, one whose episode is over plays on, unseen, with the
            action of the first that runs.
        seed: An int (0 is as good as any), the `Seed` that a batcher hands to `create_env`, or
            one int per environment; used in the first `reset`, after which the random streams go
            on; but in a `GymEnv` of a vector environment each later `reset` has seeds that follow
            from these, so that nothing depends on what played on. None: not reproducible. A vector
            environment other than Gymnasium's own two (`SyncVectorEnv`, `AsyncVectorEnv`) is given
            an array of seeds or, if it refuses that, the first seed alone.

    Raises:
        TypeError: `gym_env` is neither, or a space is not supported.
        ValueError: The list is empty or holds one object twice, the spaces differ, or `gym_env`
            is an `AsyncVectorEnv` in the mode `NEXT_STEP` with `shared_memory=False`, which loses
            steps, or for `GymEnvInf` one with `life_loss_info` in that mode; or the seed does not
            fit, see `rlbatch.seeding.env_seeds`.
        KeyMismatchError: A part of the observation is named as one that `VecEnv` adds, such as
            `reward`, or two parts have one name.

    Example:
        >>> env = GymEnv([gymnasium.make("CartPole-v1") for _ in range(2)], seed=0)
        >>> observation, running = env.reset()
        >>> observation["frame"].shape, running
        (torch.Size([2, 4]), tensor([0, 1]))
        >>> action = DictTensor({"action": torch.tensor([0, 1])})
        >>> (after, ran), (following, running) = env.step(action)
        >>> after["reward"], running
        (tensor([1., 1.]), tensor([0, 1]))
    """

    autoreset = False

    def __init__(
        self,
        gym_env: list[gymnasium.Env] | VectorEnv,
        seed: int | Sequence[int] | None = None,
    ):
        self._backend = backend(gym_env, seed, plays_on=not self.autoreset)
        self.resets_late = self.autoreset and self._backend.resets_late
        if self.resets_late:
            _check_resets(gym_env)
            _hint_at_late_resets()
        # A wrapper's may be something else in a reset.
        self._has_own_rewards = isinstance(gym_env, VectorEnv) and gym_env.unwrapped is gym_env
        self.observation_space = self._backend.observation_space
        self.action_space = self._backend.action_space
        self._action_leaves = self._backend.action_leaves
        self._last_action_keys = ["last_" + key for key in self._action_leaves]
        self._running: Any = None  # int64 [B], from the first reset on.
        self._return: np.ndarray  # Of the episodes that run, both from the first reset on.
        self._length: np.ndarray

    def n_envs(self) -> int:
        """Returns the number of environments."""
        return self._backend.n_envs

    def seed(self, seed: int | Sequence[int]) -> None:
        """Has the next `reset` begin the random streams anew.

        Args:
            seed: An int, or one per environment; see the constructor.

        Raises:
            ValueError, TypeError: The seed does not fit, see `rlbatch.seeding.env_seeds`.
        """
        self._backend.seed(seed)

    def reset(self, env_info: DictTensor | None = None) -> Observation:
        """Starts an episode in every environment; see `VecEnv.reset`.

        Args:
            env_info: [n_envs, ...] on the CPU: row b goes to `reset(options={key: value})` of
                environment b, as Python numbers or lists; `seed` to `reset(seed=...)`, in the place
                of the constructor's, and only now. Vector environments take no other key.

        Raises:
            ShapeError: `env_info` has not `n_envs` rows; or an environment's observation is not
                of the shape that its space has.
            DtypeMismatchError: An environment's observation is a float, and its space is not; or
                the seeds are no integers.
            ValueError: A seed is negative, or a vector environment is given options.
            TypeError: `env_info` is not a DictTensor.
        """
        n_envs = self.n_envs()
        env_info = checked_env_info(env_info, n_envs)
        first = self._first(self._backend.reset(env_info), n_envs)
        self._forms = [(key, array.shape[1:], array.dtype) for key, array in first.items()]
        self._running, self._numbers = torch.arange(n_envs, device="cpu"), list(range(n_envs))
        return _tensors(first), self._running

    def step(self, action: DictTensor) -> tuple[Observation, Observation]:
        """Steps the running environments; see `VecEnv.step`.

        Where no episode ended, the two observations are the same object.

        Raises:
            CallOrderError: Before the first `reset`, or when no environment runs.
            KeyMismatchError: The action lacks a key of the action space.
            ShapeError: The action is not [B, ...] as the space has it; or what an environment
                returned has not the shape of its space.
            DtypeMismatchError: The action is a float, and the space is not, or has integers that
                the space's dtype does not hold; or the same of what an environment returned, or it
                is no number.
            DeviceMismatchError: The action is not on the CPU.
            TypeError: The action is not a DictTensor.
        """
        actions = self._actions(action)
        running, after = self._running, self._rows(len(self._numbers))
        done = self._observe(after, self._play(after, actions))
        observation = _tensors(after)
        if not _any(done):
            return (observation, running), (observation, running)
        return (observation, running), self._after_an_end(after, running, done)

    def _actions(self, action: DictTensor) -> list[np.ndarray]:
        check_is("action", action, DictTensor)
        if self._running is None:
            raise CallOrderError("step: expected a reset before the first step, got none")
        n = len(self._numbers)
        if not n:
            raise CallOrderError("step: expected a running environment, got a call after all ended")
        if not self._action_leaves.keys() <= action.keys():
            check_has_keys("action", self._action_leaves, action)
        return [_array(key, leaf, action[key], n) for key, leaf in self._action_leaves.items()]

    def close(self) -> None:
        """Closes the environments."""
        self._backend.close()

    def _play(self, after: Arrays, actions: list[np.ndarray]) -> Result:
        """Steps the running environments; writes the actions first, which are the caller's own."""
        for key, action in zip(self._last_action_keys, actions, strict=True):
            after[key][...] = action
        return self._backend.step(self._numbers, actions)

    def _observe(self, after: Arrays, result: Result) -> np.ndarray:
        """Writes what a step led to; returns whether it ended the episodes, [B] bool."""
        self._return += result.reward
        self._length += 1
        for key, frame in result.frames.items():
            after[key][...] = frame
        after["reward"][...] = result.reward
        after["terminated"][...] = result.terminated
        after["truncated"][...] = result.truncated
        after["initial_state"][...] = False
        after["episode_return"][...] = self._return
        after["episode_length"][...] = self._length
        return np.logical_or(result.terminated, result.truncated, out=after["done"])

    def _after_an_end(self, after: Arrays, running: torch.Tensor, done: np.ndarray) -> Observation:
        """Returns the rows of the environments that still run, and forgets the others."""
        kept = ~done
        self._running = running[torch.from_numpy(kept)]
        self._numbers = self._running.tolist()
        self._return, self._length = self._return[kept], self._length[kept]
        return _tensors({key: array[kept] for key, array in after.items()}), self._running

    def _first(self, frames: Arrays, n: int) -> Arrays:
        """Returns `n` first observations of an episode, and starts the episodes' counts."""
        self._return, self._length = np.zeros(n), np.zeros(n, np.int64)
        leaves = zip(self._last_action_keys, self._action_leaves.values(), strict=True)
        return {
            **frames,
            "reward": np.zeros(n, np.float32),
            "terminated": np.zeros(n, np.bool_),
            "truncated": np.zeros(n, np.bool_),
            "done": np.zeros(n, np.bool_),
            "initial_state": np.ones(n, np.bool_),
            **{key: np.zeros((n, *leaf.shape), leaf.dtype) for key, leaf in leaves},
            "episode_return": np.zeros(n, np.float32),
            "episode_length": np.zeros(n, np.int64),
        }

    def _rows(self, n: int) -> Arrays:
        """Returns arrays for observations of `n` environments, which are yet to be written."""
        return {key: np.empty((n, *shape), dtype) for key, shape, dtype in self._forms}


def _check_resets(env: Any) -> None:
    # An Atari game may be `terminated` with every life, and go on.
    own = env.unwrapped
    options = {**(own.spec.kwargs if own.spec else {}), **vars(own)}
    if options.get("life_loss_info") and not options.get("episodic_life"):
        raise ValueError(
            "gym_env: expected an environment that resets in the step after an end, got one with "
            "life_loss_info, whose games go on; take the mode SAME_STEP, or AtariEnv"
        )


@functools.cache  # Once in a process.
def _hint_at_late_resets() -> None:
    _log.warning(
        "GymEnvInf: in a vector environment in the mode NEXT_STEP, Gymnasium's default, the step "
        "after an episode's last one only resets; leave it out of a loss, with the mask "
        "~steps['observation/done'], or take autoreset_mode=AutoresetMode.SAME_STEP"
    )


class GymEnvInf(GymEnv):
    """Gymnasium environments that each start their next episode when one ends.

    The observation that follows an end is the first of the next episode, as if `reset` had just
    been called (`reward` 0, `done` False, `initial_state` True), with the same `env_info`.

    A vector environment in the mode `NEXT_STEP` cannot do that: it resets in the step *after*
    the end, and ignores that step's action. What is acted on in that step has
    `observation/done` True, as nothing else has: leave it out of a loss. The modes `SAME_STEP`
    and `DISABLED` have no such steps.

    Takes the arguments of `GymEnv`, and raises what it raises. `step` raises `EnvContractError`
    where the step that should only reset brings a reward, if there is no wrapper.

    Example:
        >>> env = GymEnvInf([gymnasium.make("CartPole-v1", max_episode_steps=1)], seed=0)
        >>> observation, running = env.reset()
        >>> (after, _), (following, _) = env.step(DictTensor({"action": torch.tensor([0])}))
        >>> after["truncated"], following["initial_state"]
        (tensor([True]), tensor([True]))
    """

    autoreset = True
    _current: DictTensor | None = None  # What to act on, where it is kept.

    def reset(self, env_info: DictTensor | None = None) -> Observation:
        """Starts an episode in every environment; see `GymEnv.reset`."""
        self._resetting = np.zeros(self.n_envs(), np.bool_)
        self._current, everyone = super().reset(env_info)
        return self._current, everyone

    def reset_where(self, chosen: torch.Tensor) -> Observation:
        """Starts an episode in some environments, and leaves the others where they are.

        With the `env_info` of the last `reset`, but its seeds: the random streams go on. For lists
        of environments, for `SyncVectorEnv` and `AsyncVectorEnv`, and for what else has the mode
        `DISABLED`.

        Args:
            chosen: [n_envs] bool, on the CPU.

        Returns:
            What to act on now, of all environments, and their numbers.

        Raises:
            CallOrderError: Before the first `reset`, or after `step_into`, which keeps nothing.
            NotImplementedError: The environment is of another kind, or has a wrapper that resets
                all or none.
            TypeError: It is not a tensor.
            DtypeMismatchError: It is not a bool.
            ShapeError, DeviceMismatchError: It is not as above.

        Example:
            >>> env = GymEnvInf([gymnasium.make("CartPole-v1") for _ in range(2)], seed=0)
            >>> _ = env.reset()
            >>> _ = env.step(DictTensor({"action": torch.tensor([0, 1])}))
            >>> env.reset_where(torch.tensor([True, False]))[0]["episode_length"]
            tensor([0, 1])
        """
        if self._current is None:
            raise CallOrderError("reset_where: expected a reset or a step before, got none")
        check_chosen(chosen, self.n_envs(), self.device)
        rows = chosen.numpy().nonzero()[0]
        if len(rows):
            following = {key: tensor.numpy().copy() for key, tensor in self._current.items()}
            self._start(following, self._backend.reset_some(rows.tolist()), rows)
            self._resetting[rows] = False
            self._current = _tensors(following)
        return self._current, self._running

    def step(self, action: DictTensor) -> tuple[Observation, Observation]:
        """Steps all environments; see `GymEnv.step`."""
        after, (self._current, everyone) = super().step(action)
        return after, (self._current, everyone)

    def step_into(self, action: DictTensor, after: Arrays, following: Arrays) -> None:
        """Steps all environments like `step`, which it spares most of its allocations.

        Args:
            action: [n_envs, ...] on the CPU.
            after: [n_envs, ...] per key of an observation: written with what the actions led to.
            following: The same; written with what to act on next.

        Raises:
            CallOrderError: Before the first `reset`.
            KeyMismatchError, ShapeError, DtypeMismatchError, DeviceMismatchError: See `step`.
        """
        self._current = None
        actions = self._actions(action)
        done = self._observe(after, self._play(after, actions))
        for key, _, _ in self._forms:
            following[key][...] = after[key]
        if _any(done):
            self._restart(following, done)

    def _observe(self, after: Arrays, result: Result) -> np.ndarray:
        done = super()._observe(after, result)
        if self.resets_late and _any(self._resetting):
            rows = np.flatnonzero(self._resetting)
            if self._has_own_rewards:
                _check_no_rewards(result.reward, rows)
            # Among what this writes to is `done`.
            self._start(after, {key: f[rows] for key, f in result.frames.items()}, rows)
            self._resetting = np.zeros_like(done)
        return done

    def _after_an_end(self, after: Arrays, running: torch.Tensor, done: np.ndarray) -> Observation:
        """Returns all rows, with a first observation in the place of each terminal one."""
        following = {key: array.copy() for key, array in after.items()}
        self._restart(following, done)
        return _tensors(following), running

    def _restart(self, following: Arrays, done: np.ndarray) -> None:
        """Writes a first observation in the place of each terminal one, or remembers to."""
        if self.resets_late:
            self._resetting = done.copy()
        else:
            (rows,) = done.nonzero()
            self._start(following, self._backend.restart(rows.tolist()), rows)

    def _start(self, observation: Arrays, frames: Arrays, rows: np.ndarray) -> None:
        """Turns some rows into first observations, and starts their episodes' counts."""
        self._return[rows], self._length[rows] = 0, 0
        for key, array in observation.items():
            array[rows] = frames.get(key, key == "initial_state")


def _check_no_rewards(reward: np.ndarray, rows: np.ndarray) -> None:
    for row in rows.tolist():
        if reward[row]:
            error = EnvContractError(
                "reward: expected 0 in the step after an end, which in the mode NEXT_STEP only "
                f"resets, got {reward[row]}: this environment goes on there"
            )
            add_environment_note(error, row)
            raise error


def _any(flags: np.ndarray) -> bool:
    return bool(np.count_nonzero(flags))  # A quarter of the time of `any` where there are few.


def _tensors(arrays: Arrays) -> DictTensor:
    from_numpy = torch.from_numpy
    return DictTensor.unchecked({key: from_numpy(array) for key, array in arrays.items()})


def _array(key: str, leaf: Leaf, tensor: torch.Tensor, n: int) -> np.ndarray:
    # Not a copy where the dtype is that of the space: nobody writes to it.
    if not tensor.is_cpu:
        raise DeviceMismatchError(key, torch.device("cpu"), tensor.device, "env.step")
    is_small = tensor.is_floating_point() and tensor.element_size() < 4
    values = tensor.float() if is_small else tensor  # NumPy has no bfloat16.
    array = values.numpy(force=True)
    if array.shape != (n, *leaf.shape):
        raise ShapeError(f"{key}: expected shape {(n, *leaf.shape)}, got {array.shape}")
    if array.dtype == leaf.dtype:
        return array
    kinds, wanted = ("biuf", "a real number") if leaf.dtype.kind == "f" else ("biu", "an integer")
    if array.dtype.kind not in kinds:
        raise DtypeMismatchError(f"{key}: expected {wanted} for {leaf.space}, got {tensor.dtype}")
    return cast(key, leaf, array)
