"""The devices that tests run on."""

import os

import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device under test: `-m gpu` and `-m "not gpu"` split the suite between them."""
    return torch.device(request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a GPU test without a GPU, or fails it where a GPU is required."""
    if item.get_closest_marker("gpu") is None or torch.cuda.is_available():
        return
    if os.environ.get("RLBATCH_REQUIRE_GPU") == "1":
        pytest.fail("RLBATCH_REQUIRE_GPU=1, but torch finds no CUDA device", pytrace=False)
    pytest.skip("torch finds no CUDA device")
