"""Environments. What needs Gymnasium imports it when it is first named."""

from typing import TYPE_CHECKING, Any

from rlbatch.envs.base import VecEnv
from rlbatch.envs.check import check_env
from rlbatch.envs.device import DeviceEnv

if TYPE_CHECKING:
    from rlbatch.envs.gym import GymEnv, GymEnvInf
    from rlbatch.envs.vector import to_gymnasium

__all__ = ["DeviceEnv", "GymEnv", "GymEnvInf", "VecEnv", "check_env", "to_gymnasium"]


def __getattr__(name: str) -> Any:
    if name in ("GymEnv", "GymEnvInf"):
        from rlbatch.envs import gym

        return getattr(gym, name)
    if name == "to_gymnasium":
        from rlbatch.envs import vector

        return vector.to_gymnasium
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
