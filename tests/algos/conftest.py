"""What tests of the examples share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _torch_settings() -> Iterator[None]:
    """Puts back what a run sets for the whole process."""
    mode = torch.get_deterministic_debug_mode()
    n_threads = torch.get_num_threads()
    yield
    torch.set_deterministic_debug_mode(mode)
    torch.set_num_threads(n_threads)
