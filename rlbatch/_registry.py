"""Gymnasium's registry, on its way to a worker process.

A worker does not run the caller's script, so what `gymnasium.register` or `import ale_py` has
registered there has to be brought along.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import cloudpickle

from rlbatch._pickling import SCRIPT, name_in_script


def registered_environments() -> list[bytes]:
    """Returns what Gymnasium can make here, pickled one by one; nothing if it is not in use.

    An environment that cannot be pickled is left out: a worker may well do without it.
    """
    if "gymnasium" not in sys.modules:
        return []
    import gymnasium

    specs = []
    for spec in list(gymnasium.registry.values()):
        with contextlib.suppress(Exception):
            named = {name: getattr(sys.modules[name[0]], name[1]) for name in _names(spec)}
            specs.append(cloudpickle.dumps((spec, named)))
    return specs


def _names(spec: Any) -> Iterator[tuple[str, str]]:
    """Yields what in the script, which is another module over there, a spec has names for."""
    wrappers = (wrapper.entry_point for wrapper in spec.additional_wrappers)
    for entry_point in (spec.entry_point, spec.vector_entry_point, *wrappers):
        module, _, name = str(entry_point).partition(":")
        if module in SCRIPT:
            yield module, name


def register_environments(specs: list[bytes]) -> None:
    """Registers what `registered_environments` has returned elsewhere."""
    if not specs:
        return
    import gymnasium

    # Modules that are imported later register what they have registered in the other process.
    warnings.filterwarnings("ignore", ".*Overriding environment .* already in registry")
    for pickled in specs:
        with contextlib.suppress(Exception):  # It is missed where it is made, and named there.
            spec, named = cloudpickle.loads(pickled)
            name_in_script(named)
            gymnasium.registry[spec.id] = spec
