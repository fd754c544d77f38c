"""What DictTensor costs beside a plain dict of tensors and beside tensordict's TensorDict.

Every operation is measured as the library meets it in each step of a rollout, with `N_KEYS` keys
of `[32, 4]` float32:

- `construct`: a container from NumPy arrays (`torch.from_numpy`), as an environment returns them;
- `index`: half of the rows, chosen by an int64 tensor; of a dict, `tensor[rows]`;
- `cat`: two containers joined along the batch;
- `set`: one tensor more, made with `torch.from_numpy`;
- `to`: all tensors moved, to CUDA where there is a GPU and to `meta` (no bytes move) where not.

These are held to a bound: at most 3 times the plain dict (`worst_vs_dict`), never slower than
TensorDict (`worst_vs_tensordict`, at most 1). The rows `container_*` show the container alone,
around tensors that exist already. They are held to none: a dict that looks at nothing copies 16
pairs in less time than it takes to read one attribute of each tensor, so whatever checks shapes
and devices is many times slower, by a few microseconds.

Unit: microseconds per operation, of CPU time: there is one thread, it never sleeps, and so other
programs on the machine are not counted. Competitors run in turn for `rounds` short rounds, after
one that counts for nothing; medians are compared.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import tyro

from benchmarks.report import Report, alternate
from rlbatch import DictTensor

try:
    from tensordict import TensorDict
except ImportError:
    TensorDict = None  # type: ignore[assignment,misc]  # Its columns stay empty.

N_KEYS = 16
N_ROWS = 32
Operations = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Config:
    """What to measure."""

    rounds: int = 101
    """How often each competitor runs; medians are reported."""
    round_ms: float = 2.0
    """How long each run lasts, in milliseconds, about."""
    device: str | None = None
    """Where `to` moves to; None is cuda where there is a GPU, else meta."""
    out: str | None = None
    """File that the JSON object is written to as well."""


class Data:
    """What all competitors work on."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        keys = [f"observation/key{k}" for k in range(N_KEYS)]
        self.arrays = {key: random.random((N_ROWS, 4), dtype=np.float32) for key in keys}
        self.tensors = {key: torch.from_numpy(array) for key, array in self.arrays.items()}
        self.new_array = random.random(N_ROWS, dtype=np.float32)
        self.new_tensor = torch.from_numpy(self.new_array)
        self.rows = torch.from_numpy(random.permutation(N_ROWS)[: N_ROWS // 2])


def of_dict(data: Data, device: torch.device) -> Operations:
    """Returns the operations on a plain dict."""
    tensors, arrays, rows = data.tensors, data.arrays, data.rows
    other, grown, array, tensor = dict(tensors), dict(tensors), data.new_array, data.new_tensor

    def set_array() -> None:
        grown["new"] = torch.from_numpy(array)

    def set_tensor() -> None:
        grown["new"] = tensor

    return {
        "construct": lambda: {k: torch.from_numpy(a) for k, a in arrays.items()},
        "index": lambda: {k: v[rows] for k, v in tensors.items()},
        "cat": lambda: {k: torch.cat([v, other[k]]) for k, v in tensors.items()},
        "set": set_array,
        "to": lambda: {k: v.to(device) for k, v in tensors.items()},
        "container_construct": lambda: {k: v for k, v in tensors.items()},
        "container_set": set_tensor,
    }


def of_dicttensor(data: Data, device: torch.device) -> Operations:
    """Returns the operations on a DictTensor."""
    tensors, arrays, rows = data.tensors, data.arrays, data.rows
    array, tensor = data.new_array, data.new_tensor
    container, other, grown = DictTensor(tensors), DictTensor(tensors), DictTensor(tensors)
    return {
        "construct": lambda: DictTensor({k: torch.from_numpy(a) for k, a in arrays.items()}),
        "index": lambda: container.index(rows),
        "cat": lambda: DictTensor.cat([container, other]),
        "set": lambda: grown.set("new", torch.from_numpy(array)),
        "to": lambda: container.to(device),
        "container_construct": lambda: DictTensor(tensors),
        "container_set": lambda: grown.set("new", tensor),
    }


def of_tensordict(data: Data, device: torch.device) -> Operations:
    """Returns the operations on a TensorDict."""
    tensors, arrays, rows = data.tensors, data.arrays, data.rows
    array, tensor = data.new_array, data.new_tensor
    size = [N_ROWS]
    container, other, grown = (TensorDict(tensors, batch_size=size) for _ in range(3))
    return {
        "construct": lambda: TensorDict(
            {k: torch.from_numpy(a) for k, a in arrays.items()}, batch_size=size
        ),
        "index": lambda: container[rows],
        "cat": lambda: torch.cat([container, other]),
        "set": lambda: grown.set("new", torch.from_numpy(array)),
        "to": lambda: container.to(device),
        "container_construct": lambda: TensorDict(tensors, batch_size=size),
        "container_set": lambda: grown.set("new", tensor),
    }


def microseconds(operation: Callable[[], Any], n_calls: int, device: torch.device) -> float:
    """Returns how long one call takes, from so many."""

    def calls() -> None:
        for _ in range(n_calls):
            operation()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return timeit.timeit(calls, number=1, timer=time.thread_time) / n_calls * 1e6


def measure(
    competitors: dict[str, Callable[[], Any]], device: torch.device, config: Config
) -> dict[str, float]:
    """Returns the median microseconds of each competitor."""
    runs = {}
    for name, operation in competitors.items():
        estimate = microseconds(operation, 20, device)
        n_calls = max(1, round(config.round_ms * 1e3 / estimate))
        runs[name] = partial(microseconds, operation, n_calls, device)
    alternate(runs, rounds=1)
    return alternate(runs, config.rounds)


def main(config: Config) -> None:
    """Measures, prints a table and, last, one JSON object."""
    torch.set_num_threads(1)
    device = torch.device(config.device or ("cuda" if torch.cuda.is_available() else "meta"))
    columns = ["operation", "dict us", "DictTensor us", "TensorDict us", "vs dict", "vs TensorDict"]
    report = Report("dicttensor", columns, device)
    data = Data()
    tables = {"dict": of_dict(data, device), "dicttensor": of_dicttensor(data, device)}
    if TensorDict is not None:
        tables["tensordict"] = of_tensordict(data, device)
    worst: dict[str, float] = {}
    for operation in tables["dict"]:
        competitors = {name: table[operation] for name, table in tables.items()}
        medians = measure(competitors, device, config)
        ratios = {
            peer: medians["dicttensor"] / medians[peer] for peer in medians if peer != "dicttensor"
        }
        report.row(
            operation,
            *(_cell(medians.get(name)) for name in ("dict", "dicttensor", "tensordict")),
            *(_cell(ratios.get(peer)) for peer in ("dict", "tensordict")),
        )
        report.figure(f"{operation}_us", medians["dicttensor"])
        for peer in ("dict", "tensordict"):
            report.figure(f"{operation}_vs_{peer}", ratios.get(peer))
            if peer in ratios and not operation.startswith("container_"):
                worst[peer] = max(worst.get(peer, 0.0), ratios[peer])
    for peer in ("dict", "tensordict"):
        report.figure(f"worst_vs_{peer}", worst.get(peer))
    report.figure("to", device.type)
    report.finish(config.out)


def _cell(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.2f}"


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
