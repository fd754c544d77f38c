"""DictTensor: named tensors of one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch

from rlbatch._checks import (
    check_can_cat,
    check_is,
    check_like,
    check_rows_or_numbers,
    check_same_keys,
)
from rlbatch._interop import flat_from_nested, known_to_torch, new_tensordict
from rlbatch._named_tensors import NamedTensors
from rlbatch._rows import masked_rows, put_rows, take_rows
from rlbatch.errors import KeyMismatchError


@known_to_torch
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

        Example:
            >>> zeros, one = DictTensor({"x": torch.zeros(2)}), DictTensor({"x": torch.ones(1)})
            >>> DictTensor.cat([zeros, one])["x"]
            tensor([0., 0., 1.])
        """
        tensors = list(tensors)
        if not tensors:
            return DictTensor()
        for element in tensors:
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

        Example:
            >>> DictTensor({"frame/x": torch.zeros(2)}).to_tensordict()["frame", "x"]
            tensor([0., 0.])
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
        TypeError: One is not a DictTensor.

    Example:
        >>> old, new = DictTensor({"h": torch.zeros(2)}), DictTensor({"h": torch.ones(2)})
        >>> masked_dicttensor(old, new, torch.tensor([False, True]))["h"]
        tensor([0., 1.])
    """
    check_is("dicttensor0", dicttensor0, DictTensor)
    check_is("dicttensor1", dicttensor1, DictTensor)
    if dicttensor1.variables and not dicttensor0.variables:
        raise KeyMismatchError(
            f"masked_dicttensor: dicttensor0: expected the keys {sorted(dicttensor1)}, got none; "
            "is it a state that initial_state, or agent_state/... in a replay, did not give?"
        )
    check_same_keys("masked_dicttensor: dicttensor1", dicttensor0, dicttensor1)
    return DictTensor.unchecked(
        {key: masked_rows(key, old, dicttensor1[key], mask) for key, old in dicttensor0.items()}
    )
