"""Moves everything that crosses the border of an environment to another device."""

from __future__ import annotations

from typing import Any

import torch

from rlbatch.dicttensor import DictTensor
from rlbatch.envs.base import Observation, VecEnv
from rlbatch.errors import DeviceLike, DeviceMismatchError, as_device


class DeviceEnv(VecEnv):
    """An environment on one device that looks as if it were on another.

    Nothing is copied where the two devices are one. All attributes and spaces are the
    environment's own.

    Args:
        env: The environment. It is closed with this one.
        from_device: Where the environment takes its actions.
        to_device: Where observations and `running` are returned, and actions come from.

    Example:
        >>> from rlbatch.envs.check import CountingEnv
        >>> observation, running = DeviceEnv(CountingEnv(2), "cpu", "meta").reset()
        >>> observation.device(), running.device
        (device(type='meta'), device(type='meta'))
    """

    def __init__(self, env: VecEnv, from_device: DeviceLike, to_device: DeviceLike):
        self.env = env
        self.from_device = as_device(from_device)
        self.to_device = as_device(to_device)
        self.device = self.to_device
        self.autoreset = env.autoreset
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def __getattr__(self, name: str) -> Any:
        # Reached only for what is not found here. `env` is missing while unpickling.
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def n_envs(self) -> int:
        """Returns the number of environments."""
        return self.env.n_envs()

    def reset(self, env_info: DictTensor | None = None) -> Observation:
        """Resets the environment; see `VecEnv.reset`.

        Raises:
            DeviceMismatchError: `env_info` is not on the CPU.
        """
        if env_info is not None and env_info.device() not in (None, torch.device("cpu")):
            raise DeviceMismatchError("env_info", torch.device("cpu"), env_info.device())
        return self._out(self.env.reset(env_info if env_info is not None else DictTensor()))

    def step(self, action: DictTensor) -> tuple[Observation, Observation]:
        """Steps the environment; see `VecEnv.step`."""
        after, following = self.env.step(action.to(self.from_device))
        if following[0] is after[0]:
            moved = self._out(after)
            return moved, moved
        return self._out(after), self._out(following)

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def _out(self, observation: Observation) -> Observation:
        return observation[0].to(self.to_device), observation[1].to(self.to_device)
