"""The devices that tests run on, and the time they have."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch

from tests.helpers import no_waiting_for_the_gpu
from tests.played_gpu import GPU, PlayedGPU, play_gpu
from tests.processes import children, nothing_stays_in_shared_memory

STARTED = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--minutes`, for a run of as many tests as fit."""
    text = "start no test later than so many minutes after the start, but skip it"
    parser.addoption("--minutes", type=float, default=float("inf"), help=text)


def pytest_configure() -> None:
    """Lets Ctrl-C interrupt, which a shell has its background jobs ignore, as do their children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No child process and no name in shared memory outlives a test."""
    before = children()
    with nothing_stays_in_shared_memory():
        yield
        assert children() == before


@pytest.fixture
def alarms() -> Iterator[None]:
    """Lets go of an alarm that comes after its block."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    time.sleep(0.1)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def played_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedGPU]:
    """A GPU that the CPU plays."""
    yield from play_gpu(monkeypatch)


@pytest.fixture
def two_played_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedGPU]:
    """Two of them; the first is the current one."""
    yield from play_gpu(monkeypatch, n_gpus=2)


@pytest.fixture(params=["played", pytest.param("cuda", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> torch.device:
    """A GPU: one that is played, or with `-m gpu` one that is there."""
    if request.param == "played":
        request.getfixturevalue("played_gpu")
    return GPU


@pytest.fixture
def leave_alone(
    request: pytest.FixtureRequest, gpu: torch.device
) -> Callable[[], AbstractContextManager[None]]:
    """Makes everything raise that makes the host wait for the GPU, and on a played one copies."""
    if request.node.callspec.params["gpu"] == "played":
        return request.getfixturevalue("played_gpu").alone
    return no_waiting_for_the_gpu


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device under test: `-m gpu` and `-m "not gpu"` split the suite between them."""
    return torch.device(request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what comes too late, and a GPU test without a GPU."""
    skip_when_late(item.config.option.minutes)
    if item.get_closest_marker("gpu") is not None:
        skip_or_fail_without_gpu()


def skip_when_late(minutes: float) -> None:
    """Skips when `--minutes` are over."""
    if time.monotonic() - STARTED > 60 * minutes:
        pytest.skip(f"did not fit into {minutes:g} minutes")


def skip_or_fail_without_gpu() -> None:
    """Skips without a GPU, or fails where one is required."""
    if torch.cuda.is_available():
        return
    if os.environ.get("RLBATCH_REQUIRE_GPU") == "1":
        pytest.fail("RLBATCH_REQUIRE_GPU=1, but torch finds no CUDA device", pytrace=False)
    pytest.skip("torch finds no CUDA device")
