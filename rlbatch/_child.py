"""A process of the caller's, in the handling of which Ctrl-C may come at any moment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

UNKNOWN = 256  # An exit code that no process has.
_LOOK_EVERY_S = 0.002
_GROUP_GRACE_S = 0.3  # For what a process leaves behind in its group.


class Child:
    """A Python process with a group of its own and the flags of this interpreter.

    After its start `Popen` is not asked any more. Where Ctrl-C comes in its `poll`, it does not let
    go of a lock, for which its `wait` then waits for ever.

    Args:
        code: What it executes.
        arguments: Integers, as its command line.
        descriptors: Open files that it takes over.

    Attributes:
        pid: Its number, which no other process gets before `kill`.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, code: str, arguments: tuple[int, ...], descriptors: tuple[int, ...]):
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self._popen = subprocess.Popen(
            # -P: modules are looked for where the parent looks, not in the current folder.
            [sys.executable, *flags, "-P", "-c", code, *map(str, arguments)],
            pass_fds=descriptors,
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=_inherited(1),
            stderr=_inherited(2),
        )
        self.pid = self._popen.pid

    def exit_code(self) -> int | None:
        """Returns None while it runs, and after a signal has ended it the negative number of that.

        `UNKNOWN` where somebody else, such as a handler of SIGCHLD, has asked before.
        """
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return UNKNOWN
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def ends_within(self, seconds: float) -> bool:
        """Waits until it has ended, for so long; returns whether it has."""
        deadline = time.monotonic() + seconds
        while self.exit_code() is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def main_thread(self) -> tuple[str, float]:
        """Returns the state of its main thread, as in Linux's proc(5), and the seconds it has used.

        Nothing of what cannot be told.
        """
        try:
            with open(f"/proc/{self.pid}/task/{self.pid}/stat", "rb") as file:
                state, *numbers = file.read().decode().rpartition(")")[2].split()
        except OSError:
            return "", 0.0
        user, system = numbers[10:12]
        return state, (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Ends it and its group, and waits for that. May be called twice."""
        self.send_signal(signal.SIGKILL)
        # The group, and also after a good end: it may have left children. multiprocessing's
        # resource tracker takes no notice of this; when the others are gone, it unlinks what they
        # have left in /dev/shm, and ends.
        self._signal_group(signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._popen.returncode = 0  # Or it would warn that the process runs.
        deadline = time.monotonic() + _GROUP_GRACE_S
        while self._signal_group(0) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> bool:
        """Sends a signal to its group; returns whether there is still somebody in it."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def _inherited(descriptor: int) -> int | None:
    """Returns what makes a child inherit a standard stream, or have one that goes nowhere."""
    try:
        os.fstat(descriptor)
    except OSError:
        return subprocess.DEVNULL
    return None


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Has the handlers of signals, such as Ctrl-C's, wait for the end of a block.

    In the middle of its start, nobody would know of a process.
    """
    if threading.current_thread() is not threading.main_thread():  # Which alone handles signals.
        yield
        return
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    came: list[int] = []
    try:
        for number in handlers:
            signal.signal(number, lambda came_now, _: came.append(came_now))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)
