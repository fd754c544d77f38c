"""What all benchmarks share: competitors that run in turn, and a table that ends in JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "torch",
    "numpy",
    "gymnasium",
    "tensordict",
    "ale-py",
    "envpool",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "nvidia-cuda-nvrtc",
)


def alternate(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Runs competitors in turn, A B C A B C ..., and returns the median of each.

    So a machine that slows down for a while slows all of them, not one.

    Args:
        runs: By competitor, what measures it once and returns the figure.
        rounds: How often each is run; an odd number has a median that was measured.

    Raises:
        ValueError: `rounds` is not positive.

    Example:
        >>> figures = iter([1.0, 10.0, 3.0, 30.0, 2.0, 20.0])
        >>> alternate({"a": lambda: next(figures), "b": lambda: next(figures)}, rounds=3)
        {'a': 2.0, 'b': 20.0}
    """
    if rounds < 1:
        raise ValueError(f"rounds: expected at least 1, got {rounds}")
    figures: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            figures[name].append(run())
    return {name: statistics.median(values) for name, values in figures.items()}


class Report:
    """Gathers rows for people and figures for machines, and prints both at the end.

    Args:
        name: Name of the benchmark.
        columns: Headings of the table.
        device: The device that is measured; the JSON object names its model.
    """

    def __init__(self, name: str, columns: Sequence[str], device: torch.device | str = "cpu"):
        self._rows = [tuple(columns)]
        self._figures: dict[str, Any] = {}
        self._about = {"benchmark": name, **describe_machine(torch.device(device))}

    def row(self, *cells: object) -> None:
        """Adds a row to the table, one cell per column.

        Raises:
            ValueError: There are more cells, or fewer.
        """
        if len(cells) != len(self._rows[0]):
            raise ValueError(f"cells: expected {len(self._rows[0])}, got {len(cells)}")
        self._rows.append(tuple(str(cell) for cell in cells))

    def figure(self, key: str, value: Any) -> None:
        """Adds a figure to the JSON object, None where it could not be measured.

        Raises:
            ValueError: The key is taken.
        """
        if key in self._figures or key in self._about:
            raise ValueError(f"{key}: expected a new key, got one that is taken")
        self._figures[key] = value

    def missing(self) -> list[str]:
        """Returns the keys of the figures that could not be measured."""
        return [key for key, value in self._figures.items() if value is None]

    def finish(self, out: str | Path | None = None) -> None:
        """Prints the table and, as the last line, the JSON object.

        Args:
            out: File that the JSON object is written to as well.
        """
        line = json.dumps({**self._figures, **self._about}, allow_nan=False)
        if out is not None:
            Path(out).write_text(line + "\n")
        print(format_table(self._rows))
        print(line, flush=True)


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as aligned columns, the first to the left and the others to the right.

    Example:
        >>> print(format_table([("name", "us"), ("a", "10.5")]))
        name    us
        a     10.5
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Returns what figures depend on: commit, device, processor, cores and versions."""
    on_gpu = device.type == "cuda"
    return {
        "commit": commit(),
        "device": torch.cuda.get_device_name(device) if on_gpu else cpu_model(),
        "cpu": cpu_model(),
        "n_cores": len(os.sched_getaffinity(0)),
        "versions": {"python": platform.python_version(), **_versions()},
    }


def commit() -> str:
    """Returns the commit of the checkout, with `-dirty` where tracked files have changed.

    Where the checkout comes without its history, the environment variable `RLBATCH_COMMIT` names
    it, and nothing else is asked; "unknown" where nothing names it.
    """
    if named := os.environ.get("RLBATCH_COMMIT"):
        return named
    head = _git("rev-parse", "HEAD")
    if head and _git("status", "--porcelain", "--untracked-files=no"):
        head += "-dirty"
    return head or "unknown"


def cpu_model() -> str:
    """Returns the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _git(*arguments: str) -> str:
    """Returns what git prints about the checkout, "" where that is not in git."""
    if not (ROOT / ".git").exists():  # A folder around it may be, but it is another project's.
        return ""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
