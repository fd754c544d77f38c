"""Returns, advantages and off-policy targets of trajectories, vectorised over [B, T].

A row may hold several episodes, because environments reset themselves. Step `t` is a
reward, `value_t` = V of the observation the action was chosen from, and `value_tp1` = V
of the observation that the action led to. At the end of an episode that is the true last
observation, never the first one of the next episode:

    t              0    1    2    3    4    5    6
    episode        A    A    B    B    C    C    -
    terminated     .    x    .    .    .    .    .   the return after the step is 0
    truncated      .    .    .    x    .    .    .   it is value_tp1[3]
    mask           x    x    x    x    x    x    .   the slot ends at 5: it is value_tp1[5]

Nothing crosses these three edges. A step that is both terminated and truncated counts as
terminated. Entries where `mask` is False may hold anything, NaN included; they influence
nothing and the results there are 0. Within an episode `value_tp1[b, t]` and
`value_t[b, t + 1]` normally are the same number.

Rewards and values share one unit, which is also the unit of every result; discounts are
per step. All tensors live on one device and all floats have one dtype.
"""

# One step is described by up to eight sequences that share a shape and can neither be
# left out nor merged: the public functions therefore take more than the usual arguments.

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rlbatch._checks import as_float, check_device, check_dtype, check_integer, check_is_tensor
from rlbatch.errors import ShapeError


class VTrace(NamedTuple):
    """V-trace targets and advantages; both without gradient.

    Attributes:
        value_target: [B, T] float. What the value function should move to (`v_s`).
        pg_advantage: [B, T] float. Weight of the gradient of the log-probability of the
            action taken; holds the importance weight already.
    """

    value_target: Tensor
    pg_advantage: Tensor


def discounted_returns(
    reward: Tensor,
    *,
    terminated: Tensor,
    truncated: Tensor,
    discount: float | Tensor,
    bootstrap: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Sums the rewards up to the end of the episode, discounted.

    `G[t] = reward[t] + discount * G[t + 1]` inside an episode. After its last step `G` is
    0 where it terminated, `bootstrap` where it was truncated or cut by the slot's end.
    Differentiable in all floats; detach what should be a constant.

    Args:
        reward: [B, T] float. `reward[b, t]` follows the action taken at `t`.
        terminated: [B, T] bool. True where the step ended the episode for good.
        truncated: [B, T] bool. True where the step was the last one for another reason.
        discount: In [0, 1], or [B, T] float: the factor on what follows step `t`.
        bootstrap: [B, T] float. Value of the observation after step `t`, read only where
            `G` needs it; None for zeros, that is, observed rewards only.
        mask: [B, T] bool. False on padding; None if there is none.

    Returns:
        [B, T] float, dtype and device of `reward`.

    Raises:
        ShapeError: A shape differs from `reward`'s, or `reward` is not [B, T].
        TypeError: Not a tensor, a flag that is not bool, or a `reward` that is not float.
        DtypeMismatchError: Floats of different dtypes.
        DeviceMismatchError: Tensors on different devices.
        ValueError: `discount` is a number outside [0, 1].

    Example:
        >>> reward = torch.ones(1, 4)
        >>> terminated = torch.tensor([[False, True, False, False]])
        >>> never = torch.zeros_like(terminated)
        >>> discounted_returns(reward, terminated=terminated, truncated=never, discount=0.5)
        tensor([[1.5000, 1.0000, 1.5000, 1.0000]])

    Source:
        Sutton and Barto, Reinforcement Learning: An Introduction, 2nd ed., eq. 3.9.
    """
    if bootstrap is None:
        _check_reward(reward)
        bootstrap = torch.zeros_like(reward)
    reward, bootstrap, discount, linked = _prepare(
        {"reward": reward, "bootstrap": bootstrap}, terminated, truncated, discount, mask
    )
    bootstrap = bootstrap.masked_fill(terminated | linked, 0.0)
    return _solve(reward + discount * bootstrap, discount, linked)


def n_step_returns(  # noqa: PLR0913
    reward: Tensor,
    value_tp1: Tensor,
    *,
    n: int,
    terminated: Tensor,
    truncated: Tensor,
    discount: float | Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """Sums the next `n` rewards, discounted, and the value of what follows them.

    `G[t] = reward[t] + ... + discount**(n - 1) * reward[t + n - 1] + discount**n *
    value_tp1[t + n - 1]`. An episode's or slot's end inside this window shortens it; the
    value after the last step that is left counts unless that step terminated.
    Differentiable in all floats; detach what should be a constant.

    Args:
        reward: [B, T] float. `reward[b, t]` follows the action taken at `t`.
        value_tp1: [B, T] float. Value of the observation after step `t`.
        n: Length of the window in steps, 1 or more. From `T` on it no longer matters.
        terminated: [B, T] bool. True where the step ended the episode for good.
        truncated: [B, T] bool. True where the step was the last one for another reason.
        discount: In [0, 1], or [B, T] float: the factor on what follows step `t`.
        mask: [B, T] bool. False on padding; None if there is none.

    Returns:
        [B, T] float, dtype and device of `reward`.

    Raises:
        ShapeError: A shape differs from `reward`'s, or `reward` is not [B, T].
        TypeError: Not a tensor, a flag that is not bool, a `reward` that is not float, or an `n`
            that is not an integer.
        DtypeMismatchError: Floats of different dtypes.
        DeviceMismatchError: Tensors on different devices.
        ValueError: `n` is below 1, or `discount` is a number outside [0, 1].

    Example:
        >>> reward, value_tp1 = torch.ones(1, 4), torch.full((1, 4), 8.0)
        >>> truncated = torch.tensor([[False, True, False, False]])
        >>> ends = {"terminated": torch.zeros_like(truncated), "truncated": truncated}
        >>> n_step_returns(reward, value_tp1, n=2, discount=0.5, **ends)
        tensor([[3.5000, 5.0000, 3.5000, 5.0000]])

    Source:
        Sutton and Barto, Reinforcement Learning: An Introduction, 2nd ed., eq. 7.1.
    """
    check_integer("n", n, 1)
    reward, value_tp1, discount, linked = _prepare(
        {"reward": reward, "value_tp1": value_tp1}, terminated, truncated, discount, mask
    )
    one_step = reward + discount * value_tp1.masked_fill(terminated, 0.0)
    step = torch.where(linked, reward, one_step)
    return _repeat(one_step, step, discount, linked, times=n - 1)


def gae(  # noqa: PLR0913
    reward: Tensor,
    value_t: Tensor,
    value_tp1: Tensor,
    *,
    terminated: Tensor,
    truncated: Tensor,
    discount: float | Tensor,
    lambda_: float,
    mask: Tensor | None = None,
) -> Tensor:
    """Estimates advantages by generalised advantage estimation, GAE(discount, lambda).

    `A[t] = delta[t] + discount * lambda_ * A[t + 1]` inside an episode, with
    `delta[t] = reward[t] + discount * value_tp1[t] - value_t[t]`, where a terminated step
    has no value after it. `A[t] + value_t[t]` is the TD(lambda) target of the value.
    Differentiable in all floats. A critic is to be trained towards `A + value_t` as a constant:
    the square of an `A` with gradients also moves the values of all later steps.

    Args:
        reward: [B, T] float. `reward[b, t]` follows the action taken at `t`.
        value_t: [B, T] float. Value of the observation the action at `t` was chosen from.
        value_tp1: [B, T] float. Value of the observation after step `t`.
        terminated: [B, T] bool. True where the step ended the episode for good.
        truncated: [B, T] bool. True where the step was the last one for another reason.
        discount: In [0, 1], or [B, T] float: the factor on what follows step `t`.
        lambda_: In [0, 1]. 0 gives one-step errors, 1 the discounted return less
            `value_t`.
        mask: [B, T] bool. False on padding; None if there is none.

    Returns:
        [B, T] float, dtype and device of `reward`.

    Raises:
        ShapeError: A shape differs from `reward`'s, or `reward` is not [B, T].
        TypeError: Not a tensor, a flag that is not bool, or a `reward` that is not float.
        DtypeMismatchError: Floats of different dtypes.
        DeviceMismatchError: Tensors on different devices.
        ValueError: `discount` or `lambda_` is a number outside [0, 1].

    Example:
        >>> reward, value = torch.ones(1, 3), torch.zeros(1, 3)
        >>> terminated = torch.tensor([[False, True, False]])
        >>> ends = {"terminated": terminated, "truncated": torch.zeros_like(terminated)}
        >>> gae(reward, value, value, discount=1.0, lambda_=0.5, **ends)
        tensor([[1.5000, 1.0000, 1.0000]])

    Source:
        Schulman et al., 2016, arXiv:1506.02438, eq. 16.
    """
    lambda_ = _number("lambda_", lambda_, most=1.0)
    floats = {"reward": reward, "value_t": value_t, "value_tp1": value_tp1}
    reward, value_t, value_tp1, discount, linked = _prepare(
        floats, terminated, truncated, discount, mask
    )
    delta = reward + discount * value_tp1.masked_fill(terminated, 0.0) - value_t
    return _solve(delta, discount * lambda_, linked)


@torch.no_grad()
def vtrace(  # noqa: PLR0913
    reward: Tensor,
    value_t: Tensor,
    value_tp1: Tensor,
    *,
    target_log_prob: Tensor,
    behaviour_log_prob: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discount: float | Tensor,
    lambda_: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
    mask: Tensor | None = None,
) -> VTrace:
    """Corrects targets and advantages for actions taken by another policy (V-trace).

    With the ratio `w = exp(target_log_prob - behaviour_log_prob)`, `rho = min(rho_bar, w)`
    and `c = lambda_ * min(c_bar, w)`, inside an episode
    `v[t] = value_t[t] + rho[t] * delta[t] + discount * c[t] * (v[t + 1] - value_t[t + 1])`,
    with `delta` as in `gae`; the advantage is
    `min(pg_rho_bar, w[t]) * (reward[t] + discount * v[t + 1] - value_t[t])`. At an end of
    an episode or slot, `v[t + 1]` is `value_tp1[t]`, or 0 if the step terminated.

    Computed under `torch.no_grad()`: ratios, targets and advantages are constants of the
    loss, whatever the inputs require.

    Args:
        reward: [B, T] float. `reward[b, t]` follows the action taken at `t`.
        value_t: [B, T] float. Value of the observation the action at `t` was chosen from.
        value_tp1: [B, T] float. Value of the observation after step `t`.
        target_log_prob: [B, T] float. Log-probability, in nats, that the policy being
            learned gives to the action taken at `t`.
        behaviour_log_prob: [B, T] float. The same for the policy that took the action.
        terminated: [B, T] bool. True where the step ended the episode for good.
        truncated: [B, T] bool. True where the step was the last one for another reason.
        discount: In [0, 1], or [B, T] float: the factor on what follows step `t`.
        lambda_: In [0, 1]. Further decay of the traces.
        rho_bar: Highest weight of `delta`; decides which value is learned. The source
            assumes `rho_bar >= c_bar`. Infinity does not clip.
        c_bar: Highest trace; trades speed for variance. Where `lambda_ * c_bar` is more than 1
            the time that this function takes grows with T, not with its logarithm.
        pg_rho_bar: Highest weight of an advantage.
        mask: [B, T] bool. False on padding; None if there is none.

    Returns:
        `value_target` and `pg_advantage`, each [B, T] float, dtype and device of `reward`.

    Raises:
        ShapeError: A shape differs from `reward`'s, or `reward` is not [B, T].
        TypeError: Not a tensor, a flag that is not bool, or a `reward` that is not float.
        DtypeMismatchError: Floats of different dtypes.
        DeviceMismatchError: Tensors on different devices.
        ValueError: `discount` or `lambda_` is a number outside [0, 1], or a bar is negative.

    Example:
        >>> zeros, never = torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.bool)
        >>> half = torch.full((1, 2), 0.5).log()
        >>> policies = {"target_log_prob": half, "behaviour_log_prob": zeros}
        >>> ends = {"terminated": never, "truncated": never}
        >>> vtrace(zeros + 1, zeros, zeros, **policies, **ends, discount=1.0).value_target
        tensor([[0.7500, 0.5000]])

    Source:
        Espeholt et al., 2018, arXiv:1802.01561, section 4.1, eq. 1 and remark 2
        (`lambda_`); section 4.2 for the advantage.
    """
    lambda_ = _number("lambda_", lambda_, most=1.0)
    bars = {"rho_bar": rho_bar, "c_bar": c_bar, "pg_rho_bar": pg_rho_bar}
    rho_bar, c_bar, pg_rho_bar = (_number(name, bar, most=math.inf) for name, bar in bars.items())
    floats = {
        "reward": reward,
        "value_t": value_t,
        "value_tp1": value_tp1,
        "target_log_prob": target_log_prob,
        "behaviour_log_prob": behaviour_log_prob,
    }
    reward, value_t, value_tp1, target_log_prob, behaviour_log_prob, discount, linked = _prepare(
        floats, terminated, truncated, discount, mask
    )
    ratio = torch.exp(target_log_prob - behaviour_log_prob)
    value_tp1 = value_tp1.masked_fill(terminated, 0.0)
    delta = ratio.clamp(max=rho_bar) * (reward + discount * value_tp1 - value_t)
    trace = discount * lambda_ * ratio.clamp(max=c_bar)
    # Above 1 the product of many traces may be infinite where no value is.
    solve = _solve if lambda_ * c_bar <= 1 else _solve_step_by_step
    value_target = value_t + solve(delta, trace, linked)
    target_tp1 = torch.where(linked, _shift(value_target, 1), value_tp1)
    advantage = ratio.clamp(max=pg_rho_bar) * (reward + discount * target_tp1 - value_t)
    return VTrace(value_target, advantage)


def _solve(a: Tensor, b: Tensor, linked: Tensor) -> Tensor:
    """Solves `x[t] = a[t] + b[t] * x[t + 1]`, where the last term needs `linked[t]`."""
    return _repeat(a, a, b, linked, times=a.shape[1])


def _solve_step_by_step(a: Tensor, b: Tensor, linked: Tensor) -> Tensor:
    """Solves the same from the last step to the first, in as many passes as there are steps."""
    x, following = torch.empty_like(a), a.new_zeros(len(a))
    for t in reversed(range(a.shape[1])):
        following = a[:, t] + torch.where(linked[:, t], b[:, t] * following, 0.0)
        x[:, t] = following
    return x


def _repeat(x: Tensor, a: Tensor, b: Tensor, linked: Tensor, *, times: int) -> Tensor:
    """Replaces `x[t]` by `a[t] + b[t] * x[t + 1]`, for all t at once, a number of times.

    The last term is left out where `linked[t]` is False. One replacement is an affine map
    of `x`; applied after itself it is one again that reaches twice as far (recursive
    doubling: Hillis and Steele, Data Parallel Algorithms, CACM 29(12), 1986). So the
    number of passes is the logarithm of `times`. From `T` times on, nothing is left of
    the first `x`. What `linked` excludes is replaced by 0, not multiplied by it: a NaN in
    one episode stays there, and an infinite trace after its end counts for nothing.
    """
    times, reach = min(times, a.shape[1]), 1
    while times > 0:
        b = torch.where(linked, b, 0.0)
        if times % 2 == 1:
            x = a + b * torch.where(linked, _shift(x, reach), 0.0)
        a = a + b * torch.where(linked, _shift(a, reach), 0.0)
        b = b * torch.where(linked, _shift(b, reach), 0.0)
        linked = linked & _shift(linked, reach)
        times, reach = times // 2, reach * 2
    return x


def _shift(x: Tensor, n: int) -> Tensor:
    """Moves columns `n` to the left; zeros or False come in from the right. A copy."""
    return torch.cat([x[:, n:], torch.zeros_like(x[:, :n])], dim=1)


def _prepare(
    floats: dict[str, Tensor],
    terminated: Tensor,
    truncated: Tensor,
    discount: float | Tensor,
    mask: Tensor | None,
) -> list[Tensor]:
    """Checks everything; returns the floats and the discount, 0 on padding, and `linked`.

    `linked[b, t]` says that step `t + 1` is valid and continues the episode of step `t`.
    """
    reward = floats["reward"]
    _check_reward(reward)
    if mask is None:
        mask = torch.ones_like(reward, dtype=torch.bool)
    if not isinstance(discount, Tensor):
        discount = torch.full_like(reward, _number("discount", discount, most=1.0))
    floats = {**floats, "discount": discount}
    for name, sequence in floats.items():
        _check_sequence(name, sequence, reward, reward.dtype)
    for name, flag in {"terminated": terminated, "truncated": truncated, "mask": mask}.items():
        _check_sequence(name, flag, reward, torch.bool)
    linked = mask & _shift(mask, 1) & ~terminated & ~truncated
    return [sequence.masked_fill(~mask, 0.0) for sequence in floats.values()] + [linked]


def _check_reward(reward: Tensor) -> None:
    check_is_tensor("reward", reward)
    if not reward.is_floating_point():
        raise TypeError(f"reward: expected a float dtype, got {reward.dtype}")
    if reward.ndim != 2:
        raise ShapeError(f"reward: expected shape [B, T], got {list(reward.shape)}")


def _check_sequence(name: str, found: Tensor, reward: Tensor, dtype: torch.dtype) -> None:
    check_is_tensor(name, found)
    check_dtype(name, found, dtype)
    check_device(name, found, reward.device)
    if found.shape != reward.shape:
        shapes = f"{list(reward.shape)}, got {list(found.shape)}"
        raise ShapeError(f"{name}: expected the shape of reward, {shapes}")


def _number(name: str, found: float, most: float) -> float:
    number = as_float(name, found)
    if not 0.0 <= number <= most:
        raise ValueError(f"{name}: expected a number in [0, {most:g}], got {found}")
    return number
