"""What tests of the examples share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _torch_settings() -> Iterator[None]:
    """Puts back what a run sets for the whole process."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    benchmark, n_threads = torch.backends.cudnn.benchmark, torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = benchmark
    torch.set_num_threads(n_threads)
