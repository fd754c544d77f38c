"""Messages between the caller and workers: none is lost, and no send waits for a reader."""

import os
import resource
import signal
from pathlib import Path

import pytest

from rlbatch._memory import _address_space_left, _meminfo_available, free_memory, nameless_file
from rlbatch._pipe import as_message, new_pipe, received_message, send_message, without_sigpipe
from tests.processes import at_most

FITS = 1 << 16  # Bytes that a pipe takes.


@pytest.mark.parametrize("n_bytes", [1, FITS, FITS + 1, 10**7])
def test_what_is_sent_before_anybody_reads_arrives_at_all(n_bytes):
    content = os.urandom(n_bytes)
    message, pipes = as_message(content), [new_pipe(duplex=True) for _ in range(3)]
    for mine, _ in pipes:
        send_message(mine, message)
    del message
    for mine, theirs in pipes:
        with mine, theirs:
            assert received_message(theirs)[:] == content


def test_messages_keep_their_order_and_leave_no_file_open():
    before = os.listdir("/proc/self/fd")
    contents = [bytes([k]) * n_bytes for k, n_bytes in enumerate((5, 10**6, FITS, 10**6, 7))]
    mine, theirs = new_pipe(duplex=True)
    with mine, theirs:
        for content in contents:
            send_message(mine, as_message(content))
            assert received_message(theirs)[:] == content
    assert os.listdir("/proc/self/fd") == before


def test_what_is_free_is_what_the_narrowest_limit_leaves(monkeypatch):
    names = ("_meminfo_available", "_cgroup_available", "_address_space_left")
    for narrow in names:
        for name in names:
            for others in (None, 2000):
                n_bytes = 1000 if name == narrow else others
                monkeypatch.setattr(f"rlbatch._memory.{name}", lambda n_bytes=n_bytes: n_bytes)
        assert free_memory() == 1000
    for name in names:
        monkeypatch.setattr(f"rlbatch._memory.{name}", lambda: None)
    assert free_memory() is None


def test_memory_is_counted_in_bytes():
    page = resource.getpagesize()
    free, whole = (os.sysconf(f"SC_{name}PHYS_PAGES") * page for name in ("AV", ""))
    assert free / 2 < _meminfo_available() <= whole


def test_a_limit_of_addresses_leaves_what_is_not_taken():
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with at_most(resource.RLIMIT_AS, taken + 50 * 2**20):
        assert 0 < _address_space_left() <= 60 * 2**20


def test_programs_that_the_caller_starts_have_none_of_its_descriptors():
    descriptor = nameless_file()
    with open(descriptor, "rb"):
        assert not os.get_inheritable(descriptor)
    for duplex in (False, True):
        reader, writer = new_pipe(duplex)
        with reader, writer:
            assert not any(os.get_inheritable(end.fileno()) for end in (reader, writer))


def test_a_send_leaves_the_callers_signals_as_they_are():
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        mine, theirs = new_pipe(duplex=True)
        theirs.close()
        with mine, pytest.raises(BrokenPipeError), without_sigpipe():
            mine.send_bytes(b"x")
        assert signal.SIGPIPE not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.signal(signal.SIGPIPE, before)
