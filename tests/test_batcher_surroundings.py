"""What a script, an environment or the system has set: a batcher works in it, or names it."""

import contextlib
import gc
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from rlbatch import SharedMemoryError, WorkerError
from rlbatch.envs import GymEnv
from tests.batchers import CountingAgent, acquire, counting, make_batcher
from tests.helpers import CountingEnv, CountingGym
from tests.processes import ROOT, Timer, at_most, worker_pids

pytestmark = pytest.mark.usefixtures("nothing_left")


def n_open_files():
    gc.collect()  # What tests before have left.
    return len(os.listdir("/proc/self/fd")) - 1  # Without that of the folder.


@contextlib.contextmanager
def timeout_of_all_sockets(seconds):
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(None)


class Learner(CountingAgent):
    def update(self, info):
        self.weights = info


def test_a_timeout_of_all_sockets_is_not_one_of_the_pipe():
    with timeout_of_all_sockets(1e-6), make_batcher(2, create_agent=Learner) as batcher:
        acquire(batcher)
        batcher.update(torch.zeros(10**7))


def test_an_environment_may_set_a_timeout_of_all_sockets():
    def create_env(seed):
        socket.setdefaulttimeout(1e-6)
        return counting([3, 5], False, seed)

    changes = {"create_env": create_env, "env_args": {}, "create_agent": Learner}
    with make_batcher(2, **changes) as batcher:
        acquire(batcher)
        batcher.update(torch.zeros(10**7))


def test_a_dead_worker_is_reported_where_broken_pipes_end_the_process():
    script = """
import os, signal
from tests.batchers import make_batcher
from tests.processes import wait_for_end, worker_pids

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
batcher = make_batcher(2)
os.kill(worker_pids(batcher)[1], signal.SIGKILL)
wait_for_end(worker_pids(batcher)[1:])
batcher.reset()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "killed by SIGKILL" in done.stderr


def test_no_file_stays_open_where_there_may_be_no_more_of_them():
    make_batcher(1).close()  # What is opened once is open.
    before = n_open_files()
    for n_more in range(12):
        with (
            at_most(resource.RLIMIT_NOFILE, before + n_more),
            contextlib.suppress(OSError),
        ):
            make_batcher(1).close()
        assert n_open_files() == before


def test_a_worker_has_no_file_open_twice():
    with make_batcher(1) as batcher:
        acquire(batcher)
        (pid,) = worker_pids(batcher)
        links = list(Path(f"/proc/{pid}/fd").iterdir())
        shared = [link.stat().st_ino for link in links if "memfd" in os.readlink(link)]
    assert len(shared) == len(set(shared)) > 0


def test_an_error_of_the_start_names_the_worker_and_the_limits():
    with (
        at_most(resource.RLIMIT_NOFILE, n_open_files() + 3),
        pytest.raises(OSError, match="Too many open files") as caught,
    ):
        make_batcher(1)
    (note,) = caught.value.__notes__
    assert note.startswith("worker 0: expected to start ")
    assert "ulimit -n" in note


@pytest.mark.parametrize(
    ("what", "more", "match"),
    [
        (resource.RLIMIT_AS, 50 * 2**20, r"expected at most [\d,]+ bytes .free memory., got"),
        (resource.RLIMIT_FSIZE, 0, "bytes of shared memory, got .*File too large"),
    ],
)
def test_no_memory_stays_where_trajectories_may_not_have_it(what, more, match):
    before = n_open_files()
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with make_batcher(1, n_timesteps=10**6) as batcher:
        batcher.reset()
        limit = taken + more if what == resource.RLIMIT_AS else more
        with at_most(what, limit), pytest.raises(SharedMemoryError, match=match):
            batcher.execute()
    assert n_open_files() == before


class KeepsFiles(CountingEnv):
    """Opens files in its step until it can open no more."""

    def step(self, action):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
        self.files = []
        with contextlib.suppress(OSError):
            while True:
                self.files.append(os.open(os.devnull, os.O_RDONLY))
        return super().step(action)


def test_a_worker_that_can_open_no_more_files_says_so():
    with make_batcher(1, create_env=lambda seed: KeepsFiles([9]), env_args={}) as batcher:
        batcher.reset()
        batcher.execute()
        with pytest.raises(WorkerError, match="^worker 0, execute: OSError.*Too many open files"):
            batcher.get()


def test_a_worker_that_can_not_import_rlbatch_says_why(monkeypatch):
    torchs = str(Path(torch.__file__).parents[1])
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != torchs])
    with pytest.raises(WorkerError, match="exited with 1") as caught:
        make_batcher(1)
    assert caught.value.child_traceback.startswith("Traceback (most recent call last)")
    assert "ModuleNotFoundError: No module named" in str(caught.value)


class Rude(Exception):  # noqa: N818 - it is no usual error
    """Says nothing of itself without ending who asks."""

    def __repr__(self):
        raise SystemExit(3)

    def __getattribute__(self, name):
        if name == "environment":
            raise RuntimeError(name)
        return super().__getattribute__(name)


class Frozen(Exception):  # noqa: N818 - it is no usual error
    def __setattr__(self, name, value):
        raise TypeError(name)


@pytest.mark.parametrize("error", [Rude, Frozen])
def test_an_error_is_reported_whatever_its_class_does(error):
    class Raises(CountingGym):
        def step(self, action):
            raise error

    with (
        make_batcher(1, create_env=lambda seed: GymEnv([Raises()], seed), env_args={}) as batcher,
        pytest.raises(WorkerError, match=f"worker 0, execute: {error.__name__}"),
    ):
        acquire(batcher)


def test_a_worker_that_has_left_its_group_ends():
    class Leaves(CountingEnv):
        def step(self, action):
            os.setpgid(0, os.getpgid(os.getppid()))
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
            while True:
                signal.pause()

    with make_batcher(1, create_env=lambda seed: Leaves([3]), env_args={}) as batcher:
        batcher.reset()
        batcher._timeout = 1
        with pytest.raises(WorkerError, match="within 1 s"):
            batcher.execute()


def test_a_killed_worker_is_reported_where_its_child_holds_the_pipe():
    """Whoever sends does not see it: nobody reads, and nobody has closed the other end."""

    class Forks(CountingEnv):
        def reset(self, env_info=None):
            if not os.fork():
                signal.pause()
            return super().reset(env_info)

    with make_batcher(1, create_env=lambda seed: Forks([3]), env_args={}) as batcher:
        worker = batcher._crew.workers[0]
        batcher.reset()
        os.kill(worker._process.pid, signal.SIGKILL)
        with Timer(), pytest.raises(WorkerError, match="killed by SIGKILL"):
            batcher.update(torch.zeros(10**7))


def test_arguments_are_copied_each_in_its_way():
    class Own:
        def __init__(self):
            self.lock = threading.Lock()

        def __deepcopy__(self, memo):
            return Own()

    class Keeps(CountingAgent):
        def __init__(self, own):
            assert isinstance(own, Own)

    changes = {"create_env": lambda module, seed: counting([3], False, seed)}
    changes |= {"create_agent": Keeps, "agent_args": {"own": Own()}, "env_args": {"module": math}}
    with make_batcher(0, **changes) as batcher:
        acquire(batcher)
