"""Scores: the mean return of complete episodes, acquired beside the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import torch

from algos import checkpoints
from algos.command_line import RunConfig
from algos.environments import Episodes, create_env, episode_infos
from rlbatch import CallOrderError, RL_Agent, RL_Batcher
from rlbatch.devices import as_present_device


class Score(NamedTuple):
    """Undiscounted returns of complete episodes.

    Attributes:
        mean: Over the episodes.
        std: Over the episodes, of this population.
        n_episodes: How many.
    """

    mean: float
    std: float
    n_episodes: int

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f} ({self.n_episodes} episodes)"


class Evaluation:
    """Plays episodes in environments and processes of its own, while the caller goes on.

    It owns the batcher; `close()` it, or use it in a `with`. Without processes of its own it plays
    in the caller's, during `start` and `poll`.

    Args:
        config: `evaluation_episodes` environments play one episode each.
        create_agent: Called with `device`.
    """

    def __init__(self, config: RunConfig, create_agent: Callable[..., RL_Agent]):
        self._config = config
        self._returns: list[float] | None = None
        device, n_processes = config.evaluation_device, config.n_evaluation_processes
        self._batcher = RL_Batcher(
            n_timesteps=config.evaluation_timesteps,
            create_agent=create_agent,
            agent_args={"device": device},
            create_env=create_env,
            env_args={
                "env_id": config.env_id,
                "n_envs": config.evaluation_episodes // max(n_processes, 1),
                "device": device,
                "num_threads": 1 if n_processes > 1 else 0,
            },
            n_processes=n_processes,
            num_threads=config.n_threads,
            seeds=config.seed,
            device=device,
            info_device=device,
        )

    def start(self, weights: Mapping[str, Any], use: Episodes, iteration: int) -> None:
        """Begins to evaluate.

        Args:
            weights: The model's `state_dict`; copied before this returns.
            use: What the episodes are for, see NOTE [ seeds of episodes ].
            iteration: Of the training.

        Raises:
            CallOrderError: An evaluation is under way.
        """
        if self._returns is not None:
            raise CallOrderError("start: expected no evaluation under way, got one; finish it")
        config = self._config
        self._batcher.update(weights)
        stochastic = not config.greedy_evaluation
        self._batcher.reset(
            *episode_infos(config.evaluation_episodes, config.seed, use, iteration, stochastic)
        )
        self._batcher.execute()
        self._returns = []

    def poll(self) -> Score | None:
        """Returns the score, once, if all episodes have ended; None otherwise.

        Does not wait. Episodes that are longer than `config.evaluation_timesteps` go on from here.
        """
        return self._collect(blocking=False)

    def finish(self) -> Score | None:
        """Waits for all episodes and returns the score; None where no evaluation is under way."""
        score = None
        while self._returns is not None:
            score = self._collect(blocking=True)
        return score

    def run(self, weights: Mapping[str, Any], use: Episodes, iteration: int) -> Score:
        """Evaluates, and waits for it; see `start`."""
        self.start(weights, use, iteration)
        return self.finish()

    def close(self) -> None:
        """Ends the processes; what is under way is dropped."""
        self._batcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _collect(self, blocking: bool) -> Score | None:
        if self._returns is None:
            return None
        trajectories, n_running = self._batcher.get(blocking=blocking)
        if trajectories is None:
            return None
        steps = trajectories.trajectories
        last = steps.temporal_multi_index(steps.lengths - 1)
        self._returns += last["_observation/episode_return"][last["_observation/done"]].tolist()
        if n_running:
            self._batcher.execute()
            return None
        returns, self._returns = torch.tensor(self._returns, dtype=torch.float64), None
        return Score(returns.mean().item(), returns.std(correction=0).item(), len(returns))


def evaluate(config: RunConfig, create_agent: Callable[..., RL_Agent]) -> Score:
    """Scores the checkpoint `config.evaluate`, over the episodes of its own final evaluation.

    Raises:
        ValueError: There is no such device, or the checkpoint is of another network.
    """
    as_present_device(config.evaluation_device, "evaluation_device")
    content = checkpoints.load(config.evaluate, config.algorithm, config.env_id)
    # A misfit is told here, in words of these options, not by a worker.
    checkpoints.load_weights(create_agent(device="cpu").model, content, config, "evaluate")
    with Evaluation(config, create_agent) as evaluation:
        return evaluation.run(content["model"], Episodes.FINAL_EVALUATION, content["iteration"])
