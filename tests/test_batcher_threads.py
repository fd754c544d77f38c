"""Several batchers, and one in several threads."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlbatch import CallOrderError, RL_Batcher, WorkerError
from rlbatch._slots import SlotStore
from tests.batchers import make_batcher, sleeping
from tests.helpers import CountingEnv
from tests.processes import SOON_S, Timer, worker_pids

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_batchers_are_independent():
    with make_batcher(1) as first, make_batcher(1) as second:
        assert isinstance(second, RL_Batcher)
        first.reset()
        second.reset()
        os.kill(worker_pids(first)[0], signal.SIGKILL)
        with pytest.raises(WorkerError):
            first.execute()
        second.execute()
        assert second.get()[0].n_elems() == 8


def test_calls_of_two_threads_are_refused_and_close_is_not():
    batcher = make_batcher(1, create_env=sleeping, env_args={})
    batcher.reset()
    batcher.execute()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(batcher.get)
        time.sleep(0.3)
        with pytest.raises(CallOrderError, match="update: expected one call at a time"):
            batcher.update(1.0)
        with Timer():
            batcher.close()
        with pytest.raises(CallOrderError, match="get: .* that another thread has closed"):
            waiting.result(SOON_S)
    batcher.close()


def close_during(batcher, call, after_s):
    """Closes a batcher while another thread is in a call, which has to say so."""
    said = f"{call.__name__}: .* that another thread has closed"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call)
        time.sleep(after_s)
        batcher.close()
        with pytest.raises(CallOrderError, match=said):
            running.result(SOON_S)


class Slow(CountingEnv):
    """Steps and closes slowly, and notes what is done to it."""

    def __init__(self, notes):
        super().__init__([9, 9], autoreset=True)
        self.notes = notes

    def step(self, action):
        time.sleep(0.2)
        self.notes.append("step")
        return super().step(action)

    def close(self):
        time.sleep(0.6)
        self.notes.append("close")


def test_a_batcher_without_processes_closes_after_the_call_of_another_thread():
    notes = []
    batcher = make_batcher(0, create_env=lambda seed: Slow(notes), env_args={})
    batcher.reset()
    close_during(batcher, batcher.execute, after_s=0.3)
    assert notes == ["step"] * 4 + ["close"]
    with pytest.raises(CallOrderError, match="reset: .* closed"):
        batcher.reset()


class LateLock:
    """The lock of a batcher, seen to be taken only when the call that holds it has returned."""

    def __init__(self, lock, may_return, has_returned):
        self._lock, self._may_return, self._has_returned = lock, may_return, has_returned

    def locked(self):
        is_taken = self._lock.locked()
        if is_taken:
            self._may_return.set()
            assert self._has_returned.wait(SOON_S)
        return is_taken

    def __enter__(self):
        return self._lock.__enter__()

    def __exit__(self, *error):
        return self._lock.__exit__(*error)


def test_an_environment_is_closed_if_a_call_returns_while_its_batcher_is_being_closed():
    begun, may_return, has_returned = (threading.Event() for _ in range(3))
    notes = []

    class Waiting(CountingEnv):
        def step(self, action):
            begun.set()
            assert may_return.wait(SOON_S)
            return super().step(action)

        def close(self):
            notes.append("close")

    batcher = make_batcher(
        0, n_timesteps=1, create_env=lambda seed: Waiting([9], True), env_args={}
    )
    batcher.reset()
    batcher._calls = LateLock(batcher._calls, may_return, has_returned)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(batcher.execute)
        running.add_done_callback(lambda _: has_returned.set())
        assert begun.wait(SOON_S)
        batcher.close()
    assert notes == ["close"]


def test_a_batcher_that_is_closed_while_it_reads_stays_closed(monkeypatch):
    read = SlotStore.read

    def slowly(*arguments):
        time.sleep(0.3)
        return read(*arguments)

    batcher = make_batcher(1)
    batcher.reset()
    batcher.execute()
    monkeypatch.setattr(SlotStore, "read", slowly)
    close_during(batcher, batcher.get, after_s=0.1)
    with pytest.raises(CallOrderError, match="execute: .* closed"):
        batcher.execute()


def test_an_environment_closes_to_its_end_though_another_thread_waits(tmp_path):
    class Noting(Slow):
        def close(self):
            super().close()
            (tmp_path / "closed").touch()

    batcher = make_batcher(1, create_env=lambda seed: Noting([]), env_args={})
    batcher.reset()
    batcher.execute()
    close_during(batcher, batcher.get, after_s=0.1)
    assert (tmp_path / "closed").exists()
