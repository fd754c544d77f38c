"""What Gymnasium environments return, as arrays in the dtypes of their spaces."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from rlbatch.envs.spaces import Leaf
from rlbatch.errors import DtypeMismatchError, KeyMismatchError, ShapeError, add_environment_note

# Beside the observation a step returns numbers.
REWARD = Leaf((), spaces.Box(-np.inf, np.inf, (), np.float64), (), np.dtype(np.float64))
FLAG = Leaf((), spaces.Discrete(2), (), np.dtype(np.bool_))


def stack(key: str, leaf: Leaf, numbers: Sequence[int], values: Sequence[Any]) -> np.ndarray:
    """Returns a leaf of what environments have returned as one array [n, *leaf.shape].

    Raises:
        ShapeError: A value is of another shape than its space.
        DtypeMismatchError: A value is not a number, is a float where its space is not, or is an
            integer that its space does not hold.
        KeyMismatchError: A value has no such leaf.
    """
    n = len(values)
    try:
        parts = [leaf.of(value) for value in values] if leaf.path else values
        if leaf.shape:  # Three times as fast as np.stack.
            array, shape = np.concatenate(parts), (n * leaf.shape[0], *leaf.shape[1:])
            if len(set(map(len, parts))) > 1:  # Where one is as much too long as another too short.
                raise ShapeError(f"{key}: expected one shape, got several")
        else:
            array, shape = np.array(parts), (n,)
        if array.dtype != leaf.dtype or array.shape != shape:
            check(key, leaf, array, shape)
            array = cast(key, leaf, array)
        return array.reshape(n, *leaf.shape)
    except Exception:  # Which of them was it? None, where int64 and uint64 together become floats.
        rows = []
        for number, value in zip(numbers, values, strict=True):
            try:
                rows.append(checked(key, leaf, part_of(key, leaf, value)))
            except Exception as error:
                add_environment_note(error, number)
                raise
        return np.stack(rows)


def stack_numbers(
    numbers: Sequence[int], reward: tuple, terminated: tuple, truncated: tuple
) -> Sequence[np.ndarray]:
    """Returns the numbers beside the observations as arrays [n]; raises what `stack` does."""
    try:
        rewards, flags = np.array(reward), np.array((terminated, truncated))
    except (ValueError, TypeError):  # Of several shapes, or nothing that NumPy knows.
        pass
    else:  # As they mostly are: looked at in one go, as this comes in every step.
        if rewards.dtype == REWARD.dtype and flags.dtype == FLAG.dtype:
            n = len(reward)
            if rewards.shape == (n,) and flags.shape == (2, n):
                return rewards, *flags
    return (
        stack("reward", REWARD, numbers, reward),
        stack("terminated", FLAG, numbers, terminated),
        stack("truncated", FLAG, numbers, truncated),
    )


def part_of(key: str, leaf: Leaf, value: Any) -> Any:
    try:
        return leaf.of(value)
    except (KeyError, IndexError, TypeError) as error:
        found = sorted(value) if isinstance(value, dict) else value
        raise KeyMismatchError(f"{key}: expected it in an observation, got {found}") from error


def checked(key: str, leaf: Leaf, value: Any) -> np.ndarray:
    """Returns what one environment has returned for a leaf; raises what `stack` does, and more.

    Raises:
        DtypeMismatchError: It is neither an array nor a number.
    """
    expected = f"{key}: expected {leaf.dtype} of shape {leaf.shape}"
    try:
        array = np.asarray(value)
    except Exception as error:  # A ragged list, or a tensor that requires a gradient.
        raise DtypeMismatchError(f"{expected}, got {reprlib.repr(value)}: {error}") from error
    if array.dtype == np.object_:  # Which is what NumPy makes of anything.
        raise DtypeMismatchError(f"{expected}, got {reprlib.repr(value)}")
    check(key, leaf, array, leaf.shape)
    return cast(key, leaf, array)


def cast(key: str, leaf: Leaf, array: np.ndarray) -> np.ndarray:
    """Returns an array in the dtype of its space, the same object if it has that.

    Raises:
        DtypeMismatchError: There are integers in it that this dtype cannot hold.
    """
    if array.dtype == leaf.dtype:
        return array
    cast = array.astype(leaf.dtype)
    kind = leaf.dtype.kind
    if kind in "biu" and not np.array_equal(cast, array):
        limits = "0 to 1" if kind == "b" else "{0.min} to {0.max}".format(np.iinfo(leaf.dtype))
        raise DtypeMismatchError(
            f"{key}: expected {leaf.dtype}, from {limits}, got {array.dtype} from {array.min()} to "
            f"{array.max()}"
        )
    return cast


def check(key: str, leaf: Leaf, array: np.ndarray, shape: tuple[int, ...]) -> None:
    # NumPy would broadcast or round it silently, and take None for a number.
    if array.shape != shape:
        raise ShapeError(f"{key}: expected shape {shape}, got {array.shape}")
    kind = array.dtype.kind
    if kind not in {"f": "biuf", "c": "biufc"}.get(leaf.dtype.kind, "biu"):
        raise DtypeMismatchError(f"{key}: expected {leaf.dtype}, got {array.dtype}")
