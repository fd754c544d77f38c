"""Global settings of this process on which random numbers and rounding depend."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch


def set_up(seed: int, torch_deterministic: bool, n_threads: int) -> None:
    """Seeds Python, NumPy and PyTorch, and sets what else decides on PyTorch's results.

    Args:
        seed: For all of them.
        torch_deterministic: Use deterministic algorithms, and warn where there is none.
        n_threads: Of PyTorch on the CPU, in this process; sums depend on it.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.set_num_threads(n_threads)
    if torch_deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for this.
    # As use_deterministic_algorithms(warn_only=True), which takes two seconds to import a compiler.
    torch.set_deterministic_debug_mode("warn" if torch_deterministic else "default")
    torch.utils.deterministic.fill_uninitialized_memory = False  # Which nobody reads.


def get_generators() -> dict[str, Any]:
    """Returns the states of all generators, as `torch.load(weights_only=True)` accepts them."""
    name, keys, *rest = np.random.get_state()
    states = {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_generators(states: dict[str, Any]) -> None:
    """Puts all generators into the states that `get_generators` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all(states["cuda"])
