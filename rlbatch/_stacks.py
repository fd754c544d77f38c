"""What worker processes are doing: their stacks, for errors.

NOTE [ stacks of workers ]

A worker writes the stack of its main thread to a file that the caller has too, when it gets a
signal. Of one signal, Python is the handler: it writes between two instructions, but not while a
function in another language does not return. Of the other one faulthandler is, which writes at
once; but while Python makes or leaves a frame, it reads what is not there, and the process crashes.

So the second signal is sent only after the first one has had no effect on a thread that has had
the time for it: one that has used the processor since, or that waits in the kernel.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
import traceback
from collections.abc import Sequence
from types import FrameType

from rlbatch._child import Child
from rlbatch._memory import nameless_file

_BETWEEN_INSTRUCTIONS, _AT_ONCE = signal.SIGUSR1, signal.SIGRTMAX
ANSWERS_WITHIN_S = 0.3  # One half for each.
_LOOK_EVERY_S = 0.002
_MOST_FRAMES = 100  # As faulthandler.
_WAITING, _USED_S = "SD", 0.02  # States of a thread, in Linux; see proc(5).


def answer_with_stacks(descriptor: int) -> None:
    """Lets this process write its main thread's stack to a file, when it is asked or crashes."""

    def write(_: int, frame: FrameType | None) -> None:
        with contextlib.suppress(Exception):  # It is not for an environment to catch.
            lines = traceback.format_stack(frame, -_MOST_FRAMES)
            text = "Stack (most recent call last):\n" + "".join(lines)
            os.write(descriptor, text.encode(errors="replace"))

    faulthandler.enable(file=descriptor)
    os.register_at_fork(after_in_child=faulthandler.disable)  # Its crash is not the worker's.
    signal.signal(_BETWEEN_INSTRUCTIONS, write)
    # Of this thread alone: those of threads that run meanwhile would be read while they change.
    faulthandler.register(_AT_ONCE, file=descriptor, all_threads=False)


class StackFile:
    """The file that a worker writes its stacks to."""

    def __init__(self) -> None:
        self._file = open(nameless_file(), "r+b", buffering=0)
        self._used_s = 0.0

    def fileno(self) -> int:
        """Returns its descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Closes it."""
        self._file.close()

    def ask(self, child: Child) -> None:
        """Asks a process for its stack."""
        os.truncate(self.fileno(), 0)
        os.lseek(self.fileno(), 0, os.SEEK_SET)  # The child's place too.
        _, self._used_s = child.main_thread()
        child.send_signal(_BETWEEN_INSTRUCTIONS)

    def insist(self, child: Child) -> None:
        """Asks once more, in the way that may crash it, where that is safe."""
        state, used_s = child.main_thread()
        if state in _WAITING or used_s - self._used_s >= _USED_S:
            child.send_signal(_AT_ONCE)

    def read(self) -> str:
        """Returns what was written since the question; after a crash, also by that."""
        return os.pread(self.fileno(), 1 << 20, 0).decode(errors="replace")


def stacks_of(files: Sequence[StackFile], children: Sequence[Child]) -> list[str]:
    """Returns the stacks of processes as they are now; nothing of those that do not write any."""
    for file, child in zip(files, children, strict=True):
        file.ask(child)
    _wait_for(files)
    for file, child in zip(files, children, strict=True):
        if not file.read():
            file.insist(child)
    _wait_for(files)
    time.sleep(_LOOK_EVERY_S)  # For the rest of what has just begun.
    return [file.read() for file in files]


def _wait_for(files: Sequence[StackFile]) -> None:
    deadline = time.monotonic() + ANSWERS_WITHIN_S / 2
    while not all(file.read() for file in files) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
