"""Measures which settings of a batcher are fastest, since that differs between machines."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rlbatch._checks import as_float
from rlbatch.batcher import RL_Batcher

logger = logging.getLogger(__name__)


class Throughput(NamedTuple):
    """How fast a batcher was.

    Attributes:
        steps_per_second: Of all its environments together.
        choice: The arguments that it was made with.
    """

    steps_per_second: float
    choice: dict[str, Any]


def tune_throughput(
    make_batcher: Callable[..., RL_Batcher], /, *, seconds: float = 2.0, **choices: Iterable[Any]
) -> list[Throughput]:
    """Measures how fast batchers acquire, one for each combination of choices.

    One after the other they are made, reset, acquire for some time, and are closed. No learner runs
    beside them, and nothing else should: measure where and as you mean to train. Each result is
    logged (level INFO).

    Args:
        make_batcher: Called with one of each of the choices, by name; returns a batcher that can be
            reset without infos.
        seconds: For how long each acquires, at least; a first `execute` comes before.
        **choices: The values to try, by the name of the argument, which is not `seconds`.

    Returns:
        One `Throughput` per combination, the fastest first. Where environments reset in a step of
        their own, these steps count.

    Raises:
        TypeError: `seconds` is not a number, choices are not a list, or `make_batcher` returns
            something else.
        ValueError: `seconds` is not above 0, or an argument has no choices.
        Exception: Whatever making, running or closing a batcher raises; notes say which it was, and
            what was measured before.

    Example:
        >>> import gymnasium, torch
        >>> from rlbatch import DictTensor, RL_Agent
        >>> from rlbatch.envs import GymEnvInf
        >>> class Left(RL_Agent):
        ...     def __call__(self, state, observation, agent_info, history=None):
        ...         action = torch.zeros(observation.n_elems(), dtype=torch.int64)
        ...         return DictTensor({"action": action}), DictTensor()
        >>> def create_env(n_envs, seed):
        ...     return GymEnvInf([gymnasium.make("CartPole-v1") for _ in range(n_envs)], seed)
        >>> def make_batcher(n_envs):
        ...     return RL_Batcher(
        ...         16, Left, {}, create_env, {"n_envs": n_envs}, n_processes=0, seeds=0
        ...     )
        >>> best, other = tune_throughput(make_batcher, seconds=0.1, n_envs=[1, 16])
        >>> best.choice
        {'n_envs': 16}
    """
    if not as_float("seconds", seconds) > 0:
        raise ValueError(f"seconds: expected a number above 0, got {seconds!r}")
    values = [_values(name, given) for name, given in choices.items()]
    measured: list[Throughput] = []
    for combination in itertools.product(*values):
        choice = dict(zip(choices, combination, strict=True))
        try:
            speed = _steps_per_second(make_batcher(**choice), seconds)
        except Exception as error:
            error.add_note(f"tune_throughput: with {choice}; measured before: {measured}")
            raise
        logger.info("%s: %.0f steps/s", choice, speed)
        measured.append(Throughput(speed, choice))
    return sorted(measured, key=lambda one: one.steps_per_second, reverse=True)


def _values(name: str, given: Any) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{name}: expected a list of values to try, got {given!r}")
    values = list(given)
    if not values:
        raise ValueError(f"{name}: expected at least one value to try, got none")
    return values


def _steps_per_second(batcher: RL_Batcher, seconds: float) -> float:
    if not isinstance(batcher, RL_Batcher):
        raise TypeError(f"make_batcher: expected it to return an RL_Batcher, got {batcher!r}")
    with batcher:
        batcher.reset()
        _acquire(batcher)  # Memory is allocated, and kernels are compiled.
        n_steps, begin = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds:
            n_steps += _acquire(batcher)
    return n_steps / elapsed


def _acquire(batcher: RL_Batcher) -> int:
    batcher.execute()
    trajectories, n_running = batcher.get()
    if not n_running:
        batcher.reset()
    return int(trajectories.trajectories.lengths.sum())  # Which waits for a GPU.
