"""A `VecEnv` as a vector environment of Gymnasium: the inverse of `GymEnvInf`."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlbatch._checks import check_dtype, check_shape
from rlbatch.dicttensor import DictTensor
from rlbatch.envs.base import RESERVED_KEYS, VecEnv
from rlbatch.envs.spaces import Leaf, action_leaves, assemble, observation_leaves
from rlbatch.errors import DtypeMismatchError, EnvContractError, KeyMismatchError

# What stands in the results of a step, or in the caller's actions, and so not in the infos.
_NOT_IN_INFOS = set(RESERVED_KEYS) - {"episode_return", "episode_length"}

Step = tuple[Any, Any, Any, Any, dict[str, Any]]


def to_gymnasium(env: VecEnv, as_numpy: bool = False) -> VectorEnv:
    """Returns an environment as a `gymnasium.vector.VectorEnv`, for loops that want one.

    Observations, rewards (float32) and flags are the environment's own tensors, on its device, and
    with actions that are tensors there nothing waits for a GPU; or they are NumPy arrays of the
    same memory, as Gymnasium's wrappers expect. Do not change them in place. Episodes begin anew in
    the step in which one ends (`SAME_STEP`; `NEXT_STEP` where the environment `resets_late`).

    `infos` hold what else the environment tells of the step, such as `episode_return` and
    `episode_length` [n_envs]: where an episode has ended, its own. With `SAME_STEP` they always
    hold `final_obs` as well, what the actions led to, in the form of the observations, and
    `_final_obs` [n_envs] bool, which is `terminations | truncations`. So
    `infos["episode_return"][infos["_final_obs"]]` are the scores of the episodes that have ended
    (not of `AtariEnv` with `life_loss_info`, whose games go on there). There is no `final_info`.

    `reset` takes a `seed` if the environment has a method of that name: an int, which is spread
    over the environments as `rlbatch.seeding.env_seeds` does it, or one for each of them. And it
    takes `options={"reset_mask": mask}` [n_envs] bool if the environment has `reset_where`.
    `GymEnvInf` and `AtariEnv` have both. `render` returns what the environment's own `render` does,
    if there is one, as in `AtariEnv`: a tensor [n_envs, height, width, 3] uint8.

    Args:
        env: One with `autoreset` and both spaces. It is closed with this one, whose attribute
            `env` it is.
        as_numpy: Whether to return NumPy arrays; on the CPU only.

    Raises:
        EnvContractError: The environment does not reset itself, or lacks a space.
        TypeError: `env` is not a `VecEnv`, or a space is not supported.
        ValueError: `as_numpy` and the environment is not on the CPU.

    Example:
        >>> from rlbatch.envs import GymEnvInf
        >>> cart_poles = [gymnasium.make("CartPole-v1") for _ in range(2)]
        >>> env = to_gymnasium(GymEnvInf(cart_poles))
        >>> observations, infos = env.reset(seed=0)
        >>> observations, rewards, terminations, truncations, infos = env.step([0, 1])
        >>> observations.shape, rewards, infos["episode_length"]
        (torch.Size([2, 4]), tensor([1., 1.]), tensor([1, 1]))
        >>> env.close()
    """
    return ToGymnasium(env, as_numpy)


class ToGymnasium(VectorEnv):
    """What `to_gymnasium` returns."""

    closed = True  # Until there is something to close: Gymnasium 1.2 closes what it deletes.

    def __init__(self, env: VecEnv, as_numpy: bool):
        _check_env(env, as_numpy)
        self.env, self.num_envs, self._as_numpy = env, env.n_envs(), as_numpy
        mode = AutoresetMode.NEXT_STEP if env.resets_late else AutoresetMode.SAME_STEP
        self.metadata: dict[str, Any] = {"autoreset_mode": mode}
        if callable(getattr(env, "render", None)):
            self.render_mode = "rgb_array"
            self.metadata["render_modes"] = ["rgb_array"]
            if hasattr(env, "seconds_per_step"):
                self.metadata["render_fps"] = 1 / env.seconds_per_step()
        self._has_final = mode is AutoresetMode.SAME_STEP
        spaces: Any = env.observation_space, env.action_space
        self.single_observation_space, self.single_action_space = spaces
        self._observation_keys = list(observation_leaves(self.single_observation_space))
        self._action_leaves = action_leaves(self.single_action_space)
        self.closed = False

    # Made when they are asked for: the limits of many images take as much memory as they do.
    @cached_property
    def observation_space(self) -> gymnasium.Space:  # type: ignore[override]
        """Of all environments."""
        return batch_space(self.single_observation_space, self.num_envs)

    @cached_property
    def action_space(self) -> gymnasium.Space:  # type: ignore[override]
        """Of all environments."""
        return batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts episodes; see `to_gymnasium`.

        Raises:
            ValueError: `options` has something else, or there are a seed and a mask.
            TypeError: The environment cannot do it.
            ShapeError, DtypeMismatchError: The mask is not as it should be.
        """
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        if options:
            raise ValueError(f"options: expected reset_mask alone, got {sorted(options)}")
        if mask is not None and seed is not None:
            raise ValueError("seed: expected None with a reset_mask, got both")
        if mask is not None:
            observation, _ = self._method("reset_where", "reset_mask")(self._mask(mask))
        else:
            if seed is not None:
                self._method("seed", "seed")(seed)
            observation, _ = self.env.reset()
        return self._observation(observation), self._infos(observation)

    def step(self, actions: Any) -> Step:
        """Steps all environments; see `to_gymnasium`.

        Args:
            actions: In the form of `action_space`, [n_envs, ...] per part: tensors on the
                environment's device, or arrays, which are copied.

        Raises:
            KeyMismatchError: A part of a nested action is not there.
            DtypeMismatchError: They are no numbers.
            Exception: What `VecEnv.step` raises.
        """
        parts = {key: self._part(key, leaf, actions) for key, leaf in self._action_leaves.items()}
        (after, _), (following, _) = self.env.step(DictTensor(parts))
        infos = self._infos(after)
        if self._has_final:
            infos |= {"final_obs": self._observation(after), "_final_obs": self._out(after["done"])}
        rest = [self._out(after[key]) for key in ("reward", "terminated", "truncated")]
        return self._observation(following), *rest, infos

    def render(self) -> tuple[np.ndarray, ...]:
        """Returns the pictures of all environments, on the host, which waits for a GPU.

        Of one whose episode has just ended, it is the first of the next one.

        Returns:
            One array [height, width, 3] uint8 RGB per environment.

        Raises:
            TypeError: The environment has no `render`, or it does not return a tensor.
            Exception: What its own `render` raises.
        """
        pictures = self._method("render", "render")()
        if not isinstance(pictures, torch.Tensor):
            raise TypeError(f"render: expected a tensor of pictures, got {pictures!r}")
        return tuple(pictures.cpu().numpy())

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the environment."""
        self.env.close()

    def _method(self, name: str, argument: str) -> Any:
        method = getattr(self.env, name, None)
        if not callable(method):
            kind = type(self.env).__name__
            raise TypeError(
                f"{argument}: expected an environment with the method {name}, got {kind}"
            )
        return method

    def _mask(self, values: Any) -> torch.Tensor:
        mask = self._tensor("reset_mask", values)
        check_dtype("reset_mask", mask, torch.bool)
        check_shape("reset_mask", mask, (self.num_envs,))
        return mask

    def _part(self, key: str, leaf: Leaf, actions: Any) -> torch.Tensor:
        try:
            part = leaf.of(actions)
        except (KeyError, IndexError, TypeError) as error:
            raise KeyMismatchError(
                f"actions: expected {key}, as in {self.single_action_space}, got "
                f"{reprlib.repr(actions)}"
            ) from error
        return self._tensor(key, part)

    def _tensor(self, name: str, values: Any) -> torch.Tensor:
        if isinstance(values, torch.Tensor):  # One on another device is refused where it goes.
            return values.detach()
        array = np.array(values)  # A copy: the caller may go on to use them.
        if array.dtype.kind not in "biuf":
            raise DtypeMismatchError(f"{name}: expected numbers, got {reprlib.repr(values)}")
        return torch.from_numpy(array).to(self.env.device)

    def _out(self, tensor: torch.Tensor) -> Any:
        return tensor.numpy() if self._as_numpy else tensor

    def _observation(self, observation: DictTensor) -> Any:
        parts = (self._out(observation[key]) for key in self._observation_keys)
        return assemble(self.single_observation_space, parts)

    def _infos(self, observation: DictTensor) -> dict[str, Any]:
        return {
            key: self._out(tensor)
            for key, tensor in observation.items()
            if key not in self._observation_keys and key.split("/")[0] not in _NOT_IN_INFOS
        }


def _check_env(env: VecEnv, as_numpy: bool) -> None:
    if not isinstance(env, VecEnv):
        raise TypeError(f"env: expected a VecEnv, got {env!r}")
    name = type(env).__name__
    if not env.autoreset:
        raise EnvContractError(f"env: expected one that resets itself, got {name}")
    for space in ("observation_space", "action_space"):
        if getattr(env, space) is None:
            raise EnvContractError(f"env.{space}: expected a space of Gymnasium, got None")
    if as_numpy and torch.device(env.device).type != "cpu":
        raise ValueError(f"as_numpy: expected an environment on the CPU, got one on {env.device}")
