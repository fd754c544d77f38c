"""TemporalDictTensor: named tensors over time, with the length of each row."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch

from rlbatch._checks import (
    check_can_cat,
    check_device,
    check_dtype,
    check_fits,
    check_is,
    check_is_tensor,
    check_lengths,
    check_not_expanded,
    check_shape,
    check_tensors,
)
from rlbatch._interop import known_to_torch, new_tensordict
from rlbatch._named_tensors import NamedTensors
from rlbatch._rows import padded, put_rows, take_places, take_rows
from rlbatch.dicttensor.dict_tensor import DictTensor
from rlbatch.errors import KeyMismatchError, ShapeError


@known_to_torch
class TemporalDictTensor(NamedTensors):
    """Named tensors `[B, T, ...]` on one device, with the length of each row.

    Args:
        from_dict: The tensors by key. The dict is copied, the tensors are not.
        lengths: [B] int64, the number of valid steps of each row; None where all T are valid, or
            for those of a TemporalDictTensor.

    Attributes:
        lengths: [B] int64, on the device of the tensors.

    Raises:
        TypeError: A value is not a tensor, or `lengths` is not int64.
        ShapeError: A tensor is not [B, T, ...] like the first, or `lengths` not [B].
        DeviceMismatchError: A tensor is on another device.
        ValueError: There are neither tensors nor `lengths`; or, on a CPU, a length is not 0 to T.

    Example:
        >>> TemporalDictTensor({"reward": torch.zeros(2, 3)}, torch.tensor([3, 1])).mask()
        tensor([[1., 1., 1.],
                [1., 0., 0.]])
    """

    __slots__ = ("lengths",)
    lengths: torch.Tensor
    _n_common = 2
    _takes_more = "steps by `temporal_slice`, `temporal_index` and `masked_select`, "

    def __init__(self, from_dict: Mapping[str, torch.Tensor], lengths: torch.Tensor | None = None):
        self.variables = dict(from_dict)
        check_tensors(self.variables, n_common=2)
        if lengths is None and isinstance(from_dict, TemporalDictTensor):
            lengths = from_dict.lengths
        if lengths is None:
            if not self.variables:
                raise ValueError("lengths: expected a tensor [B] where there are no keys, got None")
            first = next(iter(self.variables.values()))
            lengths = torch.full((len(first),), first.shape[1], device=first.device)
        check_lengths(lengths, self.variables)
        self.lengths = lengths

    @classmethod
    def unchecked(
        cls, variables: dict[str, torch.Tensor], lengths: torch.Tensor
    ) -> TemporalDictTensor:
        """Wraps tensors that are known to fit, without looking at them again."""
        new = cls.__new__(cls)
        new.variables, new.lengths = variables, lengths
        return new

    def _with(self, variables: dict[str, torch.Tensor]) -> Self:
        return self.unchecked(variables, self.lengths)  # type: ignore[return-value]

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        variables = {key: function(tensor) for key, tensor in self.variables.items()}
        return self.unchecked(variables, function(self.lengths))  # type: ignore[return-value]

    def device(self) -> torch.device:
        """Returns the device of the tensors and of `lengths`."""
        return self.lengths.device

    def n_elems(self) -> int:
        """Returns the batch size B."""
        return self.lengths.shape[0]

    def n_timesteps(self) -> int:
        """Returns T, the size of the time dimension; 0 where there are no tensors."""
        for tensor in self.variables.values():
            return tensor.shape[1]
        return 0

    def mask(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Returns [B, T]: 1 where `t < lengths[b]`, 0 on padding.

        Args:
            dtype: Of the result; `torch.bool` is what `rlbatch.returns` takes.

        Example:
            >>> steps = TemporalDictTensor({"reward": torch.ones(2, 3)}, torch.tensor([3, 1]))
            >>> (steps["reward"] * steps.mask()).sum(1)
            tensor([3., 1.])
        """
        time = torch.arange(self.n_timesteps(), device=self.device())
        return (time < self.lengths.unsqueeze(1)).to(dtype)

    def full(self) -> bool:
        """Returns whether every row has T valid steps. Waits for the device."""
        return bool((self.lengths == self.n_timesteps()).all())

    def _check_alone(self, key: str, value: torch.Tensor) -> None:
        check_tensors({key: value}, n_common=2)
        check_fits(key, value, self.lengths.shape, self.lengths.device)
        check_lengths(self.lengths, {key: value})

    def shorten(self) -> TemporalDictTensor:
        """Cuts T down to the longest row (views, with a copy of the lengths).

        Example:
            >>> steps = TemporalDictTensor({"reward": torch.ones(2, 9)}, torch.tensor([3, 1]))
            >>> steps.shorten().n_timesteps()
            3
        """
        longest = int(self.lengths.max()) if self.n_elems() else 0
        variables = {key: tensor[:, :longest] for key, tensor in self.items()}
        return self.unchecked(variables, self.lengths.clone())

    def temporal_slice(self, index_from: int, index_to: int) -> TemporalDictTensor:
        """Returns the steps from `index_from` up to, not including, `index_to`.

        The tensors are views, the lengths (those of the parts that remain) a copy.

        Raises:
            ValueError: Not `0 <= index_from <= index_to`. Steps past T are not there and not
                an error, as in slices of a tensor.

        Example:
            >>> steps = TemporalDictTensor({"reward": torch.ones(2, 3)}, torch.tensor([3, 1]))
            >>> steps.temporal_slice(1, 3).lengths
            tensor([2, 0])
        """
        if not 0 <= index_from <= index_to:
            raise ValueError(f"index: expected 0 <= from <= to, got {index_from}, {index_to}")
        variables = {key: tensor[:, index_from:index_to] for key, tensor in self.items()}
        return self.unchecked(
            variables, (self.lengths - index_from).clamp(0, index_to - index_from)
        )

    def temporal_index(self, index_t: int) -> DictTensor:
        """Returns the step `index_t` of all rows, padding included (views).

        One integer; negative counts from the end of T, not from the end of each row.

        Example:
            >>> reward = torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]])
            >>> TemporalDictTensor({"reward": reward}).temporal_index(0)["reward"]
            tensor([1., 4.])
        """
        index_t = operator.index(index_t)
        return DictTensor.unchecked({key: tensor[:, index_t] for key, tensor in self.items()})

    def temporal_multi_index(self, index_t: torch.Tensor) -> DictTensor:
        """Returns one step of each row (a copy).

        Args:
            index_t: [B] int64, the step to take from each row; negative counts from the end of T.
                What is past the end of a row is padding: also `lengths - 1` of one without steps.

        Raises:
            DtypeMismatchError: `index_t` is not int64.
            ShapeError: It is not [B].
            DeviceMismatchError: It is not on the device of the tensors.

        Example:
            >>> reward = torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]])
            >>> steps = TemporalDictTensor({"reward": reward}, torch.tensor([3, 1]))
            >>> steps.temporal_multi_index(steps.lengths - 1)["reward"]  # The last of each row.
            tensor([3., 4.])
        """
        check_shape("index_t", index_t, self.lengths.shape)
        check_dtype("index_t", index_t, torch.int64)
        check_device("index_t", index_t, self.device())
        rows = torch.arange(self.n_elems(), device=self.device())
        return DictTensor.unchecked(
            {key: take_places(tensor, (rows, index_t)) for key, tensor in self.items()}
        )

    def masked_temporal_index(self, index_t: int) -> tuple[DictTensor, torch.Tensor]:
        """Returns the step `index_t` of the rows that are that long (a copy), and their numbers.

        Returns:
            A DictTensor [N, ...] and an int64 tensor [N] of rows of this container.

        Raises:
            IndexError: `index_t` is negative, or T or more.

        Example:
            >>> reward = torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]])
            >>> steps = TemporalDictTensor({"reward": reward}, torch.tensor([3, 1]))
            >>> step, rows = steps.masked_temporal_index(1)
            >>> step["reward"], rows
            (tensor([2.]), tensor([0]))
        """
        if index_t < 0:
            raise IndexError(f"index_t: expected an integer >= 0, got {index_t}")
        rows = (self.lengths > index_t).nonzero().squeeze(1)
        return self.temporal_index(index_t).index(rows), rows

    def masked_select(self, mask: torch.Tensor | None = None) -> DictTensor:
        """Returns the steps that a mask picks, row after row (a copy). Waits for the device.

        Args:
            mask: [B, T] bool; None for all steps that are no padding.

        Returns:
            [N, ...], where N is how many it picks.

        Raises:
            TypeError: It is not a tensor.
            ShapeError: It is not [B, T].
            DtypeMismatchError: It is not bool.
            DeviceMismatchError: It is not on the device of the tensors.

        Example:
            >>> reward = torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]])
            >>> steps = TemporalDictTensor({"reward": reward}, torch.tensor([3, 1]))
            >>> steps.masked_select()["reward"]
            tensor([1., 2., 3., 4.])
            >>> steps.masked_select(steps["reward"] > 2)["reward"]
            tensor([3., 4.])
        """
        if mask is None:
            mask = self.mask(torch.bool)
        check_is_tensor("mask", mask)
        check_shape("mask", mask, (self.n_elems(), self.n_timesteps()))
        check_dtype("mask", mask, torch.bool)
        check_device("mask", mask, self.device())
        places = mask.flatten().nonzero().squeeze(1)
        return DictTensor.unchecked(
            {key: take_rows(tensor.flatten(0, 1), places) for key, tensor in self.items()}
        )

    @staticmethod
    def cat(tensors: Iterable[TemporalDictTensor]) -> TemporalDictTensor:
        """Joins containers along the batch dimension (a copy); shorter ones are padded with 0.

        Raises:
            ValueError: There is nothing to join.
            KeyMismatchError: One has not the keys of the first; the message names the key.
            DtypeMismatchError: A dtype differs; it would be cast silently.
            DeviceMismatchError: A device differs.
            ShapeError: The shape of one step differs.
            TypeError: One is something else.

        Example:
            >>> parts = [TemporalDictTensor({"reward": torch.ones(1, t)}) for t in (3, 1)]
            >>> TemporalDictTensor.cat(parts)["reward"]
            tensor([[1., 1., 1.],
                    [1., 0., 0.]])
        """
        tensors = list(tensors)
        if not tensors:
            raise ValueError("TemporalDictTensor.cat: expected at least one element, got none")
        for element in tensors:
            check_is("cat", element, TemporalDictTensor)
        check_can_cat([element.variables for element in tensors], n_common=2)
        n_timesteps = max(element.n_timesteps() for element in tensors)
        variables = {
            key: torch.cat([padded(element[key], n_timesteps) for element in tensors])
            for key in tensors[0]
        }
        return TemporalDictTensor.unchecked(variables, torch.cat([e.lengths for e in tensors]))

    def expand(self, new_batch_size: int) -> TemporalDictTensor:
        """Adds rows of length 0, filled with 0, up to a batch size (a copy).

        Raises:
            ValueError: There are more rows already.

        Example:
            >>> TemporalDictTensor({"reward": torch.ones(1, 3)}).expand(2).lengths
            tensor([3, 0])
        """
        n_new = new_batch_size - self.n_elems()
        if n_new < 0:
            raise ValueError(
                f"new_batch_size: expected at least {self.n_elems()}, got {new_batch_size}"
            )
        return self._map(
            lambda tensor: torch.cat([tensor, tensor.new_zeros(n_new, *tensor.shape[1:])])
        )

    def _write(
        self, source: TemporalDictTensor, rows: torch.Tensor, destination_rows: torch.Tensor
    ) -> None:
        lengths = source.lengths.index_select(0, rows)
        longest = int(lengths.max()) if lengths.numel() else 0
        if longest > self.n_timesteps():
            raise ShapeError(
                f"source: expected rows of at most {self.n_timesteps()} steps, got {longest}"
            )
        check_not_expanded("lengths", self.lengths)
        for key, tensor in self.items():
            steps = take_rows(source[key][:, :longest], rows)
            put_rows(tensor[:, :longest], destination_rows, steps)
        self.lengths[destination_rows] = lengths

    def to_tensordict(self) -> Any:
        """Returns a `tensordict.TensorDict` of batch size [B], nested at each `/` (no copies).

        The lengths are its entry `lengths`.

        Raises:
            ImportError: tensordict is not installed (`pip install rlbatch[tensordict]`).
            KeyMismatchError: A key is (or is below) `lengths`.
        """
        nested = self.to_nested()
        if "lengths" in nested:
            raise KeyMismatchError("lengths: expected a key of another name, got one that clashes")
        nested["lengths"] = self.lengths
        return new_tensordict(nested, [self.n_elems()])

    @staticmethod
    def from_tensordict(source: Any) -> TemporalDictTensor:
        """Builds a TemporalDictTensor of the same tensors, the inverse of `to_tensordict`."""
        variables = dict(source.flatten_keys("/").items())
        return TemporalDictTensor(variables, lengths=variables.pop("lengths", None))

    def _title(self) -> str:
        n_elems, n_timesteps = self.n_elems(), self.n_timesteps()
        return f"n_elems={n_elems}, n_timesteps={n_timesteps}, device={self.device()}"

    def _flatten(self) -> tuple[list[Any], list[str]]:
        return [self.lengths, *self.variables.values()], list(self.variables)

    @classmethod
    def _unflatten(cls, leaves: Iterable[Any], keys: list[str]) -> TemporalDictTensor:
        lengths, *values = leaves
        return cls.unchecked(dict(zip(keys, values, strict=True)), lengths)
