"""Named tensors with a common batch dimension, over one step or over time.

- `DictTensor`: tensors `[B, ...]`.
- `TemporalDictTensor`: tensors `[B, T, ...]` and `lengths [B]`; entries at `t >= lengths[b]` are
  padding.
- `Trajectories`: what a batcher returns, `info` (one row per trajectory) and `trajectories`.

Memory: a method returns a *copy*, a *view* (new tensors over the same bytes) or the *same
object*, and its docstring says which. A container never keeps the dict it was given. Nothing is
cast: the dtype that went in comes out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch
from torch.utils import _pytree as pytree

from rlbatch._checks import (
    check_can_cat,
    check_device,
    check_dtype,
    check_fits,
    check_is,
    check_lengths,
    check_like,
    check_rows_or_numbers,
    check_same_keys,
    check_shape,
    check_tensors,
)
from rlbatch._named_tensors import (
    Index,
    NamedTensors,
    flat_from_nested,
    flat_with_keys,
    masked_rows,
    new_tensordict,
    padded,
    put_rows,
    take_places,
    take_rows,
)
from rlbatch.errors import DeviceLike, DeviceMismatchError, KeyMismatchError, ShapeError, as_device


def masked_dicttensor(
    dicttensor0: DictTensor, dicttensor1: DictTensor, mask: torch.Tensor
) -> DictTensor:
    """Applies `masked_tensor` to every key: rows of `dicttensor1` where the mask is set.

    Args:
        dicttensor0: [B, ...] under each key.
        dicttensor1: The same keys, shapes and dtypes.
        mask: [B], bool or a number; any value but 0 is set.

    Returns:
        A copy.

    Raises:
        KeyMismatchError: The keys differ.
        ShapeError: A shape differs, or the mask is not [B].
        DtypeMismatchError: A dtype differs.
        DeviceMismatchError: A device differs.
        TypeError: One is a TemporalDictTensor.
    """
    _check_has_no_lengths("dicttensor0", dicttensor0)
    _check_has_no_lengths("dicttensor1", dicttensor1)
    check_same_keys("dicttensor1", dicttensor0, dicttensor1)
    return DictTensor.unchecked(
        {key: masked_rows(key, old, dicttensor1[key], mask) for key, old in dicttensor0.items()}
    )


class DictTensor(NamedTensors):
    """Named tensors `[B, ...]` on one device; or named numbers, such as the parts of a loss.

    Args:
        v: The tensors by key; None for an empty one. The dict is copied, the tensors are not.

    Raises:
        TypeError: A value is not a tensor.
        ShapeError: A tensor has another batch size than the first, or only one of them has none.
        DeviceMismatchError: A tensor is on another device than the first.

    Example:
        >>> DictTensor({"frame": torch.zeros(2, 4), "reward": torch.zeros(2)})
        DictTensor(n_elems=2, device=cpu)
          frame   [2, 4]  float32
          reward  [2]     float32
    """

    __slots__ = ()
    _n_common = 1

    def __init__(self, v: Mapping[str, torch.Tensor] | None = None):
        self.variables = {} if v is None else dict(v)
        check_rows_or_numbers(self.variables)

    @classmethod
    def unchecked(cls, variables: dict[str, torch.Tensor]) -> DictTensor:
        """Wraps a dict of tensors that is known to fit, without a look or a copy of the dict.

        For code that makes one per step; everybody else calls the constructor.
        """
        new = cls.__new__(cls)
        new.variables = variables
        return new

    def _with(self, variables: dict[str, torch.Tensor]) -> Self:
        return self.unchecked(variables)  # type: ignore[return-value]

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        return self._with({key: function(tensor) for key, tensor in self.variables.items()})

    def device(self) -> torch.device | None:
        """Returns the device of the tensors, None where there are none."""
        for tensor in self.variables.values():
            return tensor.device
        return None

    def _check_alone(self, key: str, value: torch.Tensor) -> None:
        check_rows_or_numbers({key: value})

    def n_elems(self) -> int:
        """Returns the batch size B; 0 where there are no tensors, or only numbers."""
        for tensor in self.variables.values():
            return tensor.shape[0] if tensor.dim() else 0
        return 0

    @staticmethod
    def cat(tensors: Iterable[DictTensor]) -> DictTensor:
        """Joins containers along the batch dimension (a copy).

        Raises:
            KeyMismatchError: One has not the keys of the first; the message names the key.
            DtypeMismatchError: A dtype differs; it would be cast silently.
            DeviceMismatchError: A device differs.
            ShapeError: The shape of one row differs, or there are numbers in the place of rows.
            TypeError: One is a TemporalDictTensor, or no container.
        """
        tensors = list(tensors)
        if not tensors:
            return DictTensor()
        for element in tensors:
            _check_has_no_lengths("cat", element)
            check_is("cat", element, DictTensor)
        parts = [element.variables for element in tensors]
        check_can_cat(parts, n_common=1)
        return DictTensor.unchecked({key: torch.cat([p[key] for p in parts]) for key in parts[0]})

    def __add__(self, other: DictTensor) -> DictTensor:
        """Returns a container of the tensors of both (the same tensors, no copies).

        Raises:
            KeyMismatchError: A key is in both.
            ShapeError: The batch sizes differ.
            DeviceMismatchError: The devices differ.
        """
        if not isinstance(other, DictTensor):
            return NotImplemented
        for key in other:
            if key in self.variables:
                raise KeyMismatchError(f"{key}: expected a key of one operand, got it in both")
        if self.variables and other.variables:
            key, tensor = next(iter(other.items()))
            beside, like = next(iter(self.items()))
            check_like(key, tensor, like, n_common=1, beside=beside)
        return self._with({**self.variables, **other.variables})

    def _write(
        self, source: DictTensor, rows: torch.Tensor, destination_rows: torch.Tensor
    ) -> None:
        for key, tensor in self.items():
            put_rows(tensor, destination_rows, take_rows(source[key], rows))

    @staticmethod
    def from_nested(tree: Any) -> DictTensor:
        """Builds a DictTensor from nested dicts, tuples and lists of tensors (no copies).

        The path becomes the key: `{"a": {"b": x}, "c": (y,)}` has the keys `a/b` and `c/0`.

        Example:
            >>> list(DictTensor.from_nested({"a": {"b": torch.zeros(1)}, "c": (torch.ones(1),)}))
            ['a/b', 'c/0']

        Raises:
            TypeError: A leaf is not a tensor.
            KeyMismatchError: Two paths make one key, as do `{"a/b": x, "a": {"b": y}}`.
        """
        return DictTensor(flat_from_nested(tree))

    def to_tensordict(self) -> Any:
        """Returns a `tensordict.TensorDict` of the same tensors, nested at each `/`.

        Raises:
            ImportError: tensordict is not installed (`pip install rlbatch[tensordict]`).
        """
        has_rows = all(tensor.dim() for tensor in self.variables.values())
        return new_tensordict(self.to_nested(), [self.n_elems()] if has_rows else [])

    @staticmethod
    def from_tensordict(source: Any) -> DictTensor:
        """Builds a DictTensor of the same tensors; nested keys are joined with `/`."""
        return DictTensor(dict(source.flatten_keys("/").items()))

    def _flatten(self) -> tuple[list[Any], list[str]]:
        return list(self.variables.values()), list(self.variables)

    @classmethod
    def _unflatten(cls, leaves: Iterable[Any], keys: list[str]) -> DictTensor:
        return cls.unchecked(dict(zip(keys, leaves, strict=True)))


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
        """
        time = torch.arange(self.n_timesteps(), device=self.device())
        return (time < self.lengths.unsqueeze(1)).to(dtype)

    def full(self) -> bool:
        """Returns whether every row has T valid steps. Waits for the device."""
        return bool((self.lengths == self.n_timesteps()).all())

    def _check_alone(self, key: str, value: torch.Tensor) -> None:
        check_tensors({key: value}, n_common=2)
        check_fits(key, value, self.lengths.shape, self.lengths.device)

    def shorten(self) -> TemporalDictTensor:
        """Cuts T down to the longest row (views, with a copy of the lengths)."""
        longest = int(self.lengths.max()) if self.n_elems() else 0
        variables = {key: tensor[:, :longest] for key, tensor in self.items()}
        return self.unchecked(variables, self.lengths.clone())

    def temporal_slice(self, index_from: int, index_to: int) -> TemporalDictTensor:
        """Returns the steps from `index_from` up to, not including, `index_to`.

        The tensors are views, the lengths (those of the parts that remain) a copy.

        Raises:
            ValueError: Not `0 <= index_from <= index_to`. Steps past T are not there and not
                an error, as in slices of a tensor.
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
        """
        index_t = operator.index(index_t)
        return DictTensor.unchecked({key: tensor[:, index_t] for key, tensor in self.items()})

    def temporal_multi_index(self, index_t: torch.Tensor) -> DictTensor:
        """Returns one step of each row (a copy).

        Args:
            index_t: [B] int64, the step to take from each row; negative counts from the end of T.

        Raises:
            DtypeMismatchError: `index_t` is not int64.
            ShapeError: It is not [B].
            DeviceMismatchError: It is not on the device of the tensors.
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
        """
        if index_t < 0:
            raise IndexError(f"index_t: expected an integer >= 0, got {index_t}")
        rows = (self.lengths > index_t).nonzero().squeeze(1)
        return self.temporal_index(index_t).index(rows), rows

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


class Trajectories:
    """A batch of trajectories.

    Args:
        info: One row per trajectory; from a batcher `agent_info/...`, `env_info/...`,
            `agent_state/...` at its first step, `env_id` and `policy_version`. May be empty.
        trajectories: `observation/...`, `action/...`, `_observation/...` per step.

    Raises:
        TypeError: `info` is not a DictTensor, or `trajectories` not a TemporalDictTensor.
        DeviceMismatchError: The two are not on one device.
        ShapeError: They have not the same number of rows.
    """

    __slots__ = ("info", "trajectories")

    def __init__(self, info: DictTensor, trajectories: TemporalDictTensor):
        _check_has_no_lengths("info", info)
        check_is("info", info, DictTensor)
        check_is("trajectories", trajectories, TemporalDictTensor)
        if not info.empty():
            if info.device() != trajectories.device():
                raise DeviceMismatchError("info", trajectories.device(), info.device())
            if info.n_elems() != trajectories.n_elems():
                raise ShapeError(
                    f"info: expected {trajectories.n_elems()} rows, got {info.n_elems()}"
                )
        self.info = info
        self.trajectories = trajectories

    def device(self) -> torch.device:
        """Returns the device of all tensors."""
        return self.trajectories.device()

    def n_elems(self) -> int:
        """Returns the number of trajectories, B."""
        return self.trajectories.n_elems()

    def to(self, device: DeviceLike, non_blocking: bool = False) -> Trajectories:
        """Moves everything to a device; the same object where it is there already.

        See `DictTensor.to` for `non_blocking`.
        """
        if as_device(device) == self.device():
            return self
        return Trajectories(
            self.info.to(device, non_blocking), self.trajectories.to(device, non_blocking)
        )

    def clone(self) -> Trajectories:
        """Returns a copy of every tensor."""
        return Trajectories(self.info.clone(), self.trajectories.clone())

    def pin_memory(self) -> Trajectories:
        """Returns a copy in page-locked memory. Needs CUDA."""
        return Trajectories(self.info.pin_memory(), self.trajectories.pin_memory())

    def index(self, index: Index) -> Trajectories:
        """Returns some of the trajectories; see `DictTensor.index`."""
        return Trajectories(self.info.index(index), self.trajectories.index(index))

    def sample(self, n: int, generator: torch.Generator | None = None) -> Trajectories:
        """Returns `n` different trajectories, drawn uniformly (a copy).

        Args:
            n: How many.
            generator: What draws them; None for torch's global one on the CPU.

        Raises:
            ValueError: There are fewer than `n`.
        """
        if not 0 <= n <= self.n_elems():
            raise ValueError(f"n: expected 0 to {self.n_elems()} trajectories, got {n}")
        device = generator.device if generator else "cpu"
        return self.index(torch.randperm(self.n_elems(), generator=generator, device=device)[:n])

    @staticmethod
    def cat(trajectories: Iterable[Trajectories]) -> Trajectories:
        """Joins batches of trajectories (a copy); see `TemporalDictTensor.cat`."""
        trajectories = list(trajectories)
        return Trajectories(
            DictTensor.cat(batch.info for batch in trajectories),
            TemporalDictTensor.cat(batch.trajectories for batch in trajectories),
        )

    def to_tensordict(self) -> Any:
        """Returns a `tensordict.TensorDict` [B] with `info` and `trajectories` (no copies).

        Raises:
            ImportError: tensordict is not installed (`pip install rlbatch[tensordict]`).
            KeyMismatchError: A key of the trajectories is (or is below) `lengths`.
        """
        parts = {
            "info": self.info.to_nested(),
            "trajectories": self.trajectories.to_tensordict(),
        }
        return new_tensordict(parts, [self.n_elems()])

    @staticmethod
    def from_tensordict(source: Any) -> Trajectories:
        """Builds Trajectories of the same tensors, the inverse of `to_tensordict`.

        Raises:
            KeyMismatchError: There is more beside `info` and `trajectories`, or one is missing.
        """
        check_same_keys("from_tensordict", ("info", "trajectories"), source.keys())
        return Trajectories(
            DictTensor.from_tensordict(source["info"]),
            TemporalDictTensor.from_tensordict(source["trajectories"]),
        )

    def __repr__(self) -> str:
        info = repr(self.info).replace("\n", "\n  ")
        trajectories = repr(self.trajectories).replace("\n", "\n  ")
        return f"Trajectories\n  info: {info}\n  trajectories: {trajectories}"

    def _flatten(self) -> tuple[list[Any], None]:
        return [self.info, self.trajectories], None

    @classmethod
    def _unflatten(cls, children: Iterable[Any], _: None) -> Trajectories:
        new = cls.__new__(cls)
        new.info, new.trajectories = children
        return new


def _check_has_no_lengths(where: str, container: DictTensor) -> None:
    """Checks that a container has no lengths, which would be lost.

    Raises:
        TypeError: It has.
    """
    if isinstance(container, TemporalDictTensor):
        raise TypeError(f"{where}: expected a DictTensor, got a TemporalDictTensor")


# torch.compile, torch.func and friends take the containers. Unflatten does not check: a
# transformation may put anything in the place of the leaves.
for _type in (DictTensor, TemporalDictTensor, Trajectories):
    _name = f"rlbatch.{_type.__name__}"
    _functions = _type._flatten, _type._unflatten
    pytree.register_pytree_node(
        _type, *_functions, serialized_type_name=_name, flatten_with_keys_fn=flat_with_keys
    )
# `torch.load` reads what `torch.save` has written of them, without `weights_only=False`.
torch.serialization.add_safe_globals([DictTensor, TemporalDictTensor, Trajectories])
