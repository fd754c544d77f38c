"""The parent's handle on a worker process.

NOTE [ worker shutdown ]

    parent                                        child
    RemoteWorker  --- commands, one at a time --> _process.main
                  <-- Imported, Ready, NeedSlots, Done, Failure ---

A worker is a plain `subprocess`, not a `multiprocessing.Process`: it does not import the caller's
`__main__` again (so a script needs no guard), and it may have children of its own. What it is
made from is pickled by value.

1. The parent never waits for a message alone: it wakes up to look whether the process lives. So
   a killed worker is reported with its signal, even where a grandchild holds the pipe open.
2. No send waits: what may not fit into the pipe goes by way of shared memory.
3. The child has a process group of its own. Ctrl-C reaches the parent only, which ends its
   workers; they print nothing. One that is still busy is interrupted by a signal before it is
   killed, so that it closes its environments, and lets go of a block on a GPU: PyTorch keeps that
   for ever where a process that has it is killed. The whole group is killed, grandchildren
   included.
4. The child ends when the parent is gone: it reads the end of the pipe, or, busy in a step, its
   watching thread sees that it has another parent. Where a step keeps all threads from running,
   Linux does it: a second pipe, into which nothing is written, loses its writer.
5. Nothing has a name: the pipe, the shared memory and the dump file vanish with the processes.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import torch

from rlbatch._child import UNKNOWN, Child
from rlbatch._memory import SharedBytes
from rlbatch._messages import Command, Failure, Imported, Recipe, Slots
from rlbatch._pickling import dumps, search_path
from rlbatch._pipe import (
    Message,
    as_message,
    new_pipe,
    send_descriptor,
    send_message,
    without_sigpipe,
)
from rlbatch._process import INTERRUPT, check_may_start
from rlbatch._registry import registered_environments
from rlbatch._stacks import ANSWERS_WITHIN_S, StackFile, stacks_of
from rlbatch.errors import WorkerError, WorkerTimeoutError

# How long a worker may import what it is made from, at least, where `timeout` is less.
IMPORT_TIMEOUT_S = 60.0
# How long workers may take to end after an interrupt, before they are killed.
_INTERRUPT_GRACE_S = 1.0
# The child takes over where the parent looks for modules, and the arguments that these may read
# when they are imported, before it imports anything of ours. And the key that processes of one run
# show each other, where they send each other tensors or use a `Manager`.
_BOOT = """
import os, pickle, sys, traceback
from multiprocessing import current_process
from multiprocessing.connection import Connection
caller, pipe, *numbers = map(int, sys.argv[1:])
with open(caller, "rb") as file:
    file.seek(0)
    sys.path[:], sys.argv[:], current_process().authkey = pickle.load(file)
try:
    from rlbatch._process import main
    main(Connection(pipe), *numbers)
except BaseException:
    os.write(numbers[0], traceback.format_exc().encode(errors="replace"))
    raise
"""


class RemoteWorker:
    """A worker in a process of its own. It owns the process, its pipe and its dump file.

    Args:
        recipe: What to make the worker from; pickled by value, in `start`.
        number: Of this worker.

    Raises:
        CallOrderError: A worker is about to start workers, see `check_may_start`.
        OSError: No process can be started; there may be too many, or too many open files.
    """

    def __init__(self, recipe: Recipe, number: int):
        check_may_start()
        self.number = number
        self.first_env = 0
        self.command = Command.START
        self._owner = os.getpid()
        self._recipe = recipe
        self._was_read = self._is_stopped = False
        self.is_importing = True
        try:
            self._start_process()
        except OSError as error:
            error.add_note(
                f"worker {number}: expected to start {sys.executable!r}; what limits that are the "
                "numbers of processes and of open files (ulimit -u, ulimit -n)"
            )
            raise

    def _start_process(self) -> None:
        with contextlib.ExitStack() as files:
            self.connection, theirs = map(files.enter_context, new_pipe(duplex=True))
            lifeline, self._lifeline = map(files.enter_context, new_pipe(duplex=False))
            self._dump = files.enter_context(contextlib.closing(StackFile()))
            key = bytes(multiprocessing.current_process().authkey)
            caller = SharedBytes(pickle.dumps((search_path(), sys.argv, key)))
            ends = caller.descriptor, theirs.fileno(), self._dump.fileno(), lifeline.fileno()
            self._process = Child(_BOOT, (*ends, os.getpid()), ends)
            files.pop_all()
        theirs.close()
        lifeline.close()

    def start(self) -> None:
        """Sends, once, what the worker is made from.

        Raises:
            TypeError: The recipe cannot be pickled.
            OSError: There is no memory for it.
            WorkerError: The process is gone.
        """
        payload = _pickled(self._recipe)
        del self._recipe
        self._guarded(send_message, self.connection, as_message(payload))

    def send(self, command: Command, packed: Message) -> None:
        """Sends a command that has been packed.

        Raises:
            WorkerError: The process is gone.
        """
        self.command, self._was_read = command, False
        self._guarded(send_message, self.connection, packed)

    @staticmethod
    def pack(command: Command, *arguments: Any) -> Message:
        """Returns what to send; good for every worker.

        Raises:
            TypeError: An argument cannot be pickled.
            OSError: There is no memory for it.
        """
        message = (command, arguments)
        # Most carry nothing else, and then a pickler for everything takes longer than the pipe.
        if all(type(argument) in (int, type(None)) for argument in arguments):
            return pickle.dumps(message)
        try:
            payload = dumps(message, torch.device("cpu"))
        except Exception as error:
            raise TypeError(
                f"{command.value}: expected something that can be pickled, got {arguments[0]!r}: "
                f"{error}"
            ) from error
        return as_message(payload)

    def send_slots(self, slots: Slots, descriptor: int | None) -> None:
        """Answers NeedSlots; a CPU block goes as a file descriptor."""
        self._was_read = False
        self._guarded(self.connection.send, slots)
        if descriptor is not None:
            self._guarded(send_descriptor, self.connection, descriptor)

    def poll(self) -> Any:
        """Returns the answer to what was sent last, None where there is none yet.

        Raises:
            WorkerError: The worker has failed or died; or the answer has been read already: an
                exception, such as Ctrl-C, came before anybody had it.
        """
        if self._was_read:
            raise self._error("expected an answer, but the call that read it was interrupted")
        try:
            # A message that was sent before a death is still there to be read.
            if self.connection.poll():
                self._was_read = True
                message = self.connection.recv()
                if isinstance(message, Imported):  # The answer comes after it.
                    self.is_importing = self._was_read = False
                    return None
                if isinstance(message, Failure):
                    raise self._failure(message)
                return message
        except (EOFError, OSError) as error:
            raise self._death_or(error) from None
        if self._process.exit_code() is not None and not self.connection.poll():
            raise self._death()
        return None

    def hang_up(self) -> None:
        """Closes the pipe: a process that waits for a command ends."""
        self.connection.close()

    def ends_within(self, seconds: float) -> bool:
        """Waits until the process has ended, for so long; returns whether it has."""
        if os.getpid() != self._owner:  # The caller has forked: the worker is the other's.
            return True
        return self._process.ends_within(seconds)

    def interrupt(self) -> None:
        """Makes the process leave the step that it is in, unless Python is not executed there."""
        if os.getpid() == self._owner:
            self._process.send_signal(INTERRUPT)

    def stop(self) -> None:
        """Ends the process, whatever it is doing, and releases everything. May be called twice."""
        if os.getpid() != self._owner or self._is_stopped:
            return
        self.hang_up()
        self._process.kill()
        self._dump.close()
        self._lifeline.close()
        self._is_stopped = True

    def _guarded(self, send: Any, *arguments: Any) -> None:
        try:
            with without_sigpipe():
                send(*arguments)
        except OSError as error:
            if not _is_of_the_caller(error):
                self.poll()  # It may have said why.
            raise self._death_or(error) from None

    def _failure(self, failure: Failure) -> WorkerError:
        environment, where = failure.environment, ""
        if environment is not None:
            environment += self.first_env
            where = f", environment {environment}"
        return WorkerError(
            f"worker {self.number}, {self.command.value}{where}: {failure.error}\n\n"
            f"The worker's traceback:\n{failure.formatted}",
            self.number,
            self.command.value,
            environment,
            failure.formatted,
        )

    def _death_or(self, error: Exception) -> Exception:
        """Returns what an error of the pipe means."""
        return error if _is_of_the_caller(error) else self._death()

    def _death(self) -> WorkerError:
        self._process.ends_within(1.0)
        code = self._process.exit_code()
        if code is None:
            how = "closed its pipe"
        elif code == UNKNOWN:
            how = "has ended; its exit code went to somebody else, such as a handler of SIGCHLD"
        else:
            how = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with {code}"
        what = f"expected an answer, but it {how}{_HINTS.get(how, '')}"
        return self._error(what, self._stacks_of_crash())

    def _stacks_of_crash(self) -> str:
        # What comes before was asked for while the worker lived.
        found = self._dump.read()
        for start in ("Fatal Python error: ", "Traceback (most recent call last)"):
            _, crash, stacks = found.partition(start)
            if crash:
                return crash + stacks.partition("\nExtension modules: ")[0]
        return ""

    def _error(self, what: str, stacks: str = "") -> WorkerError:
        return WorkerError(
            f"{self}, {self.command.value}: {what}{_paragraph(stacks)}",
            self.number,
            self.command.value,
            child_traceback=stacks,
        )

    def __str__(self) -> str:
        return f"worker {self.number} (process {self._process.pid})"


def _signal_name(number: int) -> str:
    """Returns such as SIGKILL; real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_of_the_caller(error: Exception) -> bool:
    """Returns whether what came in the use of a pipe is not about that pipe."""
    # A pipe times out never, but the caller may have a handler of signals that raises this.
    return isinstance(error, TimeoutError) or getattr(error, "errno", None) in _LIMITS


_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETOOMANYREFS)

_HINTS = {
    "was killed by SIGKILL": " (by somebody, or by the system when memory runs out)",
    "was killed by SIGBUS": " (shared memory has run out)",
}


def _told_stacks(workers: list[RemoteWorker]) -> str:
    found = stacks_of([one._dump for one in workers], [one._process for one in workers])
    return "\n".join(
        f"{worker}:\n{stacks or _NO_STACKS}" for worker, stacks in zip(workers, found, strict=True)
    )


_NO_STACKS = (
    f"no stacks within {ANSWERS_WITHIN_S} s; it is stopped, was started just now, or is not given "
    "a processor\n"
)


def _paragraph(text: str) -> str:
    return f"\n\n{text}" if text else ""


def timed_out(workers: list[Any], timeout: float | None) -> WorkerTimeoutError:
    """Returns the error of workers that do not answer, with what they are doing."""
    names = ", ".join(f"{worker.number} ({worker.command.value})" for worker in workers)
    stacks = _told_stacks(workers) if timeout else ""
    return WorkerTimeoutError(
        f"workers {names}: expected an answer within {timeout} s, got none{_paragraph(stacks)}",
        workers[0].number,
        workers[0].command.value,
        child_traceback=stacks,
    )


def stop_workers(workers: list[Any], grace_s: float) -> None:
    """Ends all processes, and empties the list; they share one time of grace."""
    try:
        for worker in workers:
            worker.hang_up()
        for worker in _running_after(grace_s, workers):
            worker.interrupt()
        _running_after(_INTERRUPT_GRACE_S, workers)
    finally:  # At once, where Ctrl-C comes meanwhile.
        for worker in workers:
            worker.stop()
        workers.clear()


def _running_after(seconds: float, workers: list[Any]) -> list[Any]:
    """Waits until all have ended, or for so long; returns those that have not."""
    deadline = time.monotonic() + seconds
    return [one for one in workers if not one.ends_within(max(0.0, deadline - time.monotonic()))]


def _pickled(recipe: Recipe) -> bytes:
    # The script, in a child that multiprocessing has spawned; nobody else finds it by name.
    script = sys.modules.get("__mp_main__")
    if script is not None and script.__name__ == "__mp_main__":
        cloudpickle.register_pickle_by_value(script)
    try:
        return dumps((recipe, registered_environments()), recipe.device)
    except Exception:
        args = {"env_args": recipe.env_args, "agent_args": recipe.agent_args}
        parts = {f"{name}[{key!r}]": args[name][key] for name in args for key in args[name]}
        makers = {"create_env": recipe.create_env, "create_agent": recipe.create_agent}
        for name, value in {**parts, **makers}.items():
            try:
                dumps(value, recipe.device)
            except Exception as error:
                hint = "; with a method its object is sent, so take a function"
                raise TypeError(
                    f"{name}: expected something that can be pickled, got {value!r}: {error}"
                    f"{hint if inspect.ismethod(value) else ''}{_culprit(value, recipe.device)}"
                ) from error
        raise


def _culprit(value: Any, device: torch.device, *above: Any) -> str:
    """Returns what a function, or a method of a class, uses that cannot be pickled."""
    above = (*above, value)
    for user, name, used in _used_by(value):
        if not any(used is one for one in above) and not _can_be_pickled(used, device):
            return f"; {user} uses {name}{_culprit(used, device, *above)}"
    return ""


def _used_by(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yields for a function, or the methods of a class: its name, and what is around it."""
    for one in vars(value).values() if inspect.isclass(value) else [value]:
        if inspect.isfunction(one):
            with contextlib.suppress(ValueError):  # A variable without a value yet.
                around = inspect.getclosurevars(one)
                for name, used in {**around.globals, **around.nonlocals}.items():
                    yield one.__qualname__, name, used


def _can_be_pickled(value: Any, device: torch.device) -> bool:
    try:
        dumps(value, device)
    except Exception:
        return False
    return True
