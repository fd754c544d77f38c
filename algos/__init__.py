"""Readable algorithms, one folder each, and beside them the parts that they share.

Read an algorithm's `train.py` first, then its `agent.py`. Copy the folder to change it.
"""

from importlib.util import find_spec

_NEEDED = ("tyro", "rich", "tensorboard", "matplotlib")
if _missing := [name for name in _NEEDED if find_spec(name) is None]:
    raise ImportError(
        f"algos: expected {', '.join(_NEEDED)}, found no {', '.join(_missing)}: "
        "pip install 'rlbatch[algos]'"
    )
