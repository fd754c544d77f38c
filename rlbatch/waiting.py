"""Waiting for the first of several batchers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.connection import wait

from rlbatch._arguments import check_timeout
from rlbatch._remote import timed_out
from rlbatch.batcher import LIVENESS_S, RL_Batcher


def wait_for_any(batchers: Sequence[RL_Batcher], timeout: float | None = 600.0) -> list[RL_Batcher]:
    """Waits until at least one batcher is `ready`, such as actors that each go at their own pace.

    Args:
        batchers: Between `execute` and `get`. With 0 processes they are ready at once.
        timeout: How long to wait, in seconds; None for as long as their processes live.

    Returns:
        All that are ready, in the order given.

    Raises:
        ValueError: There is no batcher, or `timeout` makes no sense.
        CallOrderError: One is not between `execute` and `get`.
        WorkerTimeoutError: It took longer than that; nothing is lost.
        WorkerError: A worker failed; its batcher is of no more use.

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
    if not batchers:
        raise ValueError("batchers: expected at least one, got none")
    check_timeout(timeout)
    return _first_ready(batchers, timeout)


def _first_ready(batchers: Sequence[RL_Batcher], timeout: float | None) -> list[RL_Batcher]:
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        ready = [batcher for batcher in batchers if batcher.ready()]
        if ready:
            return ready
        busy = [worker for batcher in batchers for worker in batcher._without(batcher._replies)]
        left = LIVENESS_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise timed_out(busy, timeout)
        wait([worker.connection for worker in busy], min(left, LIVENESS_S))
