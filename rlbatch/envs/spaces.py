"""Gymnasium spaces as flat keys: which keys a value has, and the way there and back.

A nested value is addressed by its path joined with `/`; the parts of a `Tuple` are `0`, `1`, ...
Each array at the end of a path is a leaf. A space that is not nested has one, with an empty path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

from rlbatch.envs.base import RESERVED_KEYS
from rlbatch.errors import KeyMismatchError

_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

Path = tuple[str | int, ...]


class Leaf(NamedTuple):
    """One array inside a value of a space.

    Attributes:
        path: The keys and positions that lead to it.
        space: Its own space.
        shape: Of one value; empty for a number.
        dtype: Of one value.
    """

    path: Path
    space: spaces.Space
    shape: tuple[int, ...]
    dtype: np.dtype

    def of(self, value: Any) -> Any:
        """Returns the part of a value that this leaf stands for (the same object)."""
        for step in self.path:
            value = value[step]
        return value


def observation_leaves(space: spaces.Space) -> dict[str, Leaf]:
    """Returns the leaves of an observation space by their keys in an observation.

    Args:
        space: Of one environment.

    Returns:
        In the space's order: `frame`, or, for a nested space, the paths.

    Raises:
        TypeError: A part is not a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, or of a
            dtype that PyTorch does not have.
        KeyMismatchError: Two parts have one key, or a key is one that `VecEnv` adds.

    Example:
        >>> space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Discrete(3)])})
        >>> list(observation_leaves(space)), list(observation_leaves(space["a"]))
        (['a', 'b/0'], ['frame'])
    """
    leaves = _by_key("observation_space", space, prefix="")
    for key in leaves:
        if key.split("/")[0] in RESERVED_KEYS:
            raise KeyMismatchError(
                f"observation_space: expected no part named as one of {RESERVED_KEYS}, got {key}"
            )
    return {key or "frame": leaf for key, leaf in leaves.items()}


def action_leaves(space: spaces.Space) -> dict[str, Leaf]:
    """Returns the leaves of an action space by their keys in an action.

    Args:
        space: Of one environment.

    Returns:
        In the space's order: `action`, or, for a nested space, `action/` and the paths.

    Raises:
        TypeError: A part is not a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, or of a
            dtype that PyTorch does not have; or there is none.
        KeyMismatchError: Two parts have one key.

    Example:
        >>> space = spaces.Dict({"jump": spaces.Discrete(2), "move": spaces.Box(-1, 1, (2,))})
        >>> list(action_leaves(space)), list(action_leaves(space["jump"]))
        (['action/jump', 'action/move'], ['action'])
    """
    leaves = _by_key("action_space", space, prefix="action")
    if not leaves:
        raise TypeError(f"action_space: expected at least one part, got {space}")
    return leaves


def assemble(space: spaces.Space, values: Iterator[Any]) -> Any:
    """Builds a value of the space from the values of its leaves, in the space's order.

    Example:
        >>> assemble(spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), iter([1, 2]))
        (1, 2)
    """
    if isinstance(space, spaces.Dict):
        return {key: assemble(child, values) for key, child in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(assemble(child, values) for child in space)
    return next(values)


def _by_key(where: str, space: spaces.Space, prefix: str) -> dict[str, Leaf]:
    leaves: dict[str, Leaf] = {}
    for leaf in _walk(where, space, ()):
        key = "/".join([prefix] * bool(prefix) + [str(step) for step in leaf.path])
        if key in leaves:
            raise KeyMismatchError(f"{where}: expected different names, got {key} twice")
        leaves[key] = leaf
    return leaves


def _walk(where: str, space: spaces.Space, path: Path) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, child in space.items():
            yield from _walk(where, child, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for position, child in enumerate(space):
            yield from _walk(where, child, (*path, position))
    else:
        _check_leaf("/".join([where, *map(str, path)]), space)
        yield Leaf(path, space, tuple(space.shape or ()), np.dtype(space.dtype))


def _check_leaf(where: str, space: spaces.Space) -> None:
    if not isinstance(space, _LEAVES):
        known = ", ".join(leaf.__name__ for leaf in _LEAVES)
        raise TypeError(f"{where}: expected one of {known}, Dict or Tuple, got {space}")
    try:
        torch.from_numpy(np.empty(0, space.dtype))
    except (TypeError, ValueError) as error:  # The latter of the other order of bytes.
        raise TypeError(f"{where}: expected a dtype that PyTorch has, got {space}") from error
