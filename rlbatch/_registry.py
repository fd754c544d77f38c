"""Gymnasium's registry, on its way to a worker process.

A worker does not run the caller's script, so what `gymnasium.register` or `import ale_py` has
registered there has to be brought along.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from typing import cast

import cloudpickle


def registered_environments() -> list[bytes]:
    """Returns what Gymnasium can make here, pickled one by one; nothing if it is not in use.

    An environment that can not be pickled is left out: a worker may well do without it.
    """
    if "gymnasium" not in sys.modules:
        return []
    import gymnasium
    from gymnasium.envs.registration import EnvCreator, load_env_creator

    specs = []
    for spec in list(gymnasium.registry.values()):
        with contextlib.suppress(Exception):
            point = spec.entry_point
            if isinstance(point, str) and point.startswith("__main__:"):
                spec = copy.copy(spec)  # That is another module over there.
                spec.entry_point = cast(EnvCreator, load_env_creator(point))
            specs.append(cloudpickle.dumps(spec))
    return specs


def register_environments(specs: list[bytes]) -> None:
    """Registers what `registered_environments` has returned elsewhere."""
    if not specs:
        return
    import gymnasium

    # Modules that are imported later register what they have registered in the other process.
    warnings.filterwarnings("ignore", ".*Overriding environment .* already in registry")
    for pickled in specs:
        with contextlib.suppress(Exception):  # It is missed where it is made, and named there.
            spec = cloudpickle.loads(pickled)
            gymnasium.registry[spec.id] = spec
