"""Environments. `GymEnv` and `GymEnvInf` import Gymnasium when they are first named."""

from typing import TYPE_CHECKING, Any

from rlbatch.envs.base import VecEnv
from rlbatch.envs.check import check_env
from rlbatch.envs.device import DeviceEnv

if TYPE_CHECKING:
    from rlbatch.envs.gym import GymEnv, GymEnvInf

__all__ = ["DeviceEnv", "GymEnv", "GymEnvInf", "VecEnv", "check_env"]


def __getattr__(name: str) -> Any:
    if name in ("GymEnv", "GymEnvInf"):
        from rlbatch.envs import gym

        return getattr(gym, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
