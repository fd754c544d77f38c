"""REINFORCE with a baseline, trained on whole episodes.

Source:
    Williams, Simple statistical gradient-following algorithms for connectionist reinforcement
    learning, 1992, https://doi.org/10.1007/BF00992696.
    Sutton and Barto, Reinforcement Learning: An Introduction, 2nd ed., 13.3 and 13.4.

README.md lists what differs from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from algos.command_line import Count, Fraction, Maximum, Positive, RunConfig, parse
from algos.environments import Episodes, create_env, episode_infos, time_limit
from algos.evaluation import evaluate
from algos.reinforce.agent import Agent, create_agent
from algos.reproducibility import set_up
from algos.run import Result, Run
from rlbatch import RL_Batcher, Trajectories, replay_agent_stateless
from rlbatch.returns import discounted_returns


@dataclass(frozen=True)
class Config(RunConfig):
    """Options of a REINFORCE run."""

    algorithm: ClassVar[str] = "reinforce"

    learning_rate: Positive = 1e-2
    """Step size of Adam, for the policy and the baseline."""
    discount: Fraction = 0.99
    """How much a reward counts one step earlier, in [0, 1]."""
    entropy_coefficient: float = 0.01
    """Weight of the policy's entropy, in nats, which the loss rewards."""
    baseline_coefficient: float = 0.5
    """Weight of the baseline's squared error in the loss."""
    normalize_advantages: bool = True
    """Whether advantages are shifted and scaled to mean 0 and deviation 1 in each update."""
    max_gradient_norm: Maximum = 1.0
    """Longer gradients, over all weights, are scaled down to this norm."""
    hidden_size: Count = 64
    """Width of the two hidden layers of each network."""


def loss(agent: Agent, trajectories: Trajectories, config: Config) -> tuple[Tensor, dict]:
    """Returns the loss of a batch of episodes, a mean over their steps, and its parts."""
    steps = trajectories.trajectories
    mask = steps.mask(torch.bool)
    replay = replay_agent_stateless(agent, trajectories, "replay")

    # An episode that was cut goes on in the baseline's estimate.
    last = steps.temporal_multi_index(steps.lengths - 1)
    with torch.no_grad():
        bootstrap = agent.model.baseline(last["_observation/frame"])
    returns = discounted_returns(
        steps["_observation/reward"],
        terminated=steps["_observation/terminated"],
        truncated=steps["_observation/truncated"],
        discount=config.discount,
        bootstrap=bootstrap.unsqueeze(1).expand_as(mask),
        mask=mask,
    )[mask]

    baseline = replay["baseline"][mask]
    advantage = returns - baseline.detach()
    if config.normalize_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    policy_loss = -(replay["log_prob"][mask] * advantage).mean()
    baseline_loss = mse_loss(baseline, returns)
    entropy = replay["entropy"][mask].mean()
    total = (
        policy_loss
        + config.baseline_coefficient * baseline_loss
        - config.entropy_coefficient * entropy
    )
    parts = {"policy": policy_loss, "baseline": baseline_loss, "entropy": entropy}
    return total, {f"losses/{name}": part.detach() for name, part in parts.items()}


def agent_factory(config: Config) -> partial[Agent]:
    """Returns what creates the agents of a run, called with `device`."""
    return partial(create_agent, config.env_id, hidden_size=config.hidden_size)


def train(config: Config) -> Result:
    """Trains until the score reaches the target or the steps are used up."""
    config.check_devices()
    set_up(config.seed, config.torch_deterministic, config.n_threads)
    create = agent_factory(config)
    agent = create(device=config.device)
    optimizer = torch.optim.Adam(agent.model.parameters(), config.learning_rate)
    n_timesteps = time_limit(config.env_id)
    with (
        Run(config, agent.model, optimizer, create) as run,
        RL_Batcher(
            n_timesteps=n_timesteps,
            create_agent=create,
            agent_args={"device": config.batcher_device},
            create_env=create_env,
            env_args={
                "env_id": config.env_id,
                "n_envs": config.n_envs_per_process,
                "device": config.batcher_device,
            },
            n_processes=config.n_processes,
            seeds=config.seed,
            device=config.batcher_device,
            info_device=config.batcher_device,
        ) as batcher,
    ):
        while not run.finished:
            # Collect
            batcher.update(agent.model.state_dict())
            batcher.reset(
                *episode_infos(config.n_envs, config.seed, Episodes.TRAINING, run.iteration)
            )
            batcher.execute()
            trajectories, _ = batcher.get()
            trajectories = trajectories.to(config.device)

            # Learn
            total_loss, figures = loss(agent, trajectories, config)
            optimizer.zero_grad()
            total_loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.model.parameters(), config.max_gradient_norm)
            optimizer.step()

            # Report
            run.report(trajectories.trajectories, figures)
        return run.finish()


def main() -> None:
    """Reads the command line and trains, or evaluates a checkpoint."""
    config = parse(Config)
    if config.evaluate:
        print(evaluate(config, agent_factory(config)))
    else:
        train(config)
