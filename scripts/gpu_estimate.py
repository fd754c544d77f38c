"""Estimates, without a GPU, how well the threads of a warp work together.

    python -m scripts.gpu_estimate --games pong breakout

The CPU plays a warp of 32 environments in random play, and counts, per emulated frame of one
environment:

- `instructions`: instructions of the console's CPU that are executed;
- `turns`: how often the warp chooses who runs, divided by 32;
- `warp_instructions`: instructions that the warp executes, divided by 32: those of threads that
  run together count once;
- `efficiency`: instructions / (32 x warp instructions): the share of the warp that works.

and takes from the compiled code how many machine instructions the kernels have. What a frame
costs follows with two assumptions, which are options: machine instructions per instruction of the
console, and per turn. It is an estimate, not a measurement. Prints a table and one JSON object.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from dataclasses import dataclass

import numpy as np
import torch
import tyro

from rlbatch import DictTensor
from rlbatch.envs.atari import GAMES, AtariEnv, build


@dataclass(frozen=True)
class Config:
    """What to estimate."""

    games: tuple[str, ...] = tuple(GAMES)
    """Which games."""
    n_steps: int = 12
    """Steps of four frames that are counted."""
    n_before: int = 60
    """Steps at random before, on the native library, so that environments are apart."""
    per_instruction: float = 90
    """Machine instructions per instruction of the console, assumed."""
    per_turn: float = 30
    """Machine instructions to choose who runs, assumed."""


def count(game: str, config: Config) -> dict[str, float]:
    """Plays one warp; returns the counts per frame of an environment."""
    os.environ[build.GRID_VARIABLE] = "0"
    native = AtariEnv(game, 32, seed=0, decorrelate_steps=config.n_before)
    native.reset()
    os.environ[build.GRID_VARIABLE] = "1"
    env = AtariEnv(game, 32, seed=0)
    env.reset()
    env.set_state(None, native.get_state())
    env.observe()  # So that the results are those of the states.
    rng = np.random.default_rng(0)
    before = build.grid_counts()
    frames_before = env._batch.results["frame_number"].clone()
    for _ in range(config.n_steps):
        action = torch.from_numpy(rng.integers(0, env.action_space.n, 32))
        env.step(DictTensor({"action": action}))
    after = build.grid_counts()
    env.observe()
    n_frames = float((env._batch.results["frame_number"] - frames_before).clamp(min=0).sum())
    native.close()
    env.close()
    counts = {name: (after[name] - before[name]) / n_frames for name in after}
    counts["efficiency"] = counts["instructions"] / (32 * counts["warp_instructions"])
    counts["slots"] = (
        config.per_instruction * counts["warp_instructions"] + config.per_turn * counts["turns"]
    )
    return counts


def main(config: Config) -> None:
    """Counts all games; prints a table and one JSON object."""
    print(f"{'game':20} instructions  turns  warp instructions  efficiency  slots")
    found = {}
    for game in config.games:
        one = found[game] = count(game, config)
        print(
            f"{game:20} {one['instructions']:12,.0f} {one['turns']:6,.0f} "
            f"{one['warp_instructions']:18,.0f} {one['efficiency']:11.2f} {one['slots']:6,.0f}"
        )
    means = {
        f"geomean_{name}": math.exp(statistics.fmean(math.log(one[name]) for one in found.values()))
        for name in ("instructions", "efficiency", "slots")
    }
    assumed = {"per_instruction": config.per_instruction, "per_turn": config.per_turn}
    print(json.dumps({"benchmark": "gpu_estimate", **means, **assumed, "games": found}))


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
