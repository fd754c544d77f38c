"""Environments of tests that step, and what they return beside each other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch

from rlbatch import DictTensor, RL_Agent
from rlbatch.envs.atari import AtariEnv

MakeEnv = Callable[..., AtariEnv]
LeaveAlone = Callable[[], AbstractContextManager[None]]


def check_equal(found: DictTensor, expected: DictTensor, where: str = "") -> None:
    assert list(found) == list(expected)
    for key in expected:
        assert found[key].dtype == expected[key].dtype
        assert torch.equal(found[key].cpu(), expected[key]), f"{where}: {key}"


def check_steps(kernels: AtariEnv, native: AtariEnv, n_steps: int, seed: int = 1) -> None:
    """Steps both with equal actions; all that they return must be equal, and their states."""
    rng = np.random.default_rng(seed)
    for t in range(n_steps):
        action = actions_of(native, rng)
        expected, found = native.step(action), kernels.step(action.to(kernels.device))
        for name, (one, _), (other, _) in zip(("after", "next"), found, expected, strict=True):
            check_equal(one, other, f"step {t}, {name}")
    assert torch.equal(kernels.get_state().cpu(), native.get_state())


def actions_of(env, generator):
    return DictTensor(
        {"action": torch.from_numpy(generator.integers(0, env.action_space.n, env.n_envs()))}
    )


def play(env, n_steps, seed=0):
    """Plays at random; returns both observations of every step."""
    generator = np.random.default_rng(seed)
    for _ in range(n_steps):
        (after, _), (following, _) = env.step(actions_of(env, generator))
        yield after, following


class Walker(RL_Agent):
    """Chooses by the sum of what it sees."""

    def __call__(self, state, observation, agent_info=None, history=None):  # noqa: D102
        seen = observation["frame"].flatten(1).sum(1, dtype=torch.int64)
        return DictTensor({"action": seen % 6}), DictTensor({})
