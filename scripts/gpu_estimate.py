"""Counts, without a GPU, what the kernels cost on one: the code for an H100, played on a CPU.

    python -m scripts.gpu_estimate --games pong breakout

plays a warp of 32 environments in random play (see `scripts.sass`), checks that what comes out is
what the CPU core gives, and counts, per emulated frame of one environment:

- `step_slots`, `observe_slots`: issue slots, which are instructions of a warp, of the kernels that
  step and that make the observations;
- `threads`: how many of a warp's 32 threads work in a slot of the former, on average;
- `step_cycles`: cycles of a warp, by a model of its stalls, for a frame of all its environments;
  `step_misses`: lines of 128 bytes that it fetches in these from the second-level cache; `shares`:
  of the cycles, by function;
- `reset_cycles`: cycles of a warp in which one environment begins an episode. A step in which that
  happens lasts so much longer for all.

From these follows how many frames an H100 would emulate per second, if its 528 schedulers had two
warps each, which is what 32,768 environments are (three, of 50,688, with `--warps-per-scheduler 3`;
fewer environments with `--lanes`), which wait for each other where they want to issue at once, and
if the observations, which have many warps, use `--utilisation` of its slots: while no episode ends
(`frames_per_second`), and where one ends in every step of four frames
(`frames_per_second_with_resets`). It is an estimate, not a measurement: latencies are assumed, each
warp has an equal share of the first-level cache, the second-level cache and those of instructions
never miss. On an H200 a warp filled as many slots as are counted here, but each took about twice as
long, mostly because those of instructions do miss. Prints a line per game, a table and one JSON
object. The committed one is of all games, which takes an hour on two cores:

    python -m scripts.gpu_estimate --out benchmarks/results/gpu_estimate.json
"""

from __future__ import annotations

import concurrent.futures
import math
import multiprocessing
import os
import statistics
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tyro

from benchmarks.report import Report
from rlbatch import DictTensor
from rlbatch.envs.atari import GAMES, AtariEnv
from rlbatch.envs.atari._device import DeviceJob
from scripts import sass

# An H100 SXM. Source: NVIDIA H100 Tensor Core GPU Architecture (2022), table 3: multiprocessors and
# boost clock; each multiprocessor has four schedulers.
_SCHEDULERS, _HERTZ = 4 * 132, 1.755e9
_SCHEDULERS_TOGETHER = 4  # That share a cache.
_WARP = 32
_FRAME_SKIP = 4  # As by default.


@dataclass(frozen=True)
class Config:
    """What to estimate."""

    games: tuple[str, ...] = tuple(GAMES)
    """Which games; one takes half a minute, and most of another if its kernels are compiled."""
    n_games_at_once: int = os.cpu_count() or 1
    """How many games are played at the same time, in processes."""
    n_steps: int = 4
    """Steps of four frames that are counted."""
    n_before: int = 500
    """Steps at random before, on the CPU core, so that environments are apart."""
    lanes: int = _WARP
    """Environments of a warp: with fewer than 32 the warps are those of a smaller batch."""
    warps_per_scheduler: int = 2
    """Warps of the step kernel that run side by side."""
    utilisation: float = 0.7
    """Of a scheduler's slots, when observations are made."""
    out: str | None = None
    """File that the JSON object is written to as well."""


def count(game: str, config: Config) -> dict[str, Any]:
    """Plays one warp; returns the counts per frame of an environment.

    Raises:
        SassError: The code cannot be played, or what it gives is not what the CPU core gives.
    """
    native = AtariEnv(game, _WARP, seed=0, decorrelate_steps=config.n_before)
    native.reset()
    rng = np.random.default_rng(0)
    n_warps = _SCHEDULERS_TOGETHER * config.warps_per_scheduler
    with sass.played(n_warps=n_warps) as kernels_of:
        env = AtariEnv(game, _WARP, seed=0)
        env._n_resets = 1  # Playing a reset takes longer than all that is counted.
        env.set_state(native.get_state())
        env._batch.n_warps = -(-_WARP // config.lanes)
        env.observe()  # So that the results are those of the states.
        kernels_of(game).forget()
        frames_before = env._batch.results["frame_number"].clone()
        for _ in range(config.n_steps):
            action = torch.from_numpy(rng.integers(0, env.action_space.n, _WARP))
            env.step(DictTensor({"action": action}))
            native.step(DictTensor({"action": action}))
        shares = kernels_of(game).shares("rlb_step")
        steps, looks = (kernels_of(game).counts(name) for name in ("rlb_step", "rlb_observe"))
        is_equal = np.array_equal(np.asarray(env.get_state()), np.asarray(native.get_state()))
        frames = (env._batch.results["frame_number"] - frames_before).clamp(min=0)
        kernels_of(game).forget()
        env._batch.step(torch.tensor([DeviceJob.RESET] + [DeviceJob.NONE] * (_WARP - 1)).byte())
        reset_cycles = float(kernels_of(game).counts("rlb_step")[:, 2].sum())
        env.close()
    native.close()
    if not is_equal:
        raise sass.SassError(f"{game}: expected the states of the CPU core, got others")
    n_frames = float(frames.sum())
    return {
        "step_slots": steps[:, 0].sum() / n_frames,
        "observe_slots": looks[:, 0].sum() / n_frames,
        "threads": steps[:, 1].sum() / steps[:, 0].sum(),
        "step_cycles": steps[:, 2].sum() / (n_frames / config.lanes),
        "step_misses": steps[:, 3].sum() / (n_frames / config.lanes),
        "reset_cycles": reset_cycles,
        "shares": {name: round(share, 3) for name, share in shares.items() if share >= 0.01},
    }


def issue_rate(cycles_per_slot: float, n_warps: int) -> float:
    """Returns the slots that a scheduler fills per cycle, with so many equal warps.

    Args:
        cycles_per_slot: Of a warp alone: one in which it issues, and those in which it waits.
        n_warps: How many there are.

    Source:
        Reiser and Lavenberg, Mean-Value Analysis of Closed Multichain Queuing Networks, J. ACM 27
        (1980): one server of one cycle, and customers that think in between.
    """
    n_waiting, rate = 0.0, 0.0
    for n in range(1, n_warps + 1):
        response = 1 + n_waiting
        rate = n / (cycles_per_slot - 1 + response)
        n_waiting = rate * response
    return rate


def frames_per_second(counts: dict[str, Any], config: Config, *, resets: bool) -> float:
    """Returns the estimate for an H100; with `resets` an episode ends in every step."""
    cycles_per_slot = counts["step_cycles"] / (counts["step_slots"] * config.lanes)
    rate = issue_rate(cycles_per_slot, config.warps_per_scheduler)
    step = counts["step_slots"] / (_SCHEDULERS * rate)
    observe = counts["observe_slots"] / (_SCHEDULERS * config.utilisation)
    side_by_side = config.lanes * config.warps_per_scheduler * _SCHEDULERS
    reset = counts["reset_cycles"] / (_FRAME_SKIP * side_by_side) if resets else 0
    return _HERTZ / (step + observe + reset)


def main(config: Config) -> int:
    """Counts all games; prints a table and one JSON object, and returns the exit status.

    Raises:
        ValueError: There is no game.
    """
    if not config.games:
        raise ValueError("games: expected at least one, got none")
    found, failures = count_all(config)
    columns = ["step slots", "observe slots", "threads", "cycles/warp", "frames/s", "with resets"]
    report = Report("gpu_estimate", ["game", *columns])
    for game, one in found.items():
        report.row(
            game,
            f"{one['step_slots']:,.0f}",
            f"{one['observe_slots']:,.0f}",
            f"{one['threads']:.1f}",
            f"{one['step_cycles']:,.0f}",
            f"{one['frames_per_second']:,.0f}",
            f"{one['frames_per_second_with_resets']:,.0f}",
        )
    over_games(report, found)
    assumed = {
        "architecture": sass.ARCHITECTURE,
        "lanes": config.lanes,
        "warps_per_scheduler": config.warps_per_scheduler,
        "utilisation": config.utilisation,
        "latencies": {**sass.LATENCIES, "first-level miss": sass.MISS_LATENCY},
    }
    report.figure("assumed", assumed)
    report.figure("failures", failures)
    report.figure("games", found)
    report.finish(config.out)
    return int(bool(failures))


def count_all(config: Config) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Plays the games; returns the figures of each, in their order, and what failed."""
    # Not forked: PyTorch has threads.
    context = multiprocessing.get_context("spawn")
    found, failures = {}, {}
    with concurrent.futures.ProcessPoolExecutor(config.n_games_at_once, context) as pool:
        game_of = {pool.submit(count, game, config): game for game in config.games}
        for done in concurrent.futures.as_completed(game_of):
            game = game_of[done]
            try:
                one = found[game] = done.result()
            except Exception as error:
                failures[game] = f"{type(error).__name__}: {error}"
                print(f"{game}: {failures[game]}", flush=True)
                continue
            one["frames_per_second"] = frames_per_second(one, config, resets=False)
            one["frames_per_second_with_resets"] = frames_per_second(one, config, resets=True)
            print(f"{game}: {one['frames_per_second']:,.0f} frames/s", flush=True)
    return {game: found[game] for game in config.games if game in found}, failures


def over_games(report: Report, found: dict[str, dict[str, Any]]) -> None:
    """Adds the geometric mean of every figure, and which game is the slowest."""
    report.figure("n_games", len(found))
    for name in [name for name in next(iter(found.values()), {}) if name != "shares"]:
        logarithms = [math.log(one[name]) for one in found.values()]
        report.figure(f"geomean_{name}", math.exp(statistics.fmean(logarithms)))
    for name in ("frames_per_second", "frames_per_second_with_resets"):
        slowest = min(found, key=lambda game: found[game][name], default=None)
        report.figure(f"least_{name}", slowest and {slowest: found[slowest][name]})


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Config, description=__doc__)))
