"""Messages between the caller and workers: none is lost, and no send waits for a reader."""

import os

import pytest

from rlbatch._pipe import as_message, new_pipe, received_message, send_message

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
