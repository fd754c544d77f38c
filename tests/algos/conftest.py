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


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has `rich` take what is printed to for a terminal."""
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "150")):
        monkeypatch.setenv(name, value)
