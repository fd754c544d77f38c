"""Memory: how much is free, and what processes share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import torch

from rlbatch.errors import SharedMemoryError


def check_free_memory(
    n_bytes: int, advice: str = "take fewer environments or a smaller n_timesteps"
) -> None:
    """Checks that there is that much free memory for trajectories, as far as the system says.

    Args:
        n_bytes: How much.
        advice: What the caller can do where there is less.

    Raises:
        SharedMemoryError: There is less; the message gives both figures.
    """
    free = free_memory()
    if free is not None and n_bytes > free:
        raise SharedMemoryError(
            f"storage of trajectories: expected at most {free:,} bytes (free memory), got "
            f"{n_bytes:,}; {advice}, or allow for more memory (of a container, ulimit -v)"
        )


def free_memory() -> int | None:
    """Returns the bytes that can still be taken; None where the system does not say."""
    figures = [_meminfo_available(), _cgroup_available(), _address_space_left()]
    known = [figure for figure in figures if figure is not None]
    return min(known) if known else None


def _address_space_left() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return None
    return max(0, limit - taken)


def _meminfo_available() -> int | None:
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _cgroup_available(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Returns what a container's memory limit leaves (cgroup v2, mounted where it usually is)."""
    try:
        limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # No such file, or "max": no limit.
        return None
    # What was read from files and written to them counts as used, and is given up for others.
    files = sum(int(stat.get(name, 0)) for name in ("active_file", "inactive_file"))
    return limit - used + files


# --- Memory that processes share. It has no name, so nothing is left behind however a process
# ends, and `/dev/shm`, which containers keep small, is not involved. ---


def shared_block(n_bytes: int) -> tuple[torch.Tensor, int]:
    """Allocates zeroed memory to share with workers.

    Returns:
        [n_bytes] uint8, and the file descriptor by which a worker maps it; the caller closes it.

    Raises:
        SharedMemoryError: There is less free memory than that, or this process may not have it.
    """
    check_free_memory(n_bytes)
    descriptor = nameless_file()
    try:
        os.ftruncate(descriptor, n_bytes)
        return map_block(descriptor, n_bytes), descriptor
    except (OSError, RuntimeError) as error:  # The latter is PyTorch's.
        os.close(descriptor)
        raise SharedMemoryError(
            f"storage of trajectories: expected {n_bytes:,} bytes of shared memory, got {error}"
        ) from error


def nameless_file() -> int:
    """Makes a file that has no name; on Linux in memory, where no folder has to be writable.

    Returns:
        Its descriptor, which the caller closes; it is no standard stream.
    """
    file: IO[bytes]
    try:
        file = open(os.memfd_create("rlbatch"), "rb")
    except (AttributeError, OSError):  # The system has none, or forbids it.
        file = tempfile.TemporaryFile()
    with file:
        return dup(file.fileno())


def dup(descriptor: int) -> int:
    """Returns a copy of a file descriptor that is no standard stream."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def map_block(descriptor: int, n_bytes: int) -> torch.Tensor:
    """Maps shared memory; the tensor keeps it mapped after the descriptor is closed.

    PyTorch knows that it is shared. Other memory it would move when a view of it is sent to another
    process, all of it, while NumPy and other processes went on with the old.
    """
    with _standard_streams_open():
        storage = torch.UntypedStorage._new_shared_fd_cpu(descriptor, n_bytes)  # type: ignore[attr-defined]
    os.set_inheritable(storage._share_fd_cpu_()[0], False)  # Its own copy of the descriptor.
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


@contextlib.contextmanager
def _standard_streams_open() -> Iterator[None]:
    """Keeps what is opened within from becoming a standard stream, where one is closed."""
    with contextlib.ExitStack() as files:
        while files.enter_context(open(os.devnull)).fileno() <= 2:
            pass
        yield


class SharedBytes:
    """Bytes in memory that has no name, for processes that are given its descriptor.

    Attributes:
        descriptor: Of the memory; closed when this object is forgotten.

    Raises:
        OSError: There are too many open files, or too little memory.
    """

    def __init__(self, content: bytes):
        self.descriptor = nameless_file()
        weakref.finalize(self, os.close, self.descriptor)
        with open(self.descriptor, "wb", closefd=False) as file:
            file.write(content)
