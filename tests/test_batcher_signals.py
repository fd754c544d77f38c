"""Handlers of signals that raise, as Ctrl-C's does, at moments that nobody chooses."""

import os
import random
import signal
import subprocess
import threading
import time

import pytest

from rlbatch import CallOrderError, WorkerError, WorkerTimeoutError, wait_for_any
from tests.alarms import AlarmAfter
from tests.batchers import make_batcher, sleeping
from tests.helpers import CountingEnv
from tests.processes import SOON_S, Timer, worker_pids

pytestmark = pytest.mark.usefixtures("nothing_left", "alarms")


class Alarm(BaseException):
    """What a handler of this script raises."""


class Slow(CountingEnv):
    """Takes a while for a step."""

    def step(self, action):
        time.sleep(0.0005)
        return super().step(action)


# A function of its own: in Python 3.12 and 3.13 an error of a handler that comes where a loop goes
# back to its beginning leaves a `try` around the loop, in the same function, without a look at it.
def polled(batcher):
    while (found := batcher.get(blocking=False)[0]) is None:
        pass
    return found


@pytest.mark.parametrize(("n_processes", "most_s"), [(0, 1e-4), (1, 3e-3)])
def test_a_batcher_goes_on_after_an_exception_at_any_moment_of_get(n_processes, most_s):
    draw, n_alarms, n_lost = random.Random(0), 0, 0
    lengths = [3, 5, 2]
    create = {"create_env": lambda seed: Slow(lengths, True), "env_args": {}}
    with make_batcher(n_processes, **create) as batcher:
        batcher.reset()
        for _ in range(500):
            batcher.execute()
            found = None
            try:
                with AlarmAfter(draw.uniform(1e-6, most_s), Alarm()):
                    found = polled(batcher)
                    time.sleep(most_s)
            except Alarm:
                n_alarms += 1
            try:
                found = batcher.get()[0] if found is None else found
            except CallOrderError as error:  # It came after `get`; its result had no name yet.
                if "got one that is idle" not in str(error):
                    raise
                n_lost += 1
                continue
            except WorkerError as error:  # One in thousands comes while an answer is read.
                if "the call that read it was interrupted" not in str(error):
                    raise
                break
            assert found.trajectories["action/count"].shape == (len(lengths), 4)
    assert n_lost < n_alarms / 10


def test_no_process_is_left_where_ctrl_c_comes_while_it_is_made(monkeypatch):
    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            signal.raise_signal(signal.SIGINT)

    descriptors = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:  # With its frames.
        make_batcher(2)
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    del kept


def test_an_environment_is_closed_where_ctrl_c_comes_before_it_is(monkeypatch):
    notes = []

    class Noting(CountingEnv):
        def close(self):
            notes.append("close")

    def interrupted(_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    batcher = make_batcher(0, create_env=lambda seed: Noting([3]), env_args={})
    monkeypatch.setattr("rlbatch._local._get_generators", interrupted)
    with pytest.raises(KeyboardInterrupt):
        batcher.close()
    batcher.close()
    assert notes == ["close"]


def poll_for_ever(batcher):
    while True:
        batcher.get(blocking=False)


def test_an_error_of_a_handler_is_not_taken_for_one_of_a_pipe():
    ours = TimeoutError("of the script")
    batcher = make_batcher(1, create_env=sleeping, env_args={})
    batcher.reset()
    batcher.execute()
    for _ in range(20):
        with pytest.raises(TimeoutError) as caught, AlarmAfter(1e-3, ours):
            poll_for_ever(batcher)
        assert caught.value is ours
    with pytest.raises(TimeoutError) as caught, AlarmAfter(0.1, ours), Timer():
        wait_for_any([batcher])
    assert caught.value is ours
    batcher.close()


class Threads(CountingEnv):
    """Starts threads and waits for them, in a step without an end after the first one."""

    def step(self, action):
        while self.count[0]:
            threads = [threading.Thread(target=sum, args=([1],)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return super().step(action)


class Calls(CountingEnv):
    """Calls functions, in a step without an end after the first one."""

    def step(self, action):
        while self.count[0]:
            sum(abs(one) for one in range(3))
        return super().step(action)


def in_second_step(env_class):
    """Returns a batcher whose worker is there by now, and stays."""
    batcher = make_batcher(1, create_env=lambda seed: env_class([9]), env_args={})
    batcher.reset()
    batcher.execute()
    time.sleep(0.5)
    return batcher


@pytest.mark.parametrize("env_class", [Threads, Calls])
def test_a_worker_lives_through_any_number_of_questions_for_its_stack(env_class):
    batcher = in_second_step(env_class)
    for _ in range(1000):  # One in some hundreds crashes a worker that faulthandler answers for.
        with pytest.raises(WorkerTimeoutError, match="in step"):
            batcher.get(timeout=1e-6)
    batcher.close()


def test_a_worker_that_could_not_answer_is_not_asked_in_the_way_that_may_crash_it():
    batcher = in_second_step(Calls)
    (pid,), file = worker_pids(batcher), batcher._crew.workers[0]._dump
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorkerTimeoutError, match="no stacks"):
        batcher.get(timeout=1e-6)
    os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + SOON_S
    while "in step" not in file.read() and time.monotonic() < deadline:
        time.sleep(1e-3)
    time.sleep(0.1)
    assert file.read().count("most recent call") == file.read().count("most recent call last") == 1
    batcher.close()


class Stuck(CountingEnv):
    """Stays in a function that lets no other thread run Python, in any step after the first one."""

    def step(self, action):
        if self.count[0]:
            sum(range(1 << 62))
        return super().step(action)


def test_a_worker_tells_where_it_is_in_native_code():
    batcher = in_second_step(Stuck)
    for _ in range(3):
        with pytest.raises(WorkerTimeoutError, match="in step"):
            batcher.get(timeout=0.1)
    batcher.close()
