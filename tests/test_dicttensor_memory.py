"""Every method that returns tensors: does it copy as its docstring says, and keep dtypes?

`METHODS` lists them, with the memory they promise. A test fails where a method is in no list.
"""

import pytest
import torch

from rlbatch.dicttensor import DictTensor, TemporalDictTensor, Trajectories
from tests.containers import DTYPES, KINDS, RARE_DTYPES, B, T, address, make, named, rows_in

SAME, VIEW, COPY = "same", "view", "copy"

NAMED_METHODS = {
    "constructor": (SAME, lambda d: type(d)(d.variables, *rest(d))),
    "getitem": (SAME, lambda d: d["done"]),
    "values": (SAME, lambda d: list(d.values())),
    "items": (SAME, lambda d: [tensor for _, tensor in d.items()]),
    "get": (SAME, lambda d: d.get(["done", "obs/reward"])),
    "get, clone": (COPY, lambda d: d.get(["done"], clone=True)),
    "prepend_key": (SAME, lambda d: d.prepend_key("a/")),
    "truncate_key": (SAME, lambda d: d.truncate_key("obs/")),
    "clone": (COPY, lambda d: d.clone()),
    "detach": (VIEW, lambda d: d.detach()),
    "to": (SAME, lambda d: d.to(d.device())),
    "unfold": (VIEW, lambda d: d.unfold()),
    "slice": (VIEW, lambda d: d.slice(1, 3)),
    "slice, one": (VIEW, lambda d: d.slice(1)),
    "index, int": (VIEW, lambda d: d.index(1)),
    "index, list": (COPY, lambda d: d.index([1, 2])),
    "index, all": (COPY, lambda d: d.index(list(range(B)))),
    "index, mask": (COPY, lambda d: d.index([True, True, False, True])),
    "cat": (COPY, lambda d: type(d).cat([d, d])),
    "cat, one": (COPY, lambda d: type(d).cat([d])),
    "to_nested": (SAME, lambda d: [d.to_nested()["obs"]["frame"], d.to_nested()["done"]]),
}
METHODS = {
    DictTensor: NAMED_METHODS
    | {
        "add": (SAME, lambda d: d + DictTensor({"other": d["done"]})),
        "from_nested": (SAME, lambda d: DictTensor.from_nested(d.to_nested())),
    },
    TemporalDictTensor: NAMED_METHODS
    | {
        "shorten": (VIEW, lambda d: list(d.shorten().values())),
        "temporal_slice": (VIEW, lambda d: list(d.temporal_slice(1, 3).values())),
        "temporal_index": (VIEW, lambda d: d.temporal_index(1)),
        "temporal_multi_index": (
            COPY,
            lambda d: d.temporal_multi_index(torch.tensor([0, 2, 1, 1], device=d.device())),
        ),
        "masked_temporal_index": (COPY, lambda d: d.masked_temporal_index(0)[0]),
        "masked_select": (COPY, lambda d: d.masked_select()),
        "expand": (COPY, lambda d: d.expand(B + 2)),
        "expand, by nothing": (COPY, lambda d: d.expand(B)),
    },
    Trajectories: {
        "constructor": (SAME, lambda d: Trajectories(d.info, d.trajectories)),
        "clone": (COPY, lambda d: d.clone()),
        "to": (SAME, lambda d: d.to(d.device())),
        "index, int": (VIEW, lambda d: d.index(1)),
        "index, list": (COPY, lambda d: d.index([1, 2])),
        "sample": (COPY, lambda d: d.sample(B)),
        "cat": (COPY, lambda d: Trajectories.cat([d, d])),
        "cat, one": (COPY, lambda d: Trajectories.cat([d])),
    },
}
# Methods that return something else, or are tried elsewhere in these three files.
OTHERS = {
    *("keys", "empty", "specs", "device", "n_elems", "set", "copy_", "variables"),
    *("pin_memory", "share_memory_", "to_tensordict", "from_tensordict"),
    *("lengths", "n_timesteps", "unchecked", "mask", "full", "info", "trajectories"),
}
CASES = [
    pytest.param(kind, *METHODS[kind][method], id=f"{kind.__name__}.{method}")
    for kind in KINDS
    for method in METHODS[kind]
]


def rest(container):
    return [container.lengths] if isinstance(container, TemporalDictTensor) else []


def results_of(method, container):
    """Pairs of name and tensor, of all that the method returns."""
    result = method(container)
    results = result if isinstance(result, list) else [result]
    tensors = [pair for one in results for pair in named(one).items()]
    assert tensors, "the method returned nothing to look at"
    return tensors


@pytest.mark.parametrize("kind", KINDS)
def test_every_public_method_is_tested(kind):
    public = {name for name in dir(kind) if not name.startswith("_")}
    listed = {name.split(",")[0] for name in METHODS[kind]}
    assert public - listed - OTHERS == set()


def test_unchecked_wraps_what_it_is_given():
    variables = {"a": torch.zeros(2, 3), "b": torch.zeros(5)}
    assert DictTensor.unchecked(variables).variables is variables
    lengths = torch.tensor([3])
    steps = TemporalDictTensor.unchecked(variables, lengths)
    assert steps.variables is variables
    assert steps.lengths is lengths


@pytest.mark.parametrize(("kind", "memory", "method"), CASES)
def test_methods_copy_or_view_as_documented(kind, memory, method, device):
    container = make(kind, device)
    before = named(container).values()
    same_objects = {id(tensor) for tensor in before}
    same_bytes = {address(tensor) for tensor in before}
    for name, tensor in results_of(method, container):
        assert (id(tensor) in same_objects) == (memory == SAME), name
        assert (address(tensor) in same_bytes) == (memory != COPY), name
        assert tensor.device == container.device(), name


@pytest.mark.parametrize("kind", KINDS)
def test_methods_pass_gradients_on(kind):
    for name, (_, method) in METHODS[kind].items():
        container = make(kind, dtype=torch.float32)
        for key, tensor in named(container).items():
            tensor.requires_grad_(key != "lengths")
        for key, tensor in results_of(method, container):
            assert tensor.requires_grad == (key != "lengths" and name != "detach"), (name, key)


@pytest.mark.parametrize("dtype", DTYPES + RARE_DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_methods_keep_dtypes(kind, dtype):
    container = make(kind, dtype=dtype)
    for name, (_, method) in METHODS[kind].items():
        results = results_of(method, container)
        found = {tensor.dtype for key, tensor in results if key != "lengths"}
        assert found == {dtype}, name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_to_and_cat_and_index_keep_the_values_of_every_dtype(kind, dtype, device):
    container = make(kind, dtype=dtype)
    moved = container.to(device)
    assert rows_in(moved) == rows_in(container)
    assert rows_in(moved.index([3, 1, 1])) == [rows_in(container)[row] for row in (3, 1, 1)]
    assert rows_in(kind.cat([moved, moved])) == rows_in(container) * 2


@pytest.mark.parametrize("dtype", RARE_DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_rare_dtypes_are_found_in_any_layout(kind, dtype):
    container = make(kind, dtype=dtype)
    assert rows_in(container.index([3, 1, 1])) == [rows_in(container)[row] for row in (3, 1, 1)]
    if kind is TemporalDictTensor:  # Slices of time are not contiguous.
        step, rows = container.masked_temporal_index(1)
        assert rows_in(step) == [rows_in(container.temporal_index(1))[row] for row in rows]


def test_lengths_of_cut_time_are_a_copy(device):
    container = make(TemporalDictTensor, device)
    for cut in (
        container.shorten(),
        container.temporal_slice(0, T),
        container.temporal_slice(0, 1),
    ):
        assert address(cut.lengths) != address(container.lengths)
        assert cut.lengths.dtype == torch.int64
