"""The `VecEnv` contract as a test to run on an environment of one's own."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rlbatch._checks import check_integer
from rlbatch.dicttensor import DictTensor
from rlbatch.envs._walk import Walk, WalkInto, different_keys, expect_equal
from rlbatch.envs.base import VecEnv, checked_env_info, steps_into
from rlbatch.errors import EnvContractError

logger = logging.getLogger(__name__)

_N_RESETS = 10  # Of some environments.
_ENOUGH = 5  # Ends of episodes, to suspect something of all of them.
_N_COMPARED = 10  # Steps that are taken once more, with one seed.
_N_SEEDS = 8  # In all of which the environments begin alike, if that is no accident.

_Begin = Callable[[type[Walk]], Walk]  # Walks through the environment that is checked.


class CheckReport(NamedTuple):
    """What a check has seen; a clause about what never happened was not tested.

    Attributes:
        n_steps: Calls of `step`.
        n_terminated: Episodes that ended.
        n_truncated: Episodes that were cut, and did not end in the same step.
        warnings: What is suspected, as it was logged.
    """

    n_steps: int
    n_terminated: int
    n_truncated: int
    warnings: tuple[str, ...] = ()


def check_env(
    env: VecEnv,
    n_steps: int = 200,
    sample_action: Callable[[int], DictTensor] | None = None,
    env_info: DictTensor | None = None,
) -> CheckReport:
    """Walks through the contract of `VecEnv` with random actions.

    The environment is reset, stepped, and reset again, and all that once more with `step_into` and
    with `reset_where`, where it has them and resets itself; it is not closed. Where it has `seed`,
    `step_into` is compared with `step`, and it is left as after `seed(0)`. What cannot be seen
    from outside is not checked: whether a terminal observation is the true one, and what a step
    before the very first reset does. Logged as a warning is what is suspected: terminal
    observations that are each equal to what the next episode begins with, values outside the
    bounds of `env.observation_space`, first observations that differ though the seeds are the
    same, in `seed` or in an `env_info`, and such as differ with the seed, but not between
    environments.

    Args:
        env: The environment.
        n_steps: How many times to step it. Take enough for an episode to end.
        sample_action: Given a number of environments, returns an action for each, on any device.
            None draws them from `env.action_space`, the same ones in every check.
        env_info: For every reset, [n_envs, ...], where the environment needs one; without a
            `seed`, which is added where resets are compared. None resets without any.

    Returns:
        What was seen. A warning is logged if no episode ended.

    Raises:
        EnvContractError: A clause is broken; the message names it.
        TypeError: It is not a `VecEnv`, `env_info` is not a `DictTensor`, or `sample_action` does
            not return one.
        ShapeError: `env_info` has not `n_envs` rows.
        ValueError: There is neither `sample_action` nor an action space, `n_steps` is below 1, or
            `env_info` holds a `seed`.

    Example:
        >>> import gymnasium
        >>> from rlbatch.envs import GymEnv
        >>> report = check_env(GymEnv([gymnasium.make("CartPole-v1")], seed=0))
        >>> report.n_terminated > 0
        True
    """
    if not isinstance(env, VecEnv):
        raise TypeError(f"env: expected a VecEnv, got {env!r}")
    check_integer("n_steps", n_steps, 1)
    if "seed" in checked_env_info(env_info, env.n_envs()):
        raise ValueError("env_info: expected one without a seed, which is added here, got one with")
    sample = sample_action or _sampler(env.action_space)

    def begin(kind: type[Walk]) -> Walk:
        return kind(env, sample, env_info)

    walk = begin(Walk)
    for _ in range(n_steps):
        walk.step()
    walk.reset_again()
    walks = [walk]
    if env.autoreset and walk.device.type == "cpu" and steps_into(env):
        walks.append(_check_step_into(begin, n_steps))
    if env.autoreset and callable(getattr(env, "reset_where", None)):
        walks.append(_check_reset_where(begin))
    suspected = [*_suspected(walks, n_steps), *_unseeded(walk), *_seeded_alike(walk)]
    for warning in suspected:
        logger.warning("check_env: %s", warning)
    return CheckReport(n_steps, walk.n_terminated, walk.n_truncated, tuple(suspected))


def _suspected(walks: Sequence[Walk], n_steps: int) -> Iterator[str]:
    if not walks[0].n_terminated + walks[0].n_truncated:
        yield f"no episode ended in {n_steps} steps; take more"
    for walk in walks:
        if _ENOUGH <= walk.n_begun == walk.n_begun_alike:
            yield (
                f"each of {walk.n_begun} episodes began with the observation that the one before "
                "ended with; is that the true terminal observation?"
            )
            break
    for key in sorted(set().union(*(walk.outside for walk in walks))):
        low, high = walks[0].bounds[key]
        yield f"{key} was outside the bounds of observation_space, {low.min()} to {high.max()}"


def _unseeded(walk: Walk) -> Iterator[str]:
    """Resets twice with the same seeds, where the environment can be seeded.

    Raises:
        EnvContractError: It does not take them.
    """
    if not _has_seed(walk.env):
        return
    several = list(range(walk.n_envs))
    ways: dict[str, Callable[[], None]] = {
        "reset: takes one seed per environment in env_info": lambda: walk.reset_again(
            seed=torch.tensor(several, device="cpu")
        ),
        "seed: takes one integer per environment": lambda: walk.begin(several),
        "seed: takes an integer": lambda: walk.begin(0),
    }
    differ: dict[str, set[str]] = {}
    for clause, begin in ways.items():
        firsts = []
        for _ in range(2):
            _expect_no_exception(begin, clause)
            firsts.append(walk.current.observation)
        if keys := different_keys(*firsts):
            differ[clause] = keys
    if differ:
        yield (
            f"{', '.join(sorted(set().union(*differ.values())))} of first observations differed "
            f"with one seed ({'; '.join(differ)}); does all that is drawn come from it (in "
            "Gymnasium by super().reset(seed=seed)), nothing from before?"
        )


def _seeded_alike(walk: Walk) -> Iterator[str]:
    """Looks for what seeds change, and changes in all environments alike."""
    n_envs = walk.n_envs
    if n_envs < 2 or not _has_seed(walk.env):
        return
    ways: dict[str, Callable[[int], int | list[int]]] = {
        "one seed per environment": lambda k: list(range(k * n_envs, (k + 1) * n_envs)),
        "an integer": lambda k: k,
    }
    suspected: dict[str, set[str]] = {}
    for name, seeds in ways.items():
        firsts = []
        for k in (0, *reversed(range(_N_SEEDS))):
            walk.begin(seeds(k))
            firsts.append(walk.current.observation)
        of_first = torch.zeros(n_envs, dtype=torch.int64, device="cpu")
        drawn = set().union(*(different_keys(firsts[0], other) for other in firsts))
        unlike = set().union(*(different_keys(one, one.index(of_first)) for one in firsts))
        if keys := drawn - unlike - different_keys(firsts[0], firsts[-1]):
            suspected[name] = keys
    if suspected:
        yield (
            f"{', '.join(sorted(set().union(*suspected.values())))} of first observations "
            f"depended on the seed, but was the same in all environments (with "
            f"{' and with '.join(suspected)}); has each a seed of its own (see env_seeds)?"
        )


def _has_seed(env: VecEnv) -> bool:
    return callable(getattr(env, "seed", None))


def _check_step_into(begin: _Begin, n_steps: int) -> Walk:
    try:
        walk = begin(WalkInto)
        for _ in range(n_steps):
            walk.step()
        if _has_seed(walk.env):
            _compare_step_into(begin)
    except EnvContractError as error:
        raise EnvContractError(f"with step_into: {error}") from error.__cause__
    return walk


def _compare_step_into(begin: _Begin) -> None:
    """Takes the same steps with `step`, twice, and with `step_into`."""
    walks = [begin(kind) for kind in (Walk, Walk, WalkInto)]
    actions = [walks[0].sample_action(walks[0].n_envs) for _ in range(_N_COMPARED)]
    runs = [walk.repeat(actions) for walk in walks]
    for one, again, into in zip(*runs, strict=True):
        # What draws from elsewhere than its seed may differ.
        for key in sorted(different_keys(one, into) - different_keys(one, again)):
            expect_equal(into[key], one[key], f"writes what step returns: {key}")


def _check_reset_where(begin: _Begin) -> Walk:
    walk = begin(Walk)
    try:
        walk.reset_where(walk.everyone >= 0)
    except NotImplementedError:  # It is not for all that the class can be made of.
        return walk
    walk.reset_where(walk.everyone < 0)
    for number in range(_N_RESETS):
        walk.step()
        walk.reset_where(walk.everyone % 2 == number % 2)
    walk.step()
    return walk


def _sampler(space: Any) -> Callable[[int], DictTensor]:
    if space is None:
        raise ValueError("sample_action: expected a function, as action_space is None, got None")
    from rlbatch.envs.spaces import action_leaves  # Imports Gymnasium.

    leaves = action_leaves(copy.deepcopy(space))
    for number, leaf in enumerate(leaves.values()):
        leaf.space.seed(number)

    def sample(n: int) -> DictTensor:
        columns = {
            k: np.stack([leaf.space.sample() for _ in range(n)]) for k, leaf in leaves.items()
        }
        return DictTensor({key: torch.from_numpy(column) for key, column in columns.items()})

    return sample


def _expect_no_exception(function: Callable[[], None], clause: str) -> None:
    try:
        function()
    except EnvContractError:
        raise
    except Exception as error:
        raise EnvContractError(f"{clause}: expected no exception, got {error!r}") from error
