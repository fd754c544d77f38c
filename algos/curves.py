"""The learning curve of a run, drawn from its CSV files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from algos.logs import read_table


def draw_curve(folder: Path) -> None:
    """Writes `curve.png`: the returns in training and the scores, over environment steps.

    Args:
        folder: The run's, with `training.csv` and `evaluation.csv`.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    training = columns(folder / "training.csv", "step", "charts/episodic_return")
    ended = ~np.isnan(training[1])  # In some rows no episode has.
    axes.plot(
        *(column[ended] for column in training), color="tab:gray", alpha=0.6, label="training"
    )
    names = ("step", "evaluation/return_mean", "evaluation/return_std")
    step, mean, std = columns(folder / "evaluation.csv", *names)
    axes.plot(step, mean, "o-", color="tab:blue", markersize=3, label="evaluation")
    axes.fill_between(step, mean - std, mean + std, color="tab:blue", alpha=0.2, linewidth=0)
    axes.set(xlabel="environment steps", ylabel="return of an episode", title=folder.name)
    axes.legend(loc="best")
    figure.savefig(folder / "curve.png", dpi=120)


def columns(path: Path, *names: str) -> list[np.ndarray]:
    """Returns columns of a CSV file, [rows] float64 each."""
    rows = read_table(path)
    return [np.array([float(row[name]) for row in rows]) for name in names]
