"""What DictTensor and TemporalDictTensor share: a dict of tensors, read by key, cut by row."""

from __future__ import annotations

import difflib
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch

from rlbatch._checks import (
    check_is,
    check_is_tensor,
    check_like,
    check_not_expanded,
    check_same_rows,
    check_shape,
)
from rlbatch._rows import check_different, check_rows, rows_of, take_rows
from rlbatch.devices import DeviceLike, as_device, as_present_device
from rlbatch.errors import KeyMismatchError

Index = torch.Tensor | int | list[int]
AnyTensors = TypeVar("AnyTensors", bound="NamedTensors")

_CPU = torch.device("cpu")


class NamedTensors:
    """The base of DictTensor and TemporalDictTensor; not for use on its own.

    Attributes:
        variables: The tensors by key.
    """

    __slots__ = ("variables",)
    variables: dict[str, torch.Tensor]
    _n_common: ClassVar[int]  # How many leading dimensions all tensors share.
    _takes_more: ClassVar[str] = ""  # What else is taken otherwise than by brackets.

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
        except (KeyError, TypeError):  # The latter of what has no hash, such as a list.
            raise KeyMismatchError(self._no_such(key)) from None

    def _no_such(self, key: Any) -> str:
        if not isinstance(key, str):
            return (
                f"key: expected a string, got {type(key).__name__}; rows are taken by `slice` and "
                f"`index`, {self._takes_more}several keys by `get`"
            )
        hint = ""
        if not self.variables:
            hint = (
                "; is it an agent_info or a state that was not given, or an observation that was "
                "not kept?"
            )
        elif close := difflib.get_close_matches(key, self):
            hint = f"; closest: {', '.join(close)}"
        return f"key: expected one of {list(self)}, got {key!r}{hint}"

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

        Args:
            prefix: With the slash at its end, where it names a folder.

        Raises:
            KeyMismatchError: A key would begin with a slash, or be empty.

        Example:
            >>> from rlbatch import DictTensor
            >>> step = DictTensor({"observation/frame": torch.zeros(2, 4)})
            >>> list(step.truncate_key("observation/"))
            ['frame']
        """
        size = len(prefix)
        rest = {key[size:]: v for key, v in self.items() if key.startswith(prefix)}
        for key in rest:
            if prefix and (not key or key.startswith("/")):
                raise KeyMismatchError(
                    f"prefix: expected one after which a name is left, such as 'observation/', got "
                    f"{prefix!r} of the key {prefix + key!r}"
                )
        return self._with(rest)

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
            RuntimeError: PyTorch is out of memory.

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
                check_rows(index, self.n_elems())  # Only now, as looking takes time.
            raise

    def set(self, key: str, value: torch.Tensor) -> None:
        """Adds a tensor, or puts it in the place of another (no copy).

        Raises:
            TypeError: It is not a tensor.
            ShapeError: It has not the B (and T) of the others.
            DeviceMismatchError: It is not on their device.
            ValueError: It is the first tensor beside `lengths`, one of which is more than its T
                (looked at on a CPU only).

        Example:
            >>> from rlbatch import DictTensor
            >>> step = DictTensor({"reward": torch.zeros(2)})
            >>> step.set("done", torch.zeros(2, 1))  # Or step["done"] = torch.zeros(2, 1).
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

    def __setitem__(self, key: str, value: torch.Tensor) -> None:
        """Does what `set` does."""
        self.set(key, value)

    def copy_(
        self, source: Self, source_indexes: torch.Tensor, destination_indexes: torch.Tensor
    ) -> None:
        """Writes rows of another container into rows of this one, in this one's memory.

        Where there are lengths it writes them too, and waits for the device: no row of the source
        may be longer than T here. What a row held past the longest of the new ones stays there, as
        padding. Nothing is written where it raises one of the errors below.

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
            IndexError: There is no such row. Not checked for an index on a GPU.
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
            check_rows(source_indexes, source.n_elems())
            check_rows(destination_indexes, self.n_elems())
            check_different(destination_indexes, self.n_elems())
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
    there = {_memory_of(one) for other in others for one in other.values()}
    return tensors._map(lambda one: one.clone() if _memory_of(one) in there else one)


def _memory_of(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except NotImplementedError:  # torch.func has wrapped it.
        return _memory_of(torch._C._functorch.get_unwrapped(tensor))


def _described(value: Any) -> tuple[str, str]:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__, ""
    return str(list(value.shape)), str(value.dtype).removeprefix("torch.")
