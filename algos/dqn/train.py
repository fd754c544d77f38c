"""DQN: Q-learning from a replay memory, in environments that reset themselves.

Source:
    Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015.
    van Hasselt et al., Deep reinforcement learning with double Q-learning, 2015, arXiv:1509.06461.
    Schaul et al., Prioritized experience replay, 2015, arXiv:1511.05952.

README.md lists what differs from them.
"""

from __future__ import annotations

import contextlib
import copy
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from algos.command_line import Count, Fraction, Maximum, Positive, RunConfig, parse
from algos.dqn.agent import Agent, Model, create_agent
from algos.dqn.memory import ReplayMemory
from algos.environments import (
    Episodes,
    create_env,
    episode_infos,
    frame_statistics,
    is_atari,
    spaces_of,
)
from algos.evaluation import evaluate
from algos.reproducibility import set_up
from algos.run import Result, Run
from rlbatch import DictTensor, RL_Batcher


@dataclass(frozen=True)
class Config(RunConfig):
    """Options of a DQN run."""

    algorithm: ClassVar[str] = "dqn"
    atari: ClassVar[dict[str, Any]] = {
        "n_envs": 16,
        "n_processes": 0,
        "n_threads": 1,
        "n_timesteps": 2,
        "n_updates": 8,
        "batch_size": 32,
        "learning_rate": 1e-4,
        "target_every": 125,
        "memory_capacity": 200_000,
        "learning_starts": 10_000,
        "exploration_steps": 100_000,
        "hidden_size": 512,
        "bf16": True,
        "normalize_frames": True,
        "total_steps": 1_500_000,
        "evaluation_episodes": 30,
        "evaluation_timesteps": 50,
        "evaluate_every": 2500,
        "greedy_evaluation": False,
        "log_every": 100,
        "checkpoint_every": 20_000,
    }

    devices: ClassVar[tuple[str, ...]] = (*RunConfig.devices, "memory_device")

    checkpoint_every: Count = 150
    """Iterations from one checkpoint to the next; there is also one at the end. A multiple of
    log-every. Environments begin anew there: no episode is longer, in training, than this many
    times n-timesteps."""
    n_timesteps: Count = 4
    """Steps that are acquired in each environment before updates."""
    n_updates: Count = 16
    """Updates after every acquisition."""
    batch_size: Count = 64
    """Transitions per update."""
    memory_capacity: Count = 100_000
    """Entries that are remembered, over all environments: a step, or the end of an episode."""
    memory_device: str = "cpu"
    """Where the memory is."""
    save_memory: bool = False
    """Whether checkpoints hold the memory; without it a resumed run fills it anew."""
    learning_starts: int = 1_000
    """Entries in the memory before the first update."""
    target_every: Count = 8
    """Iterations from one copy of the model for the targets to the next."""
    exploration_steps: Count = 20_000
    """Steps over which epsilon falls from 1 to final-epsilon."""
    final_epsilon: Fraction = 0.02
    """Final probability of a random action."""
    evaluation_epsilon: Fraction = 0.001
    """The same in evaluations that are not greedy."""
    learning_rate: Positive = 5e-4
    """Step size of Adam."""
    discount: Fraction = 0.99
    """How much a reward counts one step earlier, in [0, 1]."""
    double: bool = False
    """Whether the model, rather than the target network, chooses the action that a target is
    computed for."""
    dueling: bool = False
    """Whether the network adds up a value and advantages."""
    n_steps: Count = 1
    """Rewards in a target before it bootstraps from a value."""
    prioritized: bool = False
    """Whether transitions with large errors are drawn more often."""
    priority_exponent: Fraction = 0.6
    """How much more often, from 0 for all alike to 1."""
    importance_exponent: Fraction = 0.4
    """How far the loss makes up for that at the start, by weights of importance sampling; it rises
    to 1 with the steps."""
    max_gradient_norm: Maximum = 10.0
    """Longer gradients, over all weights, are scaled down to this norm."""
    hidden_size: Count = 128
    """Width of the features."""
    bf16: bool = False
    """Whether features are computed in bfloat16, which recent processors do faster."""
    compiled: bool = False
    """Whether torch.compile makes code for features, in every process, when it starts."""
    normalize_frames: bool = False
    """Whether images are centred and scaled by what is seen in play at random."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalize_frames and not is_atari(self.env_id):
            raise ValueError(f"normalize_frames: expected an Atari game, got {self.env_id}")
        # Every environment has to have more than n_steps; ends of episodes are kept beside them.
        least = 2 * self.n_envs * self.n_steps + 1
        if self.learning_starts < least:
            raise ValueError(
                f"learning_starts: expected at least {least} with these n_envs and n_steps, "
                f"got {self.learning_starts}"
            )
        if self.longest_episode < 2:  # The last step of a segment begins no transition.
            raise ValueError("checkpoint_every: expected at least 2 where n_timesteps is 1, got 1")

    @property
    def longest_episode(self) -> float:
        """Steps after which an episode is cut in training."""
        return self.checkpoint_every * self.n_timesteps


def loss(
    model: Model, target_model: Model, batch: DictTensor, weight: Tensor | float, config: Config
) -> tuple[Tensor, Tensor]:
    """Returns the loss of transitions, and their errors, [n] without gradient.

    Args:
        model: What is trained.
        target_model: An earlier copy of it.
        batch: See `ReplayMemory.sample`.
        weight: Of each transition, [n].
        config: Of the run.
    """
    value = model(batch["frame"]).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        following = target_model(batch["next_frame"])
        best = (model(batch["next_frame"]) if config.double else following).argmax(-1, keepdim=True)
        target = batch["reward"] + batch["discount"] * following.gather(-1, best).squeeze(-1)
    # Its slope is that of the source's clipped error.
    losses = smooth_l1_loss(value, target, reduction="none")
    return (weight * losses).mean(), (value - target).detach()


def epsilon_at(n_steps: int, config: Config) -> float:
    """Returns the probability of an action at random after so many steps of training."""
    fraction = min(n_steps / config.exploration_steps, 1.0)
    return 1.0 + fraction * (config.final_epsilon - 1.0)


def correction(batch: DictTensor, progress: float, config: Config) -> Tensor | float:
    """Returns the weights of transitions, [n], at most 1; Schaul et al., section 3.4.

    Args:
        batch: See `ReplayMemory.sample`.
        progress: Of the training, from 0 to 1.
        config: Of the run.
    """
    if not config.prioritized:
        return 1.0
    exponent = config.importance_exponent + progress * (1 - config.importance_exponent)
    weight = batch["probability"] ** -exponent
    return weight / weight.max()


def agent_factory(config: Config) -> partial[Agent]:
    """Returns what creates the agents of a run, called with `device`."""
    return partial(
        create_agent,
        config.env_id,
        epsilon=config.evaluation_epsilon,
        hidden_size=config.hidden_size,
        dueling=config.dueling,
        bf16=config.bf16,
        compiled=config.compiled,
    )


def new_memory(config: Config) -> ReplayMemory:
    """Returns the memory of a run, and says how much it takes before it takes it."""
    space = spaces_of(config.env_id)[0]
    memory = ReplayMemory(
        config.memory_capacity,
        config.n_envs,
        space,
        config.n_steps,
        config.discount,
        config.priority_exponent if config.prioritized else 0.0,
        config.memory_device,
        stack=space.shape[0] if is_atari(config.env_id) else 1,
    )
    size = memory.n_bytes() / 1e6
    with contextlib.suppress(OSError):  # Of a file on a full disk.
        print(f"replay memory: {size:,.1f} MB on {config.memory_device}", flush=True)
    memory.allocate()
    return memory


def train(config: Config) -> Result:
    """Trains until the score reaches the target or the steps are used up."""
    config.check_devices()
    set_up(config.seed, config.torch_deterministic, config.n_threads)
    create = agent_factory(config)
    agent = create(device=config.device)
    if config.normalize_frames:
        agent.model.encoder.normalize(*frame_statistics(config.env_id, config.seed))
    optimizer = torch.optim.Adam(agent.model.parameters(), config.learning_rate, eps=1e-4)
    target_model, memory = copy.deepcopy(agent.model), new_memory(config)
    if config.compiled:  # Copies of modules are not.
        target_model.encoder.compile()
    kept = {"target_model": target_model, **({"memory": memory} if config.save_memory else {})}
    with (
        Run(config, agent.model, optimizer, create, kept) as run,
        RL_Batcher(
            n_timesteps=config.n_timesteps,
            create_agent=create,
            agent_args={"device": config.batcher_device},
            create_env=create_env,
            env_args={
                "env_id": config.env_id,
                "n_envs": config.n_envs_per_process,
                "device": config.batcher_device,
                "autoreset": True,
            },
            n_processes=config.n_processes,
            seeds=config.seed,
            device=config.batcher_device,
            info_device=config.batcher_device,
        ) as batcher,
    ):
        while not run.finished:
            # Collect
            if run.begins_segment:
                agent_info, env_info = episode_infos(
                    config.n_envs, config.seed, Episodes.TRAINING, run.iteration
                )
                agent_info.set("epsilon", torch.ones(config.n_envs))
                batcher.reset(agent_info, env_info)
                memory.cut()
            agent_info.set("epsilon", torch.full((config.n_envs,), epsilon_at(run.n_steps, config)))
            batcher.update(agent.model.state_dict())
            batcher.execute(agent_info)
            trajectories, _ = batcher.get()
            memory.add(trajectories.trajectories)

            # Learn
            if run.iteration % config.target_every == 0:
                target_model.load_state_dict(agent.model.state_dict())
            n_updates = config.n_updates if memory.n_entries() >= config.learning_starts else 0
            figures = {"losses/value": math.nan, "charts/epsilon": epsilon_at(run.n_steps, config)}
            for _ in range(n_updates):
                batch = memory.sample(config.batch_size).to(config.device)
                weight = correction(batch, run.n_steps / config.total_steps, config)
                total_loss, error = loss(agent.model, target_model, batch, weight, config)
                optimizer.zero_grad()
                total_loss.backward()
                torch.nn.utils.clip_grad_norm_(agent.model.parameters(), config.max_gradient_norm)
                optimizer.step()
                if config.prioritized:
                    memory.set_priorities(batch["place"], error.abs() + 1e-6)
                figures["losses/value"] = total_loss.detach()

            # Report
            n_steps = config.n_envs * config.n_timesteps
            run.report(trajectories.trajectories, figures, n_updates, n_steps)
        return run.finish()


def main() -> None:
    """Reads the command line and trains, or evaluates a checkpoint."""
    config = parse(Config)
    if config.evaluate:
        print(evaluate(config, agent_factory(config)))
    else:
        train(config)
