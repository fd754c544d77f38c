"""The containers among others: pytrees, torch.compile, processes, tensordict."""

import copy
import io
import pickle
import sys

import pytest
import torch
import torch.multiprocessing
from torch.utils import _pytree as pytree

from rlbatch.dicttensor import DictTensor, TemporalDictTensor, Trajectories
from rlbatch.errors import DeviceMismatchError, KeyMismatchError
from tests.containers import DTYPES, KINDS, LENGTHS, NAMED, B, T, address, make, named, rows_in

# --- Pytrees ---


@pytest.mark.parametrize("kind", KINDS)
def test_flattens_to_the_tensors_themselves_and_back(kind, device):
    container = make(kind, device)
    leaves, spec = pytree.tree_flatten(container)
    assert {id(leaf) for leaf in leaves} == {id(tensor) for tensor in named(container).values()}
    again = pytree.tree_unflatten(leaves, spec)
    assert type(again) is kind
    assert {name: id(tensor) for name, tensor in named(again).items()} == {
        name: id(tensor) for name, tensor in named(container).items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_tree_map_reaches_every_tensor(kind):
    container = make(kind, dtype=torch.float32)
    doubled = pytree.tree_map(lambda tensor: tensor * 2, container)
    for name, tensor in named(doubled).items():
        assert torch.equal(tensor, named(container)[name] * 2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_a_tree_have_names(kind):
    container = make(kind)
    parts = {
        tuple(getattr(step, "key", getattr(step, "name", None)) for step in path): leaf
        for path, leaf in pytree.tree_flatten_with_path(container)[0]
    }
    expected = {tuple(name.split(".")): tensor for name, tensor in named(container).items()}
    assert len(parts) == len(expected)
    assert {id(leaf) for leaf in parts.values()} == {id(tensor) for tensor in expected.values()}
    for path, leaf in parts.items():
        found = container
        for step in path:
            found = getattr(found, step) if hasattr(found, step) else found[step]
        assert found is leaf


def test_tree_map_takes_lengths_for_a_leaf():
    container = make(TemporalDictTensor)
    assert pytree.tree_map(lambda tensor: tensor + 1, container.get([])).lengths.tolist() == [
        length + 1 for length in LENGTHS
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_container_of_anything_has_a_repr(kind):
    for function in (torch.numel, lambda tensor: tensor.float().mean(), lambda _: None):
        assert kind.__name__ in repr(pytree.tree_map(function, make(kind)))
    assert repr(pytree.tree_map(lambda _: None, DictTensor({"a": torch.zeros(1)}))).split() == [
        *("DictTensor(not", "a", "batch)"),
        *("a", "NoneType"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_tree_specs_compare_by_keys_and_can_be_stored(kind):
    spec, other = (pytree.tree_structure(make(kind, first=first)) for first in (0, 9))
    assert spec == other
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
    assert spec != pytree.tree_structure(DictTensor({"a": torch.zeros(1)}))


def test_vmap_maps_over_rows(device):
    state = DictTensor({"a": torch.rand(B, 3, device=device), "b": torch.rand(B, device=device)})

    def step(row):  # Without B: the tensors are [3] and [].
        assert (row["a"].shape, row["b"].shape) == ((3,), ())
        return pytree.tree_map(lambda tensor: tensor + row["b"], row)

    result = torch.func.vmap(step)(state)
    assert isinstance(result, DictTensor)
    assert torch.equal(result["a"], state["a"] + state["b"][:, None])
    assert torch.equal(result["b"], state["b"] * 2)


def test_vmap_maps_over_rows_with_their_lengths(device):
    container = make(TemporalDictTensor, device)
    sums = torch.func.vmap(
        lambda row: (row["obs/reward"] * (torch.arange(T, device=device) < row.lengths)).sum()
    )(container)
    assert torch.equal(sums, (container["obs/reward"] * container.mask()).sum(1))


def test_grad_flows_through_a_container():
    def loss(parameters):
        return (parameters["a"] ** 2).sum() + parameters["b"].sum()

    parameters = DictTensor({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])})
    gradient = torch.func.grad(loss)(parameters)
    assert {key: tensor.tolist() for key, tensor in gradient.items()} == {"a": [2, 4], "b": [1, 1]}


# --- torch.compile ---


def step_of_one(container):
    """What an agent does: read, build, join, choose."""
    new = DictTensor({"sum": container["obs/frame"].float().sum(-1), **container.variables})
    return (new.get(["sum"]) + container).prepend_key("_"), new.index(torch.tensor([2, 0]))


def step_of_time(container):
    masked = TemporalDictTensor(
        {"a": container["obs/reward"] * container.mask()}, container.lengths
    )
    return masked.temporal_slice(1, 3), container.temporal_index(0), container.slice(1)


def step_of_batch(batch):
    return Trajectories(batch.info.prepend_key("_"), step_of_time(batch.trajectories)[0])


STEPS = {DictTensor: step_of_one, TemporalDictTensor: step_of_time, Trajectories: step_of_batch}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_without_graph_breaks(kind, backend):
    torch.compiler.reset()
    compiled = torch.compile(STEPS[kind], backend=backend, fullgraph=True)
    for first in (0, 9):
        container = make(kind, first=first)
        expected, found = STEPS[kind](container), compiled(container)
        assert pytree.tree_structure(found) == pytree.tree_structure(expected)
        for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
            assert torch.equal(a, b)


def test_compiled_code_still_refuses_what_does_not_fit():
    torch.compiler.reset()
    compiled = torch.compile(lambda a, b: DictTensor({"a": a, "b": b}), backend="eager")
    assert compiled(torch.zeros(2), torch.zeros(2)).n_elems() == 2
    with pytest.raises(Exception, match=r"b: expected shape \[2, ...\], as a, got \(3,\)"):
        compiled(torch.zeros(2), torch.zeros(3))


# --- Pickles and processes ---


def through_pickle(container):
    return pickle.loads(pickle.dumps(container))


def through_a_file(container):
    file = io.BytesIO()
    torch.save(container, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("through", [through_pickle, through_a_file, copy.deepcopy])
def test_copies_through_pickle_are_equal_and_independent(kind, through, device):
    container = make(kind, device)
    again = through(container)
    assert type(again) is kind
    assert rows_in(again) == rows_in(container)
    assert repr(again) == repr(container)
    addresses = {address(tensor) for tensor in named(container).values()}
    assert not addresses & {address(tensor) for tensor in named(again).values()}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_errors_and_empty_containers_survive_pickle(protocol):
    error = DeviceMismatchError("a", torch.device("cpu"), torch.device("meta"), "env.step")
    again = pickle.loads(pickle.dumps(error, protocol))
    assert (str(again), again.found) == (str(error), error.found)
    assert pickle.loads(pickle.dumps(DictTensor(), protocol)).empty()


def fill(*containers):
    """What the child process does: it writes to every tensor in its place."""
    for container in containers:
        for tensor in named(container).values():
            tensor.fill_(1)


def test_a_child_process_writes_into_shared_memory():
    containers = [make(kind) for kind in NAMED]
    assert [container.share_memory_() for container in containers] == containers
    tensors = [tensor for container in containers for tensor in named(container).values()]
    assert all(tensor.is_shared() for tensor in tensors)
    addresses = [address(tensor) for tensor in tensors]
    context = torch.multiprocessing.get_context("spawn")
    child = context.Process(target=fill, args=containers)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert all((tensor == 1).all() for tensor in tensors)
    # Sending a tensor that is not shared would have moved it: it was shared beforehand.
    assert [address(tensor) for tensor in tensors] == addresses


@pytest.mark.parametrize("kind", NAMED)
def test_share_memory_keeps_the_content(kind):
    container = make(kind)
    tensors = named(container)
    container.share_memory_()
    assert rows_in(container) == rows_in(make(kind))
    assert all(named(container)[name] is tensor for name, tensor in tensors.items())


# --- tensordict ---


@pytest.fixture
def tensordict():
    return pytest.importorskip("tensordict")


@pytest.mark.parametrize("kind", NAMED)
def test_tensordict_round_trip_copies_nothing(kind, tensordict, device):
    container = make(kind, device)
    there = container.to_tensordict()
    assert isinstance(there, tensordict.TensorDict)
    assert there.batch_size == (B,)
    assert there["obs", "frame"] is container["obs/frame"]
    back = kind.from_tensordict(there)
    assert named(back).keys() == named(container).keys()
    assert all(tensor is named(container)[name] for name, tensor in named(back).items())


def test_tensordict_round_trip_of_trajectories(tensordict, device):
    found = make(Trajectories, device)
    there = found.to_tensordict()
    assert isinstance(there, tensordict.TensorDict)
    assert (there.batch_size, there["trajectories"].batch_size) == ((B,), (B,))
    assert there["trajectories", "lengths"] is found.trajectories.lengths
    back = Trajectories.from_tensordict(there)
    for part in ("info", "trajectories"):
        expected = named(getattr(found, part))
        assert named(getattr(back, part)).keys() == expected.keys()
        assert all(tensor is expected[name] for name, tensor in named(getattr(back, part)).items())
    alone = Trajectories(DictTensor(), found.trajectories)
    assert Trajectories.from_tensordict(alone.to_tensordict()).info.empty()


@pytest.mark.usefixtures("tensordict")
def test_a_tensordict_of_more_or_less_than_trajectories_is_refused():
    more = make(Trajectories).to_tensordict()
    more["index"] = torch.arange(B)
    with pytest.raises(KeyMismatchError, match=r"^from_tensordict: .*unexpected \['index'\]"):
        Trajectories.from_tensordict(more)
    less = more.exclude("index", "info")
    with pytest.raises(KeyMismatchError, match=r"^from_tensordict: .*missing \['info'\]"):
        Trajectories.from_tensordict(less)


def test_tensordict_round_trip_of_numbers(tensordict):
    losses = DictTensor({"loss": torch.tensor(0.5), "parts/value": torch.tensor(2)})
    there = losses.to_tensordict()
    assert there.batch_size == ()
    back = DictTensor.from_tensordict(there)
    assert {key: tensor.item() for key, tensor in back.items()} == {"loss": 0.5, "parts/value": 2}


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensordict_round_trip_keeps_dtypes(kind, dtype, tensordict):
    back = kind.from_tensordict(make(kind, dtype=dtype).to_tensordict())
    assert {tensor.dtype for tensor in back.values()} == {dtype}


def test_tensordict_of_two_batch_dimensions_is_full(tensordict):
    source = tensordict.TensorDict({"a": {"b": torch.zeros(2, 5, 3)}}, batch_size=[2, 5])
    container = TemporalDictTensor.from_tensordict(source)
    assert list(container) == ["a/b"]
    assert container.lengths.tolist() == [5, 5]


@pytest.mark.usefixtures("tensordict")
def test_empty_containers_make_empty_tensordicts():
    assert DictTensor.from_tensordict(DictTensor().to_tensordict()).empty()
    only_lengths = TemporalDictTensor({}, torch.tensor(LENGTHS))
    back = TemporalDictTensor.from_tensordict(only_lengths.to_tensordict())
    assert (list(back), back.lengths.tolist()) == ([], LENGTHS)


@pytest.mark.parametrize("key", ["lengths", "lengths/a"])
def test_to_tensordict_refuses_a_key_in_the_place_of_the_lengths(key):
    with pytest.raises(KeyMismatchError, match="^lengths: expected a key of another name, got"):
        TemporalDictTensor({key: torch.zeros(2, 3)}).to_tensordict()


def test_missing_tensordict_is_named_with_its_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensordict", None)
    for kind in KINDS:
        with pytest.raises(ImportError, match=r"^to_tensordict: expected .*rlbatch\[tensordict\]"):
            make(kind).to_tensordict()
