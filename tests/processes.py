"""Processes of tests: which there are, how long things take, and that nothing is left."""

import contextlib
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOON_S = 5.0
STARTED_S = 60.0  # With what the processes import, on a busy machine.


def children(pid="self"):
    """Returns the processes whose parent is `pid` (Linux)."""
    parent = os.getpid() if pid == "self" else pid
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            state, ppid = stat.rsplit(")", 1)[1].split()[:2]
            if int(ppid) == parent and state != "Z":
                found.append(int(entry))
    return found


def alive(pid):
    """Returns whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def worker_pids(batcher):
    return [worker._process.pid for worker in batcher._crew.workers]


def wait_for_end(pids, within_s=SOON_S):
    """Asserts that processes end soon."""
    deadline = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


@contextlib.contextmanager
def at_most(what, n):
    """Lowers a limit of this process."""
    before, writes = resource.getrlimit(what), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # What is cut would stay.
    resource.setrlimit(what, (n, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)
        sys.dont_write_bytecode = writes


class Timer:
    """Measures a block, and fails it when it takes too long."""

    def __init__(self, within_s=SOON_S):
        self.within_s = within_s

    def __enter__(self):
        self.started = time.monotonic()
        return self

    def __exit__(self, *_):
        self.took = time.monotonic() - self.started
        assert self.took < self.within_s, f"took {self.took:.1f} s"


@contextlib.contextmanager
def nothing_stays_in_shared_memory() -> Iterator[None]:
    """Asserts that no name is left there; those of other processes come and go."""
    before = set(os.listdir("/dev/shm"))
    yield
    deadline = time.monotonic() + 10
    while (left := set(os.listdir("/dev/shm")) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
