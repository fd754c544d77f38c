"""The containers: adding tensors, joining keys, and writing rows in place."""

import numpy as np
import pytest
import torch

from rlbatch.dicttensor import DictTensor, TemporalDictTensor, Trajectories
from rlbatch.errors import DeviceMismatchError, DtypeMismatchError, KeyMismatchError, ShapeError
from tests.containers import DTYPES, LENGTHS, NAMED, RARE_DTYPES, B, T, make, named, rows_in


@pytest.mark.parametrize("kind", NAMED)
def test_set_adds_and_replaces_without_a_copy(kind, device):
    container = make(kind, device)
    for key in ("new", "done"):
        value = torch.ones(B, T, 7, device=device)
        container.set(key, value)
        assert container[key] is value
    assert list(container) == ["obs/frame", "obs/reward", "done", "new"]


def test_set_adds_to_an_empty_container(device):
    value = torch.zeros(B, T, device=device)
    for container in (DictTensor(), TemporalDictTensor({}, torch.tensor(LENGTHS, device=device))):
        container.set("a", value)
        assert container["a"] is value
        assert container.n_elems() == B


def test_set_replaces_the_only_tensor_by_one_of_another_batch_size():
    container = DictTensor({"a": torch.zeros(2)})
    container.set("a", torch.zeros(3))
    assert container.n_elems() == 3


@pytest.mark.parametrize("kind", NAMED)
def test_brackets_set_as_well(kind):
    container, value = make(kind), torch.ones(B, T)
    container["new"] = value
    assert container["new"] is value
    with pytest.raises(ShapeError, match="^new: expected shape"):
        container["new"] = torch.zeros(B + 1, T)
    assert container["new"] is value


@pytest.mark.parametrize("kind", NAMED)
def test_set_does_not_change_the_container_it_came_from(kind):
    container = make(kind)
    other = container.get(container.keys())
    other.set("new", torch.zeros(B, T))
    assert "new" not in container


@pytest.mark.parametrize("kind", NAMED)
def test_set_refuses_what_does_not_fit(kind):
    container = make(kind)
    before = list(container)
    lead = "4" if kind is DictTensor else "4, 3"
    with pytest.raises(
        ShapeError, match=rf"^a: expected shape \[{lead}, ...\], as obs/frame, got \(5, 3\)$"
    ):
        container.set("a", torch.zeros(5, T))
    with pytest.raises(ShapeError, match=r"^a: expected shape .*, got \(\)$"):
        container.set("a", torch.tensor(1.0))
    with pytest.raises(
        DeviceMismatchError, match="^a: expected a tensor on cpu, as obs/frame, got"
    ):
        container.set("a", torch.zeros(B, T, device="meta"))
    with pytest.raises(TypeError, match="^a: expected a tensor, got ndarray$"):
        container.set("a", np.zeros((B, T)))
    assert list(container) == before


def test_temporal_set_refuses_another_time_dimension():
    with pytest.raises(
        ShapeError, match=r"^a: expected shape \[4, 3, ...\], as obs/frame, got \(4, 2\)$"
    ):
        make(TemporalDictTensor).set("a", torch.zeros(B, T - 1))
    only = TemporalDictTensor({"a": torch.zeros(B, T)}, torch.tensor(LENGTHS))
    only.set("a", torch.zeros(B, T + 1))
    with pytest.raises(ValueError, match=f"^lengths: expected 0 to 2 steps, got {max(LENGTHS)}$"):
        only.set("a", torch.zeros(B, 2))
    assert only.n_timesteps() == T + 1


def test_set_refuses_what_does_not_fit_an_empty_container():
    with pytest.raises(TypeError, match="^a: expected a tensor, got int$"):
        DictTensor().set("a", 1)
    only_lengths = TemporalDictTensor({}, torch.tensor(LENGTHS))
    with pytest.raises(ShapeError, match=r"^a: expected shape \[4, ...\], got \(5, 3\)$"):
        only_lengths.set("a", torch.zeros(5, T))
    with pytest.raises(ShapeError, match=r"^a: expected shape \[B, T, ...\], got \(4,\)$"):
        only_lengths.set("a", torch.zeros(B))
    with pytest.raises(DeviceMismatchError, match="^a: expected a tensor on cpu, got"):
        only_lengths.set("a", torch.zeros(B, T, device="meta"))


def test_add_joins_different_keys(device):
    one, other = make(DictTensor, device), make(DictTensor, device, first=9).prepend_key("_")
    both = one + other
    assert both.variables == {**one.variables, **other.variables}
    assert rows_in(one + DictTensor()) == rows_in(DictTensor() + one) == rows_in(one)


def test_add_refuses_what_does_not_fit():
    one = make(DictTensor)
    with pytest.raises(
        KeyMismatchError, match="^obs/frame: expected a key of one operand, got it in both"
    ):
        one + make(DictTensor)
    with pytest.raises(
        ShapeError, match=r"^a: expected shape \[4, ...\], as obs/frame, got \(3,\)$"
    ):
        one + DictTensor({"a": torch.zeros(3)})
    with pytest.raises(
        DeviceMismatchError, match="^a: expected a tensor on cpu, as obs/frame, got"
    ):
        one + DictTensor({"a": torch.zeros(B, device="meta")})
    for other in (make(TemporalDictTensor).prepend_key("_"), {"a": torch.zeros(B)}):
        with pytest.raises(TypeError, match="unsupported operand"):
            one + other


# --- copy_ ---


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copy_writes_the_chosen_rows_in_place(kind, dtype, device):
    target, source = (
        make(kind, dtype=dtype).to(device),
        make(kind, dtype=dtype, first=50).to(device),
    )
    addresses = {name: tensor.data_ptr() for name, tensor in named(target).items()}
    expected = rows_in(target)
    for row, source_row in ((0, 3), (2, 1)):
        expected[row] = rows_in(source)[source_row]
    if kind is TemporalDictTensor:  # Row 1 has one step, but the longest of the two has two.
        old = rows_in(target)
        for key in target:
            expected[0][key] = expected[0][key][:2] + old[0][key][2:]
            expected[2][key] = expected[2][key][:2] + old[2][key][2:]
    target.copy_(source, torch.tensor([3, 1], device=device), torch.tensor([0, 2], device=device))
    assert rows_in(target) == expected
    assert {name: tensor.data_ptr() for name, tensor in named(target).items()} == addresses


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize("dtype", RARE_DTYPES, ids=str)
def test_copy_writes_rows_of_rare_dtypes(kind, dtype):
    target, source = make(kind, dtype=dtype), make(kind, dtype=dtype, first=50)
    target.copy_(source.slice(0, 2), torch.tensor([0]), torch.tensor([3]))
    assert rows_in(target) == rows_in(make(kind, dtype=dtype))[:3] + rows_in(source)[:1]


@pytest.mark.parametrize("kind", NAMED)
def test_copy_takes_rows_of_the_container_itself(kind):
    container = make(kind)
    swapped = [rows_in(container)[row] for row in (3, 1, 2, 0)]
    container.copy_(container, torch.tensor([0, -1]), torch.tensor([-1, 0]))
    assert rows_in(container) == swapped


@pytest.mark.parametrize("kind", NAMED)
def test_copy_of_no_rows_changes_nothing(kind):
    container = make(kind)
    none = torch.zeros(0, dtype=torch.int64)
    container.copy_(make(kind, first=50), none, none)
    assert rows_in(container) == rows_in(make(kind))


@pytest.mark.parametrize("kind", NAMED)
def test_copy_ignores_keys_that_only_the_source_has(kind):
    target = make(kind).get(["done"])
    target.copy_(make(kind, first=1), torch.arange(B), torch.arange(B))
    assert rows_in(target) == rows_in(make(kind, first=1).get(["done"]))


@pytest.mark.parametrize("kind", NAMED)
def test_copy_refuses_what_does_not_fit_and_writes_nothing(kind):
    target, row = make(kind), torch.tensor([0])

    def refuses(error, match, source=None, source_rows=row, rows=row):
        with pytest.raises(error, match=match):
            target.copy_(source or make(kind, first=50), source_rows, rows)

    def source_with(key, tensor):
        rows = make(kind, first=50)
        variables = {**rows.variables, key: tensor}
        lengths = [rows.lengths] if kind is TemporalDictTensor else []
        return kind.unchecked(variables, *lengths)  # Also what the constructor would refuse.

    of = "rows" if kind is DictTensor else "steps"
    done = make(kind)["done"]
    refuses(KeyMismatchError, "got 'done'$", make(kind).get(["obs/frame", "obs/reward"]))
    refuses(
        DtypeMismatchError,
        "^done: expected torch.bool, got torch.int64$",
        source_with("done", done.long()),
    )
    refuses(  # It would be broadcast.
        ShapeError,
        rf"^done: expected {of} of shape \(\), got \(1,\)$",
        source_with("done", done.unsqueeze(-1)),
    )
    refuses(  # torch drops a write from meta without a word.
        DeviceMismatchError,
        "expected a tensor on cpu, got one on meta$",
        make(kind, first=50).to("meta"),
    )
    refuses(
        ShapeError,
        r"^destination_indexes: expected shape \(1,\), got \(2,\)$",
        rows=torch.tensor([0, 1]),
    )
    two, wrong = torch.tensor([0, 1]), torch.tensor([0, B])
    for rows in ({"source_rows": wrong, "rows": two}, {"source_rows": two, "rows": wrong}):
        refuses(IndexError, f"^index: expected one of {B} rows, got {B}$", **rows)
    refuses(DtypeMismatchError, "^index: expected torch.int64", rows=row.byte())
    for again in ([1, 1], [B - 1, -1]):  # The last of them would win, or another one.
        twice = f"^destination_indexes: expected all different, got row {again[0]} twice$"
        refuses(ValueError, twice, source_rows=two, rows=torch.tensor(again))
    assert rows_in(target) == rows_in(make(kind))


def test_copy_refuses_memory_that_rows_share():
    row, source = torch.tensor([1]), TemporalDictTensor({"a": torch.ones(3, 2)})
    shared = torch.zeros(1, 2).expand(3, 2)
    lengths = torch.tensor(0).expand(3)
    for key, target in (
        ("a", TemporalDictTensor({"a": shared})),
        ("lengths", TemporalDictTensor({"a": torch.zeros(3, 2)}, lengths)),
    ):
        with pytest.raises(ShapeError, match=f"^{key}: expected memory for every element"):
            target.copy_(source, row, row)
        assert not target["a"].any()
        assert not lengths.any()
    one = DictTensor({"a": torch.zeros(1, 2).expand(1, 2)})
    one.copy_(DictTensor({"a": torch.ones(3, 2)}), row, torch.tensor([0]))
    assert one["a"].tolist() == [[1, 1]]
    nothing = DictTensor({"a": torch.from_numpy(np.zeros((3, 0)))})  # NumPy's has no strides.
    nothing.copy_(nothing.clone(), row, row)


def test_copy_counts_rows_from_each_end():
    large, small = (DictTensor({"a": torch.arange(n)}) for n in (5, 2))
    small.copy_(large, torch.tensor([-1]), torch.tensor([-1]))
    assert small["a"].tolist() == [0, 4]


def test_copy_takes_rows_of_any_integer_type():
    steps = TemporalDictTensor({"a": torch.zeros(3, 2)})
    rows = torch.tensor([2, 0], dtype=torch.int32)
    steps.copy_(TemporalDictTensor({"a": torch.ones(3, 2)}, torch.tensor([1, 2, 1])), rows, rows)
    assert steps.lengths.tolist() == [1, 2, 1]


def test_what_is_no_tensor_or_container_is_named():
    rows, steps = DictTensor({"a": torch.zeros(2)}), TemporalDictTensor({"a": torch.zeros(2, 3)})
    with pytest.raises(TypeError, match="^index: expected numbers of rows, got slice"):
        rows.index(slice(0, 1))
    with pytest.raises(TypeError, match="^source_indexes: expected a tensor, got list$"):
        rows.copy_(rows, [0], [1])
    with pytest.raises(TypeError, match="^cat: expected a Trajectories, got a Temporal"):
        Trajectories.cat([steps])
    with pytest.raises(TypeError, match="^info: expected a DictTensor, got a dict$"):
        Trajectories({"a": torch.zeros(2)}, steps)
