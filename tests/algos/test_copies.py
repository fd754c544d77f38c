"""Copies of an algorithm, made as `algos` tells: they are what is trained, not the original."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import algos

_COPY, _NAME, _RUN = (line.strip() for line in algos.__doc__.splitlines()[-3:])


@pytest.fixture
def checkout(tmp_path):
    shutil.copytree(Path(algos.__file__).parent, tmp_path / "algos")
    return tmp_path


def shell(checkout: Path, command: str) -> str:
    """Runs a command there; returns what it said of what went wrong."""
    command = command.replace("python", sys.executable, 1)
    done = subprocess.run(
        command, shell=True, cwd=checkout, capture_output=True, text=True, timeout=120
    )
    return done.stderr


def test_a_copy_trains_itself(checkout):
    assert shell(checkout, _COPY) == shell(checkout, _NAME) == ""
    train = checkout / "algos" / "mine" / "train.py"
    changed = train.read_text().replace("total_loss.backward()", "raise ValueError(NAME_OF_MINE)")
    train.write_text(f"{changed}\n\nNAME_OF_MINE = __name__\n")
    said = shell(checkout, f"{_RUN} --n-processes 0 --checkpoint-dir run")
    assert said.endswith("ValueError: algos.mine.train\n")


def test_a_copy_that_would_train_the_original_says_so(checkout):
    assert shell(checkout, _COPY) == ""
    said = shell(checkout, f"{_RUN} --n-processes 0 --checkpoint-dir run")
    assert f"algos.mine: expected its files to name it, got a2c: {_NAME}\n" in said
    assert not (checkout / "run").exists()


def test_a_package_that_trains_an_algorithm_is_no_copy_of_it(checkout):
    package = checkout / "algos" / "search"
    package.mkdir()
    (package / "__main__.py").write_text(
        "from algos.command_line import parse\n"
        "from algos.a2c.train import Config\n"
        "assert parse(Config, ['--seed', '3']).seed == 3\n"
    )
    assert shell(checkout, "python -m algos.search --n-trials 8") == ""
