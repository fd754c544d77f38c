"""How much memory is free, and an error before there is too little."""

from __future__ import annotations

import resource
from pathlib import Path

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
