"""What a batcher and its workers tell each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import torch

from rlbatch._slots import Layout
from rlbatch.seeding import WorkerSeeds


class Command(Enum):
    """What a worker can be asked for."""

    START = "start"
    RESET = "reset"
    EXECUTE = "execute"
    UPDATE = "update"
    CLOSE = "close"


class TorchSettings(NamedTuple):
    """The caller's settings of PyTorch that hold for a whole process, and change results.

    Attributes:
        num_threads: In an operator.
        default_dtype: Of new tensors.
        deterministic: As `torch.set_deterministic_debug_mode` takes it.
        fills_memory: Whether new memory is written to then, which takes time.
        matmul_precision: As `torch.set_float32_matmul_precision` takes it; None where every
            backend has one of its own.
        gpu: What "cuda" is; None where the caller has not used a GPU yet.
    """

    num_threads: int
    default_dtype: torch.dtype
    deterministic: int
    fills_memory: bool
    matmul_precision: str | None
    gpu: int | None

    @classmethod
    def of_the_caller(cls, num_threads: int) -> TorchSettings:
        """Returns those of this process, except for the number of threads."""
        precision = None
        with contextlib.suppress(RuntimeError):
            precision = torch.get_float32_matmul_precision()
        return cls(
            num_threads,
            torch.get_default_dtype(),
            torch.get_deterministic_debug_mode(),
            _deterministic().fill_uninitialized_memory,
            precision,
            torch.cuda.current_device() if torch.cuda.is_initialized() else None,
        )

    def apply(self) -> None:
        """Sets them in this process."""
        torch.set_num_threads(self.num_threads)
        torch.set_default_dtype(self.default_dtype)
        # Not use_deterministic_algorithms, which takes seconds to import a compiler.
        torch.set_deterministic_debug_mode(self.deterministic)
        _deterministic().fill_uninitialized_memory = self.fills_memory
        if self.matmul_precision is not None:
            torch.set_float32_matmul_precision(self.matmul_precision)
        if self.gpu:
            # Now it would take memory of that GPU, also for a worker that never uses one.
            torch.cuda._lazy_call(partial(torch.cuda.set_device, self.gpu))


def _deterministic() -> Any:
    return torch.utils.deterministic  # A module with a property, which type checkers do not see.


class Recipe(NamedTuple):
    """Everything a worker is made from.

    Attributes:
        create_env: Called with `env_args` and `seed`.
        create_agent: Called with `agent_args`.
        seeds: Of this worker.
        n_timesteps: T.
        device: Where trajectories are stored, observations come from and actions go to.
        info_device: Where the agent finds `agent_info`.
        torch_settings: For a process of its own.
        log_level: Of the logger `rlbatch`, likewise.
    """

    create_env: Callable[..., Any]
    env_args: dict[str, Any]
    create_agent: Callable[..., Any]
    agent_args: dict[str, Any]
    seeds: WorkerSeeds
    n_timesteps: int
    device: torch.device
    info_device: torch.device
    torch_settings: TorchSettings
    log_level: int


class Imported(NamedTuple):
    """A worker in a process of its own has what it needs; it makes environments and agent next."""


class Ready(NamedTuple):
    """A worker's environments and agent exist."""

    n_envs: int
    autoreset: bool
    action_space: str  # Of Gymnasium; of others nothing is known.


class NeedSlots(NamedTuple):
    """A worker has made its first step and knows what it is going to store."""

    layout: Layout


class Slots(NamedTuple):
    """The answer to NeedSlots; on a CPU a file descriptor of the block follows."""

    layout: Layout
    n_slots: int
    n_timesteps: int
    first: int
    n_envs: int
    cuda_block: torch.Tensor | None


class Done(NamedTuple):
    """A command has been carried out."""

    n_running: int
    stats: dict[str, float]


class Failure(NamedTuple):
    """A command has raised."""

    error: str
    environment: int | None
    formatted: str


def no_stats() -> dict[str, float]:
    """Returns where the time of a worker went that has done nothing; see `RL_Batcher.stats`."""
    return {"env_s": 0.0, "agent_s": 0.0, "storage_s": 0.0, "wait_s": 0.0, "n_steps": 0}
