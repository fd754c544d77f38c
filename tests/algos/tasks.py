"""Tiny Gymnasium environments, registered so that an `env_id` names them."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class TwoStates(gymnasium.Env):
    """Shows one of two states, drawn anew in each step; naming it is worth 1.

    Episodes are cut after `EPISODE_STEPS`, so the best return is that number and a guess is worth
    half of it.
    """

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(2))
        return self.state, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.state)
        self.state = int(self.np_random.integers(2))
        return self.state, reward, False, False, {}


class Countdown(gymnasium.Env):
    """Ends after a number of steps that is drawn at each reset; each step is worth 1.

    The observation is [the drawn number, the step].
    """

    observation_space = spaces.Box(0, 100, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.length, self.count = int(self.np_random.integers(1, 10)), 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._observe(), 1.0, self.count == self.length, False, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.length, self.count], np.float32)


EPISODE_STEPS = 8
TWO_STATES = "tests.algos.tasks:TwoStates-v0"
COUNTDOWN = "tests.algos.tasks:Countdown-v0"
ENDLESS = "tests.algos.tasks:Endless-v0"

gymnasium.register("TwoStates-v0", TwoStates, 7.5, max_episode_steps=EPISODE_STEPS)
gymnasium.register("Countdown-v0", Countdown, max_episode_steps=100)
gymnasium.register("Endless-v0", TwoStates)
