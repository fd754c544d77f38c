r"""Readable algorithms, one folder each, and beside them the parts that they share.

Read an algorithm's `train.py` first, then its `agent.py`. To change one, copy its folder, and let
the copy's files name the copy:

    cp -r algos/a2c algos/mine
    sed -i 's/\ba2c\b/mine/g' algos/mine/*.py
    python -m algos.mine
"""

from importlib.util import find_spec

_NEEDED = ("tyro", "rich", "tensorboard", "matplotlib", "imageio")
if _missing := [name for name in _NEEDED if find_spec(name) is None]:
    raise ImportError(
        f"algos: expected {', '.join(_NEEDED)}, found no {', '.join(_missing)}: "
        "pip install 'rlbatch[algos]'"
    )
