"""What PyTorch, nested dicts and TensorDict need to know of the containers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rlbatch.errors import KeyMismatchError


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
