"""What the GPU suite makes of its steps: one that has shown nothing has not passed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlbatch.envs.atari import device_code

SCRIPT = Path(__file__).parents[1] / "scripts" / "gpu_summary.py"


def verdict(folder: Path, steps: dict[str, tuple[str, str]]) -> tuple[int, dict[str, str]]:
    """Judges steps, by name exit code and output; returns the exit status and their problems."""
    (folder / "machine.json").write_text("{}")
    (folder / "table").write_text("".join(f"{k}\t{v[0]}\t0\t1.5\n" for k, v in steps.items()))
    for name, (_, output) in steps.items():
        (folder / f"{name}.out").write_text(output)
    command = [sys.executable, str(SCRIPT), str(folder), str(folder), "--verdict"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads((folder / "suite.json").read_text())["steps"]
    assert len(done.stdout.splitlines()) >= len(found), done.stderr
    return done.returncode, {step["name"]: step["problem"] for step in found}


@pytest.mark.parametrize(
    ("name", "code", "output", "problem"),
    [
        ("benchmark_a", "0", 'table\n{"fps": 1}\n', ""),
        ("benchmark_a", "0", "table\n", "no JSON object at the end"),
        ("benchmark_a", "1", '{"fps": 1}\n', "exit code 1"),
        ("benchmark_a", "no time was left", "", "no time was left"),
        ("learning_pong_0", "0", '{"n_solved": 1}\n', ""),
        ("learning_pong_0", "0", '{"n_solved": 0}\n', "the score was not reached"),
        ("kernel_profile", "0", '{"fps": 1}\ngpu__time_duration.sum ms 9.1\n', ""),
        ("kernel_profile", "0", '{"fps": 1}\nNo kernels.\n', "no kernel was profiled"),
        ("gpu_tests", "0", "", "no test passed"),
    ],
)
def test_a_step_is_judged_by_what_it_has_shown(tmp_path, name, code, output, problem) -> None:
    steps = {"compile": ("0", '{"n_kernels": 1}\n'), name: (code, output)}
    assert verdict(tmp_path, steps) == (int(problem != ""), {"compile": "", name: problem})


def test_a_step_that_does_not_tell_how_it_ended_has_not_passed(tmp_path) -> None:
    (tmp_path / "begun").write_text("compile\nbenchmark_a\n")
    steps = {"compile": ("0", '{"n_kernels": 1}\n'), "benchmark_b": ("0", '{"fps": 1}\n')}
    assert verdict(tmp_path, steps)[0] == 1
    (tmp_path / "begun").write_text("compile\nbenchmark_b\n")
    assert verdict(tmp_path, steps)[0] == 0


def test_the_checkers_look_at_kernels_that_are_there() -> None:
    """One that looks at none finds nothing."""
    names = re.findall(r"kns=(\w+)", SCRIPT.with_name("gpu_suite.sh").read_text())
    assert len(names) > 4
    for name in names:
        assert any(kernel.startswith(name) for kernel in device_code._KERNELS), name


def test_nothing_but_compiling_is_no_success(tmp_path) -> None:
    assert verdict(tmp_path, {"compile": ("0", '{"n_kernels": 1}\n')}) == (1, {"compile": ""})
