"""The workers of one batcher together: started, told the same, and waited for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from rlbatch._child import signals_held
from rlbatch._local import LocalWorker
from rlbatch._messages import Command, Done, Ready, Recipe, no_stats
from rlbatch._remote import IMPORT_TIMEOUT_S, RemoteWorker, stop_workers, timed_out
from rlbatch._slots import Layout, SlotWriter
from rlbatch.errors import EnvContractError

_log = logging.getLogger(__name__)

LIVENESS_S = 0.25  # How often it is looked whether workers that are waited for are alive.


class Crew:
    """The workers of one batcher: one in the caller's process, or some in their own.

    Attributes:
        workers: A `LocalWorker`, or `RemoteWorker`s; none before `start` and after `stop`.
        parts: Which of all environments each worker has.
        stats: Where the time of each worker went, as of its last answer.
        autoreset: Whether their environments reset themselves.
    """

    autoreset: bool

    def __init__(self) -> None:
        self.workers: list[Any] = []
        self.parts: list[range] = []
        self.stats: list[dict[str, float]] = []

    def start(
        self,
        recipes: Sequence[Recipe],
        allocate: Callable[[Layout], tuple[SlotWriter, float]] | None,
        timeout: float | None,
    ) -> None:
        """Starts one worker per recipe.

        Args:
            recipes: What to make the workers from.
            allocate: Where a worker in the caller's process gets its slots from; None for workers
                in processes of their own.
            timeout: How long a worker may stay without an answer, in seconds, once it has imported
                what it needs; None for any time.

        Raises:
            EnvContractError: They have unequal numbers of environments, or none, or not all
                of these reset themselves.
            WorkerError: One failed.
            WorkerTimeoutError: They took too long.
        """
        self.stats = [no_stats() for _ in recipes]
        if allocate is not None:
            self.workers += [LocalWorker(recipe, allocate) for recipe in recipes]
        else:
            for number, recipe in enumerate(recipes):
                with signals_held():
                    self.workers.append(RemoteWorker(recipe, number))
            for worker in self.workers:  # Now that all are starting.
                worker.start()
        ready = self._gather_ready(timeout)
        _check_alike(ready)
        n_envs, self.autoreset, _ = ready[0]
        self.parts = [range(k * n_envs, (k + 1) * n_envs) for k in range(len(ready))]
        for worker, part in zip(self.workers, self.parts, strict=True):
            worker.first_env = part.start

    def _gather_ready(self, timeout: float | None) -> list[Ready]:
        messages: list[Any] = [None] * len(self.workers)
        limit = None if timeout is None else max(timeout, IMPORT_TIMEOUT_S)
        self.poll_into(messages, limit, imports=True)
        self.poll_into(messages, timeout)
        return messages

    @property
    def n_envs(self) -> int:
        """The number of environments of all workers."""
        return self.parts[-1].stop

    def ask(self, command: Command, packed: Sequence[Any], timeout: float | None) -> list[Done]:
        """Sends a command to all, packed for each of them; returns their answers.

        Raises:
            WorkerError: A worker failed.
            WorkerTimeoutError: They took longer than that.
        """
        for worker, arguments in zip(self.workers, packed, strict=True):
            worker.send(command, arguments)
        return self.gather(timeout)

    def gather(self, timeout: float | None) -> list[Any]:
        """Returns one message of every worker; raises what `ask` does."""
        messages: list[Any] = [None] * len(self.workers)
        self.poll_into(messages, timeout)
        return messages

    def poll_into(self, messages: list[Any], timeout: float | None, imports: bool = False) -> None:
        """Waits for what is missing in a list of messages. The one place that waits.

        Args:
            messages: One per worker; None where it is missing.
            timeout: How long to wait, in seconds; None for any time.
            imports: Only until none of those that are missing imports any more.

        Raises:
            WorkerError: A worker failed.
            WorkerTimeoutError: It took longer than that.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            for number, worker in enumerate(self.workers):
                if messages[number] is None:
                    messages[number] = worker.poll()
                    if isinstance(messages[number], Done):
                        self.stats[number] = messages[number].stats
            missing = self.missing_from(messages)
            waiting = [worker for worker in missing if worker.is_importing or not imports]
            if not waiting:
                return
            left = LIVENESS_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                error = timed_out(waiting, timeout)
                raise error
            wait([worker.connection for worker in missing], min(left, LIVENESS_S))

    def missing_from(self, messages: list[Any]) -> list[Any]:
        """Returns the workers of which a list, one message per worker, has none."""
        return [one for one, found in zip(self.workers, messages, strict=True) if found is None]

    def stop(self, grace_s: float) -> None:
        """Ends all workers, which have so many seconds to end by themselves."""
        stop_workers(self.workers, grace_s)


def _check_alike(workers: Sequence[Ready]) -> None:
    n_envs = [worker.n_envs for worker in workers]
    if len(set(n_envs)) > 1:  # They would be given seeds that repeat.
        raise EnvContractError(
            f"create_env: expected as many environments in every process, got {n_envs}"
        )
    if not n_envs[0]:
        raise EnvContractError("create_env: expected at least one environment, got none")
    autoresets = [worker.autoreset for worker in workers]
    if len(set(autoresets)) > 1:
        raise EnvContractError(
            f"create_env: expected autoreset to be the same in every process, got {autoresets}"
        )
    spaces = dict.fromkeys(worker.action_space for worker in workers)
    if len(spaces) > 1:  # An agent may know what it does.
        _log.warning(
            "create_env: expected one action space in every process, got %s: the same agent acts "
            "in all of them",
            ", ".join(spaces),
        )
