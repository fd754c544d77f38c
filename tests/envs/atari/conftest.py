"""What the Atari tests share: the library is there before the first of them, and ROM files."""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rlbatch.envs.atari import AtariEnv, build
from tests.envs.atari.steps import MakeEnv


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compiles the library while no test's time is running."""
    here = Path(__file__).parent
    if not session.config.option.collectonly and any(
        here in one.path.parents for one in session.items
    ):
        with contextlib.suppress(build.BuildError):  # The tests say so themselves.
            build.host_library()


@pytest.fixture
def rom_file(tmp_path: Path) -> Callable[[str, bytes], Path]:
    """Writes a ROM file of a name and a content."""

    def write(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def make(gpu: torch.device) -> MakeEnv:
    """Makes environments that kernels step: on a GPU, or on a CPU that plays one."""
    return functools.partial(AtariEnv, device=gpu)
