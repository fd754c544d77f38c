"""Steps per second of A2C in training on Atari: this library beside a loop in one file.

Both have the same network, loss, optimizer, environments per update, steps per update and threads.
The other loop steps ale-py's AtariVectorEnv, or EnvPool where that is installed, the faster of the
two, and keeps its batch in tensors that it makes beforehand. They run in turn.

- `ratio`: of the steps per second, the median over the rounds of two runs that follow each other.
- `ours_sps`, `peer_sps`: environment steps in training per second, medians.
- `ours_shares`, `peer_shares`: of the time, in the environments, in choosing actions, in learning
  and in the rest. On a GPU by the clock of the host, which goes on while the GPU computes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tyro
from ale_py.vector_env import AtariVectorEnv as AleVectorEnv
from torch import Tensor

from algos.a2c.agent import Model, create_agent
from algos.a2c.train import Config as A2CConfig
from algos.a2c.train import loss
from algos.environments import Episodes, create_env, episode_infos, spaces_of
from benchmarks.atari_cpu import envpool
from benchmarks.report import Report
from rlbatch import RL_Batcher
from rlbatch.envs.atari import find_game
from rlbatch.returns import gae

PARTS = ("environment", "inference", "learning", "rest")


@dataclass(frozen=True)
class Options:
    """What to measure."""

    game: str = "Pong"
    """As in PongNoFrameskip-v4."""
    n_envs: int = 64
    """Environments."""
    n_timesteps: int = 8
    """Steps per update, in each environment."""
    n_threads: int = 2
    """Of PyTorch, and of the environments."""
    bf16: bool = False
    """Whether features are computed in bfloat16."""
    compiled: bool = False
    """Whether torch.compile makes the code for features, of both."""
    n_iterations: int = 20
    """Updates per run."""
    rounds: int = 7
    """How often each competitor runs; one more comes before."""
    device: str = "cpu"
    """Where the network is, and our environments."""
    out: str | None = None
    """File that the JSON object is written to as well."""


def new_optimizer(model: Model) -> torch.optim.Optimizer:
    """Returns what trains either."""
    return torch.optim.RMSprop(model.parameters(), 7e-4, alpha=0.99, eps=1e-5)


class Ours:
    """The loop of algos/a2c/train.py, without its report."""

    def __init__(self, options: Options, stack: ExitStack):
        env_id = f"{options.game}NoFrameskip-v4"
        self.options, self.config = options, A2CConfig()
        arguments = {"env_id": env_id, "hidden_size": 512, "recurrent": False}
        arguments |= {"bf16": options.bf16, "compiled": options.compiled}
        arguments |= {"device": options.device}
        self.agent = create_agent(**arguments)
        self.optimizer = new_optimizer(self.agent.model)
        self.batcher = stack.enter_context(
            RL_Batcher(
                n_timesteps=options.n_timesteps,
                create_agent=create_agent,
                agent_args=arguments,
                create_env=create_env,
                env_args={
                    "env_id": env_id,
                    "n_envs": options.n_envs,
                    "device": options.device,
                    "autoreset": True,
                },
                n_processes=0,
                seeds=0,
                device=options.device,
                info_device=options.device,
            )
        )
        self.batcher.reset(*episode_infos(options.n_envs, 0, Episodes.TRAINING, 0))
        self.learning_s = 0.0

    def iterate(self) -> None:
        """Acquires a batch and learns from it."""
        self.batcher.update(self.agent.model.state_dict())
        self.batcher.execute()
        trajectories, _ = self.batcher.get()
        started = time.perf_counter()
        total_loss, _ = loss(self.agent, trajectories, self.config)
        self.optimizer.zero_grad()
        total_loss.backward()
        torch.nn.utils.clip_grad_norm_(self.agent.model.parameters(), 0.5)
        self.optimizer.step()
        self.learning_s += time.perf_counter() - started

    def seconds(self) -> tuple[float, float, float]:
        """Returns the seconds in environments, in choosing actions and in learning so far."""
        stats = self.batcher.stats()[0]
        return stats["env_s"], stats["agent_s"], self.learning_s


class Peer:
    """One loop over one vector environment, as scripts of one file have it."""

    def __init__(self, options: Options, stack: ExitStack):
        self.options, self.config = options, A2CConfig()
        n, T, self.device = options.n_envs, options.n_timesteps, torch.device(options.device)
        self.env = faster_env(options)
        stack.callback(self.env.close)
        spaces = spaces_of(f"{options.game}NoFrameskip-v4")
        model = Model(*spaces, 512, bf16=options.bf16, compiled=options.compiled)
        self.model = model.to(self.device)
        self.optimizer = new_optimizer(self.model)
        self.observations = torch.zeros(T, n, 4, 84, 84, dtype=torch.uint8, device=self.device)
        self.actions = torch.zeros(T, n, dtype=torch.int64, device=self.device)
        self.values, self.rewards, self.dones = torch.zeros(3, T, n, device=self.device)
        self.observation = self._tensor(self.env.reset()[0])
        self.env_s = self.inference_s = self.learning_s = 0.0

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def iterate(self) -> None:
        """Acquires a batch and learns from it."""
        for t in range(self.options.n_timesteps):
            self._step(t)
        started = time.perf_counter()
        self._learn()
        self.learning_s += time.perf_counter() - started

    def _step(self, t: int) -> None:
        started = time.perf_counter()
        self.observations[t] = self.observation
        with torch.no_grad():
            features = self.model.features(self.observation)
            action = self.model.policy(features).sample()
            self.values[t] = self.model.value(features)
        self.actions[t] = action
        chosen = action.cpu().numpy()
        acted = time.perf_counter()
        observation, reward, terminated, truncated, _ = self.env.step(chosen)
        self.observation = self._tensor(observation)
        self.env_s += time.perf_counter() - acted
        self.rewards[t] = self._tensor(np.asarray(reward, np.float32))
        self.dones[t] = self._tensor(np.logical_or(terminated, truncated).astype(np.float32))
        self.inference_s += acted - started

    def _learn(self) -> None:
        with torch.no_grad():
            last = self.model.value(self.model.features(self.observation))
            ended = self.dones.T.bool()
            advantage = gae(
                self.rewards.T.contiguous(),
                self.values.T.contiguous(),
                torch.cat([self.values[1:], last[None]]).T.contiguous(),
                terminated=ended,
                truncated=torch.zeros_like(ended),
                discount=self.config.discount,
                lambda_=self.config.gae_lambda,
            ).T
            target = advantage + self.values
        features = self.model.features(self.observations.flatten(0, 1))
        policy = self.model.policy(features)
        log_prob = policy.log_prob(self.actions.flatten())
        value_loss = (self.model.value(features) - target.flatten()).square().mean()
        total = -(log_prob * advantage.flatten()).mean() + 0.5 * value_loss
        total = total - 0.01 * policy.entropy().mean()
        self.optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()

    def seconds(self) -> tuple[float, float, float]:
        """Returns the seconds in environments, in choosing actions and in learning so far."""
        return self.env_s, self.inference_s, self.learning_s


def faster_env(options: Options) -> Any:
    """Returns the vector environment of others that steps faster here, if there are two."""
    game = find_game(f"{options.game}NoFrameskip-v4").name
    made = [AleVectorEnv(game, options.n_envs, num_threads=options.n_threads)]
    if pool := envpool(game, options.n_envs, options.n_threads):
        made.append(pool)
    if len(made) == 1:
        return made[0]
    speeds = []
    for env in made:
        env.reset()
        actions, started = np.zeros(options.n_envs, np.int64), time.perf_counter()
        for _ in range(50):
            env.step(actions)
        speeds.append(time.perf_counter() - started)
    best = speeds.index(min(speeds))
    for number, env in enumerate(made):
        if number != best:
            env.close()
    return made[best]


def run(loop: Ours | Peer, options: Options) -> tuple[float, list[float]]:
    """Runs some iterations; returns steps per second and the shares of time of `PARTS`."""
    before, started = loop.seconds(), time.perf_counter()
    for _ in range(options.n_iterations):
        loop.iterate()
    if options.device != "cpu":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - started
    spent = [after - first for after, first in zip(loop.seconds(), before, strict=True)]
    shares = [part / elapsed for part in (*spent, elapsed - sum(spent))]
    return options.n_iterations * options.n_envs * options.n_timesteps / elapsed, shares


def main(options: Options) -> None:
    """Runs both in turn, prints a table and, last, one JSON object."""
    torch.manual_seed(0)
    torch.set_num_threads(options.n_threads)
    report = Report("a2c_atari", ["", "steps/s", *PARTS], options.device)
    kinds: dict[str, Callable[..., Ours | Peer]] = {"ours": Ours, "peer": Peer}
    with ExitStack() as stack:
        loops = {name: kind(options, stack) for name, kind in kinds.items()}
        rounds = [
            {name: run(loop, options) for name, loop in loops.items()}
            for _ in range(options.rounds + 1)
        ][1:]
        peer_env = type(loops["peer"].env).__module__.partition(".")[0]
    for name in kinds:
        speed = statistics.median(found[name][0] for found in rounds)
        shares = np.median([found[name][1] for found in rounds], axis=0)
        report.row(name, f"{speed:,.0f}", *(f"{share:.0%}" for share in shares))
        report.figure(f"{name}_sps", round(speed))
        report.figure(f"{name}_shares", dict(zip(PARTS, shares.round(3).tolist(), strict=True)))
    ratio = statistics.median(found["ours"][0] / found["peer"][0] for found in rounds)
    report.figure("ratio", round(ratio, 3))
    report.figure("peer_env", peer_env)
    for name in ("game", "n_envs", "n_timesteps", "n_threads", "bf16", "compiled"):
        report.figure(name, getattr(options, name))
    report.finish(options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
