"""Returns against sums written from their definitions, one entry at a time."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from rlbatch.errors import DeviceMismatchError, DtypeMismatchError, ShapeError
from rlbatch.returns import discounted_returns, gae, n_step_returns, vtrace

DISCOUNT, LAMBDA = 0.9, 0.7
CLIPS = {"rho_bar": 1.2, "c_bar": 0.9, "pg_rho_bar": 1.1}
FLOATS = ("reward", "value_t", "value_tp1", "target_log_prob", "behaviour_log_prob")
FLAGS = ("terminated", "truncated", "mask")


class Episode(NamedTuple):
    """The part of one row in [first, last] that one episode fills."""

    row: int
    first: int
    last: int
    bootstraps: bool


def random_rows(n_steps, seed=0, ends_fraction=0.15):
    """Rows with several episodes, ended in both ways, padded with NaN and random flags."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([0, n_steps, n_steps, (n_steps + 1) // 2, n_steps - 1, 1])
    shape = (len(lengths), n_steps)
    rows = {key: torch.randn(shape, generator=generator).double() for key in FLOATS}
    rows["terminated"] = torch.rand(shape, generator=generator) < ends_fraction
    rows["truncated"] = torch.rand(shape, generator=generator) < ends_fraction
    rows["mask"] = torch.arange(n_steps) < lengths[:, None]
    for key in FLOATS:
        rows[key][~rows["mask"]] = math.nan
    return rows


def episodes(rows):
    """Cuts every row at its flags and at its length, by walking along it."""
    for row, valid in enumerate(rows["mask"].tolist()):
        first = 0
        for t in range(sum(valid)):
            terminated = rows["terminated"][row, t].item()
            truncated = rows["truncated"][row, t].item()
            if terminated or truncated or t == sum(valid) - 1:
                yield Episode(row, first, t, bootstraps=not terminated)
                first = t + 1


def oracle(rows, entry):
    """Fills [B, T] with `entry(episode, t)`, and 0 outside of all episodes."""
    result = torch.zeros_like(rows["reward"])
    for episode in episodes(rows):
        for t in range(episode.first, episode.last + 1):
            result[episode.row, t] = entry(episode, t)
    return result


def discount_to(discount, episode, t, end):
    """The product of the discounts of the steps in [t, end)."""
    return math.prod(discount[episode.row, k].item() for k in range(t, end))


def window_return(rows, discount, episode, t, last):
    """Rewards in [t, last] and the value after `last`, all seen from `t`."""
    total = 0.0
    for k in range(t, last + 1):
        total += discount_to(discount, episode, t, k) * rows["reward"][episode.row, k].item()
    if last < episode.last or episode.bootstraps:
        value = rows["value_tp1"][episode.row, last].item()
        total += discount_to(discount, episode, t, last + 1) * value
    return total


def td_error(rows, discount, episode, t):
    one_step = window_return(rows, discount, episode, t, last=t)
    return one_step - rows["value_t"][episode.row, t].item()


def ratio(rows, episode, t):
    log_probs = (rows[key][episode.row, t].item() for key in FLOATS[3:])
    return math.exp(next(log_probs) - next(log_probs))


def vtrace_value(rows, discount, episode, s):
    """Equation 1 of the paper, with the remark's lambda in the traces."""
    total = rows["value_t"][episode.row, s].item()
    for t in range(s, episode.last + 1):
        weight = discount_to(discount, episode, s, t)
        for i in range(s, t):
            weight *= LAMBDA * min(CLIPS["c_bar"], ratio(rows, episode, i))
        rho = min(CLIPS["rho_bar"], ratio(rows, episode, t))
        total += weight * rho * td_error(rows, discount, episode, t)
    return total


def vtrace_advantage(rows, discount, episode, s):
    """Section 4.2 of the paper."""
    if s < episode.last:
        value_after = vtrace_value(rows, discount, episode, s + 1)
    else:
        value_after = rows["value_tp1"][episode.row, s].item() if episode.bootstraps else 0.0
    target = rows["reward"][episode.row, s].item()
    target += discount[episode.row, s].item() * value_after
    error = target - rows["value_t"][episode.row, s].item()
    return min(CLIPS["pg_rho_bar"], ratio(rows, episode, s)) * error


def pick(rows, *keys):
    return {key: rows[key] for key in keys + FLAGS}


def returns_of(rows, discount=DISCOUNT):
    kwargs = pick(rows, "reward")
    return discounted_returns(**kwargs, bootstrap=rows["value_tp1"], discount=discount)


def n_steps_of(rows, n, discount=DISCOUNT):
    return n_step_returns(**pick(rows, "reward", "value_tp1"), n=n, discount=discount)


def gae_of(rows, discount=DISCOUNT, lambda_=LAMBDA):
    return gae(**pick(rows, *FLOATS[:3]), discount=discount, lambda_=lambda_)


def vtrace_of(rows, discount=DISCOUNT, lambda_=LAMBDA, **clips):
    return vtrace(**pick(rows, *FLOATS), discount=discount, lambda_=lambda_, **(clips or CLIPS))


ESTIMATORS = {
    "discounted": returns_of,
    "n_step": lambda rows, discount=DISCOUNT: n_steps_of(rows, 3, discount),
    "gae": gae_of,
    "vtrace_value": lambda rows, discount=DISCOUNT: vtrace_of(rows, discount).value_target,
    "vtrace_advantage": lambda rows, discount=DISCOUNT: vtrace_of(rows, discount).pg_advantage,
}
every_estimator = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)
every_case = pytest.mark.parametrize(
    ("n_steps", "seed"), [(1, 0), (2, 1), (8, 2), (13, 3), (31, 4), (64, 5)]
)


@pytest.fixture(params=["one_discount", "discount_per_step"])
def discount(request):
    """Makes the discount of some rows, as the argument and as the [B, T] of the oracle."""

    def discount_of(rows):
        if request.param == "one_discount":
            return DISCOUNT, torch.full_like(rows["reward"], DISCOUNT)
        generator = torch.Generator().manual_seed(7)
        drawn = torch.rand(rows["reward"].shape, generator=generator, dtype=torch.float64)
        return drawn.masked_fill(~rows["mask"], math.nan), drawn

    return discount_of


def test_the_random_rows_hold_every_kind_of_edge():
    for seed, n_steps in [(2, 8), (3, 13), (4, 31), (5, 64)]:
        rows = random_rows(n_steps, seed)
        inner = rows["mask"] & rows["mask"].roll(-1, 1)
        inner[:, -1] = False
        both = rows["terminated"] & rows["truncated"]
        lengths = rows["mask"].sum(1)
        slot_ends = [e for e in episodes(rows) if e.last == lengths[e.row] - 1 and e.bootstraps]
        assert (inner & rows["terminated"] & ~both).any()
        assert (inner & rows["truncated"] & ~both).any()
        assert any(not rows["truncated"][e.row, e.last] for e in slot_ends)
        assert (lengths == 0).any()
        assert (lengths == n_steps).any()
        assert rows["reward"].isnan().any()
        if n_steps > 30:
            assert (inner & both).any()


@every_case
def test_discounted_returns_equal_the_sum_to_the_end_of_the_episode(n_steps, seed, discount):
    rows = random_rows(n_steps, seed)
    given, literal = discount(rows)
    expected = oracle(rows, lambda e, t: window_return(rows, literal, e, t, e.last))
    torch.testing.assert_close(returns_of(rows, given), expected)


@every_case
@pytest.mark.parametrize("n", [1, 2, 3, 5, 12, 64, 1000])
def test_n_step_returns_equal_the_sum_over_the_window(n_steps, seed, n, discount):
    rows = random_rows(n_steps, seed)
    given, literal = discount(rows)
    expected = oracle(rows, lambda e, t: window_return(rows, literal, e, t, min(t + n - 1, e.last)))
    torch.testing.assert_close(n_steps_of(rows, n, given), expected)


@every_case
def test_gae_equals_the_weighted_sum_of_td_errors(n_steps, seed, discount):
    rows = random_rows(n_steps, seed)
    given, literal = discount(rows)

    def weighted_td_errors(episode, t):
        return sum(
            discount_to(literal, episode, t, k)
            * LAMBDA ** (k - t)
            * td_error(rows, literal, episode, k)
            for k in range(t, episode.last + 1)
        )

    torch.testing.assert_close(gae_of(rows, given), oracle(rows, weighted_td_errors))


@every_case
def test_vtrace_equals_the_definition_in_the_paper(n_steps, seed, discount):
    rows = random_rows(n_steps, seed)
    given, literal = discount(rows)
    result = vtrace_of(rows, given)
    value = oracle(rows, lambda e, t: vtrace_value(rows, literal, e, t))
    advantage = oracle(rows, lambda e, t: vtrace_advantage(rows, literal, e, t))
    torch.testing.assert_close(result.value_target, value)
    torch.testing.assert_close(result.pg_advantage, advantage)


def test_without_bootstrap_only_observed_rewards_count():
    rows = random_rows(13, seed=3)
    observed = discounted_returns(**pick(rows, "reward"), discount=DISCOUNT)
    rows["value_tp1"] = torch.zeros_like(rows["value_tp1"])
    torch.testing.assert_close(observed, returns_of(rows))


def test_discounted_returns_read_the_bootstrap_only_at_cuts():
    rows = random_rows(13, seed=3)
    expected = returns_of(rows)
    cuts = torch.zeros_like(rows["mask"])
    for episode in episodes(rows):
        cuts[episode.row, episode.last] = episode.bootstraps
    rows["value_tp1"] = rows["value_tp1"].masked_fill(~cuts, math.nan)
    assert torch.equal(returns_of(rows), expected)


@every_estimator
def test_no_mask_means_that_every_step_is_valid(estimate):
    rows = random_rows(13, seed=3)
    rows = {key: value[1:3] for key, value in rows.items()}
    assert rows["mask"].all()
    assert torch.equal(estimate({**rows, "mask": None}), estimate(rows))


@every_estimator
def test_what_lies_beyond_an_episode_does_not_change_it(estimate):
    rows = random_rows(31, seed=4)
    expected = estimate(rows)
    for episode in episodes(rows):
        inside = torch.zeros_like(rows["mask"])
        inside[episode.row, episode.first : episode.last + 1] = True
        others = {key: rows[key].masked_fill(~inside, math.nan) for key in FLOATS}
        assert torch.equal(estimate({**rows, **others})[inside], expected[inside])


@every_estimator
def test_a_terminated_step_ignores_the_value_after_it(estimate):
    rows = random_rows(31, seed=4)
    expected = estimate(rows)
    rows["value_tp1"] = rows["value_tp1"].masked_fill(rows["terminated"], math.nan)
    assert torch.equal(estimate(rows), expected)


@every_estimator
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_batches_give_empty_results(estimate, shape):
    rows = {key: torch.zeros(shape) for key in FLOATS}
    rows |= {key: torch.zeros(shape, dtype=torch.bool) for key in FLAGS}
    assert estimate(rows).shape == shape


@every_estimator
def test_float32_stays_float32_and_close_over_long_episodes(estimate):
    rows = random_rows(1000, seed=6, ends_fraction=0.002)
    single = {key: value.float() if key in FLOATS else value for key, value in rows.items()}
    result = estimate(single, discount=0.999)
    assert result.dtype == torch.float32
    # Hundreds of terms of size 1, each rounded by 6e-8 of a sum of size 100, stay within 1e-3.
    torch.testing.assert_close(result.double(), estimate(rows, discount=0.999), rtol=0, atol=1e-3)


def test_gae_with_lambda_1_is_the_discounted_return_less_the_value():
    rows = consistent(random_rows(31, seed=4))
    expected = returns_of(rows) - rows["value_t"].masked_fill(~rows["mask"], 0.0)
    torch.testing.assert_close(gae_of(rows, lambda_=1.0), expected)


def test_gae_with_lambda_0_is_the_one_step_error():
    rows = random_rows(31, seed=4)
    expected = n_steps_of(rows, n=1) - rows["value_t"].masked_fill(~rows["mask"], 0.0)
    torch.testing.assert_close(gae_of(rows, lambda_=0.0), expected)


def test_on_policy_vtrace_is_the_discounted_return():
    rows = consistent(random_rows(31, seed=4))
    rows["target_log_prob"] = rows["behaviour_log_prob"]
    result = vtrace_of(rows, lambda_=1.0, rho_bar=1.0)
    value = rows["value_t"].masked_fill(~rows["mask"], 0.0)
    torch.testing.assert_close(result.value_target, returns_of(rows))
    torch.testing.assert_close(result.pg_advantage, returns_of(rows) - value)


def test_vtrace_clips_all_at_1_unless_told_otherwise():
    one, never = torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.bool)
    rows = {"reward": one, "value_t": one, "value_tp1": 2 * one, "discount": 0.5}
    rows |= {"terminated": never, "truncated": never}
    rows |= {"target_log_prob": one, "behaviour_log_prob": -one}  # A ratio of e².
    given = {"lambda_": 1.0, "rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0}
    for name in given:
        other = vtrace(**rows, **{**given, name: 2.0 if "bar" in name else 0.5})
        pairs = zip(other, vtrace(**rows), strict=True)
        assert not all(torch.equal(one, default) for one, default in pairs), name
    torch.testing.assert_close(vtrace(**rows), vtrace(**rows, **given))


def test_vtrace_clips_an_overflowing_ratio():
    rows = random_rows(13, seed=3)
    rows["target_log_prob"] = rows["behaviour_log_prob"] + 1000.0
    overflowing = vtrace_of(rows)
    rows["target_log_prob"] = rows["behaviour_log_prob"] + 1.0
    for result, expected in zip(overflowing, vtrace_of(rows), strict=True):
        torch.testing.assert_close(result, expected)


def test_vtrace_results_carry_no_gradient():
    rows = random_rows(8, seed=2)
    for key in FLOATS:
        rows[key].requires_grad_()
    assert not any(result.requires_grad for result in vtrace_of(rows))


def consistent(rows):
    """Makes the value after a step the value before the next one, inside episodes."""
    for episode in episodes(rows):
        inside = slice(episode.first, episode.last)
        after = slice(episode.first + 1, episode.last + 1)
        rows["value_tp1"][episode.row, inside] = rows["value_t"][episode.row, after]
    return rows


differentiable = pytest.mark.parametrize("name", ["discounted", "n_step", "gae"])


@differentiable
def test_gradients_equal_finite_differences(name):
    rows = random_rows(8, seed=2)
    values = {key: rows[key].nan_to_num() for key in FLOATS[:3]}
    values["discount"] = torch.full_like(rows["reward"], DISCOUNT)

    def estimate(*tensors):
        given = dict(zip(values, tensors, strict=True))
        discount = given.pop("discount")
        return ESTIMATORS[name]({**rows, **given}, discount)

    inputs = tuple(value.requires_grad_() for value in values.values())
    assert torch.autograd.gradcheck(estimate, inputs)


def test_gradients_of_discounts_do_not_see_a_bootstrap_that_is_not_read():
    rows = random_rows(8, seed=2)
    for episode in episodes(rows):
        inside = slice(episode.first, episode.last)
        rows["value_tp1"][episode.row, inside] = math.nan
    discount = torch.full_like(rows["reward"], DISCOUNT, requires_grad=True)
    ESTIMATORS["discounted"](rows, discount).sum().backward()
    assert discount.grad.isfinite().all()
    assert (discount.grad != 0).any()


@differentiable
def test_gradients_of_padding_are_zero_though_it_is_nan(name):
    rows = random_rows(8, seed=2)
    discount = torch.full_like(rows["reward"], DISCOUNT).masked_fill(~rows["mask"], math.nan)
    inputs = [rows["reward"], rows["value_tp1"], discount]
    for tensor in inputs:
        tensor.requires_grad_()
    ESTIMATORS[name](rows, discount).sum().backward()
    for tensor in inputs:
        assert tensor.grad.isfinite().all()
        assert (tensor.grad[~rows["mask"]] == 0).all()
        assert (tensor.grad[rows["mask"]] != 0).any()


@every_estimator
def test_compiles_to_one_graph(estimate):
    rows = random_rows(13, seed=3)
    compiled = torch.compile(estimate, backend="eager", fullgraph=True)
    assert torch.equal(compiled(rows), estimate(rows))


@every_estimator
@pytest.mark.parametrize("key", ["value_tp1", "terminated", "truncated", "mask"])
def test_rejects_a_sequence_of_the_wrong_shape(estimate, key):
    rows = random_rows(8)
    rows[key] = rows[key][:, 1:]
    name = "bootstrap|value_tp1" if key == "value_tp1" else key
    message = rf"^({name}): expected the shape of reward, \[6, 8\], got \[6, 7\]$"
    with pytest.raises(ShapeError, match=message):
        estimate(rows)


@every_estimator
def test_rejects_a_reward_that_is_not_batch_by_time(estimate):
    rows = random_rows(8)
    rows["reward"] = rows["reward"][0]
    with pytest.raises(ShapeError, match=r"^reward: expected shape \[B, T\], got \[8\]$"):
        estimate(rows)


@every_estimator
def test_rejects_a_discount_of_the_wrong_shape(estimate):
    rows = random_rows(8)
    with pytest.raises(ShapeError, match=r"^discount: expected .* \[6, 8\], got \[6, 1\]$"):
        estimate(rows, rows["reward"][:, :1])


@every_estimator
@pytest.mark.parametrize("key", FLAGS)
def test_rejects_a_flag_that_is_not_bool(estimate, key):
    rows = random_rows(8)
    rows[key] = rows[key].float()
    with pytest.raises(TypeError, match=f"^{key}: expected torch.bool, got torch.float32$"):
        estimate(rows)


@every_estimator
def test_rejects_a_list_for_a_tensor(estimate):
    rows = random_rows(8)
    rows["mask"] = rows["mask"].tolist()
    with pytest.raises(TypeError, match="^mask: expected a tensor, got list$"):
        estimate(rows)


def test_rejects_a_list_for_the_reward():
    rows = random_rows(8)
    rows["reward"] = rows["reward"].tolist()
    with pytest.raises(TypeError, match="^reward: expected a tensor, got list$"):
        gae_of(rows)


@every_estimator
def test_rejects_rewards_that_are_not_floats(estimate):
    rows = random_rows(8)
    rows["reward"] = rows["reward"].nan_to_num().long()
    with pytest.raises(TypeError, match="^reward: expected a float dtype, got torch.int64$"):
        estimate(rows)


@every_estimator
def test_rejects_floats_of_different_dtypes(estimate):
    rows = random_rows(8)
    rows["value_tp1"] = rows["value_tp1"].float()
    message = "^(bootstrap|value_tp1): expected torch.float64, got torch.float32$"
    with pytest.raises(DtypeMismatchError, match=message):
        estimate(rows)


@every_estimator
@pytest.mark.parametrize("discount", [-0.1, 1.01, math.nan])
def test_rejects_a_discount_outside_0_and_1(estimate, discount):
    with pytest.raises(ValueError, match=r"^discount: expected a number in \[0, 1\], got "):
        estimate(random_rows(8), discount)


@pytest.mark.parametrize("estimate", [gae_of, vtrace_of])
def test_rejects_a_lambda_outside_0_and_1(estimate):
    with pytest.raises(ValueError, match=r"^lambda_: expected a number in \[0, 1\], got 1.5$"):
        estimate(random_rows(8), lambda_=1.5)


@pytest.mark.parametrize(
    ("n", "error", "expected"),
    [
        (0, ValueError, "at least 1"),
        (2.5, TypeError, "an integer"),
        (True, TypeError, "an integer"),
    ],
)
def test_rejects_a_window_without_steps_or_with_parts_of_one(n, error, expected):
    with pytest.raises(error, match=f"^n: expected {expected}, got {n}$"):
        n_steps_of(random_rows(8), n=n)


def test_infinite_traces_count_for_nothing_after_the_end():
    zeros, ends = torch.zeros(1, 3), torch.tensor([[False, True, False]])
    policies = {"target_log_prob": zeros + 100, "behaviour_log_prob": zeros}  # exp(100) is inf.
    given = {"reward": zeros + 1, "value_t": zeros, "value_tp1": zeros, **policies}
    found = vtrace(**given, terminated=ends, truncated=~ends, discount=1.0, c_bar=math.inf)
    assert found.value_target.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("log_ratio", [1.0, 6.0])
def test_a_product_of_traces_that_overflows_leaves_finite_values_alone(log_ratio):
    n = 200  # exp(log_ratio) to the power of half of it is infinite in float32.
    zeros, never = torch.zeros(1, 2 * n), torch.zeros(1, 2 * n, dtype=torch.bool)
    log_ratios = torch.cat([zeros[:, :n] + log_ratio, zeros[:, n:] - log_ratio], 1)
    policies = {"target_log_prob": log_ratios, "behaviour_log_prob": zeros}
    given = {"reward": zeros, "value_t": zeros, "value_tp1": zeros, **policies}
    found = vtrace(**given, terminated=never, truncated=never, discount=1.0, c_bar=math.inf)
    assert found.value_target.tolist() == found.pg_advantage.tolist() == zeros.tolist()


@every_case
def test_traces_over_1_give_what_equation_1_gives(monkeypatch, n_steps, seed):
    monkeypatch.setitem(CLIPS, "c_bar", 1.5)
    rows = random_rows(n_steps, seed)
    literal = torch.full_like(rows["reward"], DISCOUNT)
    expected = oracle(rows, lambda e, t: vtrace_value(rows, literal, e, t))
    torch.testing.assert_close(vtrace_of(rows).value_target, expected)


@pytest.mark.parametrize("name", ["rho_bar", "c_bar", "pg_rho_bar"])
@pytest.mark.parametrize("bar", [-1.0, math.nan])
def test_rejects_a_bar_below_0(name, bar):
    with pytest.raises(ValueError, match=rf"^{name}: expected a number in \[0, inf\], got {bar}$"):
        vtrace_of(random_rows(8), **{name: bar})


@pytest.mark.parametrize("number", [np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_takes_any_kind_of_number(number):
    rows = random_rows(8)
    found = vtrace_of(rows, lambda_=number, rho_bar=number)
    for one, other in zip(found, vtrace_of(rows, lambda_=0.5, rho_bar=0.5), strict=True):
        torch.testing.assert_close(one, other)


def test_rejects_what_is_no_number():
    with pytest.raises(TypeError, match="^discount: expected a number, got '0.9'$"):
        gae_of(random_rows(8), "0.9")
    with pytest.raises(TypeError, match="^lambda_: expected a number, got None$"):
        gae_of(random_rows(8), lambda_=None)
    with pytest.raises(TypeError, match="^rho_bar: expected a number, got '1'$"):
        vtrace_of(random_rows(8), rho_bar="1")


def test_rejects_a_reward_that_is_no_tensor():
    with pytest.raises(TypeError, match="^reward: expected a tensor, got list$"):
        discounted_returns([1.0], terminated=[False], truncated=[False], discount=0.9)


@pytest.mark.parametrize("name", ["value_tp1", "terminated", "mask"])
def test_tensors_on_different_devices_are_named(name):
    floats = {key: torch.zeros(2, 3) for key in ("reward", "value_t", "value_tp1")}
    flags = {
        key: torch.zeros(2, 3, dtype=torch.bool) for key in ("terminated", "truncated", "mask")
    }
    arguments = {**floats, **flags}
    arguments[name] = arguments[name].to("meta")
    with pytest.raises(DeviceMismatchError, match=f"^{name}: .* on cpu, got one on meta"):
        gae(**arguments, discount=0.9, lambda_=0.9)
