"""Runs that are asked to stop, that go on, and whose lines nobody reads."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from algos import checkpoints
from algos.logs import read_table
from algos.stopping import StopRequest
from tests.processes import ROOT

_SHORT = "--n-processes 0 --n-envs 4 --evaluation-episodes 4 --log-every 1 --target-return None"


def started(folder: Path, options: str = _SHORT, **others: Any) -> subprocess.Popen:
    """Starts a training in a process of its own."""
    command = [sys.executable, "-m", "algos.reinforce", *options.split()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, "--checkpoint-dir", str(folder)], **{**pipes, **others})


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def wait_for_rows(folder: Path, n: int) -> None:
    deadline = time.monotonic() + 60
    while len(read_table(folder / "training.csv")) < n:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_saves_what_it_has_learned(tmp_path, number):
    process = started(tmp_path)
    wait_for_rows(tmp_path, 3)
    process.send_signal(number)
    code, out, err = ended(process)
    assert code == -number or (number == signal.SIGINT and code == 130)
    assert "stopping where the iteration ends, with a checkpoint; once more: at once" in err
    content = checkpoints.load(tmp_path, "reinforce")
    rows = read_table(tmp_path / "training.csv")
    assert 3 <= content["iteration"] == len(rows)
    assert content["n_steps"] == int(rows[-1]["step"])
    assert f"go on with --resume {tmp_path}" in out


CLOSING = """
import os
from pathlib import Path

import gymnasium

FOLDER = Path(__file__).parent


class Closing(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        with open(FOLDER / "made", "a") as file:
            file.write(f"{os.getpid()}\\n")

    def close(self):
        with open(FOLDER / "closed", "a") as file:
            file.write(f"{os.getpid()}\\n")
        super().close()


gymnasium.register("Closing-v0", Closing, max_episode_steps=100)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_closes_its_environments(tmp_path, number):
    (tmp_path / "closing.py").write_text(CLOSING)
    processes = "--env-id closing:Closing-v0 --n-processes 2 --evaluation-processes 1"
    folder = tmp_path / "run"
    search_path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    process = started(folder, f"{_SHORT} {processes}", env=os.environ | search_path)
    wait_for_rows(folder, 3)
    process.send_signal(number)
    code, _, err = ended(process)
    assert code == -number or (number == signal.SIGINT and code == 130), err
    made, closed = (Counter((tmp_path / name).read_text().split()) for name in ("made", "closed"))
    workers = made.keys() - {str(process.pid)}  # The run itself only looks at one.
    assert len(workers) == 3
    assert {pid: closed[pid] for pid in workers} == {pid: made[pid] for pid in workers}


def test_a_run_stops_as_well_where_nobody_reads_its_errors(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    process = started(tmp_path, stderr=writer)
    os.close(writer)
    wait_for_rows(tmp_path, 3)
    process.send_signal(signal.SIGTERM)
    code, out, _ = ended(process)
    assert (code, f"go on with --resume {tmp_path}" in out) == (-signal.SIGTERM, True)
    assert checkpoints.load(tmp_path, "reinforce")["iteration"] >= 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_does_not_wait_for_an_evaluation(tmp_path, number):
    lasting = "--env-id MountainCar-v0 --evaluate-every 1 --evaluation-episodes 4000"
    process = started(tmp_path, f"{_SHORT} {lasting} --evaluation-processes 1")
    wait_for_rows(tmp_path, 2)
    time.sleep(0.5)  # It waits for the evaluation of the first iteration now, for long.
    process.send_signal(number)
    code, out, err = ended(process)
    assert f"go on with --resume {tmp_path}" in out
    content = checkpoints.load(tmp_path, "reinforce")
    assert (content["iteration"], content["evaluation"]["iteration"]) == (2, 1)
    if number == signal.SIGINT:
        assert (code in (-number, 130), err.count("Traceback")) == (True, 1), err
    else:
        assert (code, err.count("Traceback")) == (-number, 0), err


def test_the_second_signal_ends_it_at_once(tmp_path):
    process = started(tmp_path, f"{_SHORT} --env-id MountainCar-v0 --n-envs 256")
    wait_for_rows(tmp_path, 1)
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline().startswith("stopping where the iteration ends")
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code in (-signal.SIGINT, 130)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert not (tmp_path / "checkpoint.pt").exists()


def test_the_weights_are_saved_before_the_last_evaluation(tmp_path):
    lasting = "--env-id MountainCar-v0 --total-steps 1000 --evaluation-episodes 2000"
    process = started(tmp_path, f"{_SHORT} {lasting}")
    deadline = time.monotonic() + 60
    while not (tmp_path / "checkpoint.pt").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code in (-signal.SIGINT, 130)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert checkpoints.load(tmp_path, "reinforce")["n_steps"] >= 1000


@pytest.mark.parametrize("end", ["--total-steps 3000", "--target-return 15"])
def test_a_run_that_has_ended_stays_as_it_is_when_it_is_resumed(tmp_path, end):
    assert ended(started(tmp_path, f"{_SHORT} {end}"))[0] == 0
    files = ("training.csv", "evaluation.csv")
    before = [(tmp_path / name).read_text() for name in files]
    events = sum(path.stat().st_size for path in tmp_path.glob("events*"))
    n_steps = checkpoints.load(tmp_path)["n_steps"]
    code, out, _ = ended(started(tmp_path, f"--resume {tmp_path}"))
    assert (code, f"after {n_steps:,} steps" in out) == (0, True)
    assert [(tmp_path / name).read_text() for name in files] == before
    assert checkpoints.load(tmp_path)["n_steps"] == n_steps
    new = sum(path.stat().st_size for path in tmp_path.glob("events*")) - events
    assert new < 500  # Headers of files alone.
    further = started(tmp_path, f"--resume {tmp_path} --total-steps {2 * n_steps} {_SHORT}")
    assert ended(further)[0] == 0
    assert checkpoints.load(tmp_path)["n_steps"] > n_steps


def test_a_line_that_can_not_be_printed_costs_nothing(tmp_path):
    options = f"{_SHORT} --total-steps 1000"
    ascii_alone = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    code, out, err = ended(started(tmp_path / "[ascii]", options, env=ascii_alone))
    assert (code, err) == (0, "")
    assert "?" in out  # The sign that it has not.
    assert str(tmp_path / "[ascii]") in out
    reader, writer = os.pipe()
    os.close(reader)
    code, _, err = ended(started(tmp_path / "closed", options, stdout=writer))
    os.close(writer)
    assert (code, err) == (0, "")
    with open("/dev/full", "w") as full:
        ended(started(tmp_path / "full", options, stdout=full))
    for name in ("[ascii]", "closed", "full"):
        assert checkpoints.load(tmp_path / name)["final"]
        assert (tmp_path / name / "curve.png").exists()


def test_a_file_that_has_no_room_is_named(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=f"File too large: '{tmp_path}/checkpoint.pt.tmp'"):
            checkpoints.save(tmp_path, {"weights": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_handlers_that_somebody_has_set_stay():
    found = []
    before = signal.signal(signal.SIGTERM, lambda *_: found.append(1))
    try:
        request = StopRequest()
        request.watch()
        signal.raise_signal(signal.SIGTERM)
        assert (found, request.signal) == ([1], None)
        signal.raise_signal(signal.SIGINT)
        assert request.signal == signal.SIGINT
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            request.act()
    finally:
        signal.signal(signal.SIGTERM, before)
        request.release()


def test_outside_the_main_thread_signals_stay_as_they_are():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(StopRequest().watch).result()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
