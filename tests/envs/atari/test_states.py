"""States of environments: from a state that is set everything repeats, random numbers included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlbatch import DictTensor
from rlbatch.envs.atari import GAMES, AtariEnv


@pytest.mark.parametrize("game", GAMES)
def test_everything_repeats_for_1000_steps(game: str) -> None:
    env = AtariEnv(game, 2, seed=7, num_threads=1, repeat_action_probability=0.25)
    env.reset()
    actions = np.random.default_rng(5).integers(0, env.action_space.n, 1040)
    for t, number in enumerate(actions.tolist()):
        if t == 40:
            assert not torch.equal(*env.get_state())
            env.set_state([1], env.get_state([0]))
        (after, _), (following, _) = env.step(DictTensor({"action": torch.full((2,), number)}))
        if t >= 40:
            for observation in (after, following):
                for key in ("frame", "reward_raw", "done", "lives", "episode_return"):
                    assert torch.equal(*observation[key]), f"{game}: {key} at step {t - 40}"
    assert torch.equal(*env.get_state())
