"""TemporalDictTensor along time, and Trajectories."""

import pytest
import torch

from rlbatch.dicttensor import DictTensor, TemporalDictTensor, Trajectories, masked_dicttensor
from rlbatch.errors import DeviceMismatchError, DtypeMismatchError, KeyMismatchError, ShapeError
from tests.containers import DTYPES, LENGTHS, B, T, counted, make, rows_in


def temporal(device="cpu", n_timesteps=T, lengths=LENGTHS, first=0):
    """One key `a` [B, n_timesteps, 2], whose entries are all different."""
    tensor = counted((len(lengths), n_timesteps, 2), torch.int64, device, first)
    lengths = torch.tensor(lengths, dtype=torch.int64, device=device)
    return TemporalDictTensor({"a": tensor}, lengths)


# --- Lengths ---


def test_lengths_default_to_all_steps(device):
    container = TemporalDictTensor({"a": torch.zeros(2, 5, device=device)})
    assert container.lengths.tolist() == [5, 5]
    assert container.lengths.dtype == torch.int64
    assert container.lengths.device == container["a"].device


def test_lengths_are_those_of_a_container_that_has_some():
    container = temporal()
    assert TemporalDictTensor(container).lengths is container.lengths
    others = torch.zeros_like(container.lengths)
    assert TemporalDictTensor(container, others).lengths is others


def test_a_container_with_lengths_is_no_dicttensor():
    container, mask = temporal(), torch.ones(len(LENGTHS))
    rows = DictTensor({"a": container["a"]})
    for call in (
        lambda: DictTensor.cat([rows, container]),
        lambda: masked_dicttensor(container, rows, mask),
        lambda: masked_dicttensor(rows, container, mask),
        lambda: Trajectories(container, container),
    ):
        with pytest.raises(TypeError, match="expected a DictTensor, got a TemporalDictTensor"):
            call()
    with pytest.raises(TypeError, match="^trajectories: expected a Temporal.*, got a DictTensor"):
        Trajectories(DictTensor(), rows)


def test_constructor_keeps_the_lengths_it_is_given():
    lengths = torch.tensor([1, 2])
    assert TemporalDictTensor({"a": torch.zeros(2, 5)}, lengths).lengths is lengths


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([2, 1], TypeError, "expected a tensor, got list"),
        (torch.tensor([2.0, 1.0]), DtypeMismatchError, "expected torch.int64, got torch.float32"),
        (torch.tensor([2, 1], dtype=torch.int32), TypeError, "expected torch.int64, got torch.int"),
        (torch.tensor([2, 1, 1]), ShapeError, r"expected shape \(2,\), got \(3,\)"),
        (torch.tensor([2, 6]), ValueError, "expected 0 to 5 steps, got 6"),
        (torch.tensor([-1, 6]), ValueError, "expected 0 to 5 steps, got -1"),
        (torch.tensor([[2], [1]]), ShapeError, r"expected shape \(2,\), got \(2, 1\)"),
        (torch.tensor(2), ShapeError, r"expected shape \[B, ...\], got \(\)"),
        (torch.zeros(2, dtype=torch.int64, device="meta"), DeviceMismatchError, "cpu, got .* meta"),
    ],
    ids=["list", "float", "int32", "three", "too long", "negative", "2-d", "0-d", "meta"],
)
def test_constructor_refuses_other_lengths(lengths, error, message):
    with pytest.raises(error, match=f"^lengths: .*{message}"):
        TemporalDictTensor({"a": torch.zeros(2, 5)}, lengths)


def test_a_container_without_keys_needs_lengths_of_one_dimension():
    with pytest.raises(ValueError, match=r"^lengths: expected a tensor \[B\] .*, got None$"):
        TemporalDictTensor({})
    for shape in ((), (2, 1)):
        with pytest.raises(ShapeError, match="^lengths: expected shape"):
            TemporalDictTensor({}, torch.zeros(shape, dtype=torch.int64))


def test_a_container_without_keys_keeps_its_rows(device):
    container = TemporalDictTensor({}, torch.tensor(LENGTHS, device=device))
    assert (container.n_elems(), container.n_timesteps()) == (B, 0)
    assert container.mask().shape == (B, 0)
    assert container.index([3, 0]).lengths.tolist() == [2, 3]
    assert container.slice(1).lengths.tolist() == [1]
    assert TemporalDictTensor.cat([container, container]).lengths.tolist() == LENGTHS * 2
    assert container.expand(B + 1).lengths.tolist() == [*LENGTHS, 0]
    with pytest.raises(IndexError, match=f"^index: expected one of {B} rows, got {B}$"):
        container.index(B)


def test_get_keeps_the_lengths():
    container = make(TemporalDictTensor)
    assert container.get([]).lengths is container.lengths
    assert container.get(["done"], clone=True).lengths is not container.lengths


def test_mask_is_set_where_a_step_is_valid(device):
    mask = temporal(device).mask()
    assert mask.tolist() == [[float(t < length) for t in range(T)] for length in LENGTHS]
    assert mask.dtype == torch.float32
    assert mask.device == temporal(device).device()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.uint8], ids=str)
def test_mask_has_the_dtype_asked_for(dtype):
    mask = temporal().mask(dtype)
    assert mask.dtype == dtype
    assert mask.tolist() == temporal().mask().tolist()


def test_full_is_true_where_every_row_has_all_steps(device):
    assert temporal(device, lengths=[3, 3]).full() is True
    assert temporal(device, lengths=[3, 2]).full() is False
    assert temporal(device, lengths=[]).full() is True


# --- Steps ---


def test_shorten_cuts_to_the_longest_row(device):
    container = temporal(device, lengths=[1, 0, 2])
    short = container.shorten()
    assert short.n_timesteps() == 2
    assert short["a"].tolist() == container["a"][:, :2].tolist()
    assert short.lengths.tolist() == [1, 0, 2]
    assert temporal(lengths=[]).shorten().n_timesteps() == 0


def test_temporal_slice_counts_the_steps_that_remain(device):
    container = temporal(device, n_timesteps=5, lengths=[5, 3, 1, 0])
    for first in range(7):
        for last in range(first, 7):
            part = container.temporal_slice(first, last)
            assert part["a"].tolist() == [row[first:last] for row in container["a"].tolist()]
            expected = [len(range(length)[first:last]) for length in (5, 3, 1, 0)]
            assert part.lengths.tolist() == expected, (first, last)


@pytest.mark.parametrize("bounds", [(-1, 2), (2, 1), (0, -1)])
def test_temporal_slice_refuses_negative_bounds(bounds):
    with pytest.raises(ValueError, match="^index: expected 0 <= from <= to, got "):
        temporal().temporal_slice(*bounds)


def test_temporal_index_takes_one_step_of_all_rows(device):
    container = temporal(device)
    for t in range(-T, T):
        step = container.temporal_index(t)
        assert isinstance(step, DictTensor)
        assert step["a"].tolist() == [row[t] for row in container["a"].tolist()]
    for t in (T, -T - 1):
        with pytest.raises(IndexError, match="index [-0-9]+ is out of bounds"):
            container.temporal_index(t)
    with pytest.raises(TypeError, match="integer"):
        container.temporal_index(torch.tensor([1, 0], device=device))


def test_temporal_multi_index_takes_a_step_per_row(device):
    container = temporal(device)
    steps = [2, 0, 1, 1]
    step = container.temporal_multi_index(torch.tensor(steps, device=device))
    rows = container["a"].tolist()
    assert step["a"].tolist() == [row[t] for row, t in zip(rows, steps, strict=True)]


def test_temporal_multi_index_refuses_other_indexes():
    def refuses(error, message, index_t):
        with pytest.raises(error, match=f"^index_t: expected {message}$"):
            temporal().temporal_multi_index(index_t)

    refuses(ShapeError, r"shape \(4,\), got \(3,\)", torch.tensor([0, 1, 2]))
    refuses(ShapeError, r"shape \(4,\), got \(4, 1\)", torch.zeros(B, 1, dtype=torch.int64))
    refuses(DtypeMismatchError, "torch.int64, got torch.bool", torch.ones(B, dtype=torch.bool))
    on_meta = torch.zeros(B, dtype=torch.int64, device="meta")
    refuses(DeviceMismatchError, "a tensor on cpu, got one on meta", on_meta)


def test_masked_temporal_index_takes_the_rows_that_are_long_enough(device):
    container = temporal(device)
    content = container["a"].tolist()
    for t in range(T):
        step, rows = container.masked_temporal_index(t)
        expected = [row for row in range(B) if LENGTHS[row] > t]
        assert rows.tolist() == expected
        assert rows.dtype == torch.int64
        assert rows.device == step.device() == container.device()
        assert step["a"].tolist() == [content[row][t] for row in expected]


def test_masked_select_takes_the_steps_row_after_row(device):
    container = temporal(device)
    is_step = container.mask(torch.bool)
    rows = [container["a"][row, :length] for row, length in enumerate(LENGTHS)]
    assert torch.equal(container.masked_select()["a"], torch.cat(rows))
    chosen = is_step & (container["a"][:, :, 0] % 4 == 0)
    assert 0 < chosen.sum() < is_step.sum()
    for one in (container, container.index(list(range(len(LENGTHS))))):
        assert torch.equal(one.masked_select(chosen)["a"], one["a"][chosen])
    time_first = container["a"].transpose(0, 1).contiguous().transpose(0, 1)  # As slots are stored.
    stored = TemporalDictTensor({"a": time_first}, container.lengths)
    assert torch.equal(stored.masked_select(chosen)["a"], container["a"][chosen])
    nothing = container.masked_select(torch.zeros_like(is_step))
    assert nothing["a"].shape == (0, 2)
    assert container.get([]).masked_select().empty()


def test_masked_select_refuses_what_is_no_mask():
    container = temporal()
    for mask, error, message in [
        ([True], TypeError, "expected a tensor, got list"),
        (torch.ones(len(LENGTHS), dtype=torch.bool), ShapeError, "expected shape"),
        (container.mask(), DtypeMismatchError, "expected torch.bool, got torch.float32"),
        (container.mask(torch.bool).to("meta"), DeviceMismatchError, "on cpu, got one on meta"),
    ]:
        with pytest.raises(error, match=f"^mask: .*{message}"):
            container.masked_select(mask)


def test_masked_select_keeps_the_gradient():
    value = torch.ones(2, 3, requires_grad=True)
    steps = TemporalDictTensor({"value": value}, torch.tensor([3, 1]))
    steps.masked_select()["value"].sum().backward()
    assert torch.equal(value.grad, steps.mask())


def test_masked_temporal_index_refuses_what_no_row_reaches():
    with pytest.raises(IndexError, match="^index_t: expected an integer >= 0, got -1$"):
        temporal().masked_temporal_index(-1)
    with pytest.raises(IndexError, match="index [-0-9]+ is out of bounds"):
        temporal().masked_temporal_index(T)


# --- Padding ---


def test_cat_pads_short_trajectories_with_zeros(device):
    parts = [
        temporal(device, n_timesteps, [n_timesteps] * n_rows, first=1)
        for n_timesteps, n_rows in ((2, 1), (5, 2), (3, 3))
    ]
    joined = TemporalDictTensor.cat(parts)
    expected = [row + [[0, 0]] * (5 - len(row)) for part in parts for row in part["a"].tolist()]
    assert joined["a"].tolist() == expected
    assert joined.lengths.tolist() == [2, 5, 5, 3, 3, 3]
    assert joined.device() == joined["a"].device == parts[0].device()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_padding_keeps_the_dtype(dtype, device):
    short = make(TemporalDictTensor, dtype=dtype).to(device).temporal_slice(0, 1)
    long = make(TemporalDictTensor, dtype=dtype).to(device)
    joined = TemporalDictTensor.cat([short, long])
    assert {tensor.dtype for tensor in joined.values()} == {dtype}
    assert {tensor.dtype for tensor in long.expand(B + 2).values()} == {dtype}
    assert not joined["done"][:B, 1:].any()


def test_cat_of_nothing_is_refused():
    with pytest.raises(ValueError, match="expected at least one element, got none$"):
        TemporalDictTensor.cat([])


def test_expand_adds_empty_rows_filled_with_zeros(device):
    container = temporal(device, first=1)
    wide = container.expand(B + 2)
    assert wide["a"].tolist() == container["a"].tolist() + [[[0, 0]] * T] * 2
    assert wide.lengths.tolist() == [*LENGTHS, 0, 0]
    assert wide.device() == container.device()
    with pytest.raises(ValueError, match=f"^new_batch_size: expected at least {B}, got 3$"):
        container.expand(3)


# --- copy_ with lengths ---


def test_copy_of_shorter_rows_writes_their_lengths(device):
    target, source = temporal(device, 5, [5, 5, 5]), temporal(device, 3, [3, 1, 2], first=50)
    rows, content = torch.tensor([1, 2], device=device), target["a"].tolist()
    target.copy_(source, rows, torch.tensor([0, 2], device=device))
    assert target.lengths.tolist() == [1, 5, 2]
    new = source["a"].tolist()
    expected = [new[1][:2] + content[0][2:], content[1], new[2][:2] + content[2][2:]]
    assert target["a"].tolist() == expected


def test_copy_looks_only_at_the_rows_it_copies():
    target, source = (
        temporal(n_timesteps=2, lengths=[2, 2]),
        temporal(n_timesteps=5, lengths=[5, 2]),
    )
    target.copy_(source, torch.tensor([1]), torch.tensor([0]))
    assert target["a"][0].tolist() == source["a"][1, :2].tolist()


def test_copy_refuses_rows_that_are_too_long():
    target, source = (
        temporal(n_timesteps=2, lengths=[1, 1]),
        temporal(n_timesteps=5, lengths=[5, 2]),
    )
    before = rows_in(target)
    with pytest.raises(ShapeError, match="^source: expected rows of at most 2 steps, got 5$"):
        target.copy_(source, torch.tensor([1, 0]), torch.tensor([0, 1]))
    assert rows_in(target) == before


# --- Trajectories ---


def test_trajectories_hold_what_they_are_given(device):
    info, steps = DictTensor({"a": torch.zeros(B, device=device)}), make(TemporalDictTensor, device)
    batch = Trajectories(info, steps)
    assert (batch.info, batch.trajectories) == (info, steps)


def test_trajectories_may_have_no_info(device):
    batch = Trajectories(DictTensor(), make(TemporalDictTensor, device))
    assert batch.n_elems() == B
    assert batch.to(device) is batch
    for other in (batch.index([1]), batch.index(1), Trajectories.cat([batch]), batch.to("meta")):
        assert other.info.empty()


def test_trajectories_refuse_parts_that_do_not_fit():
    steps = make(TemporalDictTensor)
    with pytest.raises(ShapeError, match="^info: expected 4 rows, got 3$"):
        Trajectories(DictTensor({"a": torch.zeros(3)}), steps)
    with pytest.raises(
        DeviceMismatchError, match="^info: expected a tensor on cpu, got one on met"
    ):
        Trajectories(DictTensor({"a": torch.zeros(B, device="meta")}), steps)


def test_trajectories_cat_pads_and_joins_both_parts(device):
    long = make(Trajectories, device)
    short = Trajectories(long.info, long.trajectories.temporal_slice(0, 1))
    joined = Trajectories.cat(batch for batch in (short, long))
    assert joined.info["policy"].tolist() == long.info["policy"].tolist() * 2
    assert joined.trajectories.lengths.tolist() == [1, 1, 0, 1, *LENGTHS]
    assert rows_in(joined)[B:] == rows_in(long)
    with pytest.raises(KeyMismatchError, match="^cat: element 1"):
        Trajectories.cat([long, Trajectories(long.info.prepend_key("_"), long.trajectories)])
    with pytest.raises(ValueError, match="expected at least one element, got none$"):
        Trajectories.cat([])


def test_sample_draws_different_trajectories(device):
    batch = make(Trajectories, device, n_elems=8)
    rows = rows_in(batch)
    assert sorted(rows_in(batch.sample(8)), key=str) == sorted(rows, key=str)
    drawn = [rows.index(row) for row in rows_in(batch.sample(5))]
    assert len(set(drawn)) == 5
    assert batch.sample(0).n_elems() == 0


def test_sample_draws_every_trajectory_equally_often():
    batch, generator = make(Trajectories, n_elems=5), torch.Generator().manual_seed(0)
    counts = torch.zeros(5)
    for _ in range(2000):
        counts[batch.sample(2, generator).info["policy"].squeeze(1)] += 1
    # Each is drawn with probability 2 / 5: mean 800, standard deviation 21.9; within 4 of them.
    assert ((counts - 800).abs() < 88).all(), counts


def test_sample_is_repeated_by_its_generator_and_by_the_global_one(device):
    batch = make(Trajectories, device, n_elems=8)

    def seeded():
        return torch.Generator().manual_seed(3)

    assert rows_in(batch.sample(5, seeded())) == rows_in(batch.sample(5, seeded()))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        assert rows_in(batch.sample(5)) == rows_in(batch.sample(5, seeded()))


def test_sample_takes_a_generator_of_the_device(device):
    batch = make(Trajectories, device, n_elems=8)
    drawn = [batch.sample(5, torch.Generator(device).manual_seed(3)) for _ in range(2)]
    assert rows_in(drawn[0]) == rows_in(drawn[1])


@pytest.mark.parametrize("n", [-1, B + 1])
def test_sample_refuses_more_than_there_are(n):
    with pytest.raises(ValueError, match=f"^n: expected 0 to {B} trajectories, got {n}$"):
        make(Trajectories).sample(n)


def test_brackets_of_trajectories_tell_where_keys_are():
    trajectories = Trajectories(DictTensor(), temporal())
    with pytest.raises(TypeError, match=r"^Trajectories: .*trajectories\[key\] or .*got \['a'\]"):
        trajectories["a"]
