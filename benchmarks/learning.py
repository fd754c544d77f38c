"""Seconds until an algorithm solves an environment, with its default options, for several seeds.

A run ends when two evaluations in a row, of complete episodes that nobody has seen, reach the
target (the environment's own, such as 475 for CartPole-v1); the second one is of the final weights,
and is what is reported. The seconds are those of training with its evaluations, from the first
iteration on; the seconds that the processes take to start come before.

- `n_solved`: seeds that reached the target.
- `seconds_median`, `seconds_max`: over the seeds.
- `return/<seed>`, `seconds/<seed>`, `steps/<seed>`: of one seed; environment steps in training.
- `interrupted`: what the last evaluation found, if Ctrl-C ended a run.
"""

from __future__ import annotations

import shlex
import statistics
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

import tyro

from algos.command_line import parse
from algos.logs import read_table
from benchmarks.report import Report


@dataclass(frozen=True)
class Options:
    """What to measure."""

    algorithm: Literal["reinforce", "a2c", "dqn"] = "reinforce"
    """Which one learns."""
    env_id: str = "CartPole-v1"
    """Where."""
    n_seeds: int = 5
    """Runs, with the seeds from `first_seed` on."""
    first_seed: int = 0
    """The first of them."""
    options: str = ""
    """More options of the runs, as in --options="--total-steps 3000000"."""
    runs: str | None = None
    """Folder to keep the runs in, with logs and curves; they are dropped if there is none."""
    out: str | None = None
    """File that the JSON object is written to as well."""


def main(options: Options) -> None:
    """Trains once per seed, prints a table and, last, one JSON object."""
    module = import_module(f"algos.{options.algorithm}.train")
    columns = ["seed", "return", "deviation", "steps", "iterations", "seconds"]
    used = parse(module.Config, shlex.split(options.options))
    report = Report(options.algorithm, columns, used.device)
    report.figure("env_id", options.env_id)
    report.figure("options", options.options)
    seconds, n_solved = [], 0
    with tempfile.TemporaryDirectory() as dropped:
        for seed in range(options.first_seed, options.first_seed + options.n_seeds):
            folder = Path(options.runs or dropped) / f"seed_{seed}"
            arguments = ["--env-id", options.env_id, "--seed", str(seed)]
            arguments += shlex.split(options.options)
            arguments += ["--checkpoint-dir", str(folder)]
            config = parse(module.Config, arguments)
            try:
                result = module.train(config)
            except KeyboardInterrupt:
                report.figure("interrupted", last_evaluation(folder))
                break
            score, n_steps = result.score, result.n_steps
            report.row(
                seed,
                f"{score.mean:.1f}",
                f"{score.std:.1f}",
                f"{n_steps:,}",
                result.n_iterations,
                f"{result.seconds:.1f}",
            )
            for name, figure in (
                ("return", score.mean),
                ("seconds", round(result.seconds, 1)),
                ("steps", n_steps),
            ):
                report.figure(f"{name}/{seed}", figure)
            seconds.append(round(result.seconds, 1))
            n_solved += score.mean >= config.target
    report.figure("n_solved", n_solved)
    report.figure("seconds_median", statistics.median(seconds) if seconds else None)
    report.figure("seconds_max", max(seconds, default=None))
    report.finish(options.out)


def last_evaluation(folder: Path) -> dict[str, float]:
    """Returns the last row of the evaluations of a run; empty if there was none."""
    rows = read_table(folder / "evaluation.csv")
    return {name: float(value) for name, value in rows[-1].items()} if rows else {}


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
