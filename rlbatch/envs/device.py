"""Moves everything that crosses the border of an environment to another device."""

from __future__ import annotations

from typing import Any

import torch

from rlbatch.devices import DeviceLike, as_present_device
from rlbatch.dicttensor import DictTensor
from rlbatch.envs.base import Observation, VecEnv
from rlbatch.errors import DeviceMismatchError


class DeviceEnv(VecEnv):
    """An environment on one device that looks as if it were on another.

    Nothing is copied where the two devices are one: tensors pass through as the same objects.
    Attributes that are not found here are looked up in the environment. Of those, `reset_where` is
    moved likewise; what others return, such as `AtariEnv.observe`, is where the environment has it.

    Args:
        env: The environment. It is closed with this one.
        from_device: Where the environment takes its actions.
        to_device: Where observations and `running` are returned. Actions may come from anywhere.

    Attributes:
        env: The environment.
        from_device: As above, with its index.
        to_device: As above, with its index; also `device`.

    Example:
        >>> import gymnasium
        >>> from rlbatch.envs import GymEnv
        >>> env = DeviceEnv(GymEnv([gymnasium.make("CartPole-v1")]), "cpu", "meta")
        >>> observation, running = env.reset()
        >>> observation.device(), running.device
        (device(type='meta'), device(type='meta'))
    """

    def __init__(self, env: VecEnv, from_device: DeviceLike, to_device: DeviceLike):
        self.env = env
        self.from_device = as_present_device(from_device, "from_device")
        self.to_device = as_present_device(to_device, "to_device")
        self.device = self.to_device
        # VecEnv has these too, so that __getattr__ would not see them.
        self.autoreset, self.resets_late = env.autoreset, env.resets_late
        self.counts_on = env.counts_on
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def __getattr__(self, name: str) -> Any:
        # Reached only for what is not found here. While unpickling, `env` is not; and what Python
        # itself asks for (`__deepcopy__`) is not the environment's to answer.
        if name == "env" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        found = getattr(self.env, name)
        if name == "reset_where":  # As `reset` and `step` are, but not every environment has it.
            return lambda chosen: self._out(found(chosen.to(self.from_device)))
        return found

    def n_envs(self) -> int:
        """Returns the number of environments."""
        return self.env.n_envs()

    def reset(self, env_info: DictTensor | None = None) -> Observation:
        """Starts an episode in every environment; see `VecEnv.reset`.

        Raises:
            DeviceMismatchError: `env_info` is not on the CPU.
        """
        cpu = torch.device("cpu")
        if env_info is not None and env_info.device() not in (None, cpu):
            raise DeviceMismatchError("env_info", cpu, env_info.device(), "env.reset")
        return self._out(self.env.reset(env_info))

    def step(self, action: DictTensor) -> tuple[Observation, Observation]:
        """Steps the running environments; see `VecEnv.step`.

        Where the environment returns one observation twice, because no episode ended, it is moved
        once and returned twice.
        """
        after, following = self.env.step(action.to(self.from_device))
        moved = self._out(after)
        return moved, moved if following[0] is after[0] else self._out(following)

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def _out(self, observation: Observation) -> Observation:
        return observation[0].to(self.to_device), observation[1].to(self.to_device)
