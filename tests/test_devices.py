"""The names of devices."""

import pytest
import torch

from rlbatch.devices import as_device


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu", "cpu"),
        ("cpu:0", "cpu"),
        (torch.device("meta"), "meta"),
        ("cuda", "cuda:0"),
        ("cuda:3", "cuda:3"),
        (1, "cuda:1"),
    ],
)
def test_a_device_has_one_name(name, expected):
    assert str(as_device(name)) == expected
