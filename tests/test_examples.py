"""The examples run as they are, on what this machine has."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from examples import gpu_batcher, ppo
from rlbatch import RL_Batcher

pytest.importorskip("ale_py")
ROOT = Path(__file__).parents[1]


def test_every_example_is_run_here() -> None:
    assert sorted(path.name for path in (ROOT / "examples").glob("*.py")) == [
        "gpu_batcher.py",
        "ppo.py",
    ]


@pytest.mark.parametrize("plays_grid", [False, True])
def test_gpu_batcher(plays_grid: bool) -> None:
    command = [sys.executable, str(ROOT / "examples" / "gpu_batcher.py"), "--device", "cpu"]
    command += ["--n-envs", "3", "--n-timesteps", "4", "--n-executes", "2", "--game", "breakout"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "RLBATCH_ATARI_GRID": str(int(plays_grid))}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    for k, line in enumerate(lines):
        assert re.fullmatch(rf"{k}: [\d,]+ frames/s, reward -?\d+, \(3, 4, 4, 84, 84\)", line)


def test_gpu_batcher_leaves_the_host_alone(
    gpu: torch.device,
    leave_alone: Callable[[], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Watched(RL_Batcher):
        """Executes as ever the first time, which allocates."""

        n_executes = 0

        def execute(self, *arguments: object) -> None:
            Watched.n_executes += 1
            if Watched.n_executes == 1:
                return super().execute(*arguments)
            with leave_alone():
                return super().execute(*arguments)

    monkeypatch.setattr(gpu_batcher, "RL_Batcher", Watched)
    gpu_batcher.main(gpu_batcher.Config(n_envs=3, n_timesteps=4, n_executes=2, device=str(gpu)))
    assert Watched.n_executes == len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(("name", "n_lines"), [("gpu_batcher", 80), ("ppo", 150)])
def test_it_is_short(name: str, n_lines: int) -> None:
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < n_lines


def test_ppo_learns() -> None:
    command = [sys.executable, str(ROOT / "examples" / "ppo.py"), "--total-steps", "40000"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables)
    assert result.returncode == 0, result.stderr
    lines = [
        re.fullmatch(r"([\d,]+) steps: ([\d.]+) over (\d+) episodes", line)
        for line in result.stdout.splitlines()
    ]
    assert len(lines) == 40
    assert float(lines[0][2]) < 50
    assert float(lines[-1][2]) > 150


def test_ppo_takes_a_minibatch_of_one_row() -> None:
    config = ppo.Config(n_processes=0, n_envs=3, n_timesteps=43, total_steps=258)
    assert config.n_envs * config.n_timesteps % config.minibatch_size == 1
    assert ppo.main(config) > 0  # The second acquisition is by weights that are numbers.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_ppo_solves_cartpole(seed: int) -> None:
    assert ppo.main(ppo.Config(seed=seed)) >= 475
