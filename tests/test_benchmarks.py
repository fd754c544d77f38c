"""The benchmark of acquisition measures, and notices what crosses between host and GPU."""

import json

import pytest
import torch

from benchmarks import acquisition

pytest.importorskip("ale_py")


def test_an_acquisition_is_measured(device: torch.device, capsys) -> None:
    acquisition.main(
        acquisition.Config(n_envs=3, n_timesteps=4, rounds=1, device=device.type, game="breakout")
    )
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["fps"] > 0
    assert (figures["n_envs"], figures["n_timesteps"]) == (3, 4)
    if device.type == "cuda":
        assert figures["peak_bytes_per_env"] > 4 * 84 * 84  # At least what is stored.
        assert any("rlb_step" in name for name in figures["kernel_seconds"])


def test_a_copy_between_host_and_gpu_is_an_error(monkeypatch, capsys) -> None:
    found = {"copies": {"Memcpy DtoD": 2, "Memcpy HtoD (Pageable -> Device)": 1}, "waits": {}}
    monkeypatch.setattr(acquisition, "trace", lambda batcher: found)
    config = acquisition.Config(n_envs=1, n_timesteps=2, rounds=1, device="cpu")
    with pytest.raises(SystemExit, match=r"copies: expected none .*, got \['Memcpy HtoD"):
        acquisition.main(config)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["copies"] == found["copies"]
