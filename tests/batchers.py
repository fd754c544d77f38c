"""Batchers, and agents and environments for them, for tests."""

import time

import gymnasium
import torch

from rlbatch import DictTensor, RL_Agent, RL_Batcher, Trajectories
from rlbatch.envs import GymEnvInf
from tests.helpers import CountingEnv

LENGTHS = [3, 5, 2, 7, 4, 1, 6, 9]


class CountingAgent(RL_Agent):
    """An agent whose state counts its steps; it answers with all that it was given."""

    def initial_state(self, agent_info, B):
        return DictTensor({"count": torch.zeros(B, dtype=torch.int64)})

    def __call__(self, state, observation, agent_info, history=None):
        output = {
            "action": observation["frame"][:, 0] % 2,
            "seen": observation["frame"],
            "count": state["count"],
        }
        if "epsilon" in agent_info:
            output["epsilon"] = agent_info["epsilon"]
        return DictTensor(output), DictTensor({"count": state["count"] + 1})


def counting(lengths, autoreset, seed):
    """Makes CountingEnvs; with a `Seed` their numbers go on over processes."""
    return CountingEnv(lengths, autoreset, seed=seed)


def make_batcher(n_processes=0, lengths=LENGTHS, autoreset=False, n_timesteps=4, **changes):
    settings = {
        "n_timesteps": n_timesteps,
        "create_agent": CountingAgent,
        "agent_args": {},
        "create_env": counting,
        "env_args": {"lengths": lengths, "autoreset": autoreset},
        "n_processes": n_processes,
        "seeds": 0,
    }
    return RL_Batcher(**{**settings, **changes})


def acquire(batcher):
    """Begins episodes, and returns what their first steps are."""
    batcher.reset()
    batcher.execute()
    return batcher.get()


def assert_equal(first: Trajectories, second: Trajectories) -> None:
    """Asserts that two batches are equal bit for bit, padding included."""
    assert first.info.keys() == second.info.keys()
    assert first.trajectories.keys() == second.trajectories.keys()
    assert torch.equal(first.trajectories.lengths, second.trajectories.lengths)
    for a, b in ((first.info, second.info), (first.trajectories, second.trajectories)):
        for key in a:
            assert a[key].dtype == b[key].dtype
            assert torch.equal(a[key], b[key]), key


class Rewriter(RL_Agent):
    """Counts its steps in place, and scales what it sees."""

    def initial_state(self, agent_info, B):
        return DictTensor({"n": torch.zeros(B)})

    def __call__(self, state, observation, agent_info, history=None):
        state["n"].add_(1)
        observation.set("frame", observation["frame"] / 10)
        action = torch.zeros(observation.n_elems(), dtype=torch.int64)
        seen = observation["frame"]
        return DictTensor({"action": action, "n": state["n"], "seen": seen}), state


def cart_poles(n_envs, seed):
    return GymEnvInf([gymnasium.make("CartPole-v1") for _ in range(n_envs)], seed)


class Sleeper(CountingEnv):
    """Sleeps in its second step, until it is killed."""

    def step(self, action):
        if self.count[0] == 1:
            while True:
                time.sleep(1)
        return super().step(action)


def sleeping(seed):
    return Sleeper([9, 9], seed=seed)


class Napper(CountingEnv):
    """Sleeps, for a second, in one step of each episode."""

    def __init__(self, lengths, nap_at, nap_s=1):
        super().__init__(lengths)
        self.nap_at, self.nap_s = nap_at, nap_s

    def step(self, action):
        if self.count[0] == self.nap_at:
            time.sleep(self.nap_s)
        return super().step(action)


class Heavy(CountingAgent):
    def __init__(self, weights):
        self.weights = weights
