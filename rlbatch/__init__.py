"""Collects trajectories for reinforcement learning in PyTorch.

`RL_Batcher` runs an `RL_Agent` in environments (a `VecEnv`, such as `rlbatch.envs.GymEnv`) and
returns `Trajectories`; `replay_agent` runs the agent over them again, with gradients. The guide
begins in docs/index.md.
"""

from rlbatch import returns
from rlbatch._rows import masked_tensor
from rlbatch.agent import RL_Agent, RL_Agent_CheckDevice, replay_agent, replay_agent_stateless
from rlbatch.batcher import RL_Batcher
from rlbatch.dicttensor import DictTensor, TemporalDictTensor, Trajectories, masked_dicttensor
from rlbatch.envs.base import VecEnv
from rlbatch.episodes import acquire_episodes
from rlbatch.errors import (
    CallOrderError,
    DeviceMismatchError,
    DtypeMismatchError,
    EnvContractError,
    KeyMismatchError,
    ShapeError,
    SharedMemoryError,
    WorkerError,
    WorkerTimeoutError,
)
from rlbatch.throughput import tune_throughput
from rlbatch.waiting import wait_for_any

__all__ = [
    "CallOrderError",
    "DeviceMismatchError",
    "DictTensor",
    "DtypeMismatchError",
    "EnvContractError",
    "KeyMismatchError",
    "RL_Agent",
    "RL_Agent_CheckDevice",
    "RL_Batcher",
    "ShapeError",
    "SharedMemoryError",
    "TemporalDictTensor",
    "Trajectories",
    "VecEnv",
    "WorkerError",
    "WorkerTimeoutError",
    "acquire_episodes",
    "masked_dicttensor",
    "masked_tensor",
    "replay_agent",
    "replay_agent_stateless",
    "returns",
    "tune_throughput",
    "wait_for_any",
]

__version__ = "0.1.0"
