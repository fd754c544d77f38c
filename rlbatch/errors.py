"""The errors that rlbatch raises.

Every message has one grammar: *where: expected ..., got ...*.
"""

from __future__ import annotations

import contextlib

import torch


class DeviceMismatchError(ValueError):
    """A tensor is on another device than the one it has to be on.

    Attributes:
        where: The key of the tensor, or the name of the argument.
        expected: The device it has to be on.
        found: The device it is on.
        stage: Who looked: `agent.initial_state`, `env.step`, `storage`, ...; of an
            `RL_Agent_CheckDevice` the call, such as `initial_state`; None in containers.
        beside: The key whose device is expected, in containers.
    """

    def __init__(
        self,
        where: str,
        expected: torch.device | None,
        found: torch.device | None,
        stage: str | None = None,
        beside: str | None = None,
    ):
        prefix = f"{stage}: " if stage else ""
        wanted = f"a tensor on {expected}" + (f", as {beside}" if beside else "")
        super().__init__(f"{prefix}{where}: expected {wanted}, got one on {found}")
        self.where, self.expected, self.found = where, expected, found
        self.stage, self.beside = stage, beside

    def __reduce__(self) -> tuple:
        arguments = self.where, self.expected, self.found, self.stage, self.beside
        return type(self), arguments, self.__dict__  # In which notes are.


class ShapeError(ValueError):
    """A tensor has a shape that does not fit; the message gives both shapes."""


class DtypeMismatchError(TypeError):
    """Two tensors that have to be of one dtype are not; nothing is cast silently."""


class KeyMismatchError(KeyError):
    """Two containers that have to hold the same keys do not, or one key would appear twice."""

    def __str__(self) -> str:
        # KeyError prints the repr of its argument, which would put the sentence in quotes.
        return str(self.args[0])


class CallOrderError(RuntimeError):
    """A method was called at a moment when the call means nothing."""


class SharedMemoryError(MemoryError):
    """The trajectories do not fit in free memory; the message gives both figures."""


class EnvContractError(Exception):
    """An environment breaks a clause of the `VecEnv` contract; the message names the clause."""


class WorkerError(RuntimeError):
    """A worker process failed, died or went silent.

    Attributes:
        worker: Number of the worker.
        command: What it was doing: `start`, `reset`, `execute`, `update` or `close`.
        environment: Number of the environment (over the whole batcher) that failed; None when
            the failure was not inside one environment.
        child_traceback: The worker's formatted traceback, or its stacks where it has crashed or
            did not answer; empty when it was killed.
    """

    def __init__(
        self,
        message: str,
        worker: int = -1,
        command: str = "",
        environment: int | None = None,
        child_traceback: str = "",
    ):
        super().__init__(message)
        self.worker, self.command = worker, command
        self.environment, self.child_traceback = environment, child_traceback


class WorkerTimeoutError(WorkerError, TimeoutError):
    """A worker did not answer in time; it may hang, or the timeout may be too short."""


def add_environment_note(error: BaseException, environment: int) -> None:
    """Marks an exception with the number of the environment, in its batch, that raised it."""
    with contextlib.suppress(Exception):  # Of a class that is frozen.
        error.add_note(f"(in environment {environment} of this batch)")
        error.environment = environment  # type: ignore[attr-defined]
