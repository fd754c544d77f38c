"""`wait_for_any` and `pending`, with real processes."""

import os
import signal
import threading
import time

import pytest

from rlbatch import CallOrderError, WorkerError, WorkerTimeoutError, wait_for_any
from tests.batchers import make_batcher, sleeping
from tests.helpers import CountingEnv


class Waits(CountingEnv):
    """Waits in each step after the first until there is a file."""

    def __init__(self, path, seed):
        super().__init__([99], autoreset=True, seed=seed)
        self.path = path

    def step(self, action):
        while self.count[0] and not self.path.exists():
            time.sleep(0.01)
        return super().step(action)


@pytest.fixture
def two(tmp_path):
    """Two batchers of two processes, each of which waits for the file of its name."""
    paths = [tmp_path / "first", tmp_path / "second"]
    batchers = [make_batcher(2, create_env=Waits, env_args={"path": path}) for path in paths]
    for batcher in batchers:
        batcher.reset()
        batcher.execute()
    yield batchers, paths
    for path, batcher in zip(paths, batchers, strict=True):
        path.touch()
        batcher.close()


def test_the_first_that_is_ready_is_returned(two):
    (first, second), paths = two
    assert len(first.pending()) == 2
    paths[1].touch()
    assert wait_for_any(one for one in (first, second, first)) == [second]
    assert not second.pending()
    trajectories, _ = second.get(timeout=0)  # It need not wait.
    assert trajectories.trajectories.lengths.tolist() == [4, 4]
    with pytest.raises(CallOrderError, match=r"wait_for_any: batchers\[1\]: expected a bat"):
        wait_for_any([first, second])
    second.execute()
    paths[0].touch()
    ready = []
    while len(ready) < 2:
        ready = wait_for_any([first, second])
    assert ready == [first, second]


def test_a_wait_ends_at_once(two):
    (first, second), paths = two
    started = time.monotonic()
    threading.Timer(0.5, paths[0].touch).start()
    assert wait_for_any([first, second], timeout=None) == [first]
    assert 0.4 < time.monotonic() - started < 5


def test_a_batcher_that_another_thread_closes_is_named(two):
    (first, second), _ = two
    threading.Timer(0.5, first.close).start()
    with pytest.raises(CallOrderError, match=r"batchers\[0\]: expected .*clos"):
        wait_for_any([first, second])


def test_a_wait_sleeps(two):
    """So that the cores are the workers'."""
    (first, second), _ = two
    started = time.process_time()
    with pytest.raises(WorkerTimeoutError, match="one of 2 to be ready within 2 s, got none"):
        wait_for_any([first, second], timeout=2)
    assert time.process_time() - started < 0.5
    assert first.pending()  # Nothing is lost.


def test_a_worker_that_dies_is_reported(two):
    (first, second), _ = two
    os.kill(first._crew.workers[1]._process.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="worker 1 .*killed by SIGKILL") as caught:
        wait_for_any([second, first])
    assert caught.value.__notes__ == ["wait_for_any: of batchers[1]"]


def test_one_that_hangs_is_named_though_others_are_ready():
    with (
        make_batcher(0) as works,
        make_batcher(1, create_env=sleeping, env_args={}, timeout=2) as hangs,
    ):
        for batcher in (works, hangs):
            batcher.reset()
            batcher.execute()
        assert wait_for_any([works, hangs]) == [works]
        time.sleep(2.1)
        with pytest.raises(WorkerTimeoutError, match="within 2 s, got none") as caught:
            wait_for_any([works, hangs])
        assert caught.value.__notes__ == ["wait_for_any: of batchers[1]"]
        assert wait_for_any([works]) == [works]


def test_in_the_callers_process_it_is_ready_at_once():
    with make_batcher(0) as one:
        one.reset()
        with pytest.raises(CallOrderError, match="pending: expected"):
            one.pending()
        one.execute()
        assert wait_for_any([one], timeout=0) == [one]


def test_what_makes_no_sense():
    with pytest.raises(ValueError, match="batchers: expected at least one, got none"):
        wait_for_any([])
    with make_batcher(0) as one:
        with pytest.raises(ValueError, match="timeout: expected at least 0 s"):
            wait_for_any([one], timeout=-1)
        with pytest.raises(TypeError, match="batchers: expected a list of them, got a single RL_B"):
            wait_for_any(one)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"batchers\[1\]: expected a RL_Batcher, got a int"):
            wait_for_any([one, 3])  # type: ignore[list-item]
