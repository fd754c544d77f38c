"""Trajectories from agents and environments, acquired on a chosen device."""

from rlbatch.agent import RL_Agent, RL_Agent_CheckDevice, replay_agent, replay_agent_stateless
from rlbatch.dicttensor import (
    DictTensor,
    TemporalDictTensor,
    Trajectories,
    masked_dicttensor,
    masked_tensor,
)
from rlbatch.envs.base import VecEnv

__version__ = "0.1.0"
