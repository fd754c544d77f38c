"""Seeds: one number for a run, and from it a different one for every environment.

An environment's seed depends on the run's seed and on its number among *all* environments, not
on the process it runs in; splitting the same environments over more processes changes nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeGuard

import numpy as np

_SEED_BITS = 32
_MODULUS = 1 << _SEED_BITS
# Odd, hence invertible modulo 2^32: distinct numbers stay distinct. The value is the 32-bit
# golden ratio (Knuth, The Art of Computer Programming, vol. 3, 6.4), which spreads neighbours.
_MULTIPLIER = 0x9E3779B1


class Seed(int):
    """The seed that a batcher hands to `create_env`: an `int` that knows its process.

    As an `int` it may be passed to anything that wants one. `env_seeds` reads its two attributes
    to number environments across processes.

    Attributes:
        root: The run's seed, shared by all processes.
        process: Number of the process among those of the batcher, from 0.
    """

    root: int
    process: int

    def __new__(cls, value: int, root: int, process: int) -> Seed:
        """Returns an `int` equal to `value` that carries `root` and `process`."""
        seed = super().__new__(cls, value)
        seed.root, seed.process = root, process
        return seed

    def __reduce__(self) -> tuple:
        return Seed, (int(self), self.root, self.process)


class Seeds(list[int]):
    """Seeds for the environments of one process, one each, that know their process.

    Attributes:
        process: Its number, from 0.
    """

    process: int = 0

    @classmethod
    def of(cls, process: int, seeds: Sequence[int]) -> Seeds:
        """Returns the seeds of a process."""
        made = cls(seeds)
        made.process = process
        return made


def env_seeds(seed: int | Sequence[int], n_envs: int) -> list[int]:
    """Returns one seed in [0, 2^32) for each of `n_envs` environments, all different.

    Args:
        seed: A run's seed (0 is as good as any); a `Seed` from a batcher, to continue the
            numbering of the processes before this one; or `n_envs` seeds, which are returned as
            they are.
        n_envs: How many environments there are in this process.

    Returns:
        A list of `n_envs` integers.

    Raises:
        ValueError: `seed` is negative, or there are not `n_envs` of them.
        TypeError: A seed is not an integer.

    Example:
        >>> first, second = env_seeds(0, 2)
        >>> first != second
        True
    """
    if isinstance(seed, Seed):
        if n_envs == 1:  # One per process is then one per environment.
            return [int(seed)]
        return _seeds_from(seed.root, seed.process * n_envs, n_envs)
    if _are_several(seed):
        own = [_non_negative("seed", one) for one in seed]
        if len(own) != n_envs:
            raise ValueError(
                f"seed: expected {n_envs} seeds, one per environment, got {len(own)} (a batcher "
                "deals its seeds out to its processes)"
            )
        return own
    return _seeds_from(_non_negative("seed", seed), 0, n_envs)


def process_seeds(seeds: int | Sequence[int], n_processes: int) -> list[Seed | list[int]]:
    """Returns what each process passes to `create_env` as `seed`.

    Args:
        seeds: The run's seed; or one per process, as in rlstructures; or one per environment, a
            multiple of `n_processes`, dealt out in order.
        n_processes: Number of processes, at least 1.

    Returns:
        A list of `n_processes` `Seed`s or lists of seeds.

    Raises:
        ValueError: The number of seeds is no multiple of `n_processes`, or one is negative.
        TypeError: `seeds` is neither, or one is not an integer.
    """
    if isinstance(seeds, (int, np.integer)) or getattr(seeds, "ndim", None) == 0:
        root = _non_negative("seeds", seeds)
        values = _seeds_from(root, 0, n_processes)
        return [Seed(value, root, k) for k, value in enumerate(values)]
    if not _are_several(seeds):
        raise TypeError(f"seeds: expected an int or a list of them, got {seeds!r}")
    seeds = [_non_negative("seeds", seed) for seed in seeds]
    if not seeds or len(seeds) % n_processes:
        raise ValueError(
            f"seeds: expected an int, {n_processes} seeds (one per process) or a multiple of "
            f"{n_processes} (one per environment), got {len(seeds)}"
        )
    if len(seeds) == n_processes:
        # All of them name the run, so that [1, 2] and [1, 3] are different runs, and a number
        # that stands twice does not give two processes the same environments.
        root = seeds[0] if len(seeds) == 1 else derived_seed(*seeds)
        return [Seed(value, root, k) for k, value in enumerate(seeds)]
    share = len(seeds) // n_processes
    return [Seeds.of(k, seeds[k * share : (k + 1) * share]) for k in range(n_processes)]


class WorkerSeeds(NamedTuple):
    """What one worker of a batcher is seeded with.

    Attributes:
        env: Passed to `create_env`: a `Seed`, or one seed per environment.
        agent: Passed to `RL_Agent.seed`; None to leave that out.
        generators: For the global generators of Python, NumPy and torch.
    """

    env: Seed | list[int]
    agent: int | None
    generators: int


def worker_seeds(
    seeds: int | Sequence[int], agent_seeds: int | Sequence[int] | None, n_processes: int
) -> list[WorkerSeeds]:
    """Returns the seeds of every worker.

    Args:
        seeds: See `process_seeds`.
        agent_seeds: An int, or one per process, or None.
        n_processes: Number of processes, at least 1.

    Raises:
        ValueError: There are too many or too few seeds, or one is negative.
        TypeError: One is not an integer.
    """
    if agent_seeds is None:
        agents: list[int | None] = [None] * n_processes
    elif _are_several(agent_seeds):
        agents = [_non_negative("agent_seeds", seed) for seed in agent_seeds]
        if len(agents) != n_processes:
            raise ValueError(f"agent_seeds: expected {n_processes} seeds, got {len(agents)}")
    else:
        root = _non_negative("agent_seeds", agent_seeds)
        agents = [derived_seed(root, number) for number in range(n_processes)]
    envs = process_seeds(seeds, n_processes)
    return [
        WorkerSeeds(env, agent, _generators_seed(env, agent, number))
        for number, (env, agent) in enumerate(zip(envs, agents, strict=True))
    ]


def _generators_seed(env: Seed | list[int], agent: int | None, number: int) -> int:
    words = [env.root] if isinstance(env, Seed) else list(env)
    words += [number] if agent is None else [agent, number]
    return derived_seed(*words)


def derived_seed(*words: int) -> int:
    """Returns a seed in [0, 2^63) that depends on every one of the given integers, all >= 0."""
    # With their number in front: a SeedSequence takes no notice of zeros at the end.
    sequence = np.random.SeedSequence((len(words), *words))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def _are_several(seeds: Any) -> TypeGuard[Iterable]:
    """Returns whether they are a list of seeds, in an order that is meant, and no text."""
    is_number = getattr(seeds, "ndim", None) == 0  # As an array or a tensor.
    is_other = isinstance(seeds, (str, bytes, bytearray, Set, Mapping))
    return isinstance(seeds, Iterable) and not (is_number or is_other)


def _non_negative(name: str, seed: Any) -> int:
    try:
        number = operator.index(seed)
    except TypeError:
        number = None
    if number is None or isinstance(seed, bool):
        raise TypeError(f"{name}: expected an integer, got {seed!r}")
    if number < 0:
        raise ValueError(f"{name}: expected an integer >= 0, got {number}")
    return number


def _seeds_from(root: int, first: int, n: int) -> list[int]:
    # One walk through all 2^32 seeds for everybody; a run starts at a place of its own. So the
    # seeds of one run never repeat, and two runs rarely meet (n environments each: n / 2^31).
    start = int(np.random.SeedSequence(root).generate_state(1)[0]) + first
    return [(number * _MULTIPLIER) % _MODULUS for number in range(start, start + n)]
