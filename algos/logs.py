"""What a run reports: CSV files, TensorBoard, and one live line in the terminal."""

from __future__ import annotations

import contextlib
import csv
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter


class _Terminal(Console):
    """A console that no longer prints where nobody reads it any more, and costs a run nothing."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # Python writes there once more when it ends.
        with open(os.devnull, "w") as nowhere, contextlib.suppress(OSError):
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


class Table:
    """A CSV file with one row per call of `write`. It owns the open file.

    Args:
        path: The file. What it holds after `step` is dropped: a run that is resumed does it again.
        step: Where the run starts, in environment steps; 0 drops all.
        n_rows: How many of the rows are kept; None for all of them.

    Attributes:
        n_rows: How many rows there are.
    """

    def __init__(self, path: Path, step: int, n_rows: int | None = None):
        rows = [row for row in read_table(path) if int(row["step"]) <= step] if step else []
        self.n_rows = 0
        unfinished = path.with_suffix(".tmp")  # A full disk must not cost what there is.
        self._file = unfinished.open("w", newline="")
        self._writer: csv.DictWriter | None = None
        try:
            for row in rows[:n_rows]:
                self.write(row)
        except BaseException:
            self._file.close()
            raise
        unfinished.replace(path)

    def write(self, row: Mapping[str, object]) -> None:
        """Writes a row; the first one decides on the columns."""
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(row))
            self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()
        self.n_rows += 1

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_table(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file, none where there is no file; not a last one that was cut."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if line.endswith("\n")))


class Log:
    """Writes figures to `<table>.csv` and to TensorBoard, and shows how the run stands.

    It owns open files and the terminal's last line; `close()` it, or use it in a `with`.

    Args:
        folder: The run's.
        total_steps: Where the progress bar ends, in environment steps.
        step: Where the run starts: 0, or where it is resumed.
        kept: How many rows are kept of a table, by its name, where not all are up to that step.
        track: Whether what goes to TensorBoard goes to Weights & Biases as well.

    Raises:
        ImportError: It is to, and its package is not installed.
    """

    def __init__(
        self,
        folder: Path,
        total_steps: int,
        step: int = 0,
        kept: Mapping[str, int] | None = None,
        track: bool = False,
    ):
        self._folder, self._start, self._kept = folder, step, dict(kept or {})
        self._tables: dict[str, Table] = {}
        self._tracked = _track(folder) if track else None
        self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)
        console = _Terminal()
        self._progress = Progress(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("steps  return {task.fields[latest]}  score {task.fields[score]}"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(
            "", total=total_steps, completed=step, latest="-", score="-", speed=""
        )
        self._progress.start()

    def write(self, table: str, step: int, seconds: float, figures: Mapping[str, float]) -> None:
        """Writes one row.

        Args:
            table: Name of the CSV file.
            step: Environment steps that the figures belong to.
            seconds: Since the run began.
            figures: By name, `group/name`; the same names each time.
        """
        figures = {name: float(figure) for name, figure in figures.items()}
        self._table(table).write({"step": step, "seconds": round(seconds, 3), **figures})
        for name, figure in figures.items():
            self._writer.add_scalar(name, figure, step)

    def n_rows(self, table: str) -> int:
        """Returns how many rows a table has."""
        return self._table(table).n_rows

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            path = self._folder / f"{name}.csv"
            self._tables[name] = Table(path, self._start, self._kept.get(name))
        return self._tables[name]

    def show(self, step: int, **fields: str) -> None:
        """Updates the live line: `latest` return in training, `score` of evaluations, `speed`."""
        self._progress.update(self._task, completed=step, **fields)

    def say(self, text: str) -> None:
        """Prints a line that stays, if that is possible."""
        with contextlib.suppress(OSError):  # Of a file on a full disk.
            self._progress.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def close(self) -> None:
        """Closes the files and leaves the terminal alone."""
        self._progress.stop()
        self._writer.close()
        for table in self._tables.values():
            table.close()
        if self._tracked:
            self._tracked.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _track(folder: Path) -> Any:
    """Starts a run of Weights & Biases that follows TensorBoard's.

    Raises:
        ImportError: The package is not installed.
    """
    try:
        import wandb
    except ImportError as error:
        raise ImportError(
            "track: expected the package wandb, got none; pip install 'rlbatch[wandb]'"
        ) from error
    return wandb.init(project="rlbatch", name=folder.name, dir=str(folder), sync_tensorboard=True)
