"""The `VecEnv` contract as a test to run on an environment of one's own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from rlbatch.dicttensor import DictTensor
from rlbatch.envs.base import Observation, VecEnv
from rlbatch.errors import EnvContractError

logger = logging.getLogger(__name__)

_DTYPES = {
    "reward": torch.float32,
    "terminated": torch.bool,
    "truncated": torch.bool,
    "done": torch.bool,
    "initial_state": torch.bool,
    "episode_return": torch.float32,
    "episode_length": torch.int64,
}


class CheckReport(NamedTuple):
    """What a check has seen; a clause about what never happened was not tested.

    Attributes:
        n_steps: Calls of `step`.
        n_terminated: Episodes that ended.
        n_truncated: Episodes that were cut.
    """

    n_steps: int
    n_terminated: int
    n_truncated: int


def check_env(
    env: VecEnv,
    n_steps: int = 200,
    sample_action: Callable[[int], DictTensor] | None = None,
) -> CheckReport:
    """Walks through the contract of `VecEnv` with random actions.

    The environment is reset, stepped and reset again; it is not closed.

    Args:
        env: The environment.
        n_steps: How many times to step it. Take enough for an episode to end.
        sample_action: Returns actions for that many environments. None draws them from
            `env.action_space`, which has to be a Gymnasium space then.

    Returns:
        What was seen. A warning is logged if no episode ended.

    Raises:
        EnvContractError: A clause is broken; the message names it.

    Example:
        >>> import gymnasium
        >>> from rlbatch.envs import GymEnv
        >>> report = check_env(GymEnv([gymnasium.make("CartPole-v1")], seed=0))
        >>> report.n_terminated > 0
        True
    """
    walk = _Walk(env, sample_action or _sampler(env))
    for _ in range(n_steps):
        walk.step()
    walk.reset()
    report = CheckReport(n_steps, walk.n_terminated, walk.n_truncated)
    if not walk.n_terminated + walk.n_truncated:
        logger.warning("check_env: no episode ended in %d steps; take more", n_steps)
    return report


class _Walk:
    """One run through an environment, with what the next step has to agree with."""

    def __init__(self, env: VecEnv, sample_action: Callable[[int], DictTensor]):
        self.env, self.sample_action = env, sample_action
        self.n_terminated = self.n_truncated = 0
        self.device = torch.device(env.device)
        _expect(env.n_envs() > 0, "n_envs() is at least 1", env.n_envs())
        self.reset()

    def reset(self) -> None:
        """Checks the clauses about a reset, and starts to follow the episodes."""
        observation, running = self.env.reset(DictTensor())
        n_envs = self.env.n_envs()
        self.everyone = torch.arange(n_envs)
        self.check_running(running, "reset")
        _equal(running.cpu(), self.everyone, "after reset all environments run, in order")
        self.specs = observation.specs()
        self.check_observation(observation, n_envs, "reset")
        _all(observation["initial_state"], "after reset initial_state is True")
        for key in ("reward", "terminated", "truncated", "episode_return", "episode_length"):
            _all(observation[key] == 0, f"after reset {key} is 0")
        self.observation, self.running = observation, running
        self.returns = torch.zeros(n_envs, dtype=torch.float64)

    def step(self) -> None:
        """Checks the clauses about one step."""
        if not len(self.running):
            self.reset()
        n = len(self.running)
        action = self.sample_action(n).to(self.device)
        acted_on = self.observation.clone()
        (after, ran), (following, running) = self.env.step(action)
        for pair in ((after, ran), (following, running)):
            self.check_running(pair[1], "step")
            self.check_observation(pair[0], len(pair[1]), "step")
        _equal(ran, self.running, "the first pair holds the environments that ran")
        for key, tensor in acted_on.items():
            unchanged = torch.equal(tensor.nan_to_num(), self.observation[key].nan_to_num())
            _expect(unchanged, f"a step leaves the observation before it alone: {key}", "changed")
        self.check_episodes(acted_on, after)
        for name in ("action", *(key for key in action if key.startswith("action/"))):
            if name in action and f"last_{name}" in after:
                self.check_last_action(acted_on, after[f"last_{name}"], action[name])
        self.check_following((after, ran), (following, running))
        self.n_terminated += int(after["terminated"].sum())
        self.n_truncated += int((after["truncated"] & ~after["terminated"]).sum())
        self.observation, self.running = following, running

    def check_running(self, running: torch.Tensor, where: str) -> None:
        _expect(running.dtype == torch.int64, f"{where}: running is int64", running.dtype)
        _expect(running.device == self.device, f"{where}: running is on env.device", running.device)
        ascending = bool((running[1:] > running[:-1]).all())
        _expect(ascending, f"{where}: running ascends", running.tolist())

    def check_observation(self, observation: DictTensor, n: int, where: str) -> None:
        device = observation.device()
        _expect(device == self.device, f"{where}: observations are on env.device", device)
        specs = observation.specs()
        _expect(specs == self.specs, f"{where}: keys, shapes, dtypes stay as {self.specs}", specs)
        rows = observation.n_elems()
        _expect(rows == n, f"{where}: one row per running environment ({n})", rows)
        for key, dtype in _DTYPES.items():
            _expect(key in observation, f"{where}: observations carry {key}", list(observation))
            found = observation[key]
            _expect(found.dtype == dtype and found.dim() == 1, f"{key} is [B] {dtype}", found)
        either = observation["terminated"] | observation["truncated"]
        _equal(observation["done"], either, f"{where}: done is terminated or truncated")

    def check_episodes(self, before: DictTensor, after: DictTensor) -> None:
        """Checks that return and length count on, or start where an episode does."""
        # A row that was done before is the reset step of an environment that resets late.
        counts = ~before["done"]
        _equal(
            after["episode_length"][counts],
            before["episode_length"][counts] + 1,
            "episode_length counts the steps of the episode",
        )
        ran = self.running.cpu()
        rewards = after["reward"].cpu().double()
        self.returns[ran] = torch.where(counts.cpu(), self.returns[ran] + rewards, 0.0)
        close = torch.allclose(after["episode_return"].cpu().double(), self.returns[ran], 1e-4, 1e-4)
        _expect(close, "episode_return sums the rewards of the episode", after["episode_return"])
        _equal(after["initial_state"], ~counts, "initial_state is True only at a first observation")

    def check_last_action(
        self, before: DictTensor, last: torch.Tensor, action: torch.Tensor
    ) -> None:
        counts = ~before["done"]
        taken = action.to(last.dtype)[counts]
        _equal(last[counts], taken, "last_action is the action that led to the observation")

    def check_following(self, after: Observation, following: Observation) -> None:
        (seen, ran), (coming, running) = after, following
        if self.env.autoreset:
            _equal(running.cpu(), self.everyone, "with autoreset all environments run on")
            fresh = coming["initial_state"] & ~seen["initial_state"]
            _expect(not bool((fresh & ~seen["done"]).any()), "only ended episodes are reset", fresh)
            self.returns[fresh.cpu()] = 0
            kept = torch.arange(len(ran), device=self.device)[~seen["done"]]
            rows = kept
        else:
            _equal(running, ran[~seen["done"]], "those whose episode is not done run on")
            kept = torch.arange(len(ran), device=self.device)[~seen["done"]]
            rows = torch.arange(len(running), device=self.device)
        for key in seen:
            _equal(coming[key][rows], seen[key][kept], f"{key} is the same in both pairs")


def _sampler(env: VecEnv) -> Callable[[int], DictTensor]:
    space: Any = env.action_space
    if not hasattr(space, "sample"):
        raise EnvContractError(
            f"action_space: expected a Gymnasium space or an argument sample_action, got {space!r}"
        )

    def sample(n: int) -> DictTensor:
        rows = []
        for _ in range(n):
            value = space.sample()
            nested = isinstance(value, (dict, tuple))
            one = _tensors(value)
            rows.append(DictTensor.from_nested({"action": one} if nested else {"action": one}))
        return DictTensor.cat(rows)

    return sample


def _tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tensors(child) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(_tensors(child) for child in value)
    return torch.from_numpy(np.asarray(value)[None])


def _expect(holds: bool, clause: str, found: Any) -> None:
    if not holds:
        raise EnvContractError(f"{clause}: expected so, got {found}")


def _all(found: torch.Tensor, clause: str) -> None:
    _expect(bool(found.all()), clause, found)


def _equal(found: torch.Tensor, expected: torch.Tensor, clause: str) -> None:
    same = found.shape == expected.shape and bool(
        ((found == expected) | ((found != found) & (expected != expected))).all()
    )
    if not same:
        raise EnvContractError(f"{clause}: expected {expected}, got {found}")
