"""Environment steps per second of RL_Batcher beside Gymnasium's vector environments.

All competitors run CartPole-v1 with the same small network choosing actions (greedily), start the
next episode when one ends, and keep what a learner needs: observation, action, reward and flags of
every step. The peers do so in the usual loop over `step`, into tensors allocated once, in one
process with one torch thread; RL_Batcher by `execute` and `get`. A competitor and its peer run in
turn; the ratio is the median of those of the rounds. A step is one that an action decides: in
Gymnasium's default mode an environment resets in a step of its own, which is not counted.

- `ratio_2x64`, `ratio_2x16`: two processes of that many environments against one SyncVectorEnv of
  as many in all; `ratio_inprocess`: `n_processes=0` against it, both with 32 environments.
- `two_loops_2x64`, `two_loops_2x16`: two processes with such a loop each, which share nothing but
  the start of every T steps, against one: what a second process is worth on this machine.
- `ratio_2x64_same_data`, `ratio_2x16_same_data`: against a loop over SyncVectorEnv that keeps all
  that the batcher's trajectories hold, `CompleteLoop`.
- `ratio_vectorised`: in the caller's process against the loop, with the CartPole that Gymnasium
  steps in one NumPy expression; `vectorised_overhead_us` is the difference per step.
- `overhead_us`: what the batcher itself costs per step, in microseconds: everything, with a no-op
  environment of 10 keys (each stored twice, before and after the step) and a no-op agent, 64
  environments, in the caller's process.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
import tyro
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from benchmarks.report import Report
from rlbatch import DictTensor, RL_Agent, RL_Batcher, VecEnv
from rlbatch.envs import GymEnvInf

N_TIMESTEPS = 64


@dataclass(frozen=True)
class Config:
    """What to measure."""

    rounds: int = 9
    """How often each competitor runs; medians are reported."""
    seconds: float = 0.7
    """How long each run lasts at least, in seconds."""
    out: str | None = None
    """File that the JSON object is written to as well."""


def network() -> torch.nn.Module:
    """Returns the small network that everybody uses."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
        torch.nn.Linear(64, 2),
    )  # fmt: skip


class Greedy(RL_Agent):
    """The network as an agent."""

    def __init__(self) -> None:
        self.model = network()

    def __call__(self, state, observation, agent_info, history=None):  # noqa: ANN001, ANN201, D102
        logits = self.model(observation["frame"])
        return DictTensor({"action": logits.argmax(1)}), DictTensor()


def cartpoles(n_envs: int, seed: Any) -> GymEnvInf:
    """Returns that many CartPoles for a batcher."""
    return GymEnvInf([gymnasium.make("CartPole-v1") for _ in range(n_envs)], seed)


def vectorised_cartpoles(n_envs: int, seed: Any) -> GymEnvInf:
    """Returns Gymnasium's CartPole that steps all environments in one NumPy expression."""
    entry = "vector_entry_point"
    vector = gymnasium.make_vec("CartPole-v1", num_envs=n_envs, vectorization_mode=entry)
    return GymEnvInf(vector, seed)


class NoOpEnv(VecEnv):
    """Costs nothing: ten keys that never change."""

    autoreset = True

    def __init__(self, n_envs: int, seed: Any, n_keys: int = 10):
        observation = {f"key{k}": torch.zeros(n_envs, 4) for k in range(n_keys)}
        self._now = DictTensor(observation), torch.arange(n_envs)

    def n_envs(self) -> int:  # noqa: D102
        return len(self._now[1])

    def reset(self, env_info=None):  # noqa: ANN001, ANN201, D102
        return self._now

    def step(self, action):  # noqa: ANN001, ANN201, D102
        return self._now, self._now


class NoOpAgent(RL_Agent):
    """Costs nothing: always the same action."""

    def __init__(self, n_envs: int):
        self._answer = DictTensor({"action": torch.zeros(n_envs, dtype=torch.int64)}), DictTensor()

    def __call__(self, state, observation, agent_info, history=None):  # noqa: ANN001, ANN201, D102
        return self._answer


class GymnasiumLoop:
    """The usual loop over a vector environment, storing T steps at a time."""

    def __init__(self, vector: gymnasium.vector.VectorEnv):
        self.vector, self.n_envs, self.model = vector, vector.num_envs, network()
        self.frame, _ = vector.reset(seed=0)
        self.n_due = 0  # Environments whose next step is their reset.
        shape = (N_TIMESTEPS, self.n_envs)
        self.frames = torch.zeros(*shape, *self.frame.shape[1:])
        self.actions = torch.zeros(shape, dtype=torch.int64)
        self.rewards = torch.zeros(shape)
        self.terminated, self.truncated = (torch.zeros(shape, dtype=torch.bool) for _ in range(2))

    @torch.no_grad()
    def acquire(self) -> int:
        """Acquires T steps; returns how many environment steps that were, resets left out."""
        n_resets = 0
        for t in range(N_TIMESTEPS):
            frame = torch.from_numpy(self.frame)
            action = self.model(frame).argmax(1)
            self.frames[t], self.actions[t] = frame, action
            self.frame, reward, terminated, truncated, _ = self.vector.step(action.numpy())
            self.rewards[t] = torch.from_numpy(np.asarray(reward, np.float32))
            self.terminated[t] = torch.from_numpy(terminated)
            self.truncated[t] = torch.from_numpy(truncated)
            n_resets += self.n_due
            self.n_due = int((terminated | truncated).sum())
        return N_TIMESTEPS * self.n_envs - n_resets

    def close(self) -> None:
        """Closes the environments."""
        self.vector.close()


class CompleteLoop(GymnasiumLoop):
    """A loop that keeps what a batcher's trajectories hold.

    Beside what the usual loop keeps that is the true observation after every step, the return and
    length of the episode, the last action, and which observations are the first of an episode.
    """

    def __init__(self, n_envs: int):
        vector = SyncVectorEnv(
            [partial(gymnasium.make, "CartPole-v1")] * n_envs,
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
        super().__init__(vector)
        shape = (N_TIMESTEPS, n_envs)
        self.next_frames = torch.zeros_like(self.frames)
        self.returns, self.lengths = torch.zeros(shape), torch.zeros(shape, dtype=torch.int64)
        self.last_actions = torch.zeros(shape, dtype=torch.int64)
        self.initial_states, self.dones = (torch.zeros(shape, dtype=torch.bool) for _ in range(2))
        self.last_action = torch.zeros(n_envs, dtype=torch.int64)
        self.episode_return, self.episode_length = np.zeros(n_envs), np.zeros(n_envs, np.int64)

    @torch.no_grad()
    def acquire(self) -> int:
        """Acquires T steps; returns how many environment steps that were."""
        for t in range(N_TIMESTEPS):
            frame = torch.from_numpy(self.frame)
            action = self.model(frame).argmax(1)
            self.frames[t], self.actions[t], self.last_actions[t] = frame, action, self.last_action
            self.initial_states[t] = torch.from_numpy(self.episode_length == 0)
            self.frame, reward, terminated, truncated, info = self.vector.step(action.numpy())
            self.episode_return += reward
            self.episode_length += 1
            done = terminated | truncated
            self.rewards[t] = torch.from_numpy(np.asarray(reward, np.float32))
            self.terminated[t] = torch.from_numpy(terminated)
            self.truncated[t] = torch.from_numpy(truncated)
            self.dones[t] = torch.from_numpy(done)
            self.returns[t] = torch.from_numpy(self.episode_return.astype(np.float32))
            self.lengths[t] = torch.from_numpy(self.episode_length)
            self.next_frames[t] = torch.from_numpy(self.frame)
            self.last_action = action
            if done.any():
                ended = torch.from_numpy(done)
                final = np.stack(list(info["final_obs"][done]))
                self.next_frames[t, ended] = torch.from_numpy(final)
                self.last_action = torch.where(ended, 0, action)
                self.episode_return[done], self.episode_length[done] = 0, 0
        return N_TIMESTEPS * self.n_envs


class TwoLoops:
    """Two processes, each with the usual loop over half of the environments."""

    def __init__(self, n_envs: int):
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(2)]
        self.connections = [mine for mine, _ in pipes]
        self.processes = [
            context.Process(target=serve_loop, args=(theirs, n_envs // 2), daemon=True)
            for _, theirs in pipes
        ]
        for process in self.processes:
            process.start()

    def acquire(self) -> int:
        """Lets both acquire T steps; returns how many environment steps that were."""
        for connection in self.connections:
            connection.send(True)
        return sum(connection.recv() for connection in self.connections)

    def close(self) -> None:
        """Ends both processes."""
        for connection, process in zip(self.connections, self.processes, strict=True):
            connection.send(False)
            process.join()


def serve_loop(connection: Connection, n_envs: int) -> None:
    """Acquires T steps whenever it is told True, until it is told False."""
    torch.set_num_threads(1)
    loop = GymnasiumLoop(vector_env(SyncVectorEnv, n_envs))
    while connection.recv():
        connection.send(loop.acquire())
    loop.close()


class Batched:
    """RL_Batcher, acquiring T steps at a time."""

    def __init__(
        self,
        n_envs: int,
        n_processes: int,
        create_env: Callable[..., VecEnv] = cartpoles,
        create_agent: Callable[..., RL_Agent] = Greedy,
    ):
        self.batcher = RL_Batcher(
            n_timesteps=N_TIMESTEPS,
            create_agent=create_agent,
            agent_args={},
            create_env=create_env,
            env_args={"n_envs": n_envs // max(n_processes, 1)},
            n_processes=n_processes,
            seeds=0,
        )
        self.batcher.reset()

    def acquire(self) -> int:
        """Acquires T steps; returns how many environment steps that were, resets left out."""
        self.batcher.execute()
        steps = self.batcher.get()[0].trajectories
        # Done before the step: a vector environment resets in it. A no-op one has no such key.
        resets = steps["observation/done"].sum() if "observation/done" in steps else 0
        return steps.n_elems() * N_TIMESTEPS - int(resets)

    def close(self) -> None:
        """Closes the batcher."""
        self.batcher.close()


Competitor = GymnasiumLoop | TwoLoops | Batched


def steps_per_second(competitor: Competitor, seconds: float) -> float:
    """Runs a competitor for that long; returns environment steps per second."""
    n_steps, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        n_steps += competitor.acquire()
    return n_steps / elapsed


class Comparison(NamedTuple):
    """Medians over rounds: of both rates, in steps per second, and of the ratio of a round."""

    rate: float
    peer_rate: float
    ratio: float


def compare(competitor: Competitor, peer: Competitor, config: Config) -> Comparison:
    """Runs a competitor and its peer in turn; closes the competitor, not the peer."""
    for one in (competitor, peer):
        one.acquire()  # Memory is touched and caches are filled.
    rounds = []
    for _ in range(config.rounds):
        # One right after the other: the ratio of a round is that of two runs on one machine,
        # even if that machine is another one, as to its speed, in the next round.
        peer_rate = steps_per_second(peer, config.seconds)
        rate = steps_per_second(competitor, config.seconds)
        rounds.append((rate, peer_rate, rate / peer_rate))
    competitor.close()
    return Comparison(*map(statistics.median, zip(*rounds, strict=True)))


def vector_env(kind: type, n_envs: int) -> gymnasium.vector.VectorEnv:
    """Returns Gymnasium's vector environment of that kind."""
    return kind([partial(gymnasium.make, "CartPole-v1")] * n_envs)


def compare_cartpole(report: Report, config: Config) -> None:
    """CartPole, one object per environment: the batcher beside both of Gymnasium's."""
    for n_envs in (32, 128):
        sync = GymnasiumLoop(vector_env(SyncVectorEnv, n_envs))
        for n_processes in (0, 1, 2):
            name = f"RL_Batcher, {n_processes} processes"
            found = compare(Batched(n_envs, n_processes), sync, config)
            add(report, "CartPole-v1", name, n_envs, found)
            if n_processes == 2:
                report.figure(f"ratio_2x{n_envs // 2}", found.ratio)
                complete = CompleteLoop(n_envs)
                found = compare(Batched(n_envs, 2), complete, config)
                report.figure(f"ratio_2x{n_envs // 2}_same_data", found.ratio)
                what = "SyncVectorEnv, the same data"
                report.row("CartPole-v1", what, n_envs, f"{found.peer_rate:,.0f}", "")
                complete.close()
                found = compare(TwoLoops(n_envs), sync, config)
                add(report, "CartPole-v1", "SyncVectorEnv, 2 processes", n_envs, found)
                report.figure(f"two_loops_2x{n_envs // 2}", found.ratio)
            elif n_processes == 0:
                suffix = "" if n_envs == 32 else f"_{n_envs}"
                report.figure(f"ratio_inprocess{suffix}", found.ratio)
        # Last: it keeps a process per environment.
        asynchronous = GymnasiumLoop(vector_env(AsyncVectorEnv, n_envs))
        found = compare(asynchronous, sync, config)
        add(report, "CartPole-v1", "AsyncVectorEnv", n_envs, found)
        report.figure(f"ratio_async_{n_envs}", found.ratio)
        report.row("CartPole-v1", "SyncVectorEnv", n_envs, f"{found.peer_rate:,.0f}", "1.00")
        sync.close()


def compare_vectorised(report: Report, config: Config) -> None:
    """Gymnasium's CartPole in NumPy, where a step of all environments costs little."""
    n_envs, entry = 128, "vector_entry_point"
    vector = gymnasium.make_vec("CartPole-v1", num_envs=n_envs, vectorization_mode=entry)
    loop, name = GymnasiumLoop(vector), "RL_Batcher, 0 processes"
    found = compare(Batched(n_envs, 0, vectorised_cartpoles), loop, config)
    add(report, "CartPole-v1, NumPy", name, n_envs, found)
    report.row(
        "CartPole-v1, NumPy", "loop over make_vec", n_envs, f"{found.peer_rate:,.0f}", "1.00"
    )
    report.figure("ratio_vectorised", found.ratio)
    overhead_us = n_envs * 1e6 * (1 / found.rate - 1 / found.peer_rate)
    report.figure("vectorised_overhead_us", overhead_us)


def measure_overhead(report: Report, config: Config) -> None:
    """A no-op environment and agent: what is left is the batcher."""
    n_envs = 64
    batched = Batched(n_envs, 0, NoOpEnv, partial(NoOpAgent, n_envs))
    batched.acquire()
    rates = [steps_per_second(batched, config.seconds) for _ in range(config.rounds)]
    rate = statistics.median(rates)
    report.row("no-op, 10 keys", "RL_Batcher, 0 processes", n_envs, f"{rate:,.0f}", "")
    report.figure("overhead_us", n_envs * 1e6 / rate)


def add(report: Report, env: str, competitor: str, n_envs: int, found: Comparison) -> None:
    """Adds a row for people and the rate for machines."""
    report.row(env, competitor, n_envs, f"{found.rate:,.0f}", f"{found.ratio:.2f}")
    report.figure(f"steps_per_s/{env}/{n_envs}/{competitor}", found.rate)


def main(config: Config) -> None:
    """Measures, prints a table and, last, one JSON object."""
    torch.set_num_threads(1)
    report = Report("batcher", ["environment", "competitor", "envs", "steps/s", "ratio"])
    compare_cartpole(report, config)
    compare_vectorised(report, config)
    measure_overhead(report, config)
    report.finish(config.out)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
