"""What DictTensor and TemporalDictTensor share: a dict of tensors, read by key, cut by row."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from rlbatch._checks import (
    check_device,
    check_is,
    check_is_tensor,
    check_like,
    check_not_expanded,
    check_same_rows,
    check_shape,
    check_tensors,
)
from rlbatch.errors import (
    DeviceLike,
    DtypeMismatchError,
    KeyMismatchError,
    ShapeError,
    as_device,
    as_present_device,
)

Index = torch.Tensor | int | list[int]
AnyTensors = TypeVar("AnyTensors", bound="NamedTensors")

_CPU = torch.device("cpu")

# torch indexes these dtypes on few devices and in few layouts; the signed ones have the same bytes.
SIGNED = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2: torch.int8,
}


class NamedTensors:
    """The base of DictTensor and TemporalDictTensor; not for use on its own.

    Attributes:
        variables: The tensors by key.
    """

    __slots__ = ("variables",)
    variables: dict[str, torch.Tensor]
    _n_common: ClassVar[int]  # How many leading dimensions all tensors share.

    def keys(self) -> KeysView[str]:
        """Returns the keys, in the order in which they were added."""
        return self.variables.keys()

    def values(self) -> ValuesView[torch.Tensor]:
        """Returns the tensors themselves."""
        return self.variables.values()

    def items(self) -> ItemsView[str, torch.Tensor]:
        """Returns pairs of key and tensor."""
        return self.variables.items()

    def __copy__(self) -> Self:
        return self._map(lambda tensor: tensor)

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __contains__(self, key: str) -> bool:
        return key in self.variables

    def __getitem__(self, key: str) -> torch.Tensor:
        """Returns the tensor named `key` (the same object).

        Raises:
            KeyMismatchError: There is none; the message lists those there are.
        """
        try:
            return self.variables[key]
        except KeyError:
            hint = "" if self.variables else "; is it an agent_info or a state that was not given?"
            raise KeyMismatchError(
                f"key: expected one of {list(self)}, got {key!r}{hint}"
            ) from None

    def empty(self) -> bool:
        """Returns whether there are no keys."""
        return not self.variables

    def specs(self) -> dict[str, dict[str, Any]]:
        """Returns `{"size", "dtype"}` per key; the size is without B (and without T)."""
        size = self._n_common
        return {k: {"size": v.shape[size:], "dtype": v.dtype} for k, v in self.items()}

    def device(self) -> torch.device | None:
        """Returns the device of all tensors, None where there are none."""
        raise NotImplementedError

    def n_elems(self) -> int:
        """Returns the batch size B; 0 where there are no tensors."""
        raise NotImplementedError

    def get(self, keys: Iterable[str], clone: bool = False) -> Self:
        """Returns a container of some of the keys.

        Args:
            keys: The keys to keep; an iterable of strings, not one string.
            clone: Copy the tensors; otherwise the new container holds the same ones.

        Raises:
            TypeError: `keys` is a string.
            KeyMismatchError: A key is not here.

        Example:
            >>> from rlbatch import DictTensor
            >>> step = DictTensor({"frame": torch.zeros(2, 4), "reward": torch.zeros(2)})
            >>> step.get(["reward"])
            DictTensor(n_elems=2, device=cpu)
              reward  [2]  float32
        """
        if isinstance(keys, str):
            raise TypeError(f"keys: expected an iterable of strings, got the string {keys!r}")
        kept = self._with({key: self[key] for key in keys})
        return kept.clone() if clone else kept

    def prepend_key(self, prefix: str) -> Self:
        """Returns a container of the same tensors, with `prefix` put before every key."""
        return self._with({prefix + key: tensor for key, tensor in self.items()})

    def truncate_key(self, prefix: str) -> Self:
        """Returns a container of the tensors whose keys start with `prefix`, without the prefix.

        The tensors are the same objects. Keys that do not start with it are left out.

        Example:
            >>> from rlbatch import DictTensor
            >>> step = DictTensor({"observation/frame": torch.zeros(2, 4)})
            >>> list(step.truncate_key("observation/"))
            ['frame']
        """
        size = len(prefix)
        return self._with({key[size:]: v for key, v in self.items() if key.startswith(prefix)})

    def clone(self) -> Self:
        """Returns a copy of every tensor."""
        return self._map(torch.Tensor.clone)

    def detach(self) -> Self:
        """Returns views that are cut from the autograd graph."""
        return self._map(torch.Tensor.detach)

    def to(self, device: DeviceLike, non_blocking: bool = False) -> Self:
        """Moves the tensors to a device.

        Args:
            device: Where to.
            non_blocking: Do not wait for a copy between pinned memory and a GPU. A copy *from*
                a GPU is then not finished when this returns: synchronise before reading it.

        Returns:
            The same object where the device is already that one, else a copy.

        Raises:
            ValueError: `device` does not name a device, or this machine does not have it.
        """
        device = as_device(device)
        if self.device() in (device, None):
            return self
        device = as_present_device(device)
        if non_blocking or device.type != "cuda" or self.device() != _CPU:
            return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        moved = self._map(lambda tensor: tensor.to(device, non_blocking=True))
        torch.cuda.current_stream(device).synchronize()  # Once, not for every tensor.
        return moved

    def pin_memory(self) -> Self:
        """Returns a copy in page-locked memory, for fast moves to a GPU. Needs CUDA.

        A tensor that is there already stays the same object.
        """
        return self._map(torch.Tensor.pin_memory)

    def share_memory_(self) -> Self:
        """Moves the bytes of every tensor to shared memory, in place; returns the same object."""
        self._map(torch.Tensor.share_memory_)
        return self

    def unfold(self) -> list[Self]:
        """Returns B containers of one row each (views)."""
        return [self.slice(row) for row in range(self.n_elems())]

    def slice(self, index_from: int, index_to: int | None = None) -> Self:
        """Returns the rows from `index_from` up to, not including, `index_to` (views).

        Args:
            index_from: The first row; negative counts from the end.
            index_to: The row after the last; None for the one row `index_from`. The batch
                dimension stays in either case.

        Raises:
            IndexError: There is no row `index_from` where `index_to` is None.

        Example:
            >>> from rlbatch import DictTensor
            >>> DictTensor({"reward": torch.tensor([0.0, 1.0, 2.0])}).slice(1, 3)["reward"]
            tensor([1., 2.])
        """
        if index_to is None:
            n_elems = self.n_elems()
            if not -n_elems <= index_from < n_elems and self.device() is not None:
                raise IndexError(f"index: expected one of {n_elems} rows, got {index_from}")
            index_from = index_from % n_elems if n_elems else 0
            index_to = index_from + 1
        return self._map(lambda tensor: tensor[index_from:index_to])

    def index(self, index: Index) -> Self:
        """Returns some of the rows: views for an int, else a copy.

        Args:
            index: One row (the batch dimension stays, with size 1); or a list or int64 tensor
                [N] of rows, negative ones counted from the end; or a bool mask [B].

        Raises:
            IndexError: There is no such row.
            ShapeError: The index is not [N], or the mask not [B].
            DtypeMismatchError: The index holds neither integers nor bools.
            TypeError: It is a slice, for which there is `slice`.
            RuntimeError: PyTorch's, for want of memory.

        Example:
            >>> from rlbatch import DictTensor
            >>> rewards = DictTensor({"reward": torch.tensor([0.0, 1.0, 2.0])})
            >>> rewards.index([2, 0])["reward"], rewards.index(rewards["reward"] > 0)["reward"]
            (tensor([2., 0.]), tensor([1., 2.]))
        """
        if isinstance(index, (int, np.integer)):
            return self.slice(int(index))
        if isinstance(index, slice):
            raise TypeError(f"index: expected numbers of rows, got {index}; use the method slice")
        device = self.device()
        if device is None:
            return self._with({})
        rows = rows_of(index, self.n_elems(), device)
        try:
            return self._map(lambda tensor: take_rows(tensor, rows))
        except (IndexError, RuntimeError):  # The second where there are no rows, or empty ones.
            if isinstance(index, torch.Tensor):
                _check_rows(index, self.n_elems())  # Only now, as looking takes time.
            raise

    def set(self, key: str, value: torch.Tensor) -> None:
        """Adds a tensor, or puts it in the place of another (no copy).

        Raises:
            TypeError: It is not a tensor.
            ShapeError: It has not the B (and T) of the others.
            DeviceMismatchError: It is not on their device.
            ValueError: There are no others, and on a CPU a length is more than its T.

        Example:
            >>> from rlbatch import DictTensor
            >>> step = DictTensor({"reward": torch.zeros(2)})
            >>> step.set("done", torch.zeros(2, 1))
            >>> step.set("lives", torch.zeros(3))
            Traceback (most recent call last):
            rlbatch.errors.ShapeError: lives: expected shape [2, ...], as reward, got (3,)
        """
        for other, tensor in self.variables.items():
            if other != key:
                check_like(key, value, tensor, self._n_common, beside=other)
                break
        else:
            self._check_alone(key, value)
        self.variables[key] = value

    def copy_(
        self, source: Self, source_indexes: torch.Tensor, destination_indexes: torch.Tensor
    ) -> None:
        """Writes rows of another container into rows of this one, in this one's memory.

        Where there are lengths it writes them too, and waits for the device: a row of the source
        may be as long as T here. What a row held past the longest of the new ones stays there,
        as padding. Nothing is written where it raises one of the errors below.

        Args:
            source: Holds at least the keys of this one.
            source_indexes: [N] int64, rows of `source`.
            destination_indexes: [N] int64, rows of this one, all different.

        Raises:
            TypeError: An index is not a tensor, or `source` another container.
            ShapeError: The index tensors differ in shape, two rows do, or a row is too long; or a
                tensor of this one is expanded, so that its elements share memory.
            KeyMismatchError: A key is missing in `source`.
            DtypeMismatchError: A dtype differs.
            DeviceMismatchError: A device differs.
            IndexError: There is no such row. Of an index on a GPU nobody looks.
            ValueError: A row would be written twice. Likewise.

        Example:
            >>> from rlbatch import DictTensor
            >>> memory = DictTensor({"reward": torch.zeros(3)})
            >>> new = DictTensor({"reward": torch.tensor([5.0, 6.0])})
            >>> memory.copy_(new, torch.tensor([0, 1]), torch.tensor([2, 0]))
            >>> memory["reward"]
            tensor([6., 0., 5.])
        """
        check_is("source", source, type(self))
        check_is_tensor("source_indexes", source_indexes)
        check_shape("destination_indexes", destination_indexes, source_indexes.shape)
        for key, tensor in self.items():
            check_same_rows(key, source[key], tensor, self._n_common)
            check_not_expanded(key, tensor)
        device = self.device()
        if device is not None:
            _check_rows(source_indexes, source.n_elems())
            _check_rows(destination_indexes, self.n_elems())
            _check_different(destination_indexes, self.n_elems())
            rows = rows_of(source_indexes, source.n_elems(), device)
            self._write(source, rows, rows_of(destination_indexes, self.n_elems(), device))

    def to_nested(self) -> dict[str, Any]:
        """Returns nested dicts of the same tensors: the key `a/b` becomes `["a"]["b"]`.

        Raises:
            KeyMismatchError: A key is also the beginning of another (`a` and `a/b`).
        """
        nested: dict[str, Any] = {}
        for key, tensor in self.items():
            *path, name = key.split("/")
            node = nested
            for part in path:
                node = node.setdefault(part, {})
                if not isinstance(node, dict):
                    raise KeyMismatchError(f"{key}: expected {part} to be a folder, got a tensor")
            if name in node:
                raise KeyMismatchError(f"{key}: expected a tensor alone, got a folder of that name")
            node[name] = tensor
        return nested

    def _with(self, variables: dict[str, torch.Tensor]) -> Self:
        """Returns a container like this one around other tensors of the same batch."""
        raise NotImplementedError

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """Returns a container like this one with the function applied to every tensor."""
        raise NotImplementedError

    def _check_alone(self, key: str, value: torch.Tensor) -> None:
        """Checks what is to be the only tensor."""
        raise NotImplementedError

    def _write(self, source: Self, rows: torch.Tensor, destination_rows: torch.Tensor) -> None:
        """Does the writing of `copy_`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        rows = [(key, *_described(value)) for key, value in self.items()]
        widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
        lines = [f"  {key:{widths[0]}}  {shape:{widths[1]}}  {dtype}" for key, shape, dtype in rows]
        try:
            title = self._title()
        except (AttributeError, IndexError):  # A tree_map can make anything of the leaves.
            title = "not a batch"
        return "\n".join([f"{type(self).__name__}({title})", *lines])

    def _title(self) -> str:
        return f"n_elems={self.n_elems()}, device={self.device()}"


def unshared(tensors: AnyTensors, *others: NamedTensors) -> AnyTensors:
    """Returns the container with copies of the tensors that share memory with another's."""
    if not tensors.variables:
        return tensors
    there = {one.untyped_storage().data_ptr() for other in others for one in other.values()}
    return tensors._map(
        lambda one: one.clone() if one.untyped_storage().data_ptr() in there else one
    )


def rows_of(index: torch.Tensor | list[int], n_elems: int, device: torch.device) -> torch.Tensor:
    """Returns the numbers of the rows that an index names.

    Args:
        index: [N] of row numbers, or a bool mask [B].
        n_elems: B.
        device: Where the result is to be.

    Returns:
        [N] int64 (int32 where the index is), counted from the front.

    Raises:
        IndexError: There is no such row. Of an index that is on the device, nobody looks.
        ShapeError: The index is not [N], or the mask not [B].
        DtypeMismatchError: The index holds neither integers nor bools.
    """
    if isinstance(index, torch.Tensor) and index.device == device:
        rows = index
    else:
        empty = isinstance(index, list) and not index  # Of which torch makes float32.
        place = None if isinstance(index, torch.Tensor) else "cpu"
        rows = torch.as_tensor(index, dtype=torch.int64 if empty else None, device=place)
        _check_rows(rows, n_elems)
        rows = rows.to(device)
    if rows.dtype == torch.bool:
        check_shape("index", rows, (n_elems,))
        return rows.nonzero().squeeze(1)
    if rows.dtype not in (torch.int64, torch.int32):
        raise DtypeMismatchError(f"index: expected torch.int64 or torch.bool, got {rows.dtype}")
    if rows.dim() != 1:
        raise ShapeError(f"index: expected shape [N], got {tuple(rows.shape)}")
    return torch.add(rows, rows < 0, alpha=n_elems)  # B more where it counts from the end.


def _check_rows(rows: torch.Tensor, n_elems: int) -> None:
    """Checks that there are such rows, of an index on the CPU.

    Raises:
        IndexError: There is none.
    """
    if _may_be_looked_at(rows) and rows.numel():
        for row in rows.aminmax():
            if not -n_elems <= int(row) < n_elems:
                raise IndexError(f"index: expected one of {n_elems} rows, got {int(row)}")


def _check_different(rows: torch.Tensor, n_elems: int) -> None:
    """Checks that no row is there twice, of an index on the CPU.

    Raises:
        ValueError: One is.
    """
    if _may_be_looked_at(rows):
        in_order = (rows % max(n_elems, 1)).sort().values
        again = in_order[1:][in_order[1:] == in_order[:-1]]
        if len(again):
            raise ValueError(
                f"destination_indexes: expected all different, got row {int(again[0])} twice"
            )


def _may_be_looked_at(rows: torch.Tensor) -> bool:
    """Returns whether an index holds numbers, for which no GPU has to be waited."""
    return rows.dtype in (torch.int64, torch.int32) and rows.is_cpu


def take_rows(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns some of the rows (a copy); none of the numbers may be negative."""
    # index_select copies whole rows; tensor[rows] goes element by element, and is up to 30 times
    # as slow on the CPU where a row is an image.
    if tensor.dtype in SIGNED:
        return _signed(tensor).index_select(0, rows).view(tensor.dtype)
    return tensor.index_select(0, rows)


def take_places(tensor: torch.Tensor, places: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Returns a tensor at some places of its first dimensions (a copy)."""
    if tensor.dtype in SIGNED:
        return _signed(tensor)[places].view(tensor.dtype)
    return tensor[places]  # To view it, if only as what it is, would end its gradient.


def put_rows(tensor: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
    """Writes values [N, ...] into some of the rows; none of the numbers may be negative."""
    _signed(tensor).index_copy_(0, rows.long(), _signed(values))


def _signed(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same bytes in a dtype that PyTorch can index."""
    dtype = SIGNED.get(tensor.dtype)
    return tensor.view(dtype) if dtype else tensor


def masked_tensor(tensor0: torch.Tensor, tensor1: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Takes each row from `tensor1` where the mask is set, from `tensor0` elsewhere.

    Args:
        tensor0: [B, ...].
        tensor1: [B, ...], shape and dtype as `tensor0`.
        mask: [B], bool or a number; any value but 0 is set.

    Returns:
        [B, ...], a copy.

    Raises:
        ShapeError: The tensors differ in shape, or the mask is not [B].
        DtypeMismatchError: The dtypes differ; one would be cast silently.
        DeviceMismatchError: They are not all on one device.

    Example:
        >>> masked_tensor(torch.zeros(2, 2), torch.ones(2, 2), torch.tensor([True, False]))
        tensor([[1., 1.],
                [0., 0.]])
    """
    return masked_rows("tensor1", tensor0, tensor1, mask)


def masked_rows(
    where: str, tensor0: torch.Tensor, tensor1: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """`masked_tensor`, with errors that name `tensor1` in another way."""
    check_tensors({"tensor0": tensor0}, n_common=1)
    check_same_rows(where, tensor1, tensor0, n_common=0)
    check_shape("mask", mask, tensor0.shape[:1])
    check_device("mask", mask, tensor0.device)
    return torch.where(mask.bool().view(-1, *[1] * (tensor0.dim() - 1)), tensor1, tensor0)


def padded(tensor: torch.Tensor, n_timesteps: int) -> torch.Tensor:
    """Returns [B, T, ...] with zeros after its end, up to T: the same object if T it has."""
    missing = n_timesteps - tensor.shape[1]
    if not missing:
        return tensor
    return torch.cat([tensor, tensor.new_zeros(len(tensor), missing, *tensor.shape[2:])], dim=1)


def known_to_torch(container: Any) -> Any:
    """Lets torch.compile, torch.func and `torch.load` take a class of containers (a decorator).

    Unflatten does not check: a transformation may put anything in the place of the leaves.
    """
    pytree.register_pytree_node(
        container,
        container._flatten,
        container._unflatten,
        serialized_type_name=f"rlbatch.{container.__name__}",
        flatten_with_keys_fn=_flat_with_keys,
    )
    torch.serialization.add_safe_globals([container])
    return container


def _flat_with_keys(container: Any) -> tuple[list[tuple[Any, Any]], list[str] | None]:
    """Returns what a container's `_flatten` does, with the name of each child beside it."""
    children, keys = container._flatten()
    attributes = map(pytree.GetAttrKey, type(container).__slots__)
    names = [*attributes, *map(pytree.MappingKey, keys or ())]
    return list(zip(names, children, strict=True)), keys


def flat_from_nested(tree: Any) -> dict[str, Any]:
    """Returns the leaves of nested dicts, tuples and lists, by their paths.

    Raises:
        KeyMismatchError: Two leaves have one path.
    """
    flat: dict[str, Any] = {}
    for key, leaf in _leaves(tree, ()):
        if key in flat:
            raise KeyMismatchError(f"{key}: expected one tensor at that path, got two")
        flat[key] = leaf
    return flat


def _leaves(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        children: Iterable[tuple[Any, Any]] = tree.items()
    elif isinstance(tree, (tuple, list)):
        children = enumerate(tree)
    else:
        yield "/".join(path), tree
        return
    for name, child in children:
        yield from _leaves(child, (*path, str(name)))


def new_tensordict(nested: dict[str, Any], batch_size: list[int]) -> Any:
    """Returns a `tensordict.TensorDict` of the same tensors.

    Raises:
        ImportError: tensordict is not installed; the message says how to.
    """
    try:
        import tensordict
    except ImportError as error:
        raise ImportError(
            "to_tensordict: expected the package tensordict, got none; "
            "pip install 'rlbatch[tensordict]'"
        ) from error
    return tensordict.TensorDict(nested, batch_size=batch_size)


def _described(value: Any) -> tuple[str, str]:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__, ""
    return str(list(value.shape)), str(value.dtype).removeprefix("torch.")
