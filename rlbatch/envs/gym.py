"""Gymnasium environments as a `VecEnv`.

`GymEnv` runs every environment to the end of its episode, `GymEnvInf` starts the next episode at
once. Both take a list of environments or one `gymnasium.vector.VectorEnv`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rlbatch.dicttensor import DictTensor
from rlbatch.envs.base import RESERVED_KEYS, Observation, VecEnv
from rlbatch.envs.spaces import Leaf, assemble, leaves
from rlbatch.errors import (
    CallOrderError,
    DeviceMismatchError,
    DtypeMismatchError,
    KeyMismatchError,
    ShapeError,
    add_environment_note,
)
from rlbatch.seeding import env_seeds

Arrays = dict[str, np.ndarray]


class _Result(NamedTuple):
    """What a step led to, one row per environment that was stepped."""

    frames: Arrays
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class _Backend(Protocol):
    """Steps environments by number; knows nothing of episodes that go on or end."""

    resets_late: bool
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    n_envs: int

    def reset(self, env_info: DictTensor) -> Arrays: ...
    def step(self, numbers: Sequence[int], actions: list[np.ndarray]) -> _Result: ...
    def restart(self, numbers: Sequence[int]) -> Arrays: ...
    def close(self) -> None: ...


class GymEnv(VecEnv):
    """Gymnasium environments that each run one episode per `reset`.

    Args:
        gym_env: A list of environments with equal spaces, or one vector environment. With any
            autoreset mode: what a vector environment does with an environment after its episode
            is never seen.
        seed: An int (0 is as good as any), the `Seed` that a batcher hands to `create_env`, or
            one int per environment; used in the first `reset`. None: not reproducible. Vector
            environments other than Gymnasium's two are seeded with one int.

    Raises:
        TypeError: `gym_env` is neither, or a space is not supported.
        ValueError: The list is empty, or the spaces differ.
        KeyMismatchError: A nested observation uses a name that `VecEnv` adds, such as `reward`.

    Example:
        >>> env = GymEnv([gymnasium.make("CartPole-v1") for _ in range(2)], seed=0)
        >>> observation, running = env.reset()
        >>> observation["frame"].shape, running
        (torch.Size([2, 4]), tensor([0, 1]))
        >>> (after, _), (following, running) = env.step(DictTensor({"action": torch.tensor([0, 1])}))
        >>> after["reward"], running
        (tensor([1., 1.]), tensor([0, 1]))
    """

    autoreset = False

    def __init__(
        self,
        gym_env: list[gymnasium.Env] | VectorEnv,
        seed: int | Sequence[int] | None = None,
    ):
        self._backend = _backend(gym_env, seed)
        self.observation_space = self._backend.observation_space
        self.action_space = self._backend.action_space
        self._action_leaves = leaves(self.action_space)
        self._last_action_keys = ["last_" + _action_key(leaf) for leaf in self._action_leaves]
        self._running: torch.Tensor | None = None
        for leaf in leaves(self.observation_space):
            if leaf.key("frame").split("/")[0] in RESERVED_KEYS:
                raise KeyMismatchError(
                    f"{leaf.key('frame')}: expected a name other than {RESERVED_KEYS}"
                )

    def n_envs(self) -> int:
        """Returns the number of environments."""
        return self._backend.n_envs

    def reset(self, env_info: DictTensor | None = None) -> Observation:
        """Starts an episode in every environment.

        Args:
            env_info: [n_envs, ...] on the CPU: row b goes to `reset(options={key: value})` of
                environment b, as Python numbers or lists. Not for vector environments.

        Raises:
            ShapeError: `env_info` has not `n_envs` rows.
            ValueError: `env_info` is given to a vector environment.
        """
        env_info = DictTensor() if env_info is None else env_info
        n_envs = self.n_envs()
        if not env_info.empty() and env_info.n_elems() != n_envs:
            raise ShapeError(f"env_info: expected {n_envs} rows, got {env_info.n_elems()}")
        observation = self._first(self._backend.reset(env_info), n_envs)
        self._running, self._numbers = torch.arange(n_envs), list(range(n_envs))
        self._return, self._length = np.zeros(n_envs), np.zeros(n_envs, np.int64)
        return observation, self._running

    def step(self, action: DictTensor) -> tuple[Observation, Observation]:
        """Steps the running environments; see `VecEnv.step`.

        Raises:
            CallOrderError: Before the first `reset`, or when no environment runs.
            KeyMismatchError: The action lacks a key of the action space.
            ShapeError: The action is not [B, ...] as the space has it.
            DtypeMismatchError: A discrete action is not an integer.
        """
        if self._running is None:
            raise CallOrderError("step: expected a reset before the first step")
        if not self._numbers:
            raise CallOrderError("step: expected a running environment, all have ended; reset")
        running, numbers = self._running, self._numbers
        actions = _actions(self._action_leaves, action, len(numbers))
        after, done = self._observe(self._backend.step(numbers, actions), actions)
        following = self._after_an_end(after, done) if done.any() else (after, running)
        return (after, running), following

    def close(self) -> None:
        """Closes the environments."""
        self._backend.close()

    def _after_an_end(self, after: DictTensor, done: np.ndarray) -> Observation:
        """Returns the rows of the environments that still run, and forgets the others."""
        rows = torch.from_numpy(np.flatnonzero(~done))
        self._running = self._running[rows]
        self._numbers = self._running.tolist()
        self._return, self._length = self._return[~done], self._length[~done]
        return after.index(rows), self._running

    def _first(self, frames: Arrays, n: int) -> DictTensor:
        """Returns `n` first observations of an episode."""
        no = np.zeros(n, np.bool_)
        last_actions = [np.zeros((n, *leaf.shape), leaf.dtype) for leaf in self._action_leaves]
        result = _Result(frames, np.zeros(n), no, no.copy())
        return self._tensors(result, ~no, last_actions, np.zeros(n), np.zeros(n, np.int64))

    def _observe(
        self, result: _Result, actions: list[np.ndarray]
    ) -> tuple[DictTensor, np.ndarray]:
        """Returns what a step led to, and whether it ended the episodes."""
        self._return += result.reward
        self._length += 1
        first = np.zeros(len(result.reward), np.bool_)
        observation = self._tensors(result, first, actions, self._return, self._length.copy())
        return observation, observation["done"].numpy()

    def _tensors(
        self,
        result: _Result,
        initial_state: np.ndarray,
        last_actions: list[np.ndarray],
        episode_return: np.ndarray,
        episode_length: np.ndarray,
    ) -> DictTensor:
        arrays = {
            **result.frames,
            "reward": result.reward.astype(np.float32),
            "terminated": result.terminated,
            "truncated": result.truncated,
            "done": result.terminated | result.truncated,
            "initial_state": initial_state,
            **dict(zip(self._last_action_keys, last_actions, strict=True)),
            "episode_return": episode_return.astype(np.float32),
            "episode_length": episode_length,
        }
        return DictTensor._trusted({k: torch.from_numpy(array) for k, array in arrays.items()})


class GymEnvInf(GymEnv):
    """Gymnasium environments that each start their next episode when one ends.

    The observation that follows an end is the first of the next episode, as if `reset` had just
    been called (`reward` 0, `done` False, `initial_state` True), with the same `env_info`.

    A vector environment in the mode `NEXT_STEP` can not do that: it resets in the step *after*
    the end, and ignores that step's action. Such a step has `observation/done` True, which no
    other step has: leave it out of a loss. The modes `SAME_STEP` and `DISABLED` have none.

    Takes the arguments of `GymEnv`, and raises what it raises.
    """

    autoreset = True

    def reset(self, env_info: DictTensor | None = None) -> Observation:
        """Starts an episode in every environment; see `GymEnv.reset`."""
        observation = super().reset(env_info)
        self._resetting = np.zeros(self.n_envs(), np.bool_)
        return observation

    def _observe(
        self, result: _Result, actions: list[np.ndarray]
    ) -> tuple[DictTensor, np.ndarray]:
        after, done = super()._observe(result, actions)
        if self._resetting.any():
            rows = np.flatnonzero(self._resetting)
            self._write_first(after, {key: f[rows] for key, f in result.frames.items()}, rows)
            self._resetting = np.zeros_like(done)
        return after, done

    def _after_an_end(self, after: DictTensor, done: np.ndarray) -> Observation:
        """Returns all rows, with a first observation in the place of each terminal one."""
        if self._backend.resets_late:
            self._resetting = done
            return after, self._running
        rows = np.flatnonzero(done)
        following = after.clone()
        self._write_first(following, self._backend.restart(rows.tolist()), rows)
        return following, self._running

    def _write_first(
        self, observation: DictTensor, frames: Arrays, rows: np.ndarray
    ) -> None:
        """Turns some rows into first observations, and starts their episodes' counts."""
        self._return[rows], self._length[rows] = 0, 0
        first = self._first(frames, len(rows))
        observation.copy_(first, torch.arange(len(rows)), torch.from_numpy(rows))


class _EnvList:
    """A list of environments, stepped one after the other."""

    resets_late = False

    def __init__(self, envs: list[gymnasium.Env], seed: int | Sequence[int] | None):
        self.envs, self.n_envs = envs, len(envs)
        self.observation_space = envs[0].observation_space
        self.action_space = envs[0].action_space
        self._leaves = leaves(self.observation_space)
        self._plain = not self._leaves[0].path if len(self._leaves) == 1 else False
        self._seeds = [None] * len(envs) if seed is None else env_seeds(seed, len(envs))
        self._options: list[dict[str, Any] | None] = [None] * len(envs)
        for number, env in enumerate(envs):
            for name in ("observation_space", "action_space"):
                if getattr(env, name) != getattr(envs[0], name):
                    raise ValueError(
                        f"gym_env[{number}].{name}: expected {getattr(envs[0], name)}, as in "
                        f"gym_env[0], got {getattr(env, name)}"
                    )

    def reset(self, env_info: DictTensor) -> Arrays:
        """Resets all, the first time with their seeds."""
        columns = {key: tensor.tolist() for key, tensor in env_info.items()}
        self._options = [
            {key: column[number] for key, column in columns.items()} or None
            for number in range(self.n_envs)
        ]
        frames = self.restart(range(self.n_envs))
        self._seeds = [None] * self.n_envs
        return frames

    def restart(self, numbers: Sequence[int]) -> Arrays:
        frames = self._empty(len(numbers))
        for row, number in enumerate(numbers):
            try:
                frame, _ = self.envs[number].reset(
                    seed=self._seeds[number], options=self._options[number]
                )
                self._write(frames, row, frame)
            except Exception as error:
                add_environment_note(error, number)
                raise
        return frames

    def step(self, numbers: Sequence[int], actions: list[np.ndarray]) -> _Result:
        n = len(numbers)
        frames, reward = self._empty(n), np.empty(n)
        terminated, truncated = np.empty(n, np.bool_), np.empty(n, np.bool_)
        envs, write = self.envs, self._write
        for row, (number, action) in enumerate(zip(numbers, self._rows(actions), strict=True)):
            try:
                frame, reward[row], terminated[row], truncated[row], _ = envs[number].step(action)
                write(frames, row, frame)
            except Exception as error:
                add_environment_note(error, number)
                raise
        return _Result(frames, reward, terminated, truncated)

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _rows(self, actions: list[np.ndarray]) -> Any:
        """Returns one action per environment, as the action space has it."""
        columns = [array.tolist() if array.ndim == 1 else array for array in actions]
        if isinstance(self.action_space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)):
            return [assemble(self.action_space, iter(row)) for row in zip(*columns, strict=True)]
        return columns[0]

    def _empty(self, n: int) -> Arrays:
        return {leaf.key("frame"): np.empty((n, *leaf.shape), leaf.dtype) for leaf in self._leaves}

    def _write(self, frames: Arrays, row: int, frame: Any) -> None:
        if self._plain:
            frames["frame"][row] = frame
            return
        for leaf in self._leaves:
            frames[leaf.key("frame")][row] = leaf.of(frame)


class _Vector:
    """One vector environment, in any of Gymnasium's autoreset modes."""

    def __init__(self, env: VectorEnv, seed: int | Sequence[int] | None):
        self.env, self.n_envs = env, env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self._leaves = leaves(self.observation_space)
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.resets_late = self._mode is AutoresetMode.NEXT_STEP
        self._seed: Any = None if seed is None else env_seeds(seed, self.n_envs)
        if self._seed and not isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv)):
            self._seed = self._seed[0]
        self._ended = np.zeros(self.n_envs, np.bool_)

    def reset(self, env_info: DictTensor) -> Arrays:
        """Resets all, the first time with their seeds."""
        if not env_info.empty():
            raise ValueError(
                f"env_info: expected none for a vector environment, got {list(env_info)}; "
                "options per environment need a list of environments"
            )
        observation, _ = self.env.reset(seed=self._seed)
        self._seed, self._ended = None, np.zeros(self.n_envs, np.bool_)
        return self._frames(observation, slice(None))

    def restart(self, numbers: Sequence[int]) -> Arrays:
        """Returns first observations of environments whose episode has just ended."""
        if self._mode is AutoresetMode.DISABLED:
            mask = np.zeros(self.n_envs, np.bool_)
            mask[numbers] = True
            self._observation, _ = self.env.reset(options={"reset_mask": mask})
            self._ended[numbers] = False
        return self._frames(self._observation, numbers)

    def step(self, numbers: Sequence[int], actions: list[np.ndarray]) -> _Result:
        # Those whose episode is over step too, because all do: they play on unseen.
        if self._mode is AutoresetMode.DISABLED and self._ended.any():
            self.restart(np.flatnonzero(self._ended))
        whole = [np.zeros((self.n_envs, *array.shape[1:]), array.dtype) for array in actions]
        for array, rows in zip(whole, actions, strict=True):
            array[numbers] = rows
        batch = assemble(self.action_space, iter(whole))
        self._observation, reward, terminated, truncated, info = self.env.step(batch)
        self._ended = np.logical_or(terminated, truncated)
        frames = self._frames(self._observation, numbers)
        if self._mode is AutoresetMode.SAME_STEP and self._ended.any():
            self._put_final(frames, numbers, info["final_obs"])
        chosen = (np.array(column)[numbers] for column in (reward, terminated, truncated))
        return _Result(frames, *chosen)

    def close(self) -> None:
        self.env.close()

    def _frames(self, observation: Any, rows: Any) -> Arrays:
        # Indexing with a list copies, np.array copies the rest: the environment may reuse its own.
        return {leaf.key("frame"): np.array(leaf.of(observation)[rows]) for leaf in self._leaves}

    def _put_final(self, frames: Arrays, numbers: Sequence[int], final: Any) -> None:
        """Writes terminal observations over those of the episodes that came after."""
        for row, number in enumerate(numbers):
            if self._ended[number]:
                for leaf in self._leaves:
                    batched = isinstance(final, (dict, tuple))
                    value = leaf.of(final)[number] if batched else leaf.of(final[number])
                    frames[leaf.key("frame")][row] = value


def _backend(gym_env: Any, seed: int | Sequence[int] | None) -> _Backend:
    if isinstance(gym_env, VectorEnv):
        return _Vector(gym_env, seed)
    if not isinstance(gym_env, (list, tuple)):
        raise TypeError(
            f"gym_env: expected a list of gymnasium environments or a VectorEnv, got {gym_env!r}"
        )
    if not gym_env:
        raise ValueError("gym_env: expected at least one environment, got an empty list")
    for number, env in enumerate(gym_env):
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"gym_env[{number}]: expected a gymnasium.Env, got {env!r}")
    return _EnvList(list(gym_env), seed)


def _action_key(leaf: Leaf) -> str:
    return f"action/{leaf.key('')}" if leaf.path else "action"


def _actions(action_leaves: list[Leaf], action: DictTensor, n: int) -> list[np.ndarray]:
    """Returns the leaves of `n` actions as arrays of the space's dtype (copies)."""
    return [_action(_action_key(leaf), leaf, action, n) for leaf in action_leaves]


def _action(key: str, leaf: Leaf, action: DictTensor, n: int) -> np.ndarray:
    tensor = action[key]
    if tensor.shape != (n, *leaf.shape):
        raise ShapeError(f"{key}: expected shape {(n, *leaf.shape)}, got {tuple(tensor.shape)}")
    if tensor.is_floating_point() and not np.issubdtype(leaf.dtype, np.floating):
        raise DtypeMismatchError(f"{key}: expected an integer for {leaf.space}, got {tensor.dtype}")
    if tensor.device.type != "cpu":
        raise DeviceMismatchError(key, torch.device("cpu"), tensor.device, "env.step")
    return tensor.detach().numpy().astype(leaf.dtype)
