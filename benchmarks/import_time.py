"""How long `import rlbatch` takes, beyond the import of PyTorch that it begins with.

Every round is a process of its own, which imports `torch` first, and then `rlbatch`.

- `import_s`: of rlbatch, in seconds; the median of the rounds. `torch_import_s`: of torch.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from dataclasses import dataclass

import tyro

from benchmarks.report import ROOT, Report

_MEASURE = """
import time

begun = time.perf_counter()
import torch
between = time.perf_counter()
import rlbatch
print(between - begun, time.perf_counter() - between)
"""


@dataclass(frozen=True)
class Config:
    """What to measure."""

    rounds: int = 15
    """How often both are imported; medians are reported."""
    out: str | None = None
    """File that the JSON object is written to as well."""


def import_seconds() -> tuple[float, float]:
    """Imports both in a new process; returns how long each took, in seconds."""
    command = [sys.executable, "-c", _MEASURE]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    torch_s, rlbatch_s = map(float, printed.split())
    return torch_s, rlbatch_s


def main(config: Config) -> None:
    """Measures, prints a table and, last, one JSON object."""
    report = Report("import_time", ["import", "seconds"])
    import_seconds()  # Files are read and compiled to bytecode.
    rounds = [import_seconds() for _ in range(config.rounds)]
    torch_s, rlbatch_s = (statistics.median(column) for column in zip(*rounds, strict=True))
    report.row("torch", f"{torch_s:.3f}")
    report.row("rlbatch", f"{rlbatch_s:.3f}")
    report.figure("torch_import_s", torch_s)
    report.figure("import_s", rlbatch_s)
    report.finish(config.out)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
