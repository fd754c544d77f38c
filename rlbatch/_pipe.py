"""The pipe between the caller and a worker.

Whatever a script has set for all sockets, for signals, or has closed, is not to reach it.

What the pipe may not hold until it is read goes by way of shared memory. So no send waits for a
worker, and what all workers are sent is written once.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import signal
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe

from rlbatch._memory import SharedBytes, dup

# A pipe holds one message at a time, and perhaps a descriptor; systems count more bytes for them
# than they have.
_MOST_BYTES = 1 << 16
_BUFFER_BYTES = 4 * _MOST_BYTES

Message = bytes | SharedBytes


def new_pipe(duplex: bool) -> tuple[Connection, Connection]:
    """Returns two ends, of which the first one reads and, if `duplex`, both read and write.

    Neither is a standard stream. Where the caller has closed one of its own, the next file that is
    opened takes its number, and what a worker prints would go there.
    """
    reader, writer = Pipe(duplex)
    with reader, writer:
        if duplex:
            with _as_socket(reader) as pipe:
                pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        return (
            Connection(dup(reader.fileno()), writable=duplex),
            Connection(dup(writer.fileno()), readable=duplex),
        )


def as_message(content: bytes) -> Message:
    """Returns what to send, to any number of workers, of a content that is not empty.

    Raises:
        OSError: It needs shared memory, and there is none.
    """
    return content if len(content) <= _MOST_BYTES else SharedBytes(content)


def send_message(connection: Connection, message: Message) -> None:
    """Sends a message, without waiting until somebody reads it."""
    if isinstance(message, bytes):
        connection.send_bytes(message)
    else:
        connection.send_bytes(b"")
        send_descriptor(connection, message.descriptor)


def received_message(connection: Connection) -> bytes | mmap.mmap:
    """Returns the content of a message; raises what `received_descriptor` does."""
    content = connection.recv_bytes()
    if content:
        return content
    descriptor = received_descriptor(connection)
    try:
        return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)


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
        message = "expected a file descriptor, got none: too many files are open (ulimit -n)"
        raise OSError(errno.EMFILE, message)
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
