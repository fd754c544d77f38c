"""A2C: advantage actor-critic, in environments that reset themselves.

Source:
    Mnih et al., Asynchronous methods for deep reinforcement learning, 2016, arXiv:1602.01783.
    Schulman et al., High-dimensional continuous control using generalized advantage estimation,
    2016, arXiv:1506.02438.
    Espeholt et al., IMPALA, 2018, arXiv:1802.01561, for V-trace.

README.md lists what differs from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from algos.a2c.agent import Agent, create_agent
from algos.a2c.window import Window
from algos.command_line import Count, Fraction, Maximum, Positive, RunConfig, parse
from algos.environments import Episodes, create_env, episode_infos, frame_statistics, is_atari
from algos.evaluation import evaluate
from algos.reproducibility import set_up
from algos.run import Result, Run
from rlbatch import RL_Batcher, Trajectories, replay_agent_stateless
from rlbatch.returns import gae, vtrace


@dataclass(frozen=True)
class Config(RunConfig):
    """Options of an A2C run."""

    algorithm: ClassVar[str] = "a2c"
    atari: ClassVar[dict[str, Any]] = {
        "n_envs": 120,
        "n_processes": 0,
        "n_threads": 2,
        "n_timesteps": 20,
        "n_groups": 20,
        "vtrace": True,
        "learning_rate": 6.5e-4,
        "anneal_learning_rate": True,
        "hidden_size": 512,
        "bf16": True,
        "normalize_frames": True,
        "life_loss_ends": True,
        "total_steps": 3_000_000,
        "evaluation_episodes": 30,
        "evaluation_timesteps": 50,
        "evaluate_every": 2000,
        "greedy_evaluation": False,
        "log_every": 100,
        "checkpoint_every": 10_000,
    }

    checkpoint_every: Count = 50
    """Iterations from one checkpoint to the next; there is also one at the end. A multiple of
    log-every. Environments begin anew there: no episode is longer, in training, than this many
    times n-timesteps / n-groups."""
    n_timesteps: Count = 16
    """Steps that an update looks at, in each environment."""
    n_groups: Count = 1
    """Groups of environments that take turns to be learnt from; see algos/a2c/window.py."""
    vtrace: bool = False
    """Whether targets are corrected for actions that an older policy has taken."""
    asynchronous: bool = False
    """Whether the next steps are acquired while these are learnt from; that needs processes."""
    learning_rate: Positive = 2e-3
    """Step size of RMSProp."""
    anneal_learning_rate: bool = False
    """Whether the step size falls to 0 over the steps of the training."""
    discount: Fraction = 0.99
    """How much a reward counts one step earlier, in [0, 1]."""
    reward_scale: Positive = 1.0
    """What rewards are multiplied by in training, so that values of observations are near 1."""
    gae_lambda: Fraction = 0.95
    """How far advantages look beyond the value of the next step, in [0, 1]; not with V-trace."""
    entropy_coefficient: float = 0.01
    """Weight of the policy's entropy, in nats, which the loss rewards."""
    value_coefficient: float = 0.5
    """Weight of the value's squared error in the loss."""
    normalize_advantages: bool = False
    """Whether advantages are shifted and scaled to mean 0 and deviation 1 in each update."""
    max_gradient_norm: Maximum = 0.5
    """Longer gradients, over all weights, are scaled down to this norm."""
    hidden_size: Count = 64
    """Width of the features, and of the memory."""
    recurrent: bool = False
    """Whether the agent has a memory."""
    bf16: bool = False
    """Whether features are computed in bfloat16, which recent processors do faster."""
    compiled: bool = False
    """Whether torch.compile makes code for features, in every process, when it starts."""
    normalize_frames: bool = False
    """Whether images are centred and scaled by what is seen in play at random."""
    life_loss_ends: bool = False
    """Whether a lost life ends what counts in training, in Atari games, which go on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalize_frames and not is_atari(self.env_id):
            raise ValueError(f"normalize_frames: expected an Atari game, got {self.env_id}")
        for name, value in (("n_timesteps", self.n_timesteps), ("n_envs", self.n_envs)):
            if value % self.n_groups:
                raise ValueError(
                    f"{name}: expected a multiple of n_groups ({self.n_groups}), got {value}"
                )
        if self.asynchronous and not self.n_processes:
            raise ValueError("n_processes: expected 1 or more for asynchronous, got 0")

    @property
    def longest_episode(self) -> float:
        """Steps after which an episode is cut in training."""
        return self.checkpoint_every * self.n_timesteps // self.n_groups


def loss(agent: Agent, trajectories: Trajectories, config: Config) -> tuple[Tensor, dict]:
    """Returns the loss of a batch of trajectories, a mean over their steps, and its parts."""
    steps = trajectories.trajectories
    replay = replay_agent_stateless(agent, trajectories, "replay")

    value = replay["value"]
    targets = {
        "reward": config.reward_scale * steps["_observation/reward"],
        "value_t": value.detach(),
        "value_tp1": replay["next_value"],
        "terminated": steps["_observation/terminated"],
        "truncated": steps["_observation/truncated"],
        "discount": config.discount,
    }
    if config.vtrace:
        value_target, advantage = vtrace(
            target_log_prob=replay["log_prob"],
            behaviour_log_prob=steps["action/log_prob"],
            **targets,
        )
    else:
        advantage = gae(lambda_=config.gae_lambda, **targets)
        value_target = advantage + value.detach()
    if config.normalize_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    policy_loss = -(replay["log_prob"] * advantage).mean()
    value_loss = mse_loss(value, value_target)
    entropy = replay["entropy"].mean()
    total = (
        policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy
    )
    parts = {"policy": policy_loss, "value": value_loss, "entropy": entropy}
    return total, {f"losses/{name}": part.detach() for name, part in parts.items()}


def agent_factory(config: Config) -> partial[Agent]:
    """Returns what creates the agents of a run, called with `device`."""
    return partial(
        create_agent,
        config.env_id,
        hidden_size=config.hidden_size,
        recurrent=config.recurrent,
        bf16=config.bf16,
        compiled=config.compiled,
    )


def train(config: Config) -> Result:
    """Trains until the score reaches the target or the steps are used up."""
    config.check_devices()
    set_up(config.seed, config.torch_deterministic, config.n_threads)
    create = agent_factory(config)
    agent = create(device=config.device)
    if config.normalize_frames:
        agent.model.encoder.normalize(*frame_statistics(config.env_id, config.seed))
    optimizer = torch.optim.RMSprop(
        agent.model.parameters(), config.learning_rate, alpha=0.99, eps=1e-5
    )
    window = Window(config.n_groups)
    with (
        Run(config, agent.model, optimizer, create) as run,
        RL_Batcher(
            n_timesteps=config.n_timesteps // config.n_groups,
            create_agent=create,
            agent_args={"device": config.batcher_device},
            create_env=create_env,
            env_args={
                "env_id": config.env_id,
                "n_envs": config.n_envs_per_process,
                "device": config.batcher_device,
                "autoreset": True,
                "life_loss_ends": config.life_loss_ends,
            },
            n_processes=config.n_processes,
            seeds=config.seed,
            device=config.batcher_device,
            info_device=config.batcher_device,
        ) as batcher,
    ):
        is_ahead = False
        while not run.finished:
            # Collect
            if run.begins_segment:
                batcher.reset(
                    *episode_infos(config.n_envs, config.seed, Episodes.TRAINING, run.iteration)
                )
                window.clear()
            batcher.update(agent.model.state_dict())
            if not is_ahead:
                batcher.execute()
            trajectories, _ = batcher.get()
            is_ahead = config.asynchronous and not run.ends_segment
            if is_ahead:  # The next steps are acquired while these are learnt from.
                batcher.execute()
            window.add(trajectories.to(config.device))

            # Learn
            if config.anneal_learning_rate:
                rest = 1 - run.n_steps / config.total_steps
                optimizer.param_groups[0]["lr"] = rest * config.learning_rate
            batch = window.group(run.iteration)
            total_loss, figures = loss(agent, batch, config)
            optimizer.zero_grad()
            total_loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.model.parameters(), config.max_gradient_norm)
            optimizer.step()

            # Report
            lag = policy_lag(batch, batcher.policy_version)
            n_steps = config.n_envs * config.n_timesteps // config.n_groups
            run.report(trajectories.trajectories, {**lag, **figures}, n_steps=n_steps)
        return run.finish()


def policy_lag(batch: Trajectories, version: int) -> dict[str, Tensor]:
    """Returns by how many updates the policies that took the steps are older than `version`."""
    lag = version - batch.trajectories["policy_version"].double()
    return {
        "charts/policy_lag": lag.mean(),
        "charts/policy_lag_min": lag.min(),
        "charts/policy_lag_max": lag.max(),
    }


def main() -> None:
    """Reads the command line and trains, or evaluates a checkpoint."""
    config = parse(Config)
    if config.evaluate:
        print(evaluate(config, agent_factory(config)))
    else:
        train(config)
