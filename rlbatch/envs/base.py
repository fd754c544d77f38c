"""The contract of a batch of environments.

One episode, as an environment returns it (`o` observation, `r` reward, `a` action). A column is
one step; `_observation` is what the environment returned *after* the action of that step, so
at the last step it is the true terminal observation:

    step               0       1       2 (last)  |  3 (auto-resetting environments only)
    observation/frame  o0      o1      o2        |  o0'   first of the next episode
    action/action      a0      a1      a2        |  a0'
    _observation/frame o1      o2      o3        |  o1'   o3 is seen nowhere else
    _observation/reward r1     r2      r3        |  r1'
    _observation/done  False   False   True      |  False
    observation/initial_state
                       True    False   False     |  True
"""

from __future__ import annotations

import torch

from rlbatch._checks import check_device, check_dtype, check_shape
from rlbatch.dicttensor import DictTensor
from rlbatch.errors import DtypeMismatchError, ShapeError

Observation = tuple[DictTensor, torch.Tensor]
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

RESERVED_KEYS = (
    "reward",
    "terminated",
    "truncated",
    "done",
    "initial_state",
    "last_action",
    "episode_return",
    "episode_length",
)


class VecEnv:
    """A batch of environments that step together.

    There are two kinds. Those with `autoreset = False` run each environment to the end of its
    episode: `running` holds the numbers of those that still run, and shrinks. Those with
    `autoreset = True` start the next episode at once: `running` is always all of them, in order,
    so that a caller never has to look at the values of a tensor between steps. Where the next
    episode can only be started in the step *after* the last one, that step's action is ignored,
    what it acts on has `done` True, and what it leads to is the first observation.

    An observation is a DictTensor with one row per running environment, in ascending order of
    their numbers. Beside the frame (`frame`, or the names of a nested observation joined by `/`)
    it carries

    - `reward` [B] float32: for the step that led here; 0 after a reset.
    - `terminated`, `truncated`, `done` [B] bool: whether the episode ended, was cut, either.
    - `initial_state` [B] bool: whether this is the first observation of an episode.
    - `last_action` [B, ...]: the action that led here; zeros after a reset.
    - `episode_return` [B] float32, `episode_length` [B] int64 (steps): of the episode so far;
      see also `counts_on`.

    An environment must not change in place what an earlier call has returned, nor the actions that
    it is given: both are stored.

    A class with `autoreset` on the CPU may also define `step_into(action, after, following)`: as
    `step`, but it writes the two observations into arrays [n_envs, ...] that it is given, one per
    key. A batcher then has it write into the trajectories themselves, and gives it the agent's own
    actions, not copies.

    Any class may define `seed(seed)`, an int or one per environment, with which the next `reset`
    begins anew; and one with `autoreset` may define `reset_where(chosen)`, [n_envs] bool on its
    device, which starts episodes in some environments, and returns what to act on now as `reset`
    does.

    Attributes:
        autoreset: Which of the two kinds this is.
        resets_late: Whether an auto-resetting one starts episodes in the step after the last one.
        counts_on: Whether `episode_return` and `episode_length` may go on over the end of an
            episode, as those of a game do over its lives where each is an episode.
        device: Where observations and `running` are, and actions have to be.
        observation_space: Of one environment; a Gymnasium space, or None where there is none.
        action_space: Of one environment, likewise.
    """

    autoreset: bool = False
    resets_late: bool = False
    counts_on: bool = False
    device: torch.device = torch.device("cpu")
    observation_space: object = None
    action_space: object = None

    def n_envs(self) -> int:
        """Returns the number of environments."""
        raise NotImplementedError(_undefined(self, "n_envs"))

    def reset(self, env_info: DictTensor | None = None) -> Observation:
        """Starts an episode in every environment.

        Args:
            env_info: One row of options per environment, on the CPU; None or empty for none. The
                key `seed` [n_envs], integers, is no option: with it an environment begins anew.

        Returns:
            The first observations [n_envs, ...], and the environments' numbers, int64.
        """
        raise NotImplementedError(_undefined(self, "reset"))

    def step(self, action: DictTensor) -> tuple[Observation, Observation]:
        """Steps the running environments.

        Args:
            action: One row per running environment: the agent's output. Most environments read
                the key `action`, or `action/...` for a nested action space, and ignore the rest.

        Returns:
            Two pairs of observations and numbers. First what the actions led to, for all
            environments that ran. Second what to act on next: for those that still run, or, with
            `autoreset`, for all, where the first observation of the next episode stands in the
            place of a terminal one.

        Raises:
            CallOrderError: Before the first `reset`, or when no environment runs.
        """
        raise NotImplementedError(_undefined(self, "step"))

    def close(self) -> None:
        """Releases what the environments hold."""


def _undefined(env: VecEnv, method: str) -> str:
    return f"{method}: expected {type(env).__name__} to define it, got a call"


def checked_env_info(env_info: DictTensor | None, n_envs: int) -> DictTensor:
    """Returns the rows that a `reset` was given, or none.

    Raises:
        TypeError: It is not a DictTensor.
        ShapeError: It has neither `n_envs` rows nor none.
    """
    if env_info is None:
        return DictTensor()
    if not isinstance(env_info, DictTensor):
        raise TypeError(f"env_info: expected a DictTensor or None, got {env_info!r}")
    if not env_info.empty() and env_info.n_elems() != n_envs:
        raise ShapeError(f"env_info: expected {n_envs} rows, got {env_info.n_elems()}")
    return env_info


def check_chosen(chosen: torch.Tensor, n_envs: int, device: torch.device) -> None:
    """Checks what `reset_where` is given.

    Raises:
        TypeError: It is not a tensor.
        DeviceMismatchError, ShapeError, DtypeMismatchError: It is not [n_envs] bool, there.
    """
    if not isinstance(chosen, torch.Tensor):
        raise TypeError(f"chosen: expected a tensor, got {chosen!r}")
    check_device("chosen", chosen, device, "env.reset_where")
    check_shape("chosen", chosen, (n_envs,))
    check_dtype("chosen", chosen, torch.bool)


def seeds_in(env_info: DictTensor) -> list[int]:
    """Returns the seeds that an `env_info` brings, one per environment; none where it has none.

    Raises:
        DtypeMismatchError: They are no integers.
        ShapeError: They are not [n_envs].
    """
    if "seed" not in env_info:
        return []
    seeds = env_info["seed"]
    dtype = seeds.dtype
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        raise DtypeMismatchError(f"env_info: seed: expected integers, got {dtype}")
    if seeds.ndim != 1:
        raise ShapeError(f"env_info: seed: expected one per row, got {list(seeds.shape)}")
    return seeds.tolist()


def steps_into(env: VecEnv) -> bool:
    """Returns whether an environment has a `step_into` that does what its `step` does."""
    # A class that has its own `step`, but inherits `step_into`, wants its `step` to be called.
    for scope in (env, *type(env).__mro__):
        own = getattr(scope, "__dict__", {})  # An environment may have slots instead.
        if "step_into" in own:
            return True
        if "step" in own:
            return False
    return False
