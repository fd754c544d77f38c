"""Draws the scores of a run beside a curve that somebody else has published.

    python -m scripts.beside_published benchmarks/results/a2c_breakout

The folder holds `evaluation.csv`, of a run, and `published.csv`, with a `step` and a `return_mean`
in each row, of which windows of 25 rows are averaged. Writes `beside_published.png` there, and
prints both at the steps of the run's evaluations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from matplotlib.figure import Figure

from algos.curves import columns

WINDOW = 25


def windows(values: np.ndarray) -> np.ndarray:
    """Returns means of `WINDOW` values each; what is left at the end is dropped."""
    return values[: len(values) // WINDOW * WINDOW].reshape(-1, WINDOW).mean(1)


def main(folder: Annotated[Path, tyro.conf.Positional]) -> None:
    """Draws and prints.

    Args:
        folder: See above.
    """
    step, ours = columns(folder / "evaluation.csv", "step", "evaluation/return_mean")
    their_step, theirs = map(windows, columns(folder / "published.csv", "step", "return_mean"))
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(their_step, theirs, color="tab:gray", label="published")
    axes.plot(step, ours, "o-", color="tab:blue", markersize=3, label="rlbatch")
    axes.set(xlabel="environment steps", ylabel="return of an episode", title=folder.name)
    axes.legend(loc="best")
    figure.savefig(folder / "beside_published.png", dpi=120)
    print("step rlbatch published")
    for row in zip(step, ours, np.interp(step, their_step, theirs), strict=True):
        print("{:.0f} {:.1f} {:.1f}".format(*row))
    print(f"published, last window: {theirs[-1]:.1f}, best: {theirs.max():.1f}")


if __name__ == "__main__":
    tyro.cli(main)
