"""Waiting for the first of several batchers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait

from rlbatch._arguments import check_timeout
from rlbatch._checks import check_is
from rlbatch._crew import LIVENESS_S
from rlbatch.batcher import RL_Batcher
from rlbatch.errors import CallOrderError, WorkerError, WorkerTimeoutError


def wait_for_any(batchers: Iterable[RL_Batcher], timeout: float | None = 600.0) -> list[RL_Batcher]:
    """Waits until at least one batcher, such as one of several actors, has its trajectories.

    Args:
        batchers: Between `execute` and `get`. With 0 processes they are ready at once.
        timeout: How long to wait, in seconds; None for as long as their processes live.

    Returns:
        All that are ready, in the order given, each once. Those that are fast come more often: to
        learn from the first that are ready is to see more of short episodes and fast environments.

    Raises:
        TypeError: `batchers` is not a list of batchers.
        ValueError: There is no batcher, or `timeout` is negative.
        CallOrderError: One is not between `execute` and `get`.
        WorkerTimeoutError: It took longer than that; or a batcher, which a note names, is not ready
            within its own `timeout` since `execute`. Nothing is lost.
        WorkerError: A worker failed; its batcher, which a note names, cannot be used any more.

    Example:
        >>> import gymnasium
        >>> import torch
        >>> from rlbatch import DictTensor, RL_Agent
        >>> from rlbatch.envs import GymEnvInf
        >>> class Left(RL_Agent):
        ...     def __call__(self, state, observation, agent_info, history=None):
        ...         action = torch.zeros(observation.n_elems(), dtype=torch.int64)
        ...         return DictTensor({"action": action}), DictTensor()
        >>> def create_env(seed):
        ...     return GymEnvInf([gymnasium.make("CartPole-v1")], seed)
        >>> actors = [RL_Batcher(5, Left, {}, create_env, {}, 0, seeds=k) for k in range(2)]
        >>> for actor in actors:
        ...     actor.reset()
        ...     actor.execute()
        >>> wait_for_any(actors) == actors
        True
        >>> for actor in actors:
        ...     actor.close()
    """
    if isinstance(batchers, RL_Batcher):
        raise TypeError("batchers: expected a list of them, got a single RL_Batcher")
    each = list(dict.fromkeys(batchers))
    if not each:
        raise ValueError("batchers: expected at least one, got none")
    for number, batcher in enumerate(each):
        check_is(f"batchers[{number}]", batcher, RL_Batcher)
    check_timeout(timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        pending = [_pending(number, batcher) for number, batcher in enumerate(each)]
        ready = [batcher for batcher, pipes in zip(each, pending, strict=True) if not pipes]
        if ready:
            return ready
        left = LIVENESS_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise WorkerTimeoutError(
                f"batchers: expected one of {len(each)} to be ready within {timeout} s, got none; "
                "a get that has no more time tells what its workers are doing"
            )
        _wait(sum(pending, []), min(left, LIVENESS_S))


def _wait(pipes: list[Connection], seconds: float) -> None:
    try:
        wait(pipes, seconds)
    except OSError:  # Another thread has closed one, as the next round says; or a signal's handler.
        if not any(pipe.closed for pipe in pipes):
            raise


def _pending(number: int, batcher: RL_Batcher) -> list[Connection]:
    try:
        return batcher.pending()
    except CallOrderError as error:
        what = str(error).removeprefix("pending: ")
        raise CallOrderError(f"wait_for_any: batchers[{number}]: {what}") from None
    except WorkerError as error:
        error.add_note(f"wait_for_any: of batchers[{number}]")
        raise
