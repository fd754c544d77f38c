"""Checks of arguments and tensors: each error names where, what was expected and what was found.

They know tensors and dicts of tensors, not the containers themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlbatch.errors import DeviceMismatchError, DtypeMismatchError, KeyMismatchError, ShapeError

Tensors = Mapping[str, Tensor]


def check_integer(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Checks that a value is an integer from a range.

    Raises:
        TypeError: It is not an integer; a bool does not count as one.
        ValueError: It is too small or too large.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if value < least or (most is not None and value > most):
        wanted = f"at least {least}" if most is None else f"an integer from {least} to {most}"
        raise ValueError(f"{name}: expected {wanted}, got {value}")


def check_number(name: str, value: Any, least: float, most: float) -> None:
    """Checks that a value is a number from a range.

    Raises:
        TypeError: It is not a number.
        ValueError: It is too small or too large, or not a number (NaN).
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name}: expected a number from {least} to {most}, got {value!r}")


def check_bool(name: str, value: Any) -> None:
    """Checks that a value is True or False.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected a bool, got {value!r}")


def as_float(name: str, value: Any) -> float:
    """Returns a number, such as one of NumPy's or a tensor of one, as Python's.

    Raises:
        TypeError: It is not a number.
    """
    if not isinstance(value, (str, bytes)):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # Of PyTorch for several.
            return float(value)
    raise TypeError(f"{name}: expected a number, got {value!r}")


def check_not_expanded(name: str, tensor: Tensor) -> None:
    """Checks that a tensor can be written to, element by element.

    Raises:
        ShapeError: Elements share memory, as those of an expanded tensor do.
    """
    strides = tensor.stride()
    # The strides of NumPy's arrays without elements are 0 as well.
    if (
        0 in strides
        and tensor.numel()
        and any(n > 1 and not s for n, s in zip(tensor.shape, strides, strict=True))
    ):
        raise ShapeError(f"{name}: expected memory for every element, got an expanded tensor")


def check_is(where: str, found: Any, kind: type) -> None:
    """Checks that something is of a class.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(found, kind):
        raise TypeError(f"{where}: expected a {kind.__name__}, got a {type(found).__name__}")


def check_tensors(variables: Tensors, n_common: int) -> None:
    """Checks that the first `n_common` (1 or 2) dimensions and the device agree over all tensors.

    Raises:
        TypeError: A value is not a tensor.
        ShapeError: A tensor has fewer dimensions than that, or other sizes than the first.
        DeviceMismatchError: A tensor is on another device than the first.
    """
    items = iter(variables.items())
    for key, first in items:
        check_is_tensor(key, first)
        if first.dim() < n_common:
            wanted = ("[B, ...]", "[B, T, ...]")[n_common - 1]
            raise ShapeError(f"{key}: expected shape {wanted}, got {tuple(first.shape)}")
        common, device = first.shape[:n_common], first.device
        batch_size = common[0]
        # Every tensor of a rollout passes here; calling check_like would take half as long again.
        for other, tensor in items:
            if type(other) is str and isinstance(tensor, Tensor) and tensor.device == device:
                shape = tensor.shape
                if shape and shape[0] == batch_size and (n_common == 1 or shape[:2] == common):
                    continue
            check_fits(other, tensor, common, device, beside=key)


def check_rows_or_numbers(variables: Tensors) -> None:
    """Checks that all tensors have one batch size, or that all are numbers; and the device.

    Raises:
        TypeError: A value is not a tensor.
        ShapeError: A tensor has another batch size than the first, or only one of them has none.
        DeviceMismatchError: A tensor is on another device than the first.
    """
    # With one argument: PyTorch 2.8 compiles no other.
    first = next(iter(variables.values())) if variables else None
    if not isinstance(first, Tensor) or first.dim():
        check_tensors(variables, n_common=1)
        return
    beside = next(iter(variables))
    for key, tensor in variables.items():
        check_fits(key, tensor, (), first.device, beside)


def check_like(key: str, tensor: Tensor, like: Tensor, n_common: int, beside: str) -> None:
    """Checks one tensor against another: type, first `n_common` (1 or 2) dimensions, device.

    See `check_fits` for `beside`, the name of the other.

    Raises:
        TypeError: It is not a tensor.
        ShapeError: It has other leading dimensions.
        DeviceMismatchError: It is on another device.
    """
    if type(key) is str and isinstance(tensor, Tensor) and tensor.device == like.device:
        found, wanted = tensor.shape, like.shape  # Slicing both takes longer than all the rest.
        if (
            found
            and wanted
            and found[0] == wanted[0]
            and (n_common == 1 or found[:2] == wanted[:2])
        ):
            return
    check_fits(key, tensor, like.shape[:n_common], like.device, beside)


def check_is_tensor(key: str, value: Any) -> None:
    """Checks the types of a key and its value.

    Raises:
        TypeError: The key is not a string, or the value not a tensor.
    """
    if not isinstance(key, str):
        raise TypeError(f"{key!r}: expected a string as the key, got {type(key).__name__}")
    if not isinstance(value, Tensor):
        raise TypeError(f"{key}: expected a tensor, got {type(value).__name__}")


def check_fits(
    key: str,
    tensor: Tensor,
    common: Sequence[int],
    device: torch.device | None,
    beside: str | None = None,
) -> None:
    """Checks one tensor against the leading dimensions and the device of the others.

    Args:
        key: The name of the tensor.
        tensor: What is checked.
        common: The sizes of the leading dimensions.
        device: Where it has to be.
        beside: The name of another, which has these; either may be the wrong one.

    Raises:
        TypeError: It is not a tensor.
        ShapeError: It has other leading dimensions.
        DeviceMismatchError: It is on another device.
    """
    check_is_tensor(key, tensor)
    shape = tuple(tensor.shape)
    if shape[: len(common)] != tuple(common) or (shape and not common):
        wanted = f"[{', '.join(str(size) for size in common)}, ...]" if common else "()"
        wanted += f", as {beside}," if beside else ","
        raise ShapeError(f"{key}: expected shape {wanted} got {shape}")
    if tensor.device != device:
        raise DeviceMismatchError(key, device, tensor.device, beside=beside)


def check_shape(where: str, tensor: Tensor, shape: Sequence[int]) -> None:
    """Checks the whole shape of a tensor.

    Raises:
        TypeError: It is not a tensor.
        ShapeError: It has another shape.
    """
    check_is_tensor(where, tensor)
    if tensor.shape != tuple(shape):
        raise ShapeError(f"{where}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}")


def check_dtype(where: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Checks the dtype of a tensor.

    Raises:
        DtypeMismatchError: It has another dtype.
    """
    if tensor.dtype != dtype:
        raise DtypeMismatchError(f"{where}: expected {dtype}, got {tensor.dtype}")


def check_device(
    where: str, tensor: Tensor, device: torch.device | None, stage: str | None = None
) -> None:
    """Checks the device of a tensor.

    Raises:
        DeviceMismatchError: It is on another.
    """
    if tensor.device != device:
        raise DeviceMismatchError(where, device, tensor.device, stage)


def check_lengths(lengths: Tensor, variables: Tensors) -> None:
    """Checks the lengths of tensors [B, T, ...].

    Raises:
        TypeError: They are not an int64 tensor.
        ShapeError: They are not [B].
        DeviceMismatchError: They are on another device.
        ValueError: One is not from 0 to T; looked at on a CPU only, where that waits for nothing.
    """
    check_tensors({"lengths": lengths}, n_common=1)
    check_dtype("lengths", lengths, torch.int64)
    first = next(iter(variables.values())) if variables else lengths
    check_device("lengths", lengths, first.device)
    check_shape("lengths", lengths, first.shape[:1])
    if not variables or not len(lengths) or not lengths.is_cpu or torch.compiler.is_compiling():
        return
    least, most = lengths.aminmax()
    if least < 0 or most > first.shape[1]:
        found = least if least < 0 else most
        raise ValueError(f"lengths: expected 0 to {first.shape[1]} steps, got {found}")


def check_same_keys(where: str, expected: Iterable[str], found: Iterable[str]) -> None:
    """Checks that there are the same keys on both sides, in any order.

    Raises:
        KeyMismatchError: Some are missing or too many.
    """
    wanted, there = set(expected), set(found)
    if wanted != there:
        missing, unexpected = sorted(wanted - there), sorted(there - wanted)
        raise KeyMismatchError(
            f"{where}: expected the keys {sorted(wanted)}, got {sorted(there)} "
            f"(missing {missing}, unexpected {unexpected})"
        )


def check_has_keys(where: str, expected: Iterable[str], found: Iterable[str]) -> None:
    """Checks that keys are there, among others maybe.

    Raises:
        KeyMismatchError: One is missing.
    """
    there = list(found)
    if any(key not in there for key in expected):
        raise KeyMismatchError(f"{where}: expected the keys {list(expected)}, got {there}")


def check_can_cat(elements: Sequence[Tensors], n_common: int) -> None:
    """Checks that tensors may be joined without a loss: keys, devices, dtypes and row shapes.

    Raises:
        KeyMismatchError: An element has not the keys of the first.
        DtypeMismatchError: A dtype differs.
        ShapeError: A shape differs beyond its first `n_common` dimensions, or there are no rows
            but numbers.
        DeviceMismatchError: A device differs.
    """
    first = elements[0]
    of_first = {key: (tensor, tensor.shape, tensor.dtype) for key, tensor in first.items()}
    for key, (_, shape, _) in of_first.items():  # All of an element are numbers, or none is.
        if not shape:
            raise ShapeError(f"cat: {key}: expected shape [B, ...], got ()")
        break
    for number, element in enumerate(elements[1:], start=1):
        if element.keys() != first.keys():
            check_same_keys(f"cat: element {number}", first, element)
        for key, (tensor, shape, dtype) in of_first.items():
            other = element[key]
            if other.dtype is not dtype or other.shape != shape:
                check_same_rows(f"cat: {key} of element {number}", other, tensor, n_common)
        for key, tensor in first.items():  # All of an element are on one device.
            check_device(f"cat: {key} of element {number}", element[key], tensor.device)
            break


def check_same_rows(
    where: str, tensor: Tensor, like: Tensor, n_common: int, stage: str | None = None
) -> None:
    """Checks that rows of one tensor can stand among rows of another.

    Raises:
        DtypeMismatchError: The dtype differs.
        ShapeError: The shape differs beyond its first `n_common` dimensions.
        DeviceMismatchError: The device differs.
    """
    found, wanted = tuple(tensor.shape)[n_common:], tuple(like.shape)[n_common:]
    full = f"{stage}: {where}" if stage else where
    if found != wanted:
        what = ("shape", "rows of shape", "steps of shape")[n_common]
        raise ShapeError(f"{full}: expected {what} {wanted}, got {found}")
    check_dtype(full, tensor, like.dtype)
    check_device(where, tensor, like.device, stage)


def versions_of(tensors: Tensors) -> dict[str, int]:
    """Returns how often each tensor has been changed in place, as far as PyTorch counts that."""
    return {key: one._version for key, one in tensors.items() if not one.is_inference()}


def check_left_alone(where: str, tensors: Tensors, versions: dict[str, int]) -> None:
    """Checks that nothing was changed in place since `versions_of`.

    Raises:
        ValueError: A tensor was; with its name.
    """
    for key, version in versions.items():
        if tensors[key]._version != version:
            raise ValueError(
                f"{where}{key}: expected it to be left as it is, as it is stored, got it changed "
                "in place; work on a copy"
            )
