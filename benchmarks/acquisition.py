"""Acquisition in one process with environments, agent and batcher on one GPU: speed, memory, trace.

What `examples/gpu_batcher.py` does: frames are stored once, stacks are in the agent's state and a
Nature CNN (float32) draws the actions. The first `execute` counts for nothing.

JSON: `fps`, raw frames per second of `execute` and `get` together; `peak_bytes_per_env` of
everything that PyTorch has allocated meanwhile, and `peak_bytes`; and of a profile of one more
`execute` and `get`: `copies`, how many of each kind there were (`Memcpy DtoD` stays on the GPU),
`waits`, how often the host waited, by the call that it did it with, and `kernel_seconds`, of those
that took longest. A copy between host and GPU is an error.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
import tyro
from torch.autograd import DeviceType

from benchmarks.report import Report
from examples.gpu_batcher import Player
from rlbatch import RL_Batcher
from rlbatch.envs.atari import AtariEnv, find_game

FRAME_SKIP = 4
N_KERNELS = 8


@dataclass(frozen=True)
class Config:
    """What to measure."""

    game: str = "pong"
    """Which game."""
    n_envs: int = 32768
    """Environments."""
    n_timesteps: int = 20
    """Steps of a slot."""
    rounds: int = 3
    """How many slots are timed; the median is reported."""
    device: str = "cuda"
    """The device."""
    out: str | None = None
    """File that the JSON object is written to as well."""


def make_batcher(config: Config) -> RL_Batcher:
    """Returns a batcher in this process, with everything on one device."""

    def create_env(seed: int) -> AtariEnv:
        return AtariEnv(config.game, config.n_envs, device=config.device, seed=seed, stack_num=1)

    n_actions = len(find_game(config.game).minimal_actions)
    agent_args = {"n_actions": n_actions, "device": config.device}
    settings = {"n_processes": 0, "seeds": 0, "device": config.device}
    return RL_Batcher(config.n_timesteps, Player, agent_args, create_env, {}, **settings)


def acquire(batcher: RL_Batcher, config: Config) -> float:
    """Acquires one slot; returns raw frames per second."""
    started = time.perf_counter()
    batcher.execute()
    batcher.get(copy=False)
    if config.device != "cpu":
        torch.cuda.synchronize(config.device)
    n_frames = FRAME_SKIP * config.n_envs * config.n_timesteps
    return n_frames / (time.perf_counter() - started)


def trace(batcher: RL_Batcher) -> dict[str, dict[str, float]]:
    """Returns what a profile of one acquisition shows."""
    with torch.profiler.profile() as profile:
        batcher.execute()
        batcher.get(copy=False)
    events = profile.key_averages()
    on_gpu = [event for event in events if event.device_type == DeviceType.CUDA]
    kernels = [event for event in on_gpu if not event.key.startswith("Mem")]
    kernels.sort(key=lambda event: event.device_time_total, reverse=True)
    return {
        "copies": {event.key: event.count for event in events if event.key.startswith("Memcpy")},
        "waits": {event.key: event.count for event in events if "Synchronize" in event.key},
        "kernel_seconds": {e.key[:80]: e.device_time_total / 1e6 for e in kernels[:N_KERNELS]},
    }


def main(config: Config) -> None:
    """Measures, prints a table and, last, one JSON object.

    Raises:
        SystemExit: Something was copied between host and GPU.
    """
    is_gpu = config.device != "cpu"
    report = Report("acquisition", ["what", "figure"], config.device)
    with make_batcher(config) as batcher:
        batcher.reset()
        acquire(batcher, config)
        fps = statistics.median(acquire(batcher, config) for _ in range(config.rounds))
        found = trace(batcher)
    report.row("frames/s", f"{fps:,.0f}")
    report.figure("fps", fps)
    if is_gpu:
        peak = torch.cuda.max_memory_allocated(config.device)
        report.row("bytes per environment", f"{peak / config.n_envs:,.0f}")
        report.figure("peak_bytes", peak)
        report.figure("peak_bytes_per_env", peak / config.n_envs)
    for name, counts in found.items():
        report.row(name, ", ".join(f"{key}: {count:g}" for key, count in counts.items()) or "none")
        report.figure(name, counts)
    for name in ("game", "n_envs", "n_timesteps"):
        report.figure(name, getattr(config, name))
    report.finish(config.out)
    crossed = [key for key in found["copies"] if "HtoD" in key or "DtoH" in key]
    if crossed:
        raise SystemExit(f"copies: expected none between host and GPU, got {crossed}")


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
