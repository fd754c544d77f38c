"""The pipe between the caller and a worker.

Whatever a script has set for all sockets, for signals, or has closed, is not to reach it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe

_LONGEST_S = 10**9  # More would not fit in all of the structures that systems have for times.


def new_pipe(duplex: bool) -> tuple[Connection, Connection]:
    """Returns two ends, of which the first one reads and, if `duplex`, both read and write.

    Neither is a standard stream. Where the caller has closed one of its own, the next file that is
    opened takes its number, and what a worker prints would go there.
    """
    reader, writer = Pipe(duplex)
    with reader, writer:
        return (
            Connection(dup(reader.fileno()), writable=duplex),
            Connection(dup(writer.fileno()), readable=duplex),
        )


def dup(descriptor: int) -> int:
    """Returns a copy of a file descriptor that is no standard stream."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def limit_sends(connection: Connection, seconds: float) -> None:
    """Makes sends fail with BlockingIOError where nobody reads for so long.

    What is read in part before that has as long again for the rest.
    """
    whole, rest = divmod(min(float(seconds), _LONGEST_S), 1)
    with _as_socket(connection) as pipe:
        timeval = struct.pack("ll", int(whole), int(rest * 1e6))
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)


def send_descriptor(connection: Connection, descriptor: int) -> None:
    """Sends a file descriptor."""
    with _as_socket(connection) as pipe:
        socket.send_fds(pipe, [b"1"], [descriptor])


def received_descriptor(connection: Connection) -> int:
    """Returns the file descriptor that the other end sends.

    Raises:
        EOFError: It has been closed.
        OSError: No more files can be opened here.
    """
    with _as_socket(connection) as pipe:
        data, found, _, _ = socket.recv_fds(pipe, 1, 1)
    if not data:
        raise EOFError
    if not found:
        raise OSError("expected a file descriptor, got none: too many files are open (ulimit -n)")
    return found[0]


@contextlib.contextmanager
def _as_socket(connection: Connection) -> Iterator[socket.socket]:
    with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        pipe.setblocking(True)  # Not so where there is a `socket.setdefaulttimeout`.
        yield pipe


@contextlib.contextmanager
def without_sigpipe() -> Iterator[None]:
    """Makes a send to nobody an error, where the caller has it end the process.

    Raises:
        BrokenPipeError: Nobody reads any more.
    """
    if signal.getsignal(signal.SIGPIPE) is not signal.SIG_DFL:  # As Python begins.
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    except BrokenPipeError:
        if signal.SIGPIPE not in before and signal.SIGPIPE in signal.sigpending():
            signal.sigwait({signal.SIGPIPE})
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
