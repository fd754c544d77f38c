"""Gymnasium spaces as flat keys: which keys a value has, and the way there and back.

A nested value is addressed by its path joined with `/`; the parts of a `Tuple` are `0`, `1`, ...
A space that is not nested has one leaf with the empty path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class Leaf(NamedTuple):
    """One array inside a nested value.

    Attributes:
        path: The keys and positions that lead to it; empty for a space that is not nested.
        space: Its own space.
    """

    path: tuple[str | int, ...]
    space: spaces.Space

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return self.space.shape or ()

    @property
    def dtype(self) -> np.dtype:
        """The dtype of one value."""
        return np.dtype(self.space.dtype)

    def key(self, root: str) -> str:
        """Returns the path joined with `/`, or `root` where it is empty."""
        return "/".join(map(str, self.path)) or root

    def of(self, value: Any) -> Any:
        """Returns the part of a nested value that this leaf stands for."""
        for step in self.path:
            value = value[step]
        return value


def leaves(space: spaces.Space) -> list[Leaf]:
    """Returns the arrays that a value of the space consists of, in the space's order.

    Raises:
        TypeError: A part is no Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple.

    Example:
        >>> space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Discrete(3)])})
        >>> [leaf.key("frame") for leaf in leaves(space)]
        ['a', 'b/0']
    """
    return list(_walk(space, ()))


def _walk(space: spaces.Space, path: tuple[str | int, ...]) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, child in space.items():
            yield from _walk(child, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for position, child in enumerate(space):
            yield from _walk(child, (*path, position))
    elif isinstance(space, _LEAVES):
        yield Leaf(path, space)
    else:
        where = "/".join(map(str, path)) or "space"
        known = ", ".join(leaf.__name__ for leaf in _LEAVES)
        raise TypeError(f"{where}: expected one of {known}, Dict or Tuple, got {space}")


def assemble(space: spaces.Space, values: Iterator[Any]) -> Any:
    """Builds a value of the space from the values of its leaves, in the order of `leaves`."""
    if isinstance(space, spaces.Dict):
        return {key: assemble(child, values) for key, child in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(assemble(child, values) for child in space)
    return next(values)
