"""The containers: building, reading, moving, choosing rows, joining, nesting, masking.

`test_dicttensor_memory.py` walks all methods for memory and dtypes. In files of their own:
`_changes` (set, add, copy_), `_time`, `_interop` (pytrees, processes, tensordict).
"""

import copy
import math

import numpy as np
import pytest
import torch

from rlbatch import masked_tensor
from rlbatch.dicttensor import DictTensor, TemporalDictTensor, Trajectories, masked_dicttensor
from rlbatch.errors import DeviceMismatchError, DtypeMismatchError, KeyMismatchError, ShapeError
from tests.containers import (
    DTYPES,
    KINDS,
    NAMED,
    B,
    T,
    address,
    counted,
    make,
    named,
    rows_in,
)
from tests.played_gpu import GPU

# --- Construction ---


def test_constructor_copies_the_dict_and_not_the_tensors(device):
    for kind in NAMED:
        given = dict(make(kind, device).variables)
        container = kind(given)
        given.clear()
        assert container.keys() == make(kind).keys()


def test_constructor_takes_a_container(device):
    whole = make(DictTensor, device)
    assert rows_in(DictTensor(whole)) == rows_in(whole)


def test_constructor_refuses_unequal_batch_sizes():
    with pytest.raises(ShapeError, match=r"^b: expected shape \[3, ...\], as a, got \(2, 5\)$"):
        DictTensor({"a": torch.zeros(3), "b": torch.zeros(2, 5)})
    with pytest.raises(ShapeError, match=r"^b: expected shape \[3, 2, ...\], as a, got \(3, 4\)$"):
        TemporalDictTensor({"a": torch.zeros(3, 2), "b": torch.zeros(3, 4)})


def test_a_dicttensor_may_hold_numbers_but_not_beside_rows():
    numbers = DictTensor({"a": torch.tensor(1), "b": torch.tensor(2.0)})
    assert (numbers["a"].item(), numbers["b"].item(), numbers.n_elems()) == (1, 2.0, 0)
    with pytest.raises(ShapeError, match=r"^b: expected shape \(\), as a, got \(3,\)$"):
        DictTensor({"a": torch.tensor(1), "b": torch.zeros(3)})
    with pytest.raises(DeviceMismatchError, match="^b: expected a tensor on cpu, as a, got"):
        DictTensor({"a": torch.tensor(1), "b": torch.tensor(1, device="meta")})
    with pytest.raises(ShapeError, match=r"^cat: a: expected shape \[B, ...\], got \(\)$"):
        DictTensor.cat([numbers, numbers])
    with pytest.raises(ShapeError, match=r"^c: expected shape \(\), as a, got \(3,\)$"):
        numbers + DictTensor({"c": torch.zeros(3)})


def test_constructor_refuses_too_few_dimensions():
    with pytest.raises(ShapeError, match=r"^b: expected shape \[3, ...\], as a, got \(\)$"):
        DictTensor({"a": torch.zeros(3), "b": torch.tensor(1)})
    with pytest.raises(ShapeError, match=r"^a: expected shape \[B, T, ...\], got \(3,\)$"):
        TemporalDictTensor({"a": torch.zeros(3)})
    with pytest.raises(ShapeError, match=r"^b: expected shape \[3, 2, ...\], as a, got \(3,\)$"):
        TemporalDictTensor({"a": torch.zeros(3, 2), "b": torch.zeros(3)})


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize(
    "value", [[1.0], np.zeros((4, 3)), None, 1], ids=lambda v: type(v).__name__
)
def test_constructor_refuses_what_is_no_tensor(kind, value):
    name = type(value).__name__
    with pytest.raises(TypeError, match=f"^a: expected a tensor, got {name}$"):
        kind({"a": value})
    with pytest.raises(TypeError, match=f"^b: expected a tensor, got {name}$"):
        kind({"a": torch.zeros(4, 3), "b": value})


@pytest.mark.parametrize("kind", NAMED)
def test_constructor_refuses_two_devices(kind, device):
    tensors = {"a": torch.zeros(4, 3, device=device), "b": torch.zeros(4, 3, device="meta")}
    here = tensors["a"].device
    with pytest.raises(DeviceMismatchError, match=f"^b: expected a tensor on {here}, as a, got"):
        kind(tensors)


def test_parameters_and_subclasses_are_tensors():
    parameter = torch.nn.Parameter(torch.zeros(2))
    assert DictTensor({"a": parameter})["a"] is parameter


def test_empty_dicttensor_takes_every_method():
    empty = DictTensor()
    assert empty.empty()
    assert (empty.n_elems(), empty.device(), empty.specs()) == (0, None, {})
    assert empty.to("meta") is empty
    for rows in (0, [0, 1], torch.tensor([True, False])):  # As a stateless agent's state is cut.
        assert empty.index(rows).empty()
    for result in (empty.slice(0, 2), empty.clone(), empty + empty, DictTensor.cat([empty, empty])):
        assert result.empty()
    assert empty.unfold() == []
    assert DictTensor.cat([]).empty()
    assert masked_dicttensor(empty, empty, torch.zeros(3)).empty()
    empty.copy_(make(DictTensor), torch.tensor([0]), torch.tensor([0]))


# --- Reading ---


@pytest.mark.parametrize("kind", NAMED)
def test_reads_like_a_dict(kind, device):
    container = make(kind, device)
    keys = ["obs/frame", "obs/reward", "done"]
    assert list(container) == list(container.keys()) == keys
    assert [key for key, _ in container.items()] == keys
    assert all(container[key] is tensor for key, tensor in container.items())
    assert "done" in container
    assert "frame" not in container
    assert not container.empty()


@pytest.mark.parametrize("kind", KINDS)
def test_n_elems_and_device(kind, device):
    container = make(kind, device)
    assert container.n_elems() == B
    assert container.device() == torch.zeros(1, device=device).device


def test_specs_give_size_and_dtype_of_one_row_or_step():
    expected = {
        "obs/frame": {"size": torch.Size([2, 2]), "dtype": torch.uint8},
        "obs/reward": {"size": torch.Size([]), "dtype": torch.float32},
        "done": {"size": torch.Size([]), "dtype": torch.bool},
    }
    for kind in NAMED:
        assert make(kind).specs() == expected


@pytest.mark.parametrize("kind", NAMED)
def test_missing_key_error_lists_those_there_are(kind):
    there = r"key: expected one of \['obs/frame', 'obs/reward', 'done'\], got "
    with pytest.raises(KeyMismatchError, match=f"^{there}'frame'; closest: obs/frame$"):
        make(kind)["frame"]
    with pytest.raises(KeyMismatchError, match=f"^{there}'lives'$"):
        make(kind)["lives"]
    with pytest.raises(KeyError):  # By its ordinary name.
        make(kind).get(["done", "frame"])
    with pytest.raises(KeyMismatchError, match=r"one of \[\], got 'frame'; is it an agent_info or"):
        make(kind).get([])["frame"]


@pytest.mark.parametrize("kind", NAMED)
def test_brackets_take_no_rows_and_no_steps(kind):
    steps = "steps by `temporal_slice`" if kind is TemporalDictTensor else "several keys by `get`"
    for index in (slice(0, 1), 0, torch.ones(B, T, dtype=torch.bool), ["done"]):
        expected = f"^key: expected a string, got {type(index).__name__}; rows are .*, {steps}"
        with pytest.raises(KeyMismatchError, match=expected):
            make(kind)[index]


@pytest.mark.parametrize("kind", NAMED)
def test_get_refuses_one_string(kind):
    with pytest.raises(TypeError, match="^keys: expected an iterable of strings, got the string"):
        make(kind).get("done")


@pytest.mark.parametrize("kind", NAMED)
def test_get_takes_a_generator_and_its_order(kind):
    assert list(make(kind).get(key for key in ("done", "obs/frame"))) == ["done", "obs/frame"]


@pytest.mark.parametrize("kind", NAMED)
def test_prepended_keys_are_truncated_again(kind, device):
    container = make(kind, device)
    prepended = container.prepend_key("_")
    assert list(prepended) == ["_obs/frame", "_obs/reward", "_done"]
    assert rows_in(prepended.truncate_key("_")) == rows_in(container)
    assert list(container.truncate_key("obs/")) == ["frame", "reward"]
    assert list(container.truncate_key("action/")) == []
    assert list(container.truncate_key("")) == list(container)
    for prefix, key in {"obs": "obs/frame", "done": "done"}.items():
        expected = f"^prefix: expected .*, got '{prefix}' of the key '{key}'"
        with pytest.raises(KeyMismatchError, match=expected):
            container.truncate_key(prefix)


@pytest.mark.parametrize("kind", KINDS)
def test_repr_shows_shapes_and_dtypes_and_no_values(kind, device):
    container = make(kind, device, n_elems=70, first=77)
    text = repr(container)
    assert "obs/frame   [70, " in text
    assert "float32" in text
    assert str(container.device()) in text
    assert "tensor(" not in text
    assert "77" not in text  # The first value of every tensor.


# --- Devices ---


@pytest.mark.parametrize("kind", KINDS)
def test_to_the_same_device_is_the_same_object(kind, device):
    container = make(kind, device)
    assert container.to(device) is container
    assert container.to(str(device)) is container
    assert container.to(container.device(), non_blocking=True) is container


@pytest.mark.parametrize("kind", KINDS)
def test_to_another_device_moves_every_tensor(kind, device):
    container = make(kind, device)
    moved = container.to("meta")
    assert {tensor.device.type for tensor in named(moved).values()} == {"meta"}
    assert named(moved).keys() == named(container).keys()
    assert {tensor.device.type for tensor in named(container).values()} == {device.type}


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_that_is_missing_is_named(kind):
    n_devices = torch.cuda.device_count()
    with pytest.raises(
        ValueError, match=f"device: expected one that is there, got cuda:{n_devices}"
    ):
        make(kind).to(n_devices)
    if not torch.backends.mps.is_available():
        with pytest.raises(ValueError, match="^device: expected one that is there, got mps"):
            make(kind).to("mps")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_device_names_of_one_gpu_are_equal(kind):
    container = make(kind, "cuda")
    assert all(container.to(name) is container for name in ("cuda", 0, torch.device("cuda:0")))
    assert make(kind, "cpu").to(0).device() == torch.device("cuda:0")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_pinned_memory_survives_the_way_to_a_gpu(kind):
    container = make(kind)
    pinned = container.pin_memory()
    assert all(tensor.is_pinned() for tensor in named(pinned).values())
    assert not any(tensor.is_pinned() for tensor in named(container).values())
    again = named(pinned.pin_memory())
    assert all(again[name] is tensor for name, tensor in named(pinned).items())
    moved = pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert rows_in(moved) == rows_in(container)


@pytest.mark.gpu
def test_what_is_moved_to_a_gpu_is_there():
    source = DictTensor({"a": torch.ones(2**26)}).pin_memory()
    moved = source.to("cuda")
    source["a"].zero_()
    assert moved["a"].all()


@pytest.mark.parametrize(("options", "n_waits"), [({}, 1), ({"non_blocking": True}, 0)])
def test_a_move_to_a_gpu_waits_once_for_all_tensors(played_gpu, options, n_waits):
    moved = DictTensor({"a": torch.ones(2), "b": torch.ones(2)}).to(GPU, **options)
    assert moved.device() == GPU
    assert len([what for what in played_gpu.crossings if "to the GPU" in what]) == 2
    assert played_gpu.crossings[2:] == ["synchronize"] * n_waits


@pytest.mark.parametrize("kind", NAMED)
def test_detach_cuts_the_graph_and_other_methods_keep_it(kind):
    weight = torch.ones(B, T, requires_grad=True)
    container = kind({"a": weight * 2})
    assert not container.detach()["a"].requires_grad
    kept = [
        *(container.clone(), container.slice(0, 2), container.index([1, 1]), container.index(0)),
        kind.cat([container, container]),
    ]
    sum(part["a"].sum() for part in kept).backward()
    # Row 0: clone, slice, index(0), cat twice. Row 1: index twice in place of index(0).
    assert (weight.grad[:, 0] / 2).tolist() == [5, 6, 3, 3]


# --- Rows ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [0, 3, -1, -B, np.int64(2)])
def test_index_keeps_the_batch_dimension_of_one_row(kind, index, device):
    container = make(kind, device)
    assert rows_in(container.index(index)) == [rows_in(container)[index]]
    if kind is not Trajectories:
        assert rows_in(container.slice(int(index))) == [rows_in(container)[index]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [[0], [2, 0, 2], [-1, 1, -4], [], list(range(B))], ids=str)
def test_index_takes_rows_in_any_order(kind, rows, device):
    container = make(kind, device)
    expected = [rows_in(container)[row] for row in rows]
    indexes = [rows, torch.tensor(rows, dtype=torch.int64), np.array(rows, dtype=np.int64)]
    indexes += [torch.tensor(rows, dtype=torch.int32), tuple(rows) if rows else rows]
    indexes += [torch.tensor(rows, dtype=torch.int64, device=device)]
    for index in indexes:
        taken = container.index(index)
        assert taken.n_elems() == len(rows)
        if rows:
            assert rows_in(taken) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", [[True, False, True, False], [False] * B, [True] * B], ids=str)
def test_index_takes_the_rows_of_a_mask(kind, mask, device):
    container = make(kind, device)
    for index in (mask, torch.tensor(mask), torch.tensor(mask, device=device)):
        taken = container.index(index)
        assert taken.n_elems() == sum(mask)
        if any(mask):
            assert rows_in(taken) == [
                row for row, m in zip(rows_in(container), mask, strict=True) if m
            ]


@pytest.mark.parametrize("kind", KINDS)
def test_index_refuses_what_names_no_rows(kind):
    container = make(kind)
    for index in (B, -B - 1):
        with pytest.raises(IndexError, match=f"^index: expected one of {B} rows, got {index}$"):
            container.index(index)
        for rows in ([0, index], torch.tensor([0, index])):
            with pytest.raises(IndexError, match=f"^index: expected one of {B} rows, got {index}$"):
                container.index(rows)
    with pytest.raises(ShapeError, match=r"^index: expected shape \[N\], got \(\)$"):
        container.index(torch.tensor(1))
    with pytest.raises(ShapeError, match=r"^index: expected shape \[N\], got \(2, 1\)$"):
        container.index([[0], [1]])
    with pytest.raises(ShapeError, match=rf"^index: expected shape \({B},\), got \(3,\)$"):
        container.index([True, False, True])
    for dtype in (torch.uint8, torch.float32):  # torch takes uint8 for a mask.
        with pytest.raises(DtypeMismatchError, match=f"^index: expected .*, got {dtype}$"):
            container.index(torch.tensor([0, 1], dtype=dtype))


@pytest.mark.parametrize("shape", [(0, 2), (3, 0)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_index_names_a_row_that_is_not_there_also_where_there_is_nothing_to_take(shape, dtype):
    container = DictTensor({"a": torch.zeros(shape)})
    for row in (3, -4):
        wanted = f"^index: expected one of {shape[0]} rows, got {row}$"
        with pytest.raises(IndexError, match=wanted):
            container.index(torch.tensor([row], dtype=dtype))


@pytest.mark.parametrize("kind", NAMED)
def test_slice_takes_a_range_of_rows(kind, device):
    container = make(kind, device)
    rows = rows_in(container)
    for bounds in ((0, 2), (1, B), (2, 10), (-3, -1)):
        assert rows_in(container.slice(*bounds)) == rows[slice(*bounds)]
    assert container.slice(2, 2).n_elems() == 0
    with pytest.raises(IndexError, match=f"^index: expected one of {B} rows, got {B}$"):
        container.slice(B)


@pytest.mark.parametrize("kind", NAMED)
def test_writing_to_a_slice_writes_to_the_container(kind, device):
    container = make(kind, device)
    container.slice(1)["obs/reward"].fill_(50)
    container.unfold()[2]["obs/reward"].fill_(60)
    assert container["obs/reward"][1].unique().tolist() == [50]
    assert container["obs/reward"][2].unique().tolist() == [60]


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize("seed", range(3))
def test_cat_undoes_unfold_in_any_order(kind, seed, device):
    container = make(kind, device)
    order = torch.randperm(B, generator=torch.Generator().manual_seed(seed)).tolist()
    parts = container.unfold()
    joined = kind.cat(parts[row] for row in order)  # A generator, used twice inside.
    assert rows_in(joined) == rows_in(container.index(order))


@pytest.mark.parametrize("kind", KINDS)
def test_cat_joins_rows_of_different_batch_sizes(kind, device):
    parts = [make(kind, device, n, first=10 * n) for n in (1, 3, 2)]
    assert rows_in(kind.cat(parts)) == sum((rows_in(part) for part in parts), [])


@pytest.mark.parametrize("kind", KINDS)
def test_cat_matches_keys_by_name_not_by_place(kind):
    container = make(kind)
    steps = container.trajectories if kind is Trajectories else container
    swapped = steps.get(reversed(list(steps)))
    swapped = Trajectories(container.info, swapped) if kind is Trajectories else swapped
    assert rows_in(kind.cat([container, swapped])) == rows_in(container) * 2


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize("position", ["first", "last"])
def test_cat_refuses_a_key_that_one_lacks(kind, position):
    whole = make(kind)
    part = whole.get(["obs/frame", "obs/reward"])
    parts = [part, whole] if position == "first" else [whole, whole, part]
    number, lacks = (1, "unexpected") if position == "first" else (2, "missing")
    message = rf"^cat: element {number}: expected the keys .*, got .*{lacks} \['done'\]"
    with pytest.raises(KeyMismatchError, match=message):
        kind.cat(parts)


@pytest.mark.parametrize("other", [None, {"a": torch.ones(2, 2)}])
def test_what_is_no_container_is_refused(other):
    plain = DictTensor({"a": torch.ones(2, 2)})
    temporal = TemporalDictTensor({"a": torch.ones(2, 2)})
    rows = torch.tensor([0])
    for container in (plain, temporal):
        name, kind = type(container).__name__, type(other).__name__
        with pytest.raises(TypeError, match=f"^cat: expected a {name}, got a {kind}$"):
            type(container).cat([container, other])
        with pytest.raises(TypeError, match=f"^source: expected a {name}, got a {kind}$"):
            container.copy_(other, rows, rows)
    with pytest.raises(TypeError, match="^cat: expected a TemporalDictTensor, got a DictTensor$"):
        TemporalDictTensor.cat([plain])


def test_trajectories_cat_refuses_one_without_info():
    whole = make(Trajectories)
    with pytest.raises(KeyMismatchError, match=r"missing \['policy'\]"):
        Trajectories.cat([whole, Trajectories(DictTensor(), whole.trajectories)])


@pytest.mark.parametrize("kind", NAMED)
def test_cat_refuses_what_it_would_have_to_change(kind):
    def element(shape=(5,), dtype=torch.float32, device="cpu"):
        lead = (2,) if kind is DictTensor else (2, T)
        return kind({"a": torch.zeros(*lead, *shape, dtype=dtype, device=device)})

    where = "cat: a of element 1: expected"
    of = "rows" if kind is DictTensor else "steps"
    with pytest.raises(DtypeMismatchError, match=f"^{where} torch.float32, got torch.float64$"):
        kind.cat([element(), element(dtype=torch.float64)])
    with pytest.raises(ShapeError, match=rf"^{where} {of} of shape \(5,\), got \(6,\)$"):
        kind.cat([element(), element((6,))])
    with pytest.raises(ShapeError, match=rf"^{where} {of} of shape \(5,\), got \(5, 1\)$"):
        kind.cat([element(), element((5, 1))])
    with pytest.raises(DeviceMismatchError, match=f"^{where} a tensor on cpu, got one on meta$"):
        kind.cat([element(), element(device="meta")])


# --- Nested ---


def test_nested_containers_become_paths_and_back(device):
    x, y, z = (torch.full((2,), float(k), device=device) for k in range(3))
    tree = {"a": {"b": x, "c": {"d": y}}, "e": z}
    flat = DictTensor.from_nested(tree)
    assert flat.variables == {"a/b": x, "a/c/d": y, "e": z}
    assert flat.to_nested() == tree
    assert DictTensor.from_nested({"e": (x, [y, z])}).variables == {
        "e/0": x,
        "e/1/0": y,
        "e/1/1": z,
    }
    assert TemporalDictTensor({"a/b": torch.zeros(2, 3)}).to_nested().keys() == {"a"}


def test_odd_keys_survive_nesting():
    flat = DictTensor({key: torch.zeros(1) for key in ("/a", "b/", "c//d", " ", "é")})
    assert list(DictTensor.from_nested(flat.to_nested())) == list(flat)


def test_from_nested_refuses_two_tensors_of_one_path():
    tree = {"a/b": torch.zeros(2), "a": {"b": torch.ones(2)}}
    with pytest.raises(KeyMismatchError, match="^a/b: expected one tensor at that path, got two$"):
        DictTensor.from_nested(tree)


def test_from_nested_refuses_other_leaves():
    with pytest.raises(TypeError, match="^a/b: expected a tensor, got float$"):
        DictTensor.from_nested({"a": {"b": 1.0}})


@pytest.mark.parametrize("keys", [("a", "a/b"), ("a/b", "a"), ("a/b", "a/b/c")])
def test_to_nested_refuses_a_tensor_in_the_place_of_a_folder(keys):
    with pytest.raises(KeyMismatchError, match="expected .*, got a"):
        DictTensor({key: torch.zeros(1) for key in keys}).to_nested()


# --- Masks ---

MASK = [True, False, False, True]
MASKS = [torch.bool, torch.float32, torch.int64, torch.uint8]


@pytest.mark.parametrize("mask_dtype", MASKS, ids=str)
@pytest.mark.parametrize("n_dims", [1, 2, 3, 4, 5])
def test_masked_tensor_takes_whole_rows(n_dims, mask_dtype, device):
    shape = (B, 2, 3, 1, 2)[:n_dims]
    old, new = counted(shape, device=device), counted(shape, device=device, first=50)
    mixed = masked_tensor(old, new, torch.tensor(MASK, device=device).to(mask_dtype))
    expected = [(new if MASK[row] else old)[row].tolist() for row in range(B)]
    assert mixed.tolist() == expected
    assert address(mixed) not in (address(old), address(new))


def test_masked_tensor_sets_rows_where_the_mask_is_any_number_but_zero():
    mask = torch.tensor([0.5, 0.0, -2.0, -0.0])
    assert masked_tensor(torch.zeros(4), torch.ones(4), mask).tolist() == [1, 0, 1, 0]


def test_masked_tensor_does_not_mix_in_the_other_rows():
    nan = torch.full((2,), math.nan)
    assert masked_tensor(nan, torch.ones(2), torch.ones(2)).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_dicttensor_keeps_dtypes(dtype, device):
    old, new = (make(DictTensor, dtype=dtype, first=first).to(device) for first in (0, 50))
    mixed = masked_dicttensor(old, new, torch.tensor(MASK, device=device))
    assert rows_in(mixed) == [rows_in(new if MASK[row] else old)[row] for row in range(B)]
    assert {tensor.dtype for tensor in mixed.values()} == {dtype}


def test_masked_tensors_refuse_what_does_not_fit():
    old, mask = DictTensor({"mask": torch.zeros(B, 2)}), torch.tensor(MASK)  # A key like another.

    def refuses(error, match, new=old, mask=mask):
        with pytest.raises(error, match=f"^{match}"):
            masked_dicttensor(old, new, mask)

    def one(*shape, **like):
        return DictTensor({"mask": torch.zeros(*shape, **like)})

    refuses(ShapeError, r"mask: expected shape \(4, 2\), got \(4, 1\)", one(B, 1))
    refuses(ShapeError, r"mask: expected shape \(4, 2\), got \(4,\)", one(B))
    refuses(ShapeError, r"mask: expected shape \(4,\), got \(3,\)", mask=mask[:3])
    refuses(ShapeError, r"mask: expected shape \(4,\), got \(4, 1\)", mask=mask[:, None])
    refuses(
        DtypeMismatchError,
        "mask: expected torch.float32, got torch.float64",
        one(B, 2, dtype=torch.float64),
    )
    refuses(
        DeviceMismatchError,
        "mask: expected a tensor on cpu, got one on meta",
        one(B, 2, device="meta"),
    )
    refuses(
        DeviceMismatchError,
        "mask: expected a tensor on cpu, got one on meta",
        mask=mask.to("meta"),
    )
    first = r"masked_dicttensor: dicttensor1: expected the keys \['mask'\], got \[\]"
    refuses(KeyMismatchError, first, DictTensor())
    with pytest.raises(KeyMismatchError, match=r"dicttensor0: .*\['mask'\], got none; is it a st"):
        masked_dicttensor(DictTensor(), old, mask)
    with pytest.raises(ShapeError, match=r"^tensor0: expected shape \[B, ...\], got \(\)$"):
        masked_tensor(torch.tensor(1), torch.tensor(1), torch.tensor(True))
    with pytest.raises(ShapeError, match=r"^tensor1: expected shape \(2,\), got \(3,\)$"):
        masked_tensor(torch.zeros(2), torch.zeros(3), torch.zeros(2))


def test_keys_are_strings():
    rows = torch.zeros(2)
    with pytest.raises(TypeError, match="^0: expected a string as the key, got int$"):
        DictTensor({0: rows})
    with pytest.raises(TypeError, match="^1: expected a string as the key, got int$"):
        DictTensor({"a": rows, 1: rows})
    with pytest.raises(TypeError, match="^1: expected a string as the key, got int$"):
        DictTensor({"a": rows}).set(1, rows)


def test_rows_are_not_written_past_an_end():
    for row in (-5, 3):
        with pytest.raises(IndexError):
            DictTensor({"a": torch.zeros(3)}).copy_(
                DictTensor({"a": torch.ones(3)}), torch.tensor([0]), torch.tensor([row])
            )


def test_a_copy_has_keys_of_its_own():
    for container in (DictTensor({"a": torch.zeros(2, 1)}), make_temporal()):
        copied = copy.copy(container)
        copied.set("z", torch.zeros(2, 1))
        assert "z" not in container
        assert copied["a"] is container["a"]


def make_temporal():
    return TemporalDictTensor({"a": torch.zeros(2, 1)}, torch.tensor([1, 0]))


def test_batches_of_different_sizes_are_not_added():
    with pytest.raises(ShapeError, match=r"b: expected shape \[2, ...\], as a, got \(3,\)"):
        DictTensor({"a": torch.zeros(2)}) + DictTensor({"b": torch.zeros(3)})


@pytest.fixture
def default_device():
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("default_device")
def test_a_default_device_is_not_where_rows_are_chosen():
    steps = TemporalDictTensor({"a": torch.arange(8.0, device="cpu").view(4, 2)})
    batch = Trajectories(DictTensor(), steps)
    assert batch.sample(2).n_elems() == 2
    assert batch.index([0, 3]).trajectories["a"].tolist() == [[0, 1], [6, 7]]
    assert steps.index(np.array([1]))["a"].tolist() == [[2, 3]]
