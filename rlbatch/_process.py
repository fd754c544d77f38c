"""A worker in a process of its own: serves commands. See NOTE [ worker shutdown ] in _remote.py."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import logging
import mmap
import multiprocessing.util
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from rlbatch._memory import map_block
from rlbatch._messages import Command, Done, Failure, Imported, NeedSlots, Recipe, Slots
from rlbatch._pickling import loads
from rlbatch._pipe import received_descriptor, received_message
from rlbatch._registry import register_environments
from rlbatch._slots import Layout, SlotStore, SlotWriter
from rlbatch._stacks import answer_with_stacks
from rlbatch._worker import Worker, seed_generators
from rlbatch.errors import CallOrderError

# Makes a worker leave the step that it is in; nobody else sends it.
INTERRUPT = signal.SIGUSR2
_WATCH_EVERY_S = 0.5
_MOST_CHARACTERS = 20_000  # Of what an error says, and of its traceback.


def main(connection: Connection, dump_descriptor: int, lifeline: int, parent: int) -> None:
    """Serves commands until told to close, until one fails, or until the parent is gone.

    Args:
        connection: To the parent.
        dump_descriptor: Of a file; a signal makes the process write its stacks there, and so does
            a crash.
        lifeline: Of a pipe that the parent holds the other end of.
        parent: The parent's process; it may have ended while this one imported what it needs.
    """
    global _served_by
    _served_by = os.getpid()
    group = os.getpgrp()  # An environment may leave it.
    gc.freeze()  # What torch is made of stays: the collection at the end has less to look through.
    worker: Worker | None = None
    is_parent_gone = False
    try:
        _set_signals(dump_descriptor)
        _let_parent_go_on()
        _end_with(parent, lifeline, group)
        worker, device = _make_worker(connection)
        _send(connection, worker.ready)
        _serve(connection, worker, device)
    except BaseException as error:
        is_parent_gone = isinstance(error, _ParentGone)
        if not is_parent_gone:
            with contextlib.suppress(_ParentGone):
                _send(connection, _failure(error))
        if worker is not None:
            with contextlib.suppress(Exception, _ParentGone):
                worker.close()
    finally:
        signal.signal(INTERRUPT, signal.SIG_IGN)
        # Temporary folders of environments go, their files are written. And a block of the parent's
        # on a GPU counts as in use there until it is let go of here.
        worker = None
        gc.collect()
        # As multiprocessing ends its children: tearing down torch takes half a second.
        if not is_parent_gone:
            with contextlib.suppress(BaseException):
                multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]
        _flush()
        if is_parent_gone:  # Nobody else ends what environments have started.
            _kill(group)
        os._exit(0)


# A function of its own: what a signal handler raises where a loop jumps back can bypass a `try`
# around that loop in the same function (CPython's issues 108214 and 130279).
def _serve(connection: Connection, worker: Worker, device: torch.device) -> None:
    command = Command.START
    while command is not Command.CLOSE:
        started = time.perf_counter()
        command, arguments = _load(_received(connection, received_message))
        worker.stats["wait_s"] += time.perf_counter() - started
        n_running = getattr(worker, command.value)(*arguments)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        _send(connection, Done(n_running, worker.stats))


def _set_signals(dump_descriptor: int) -> None:
    answer_with_stacks(dump_descriptor)
    signal.signal(INTERRUPT, _give_up)
    # A terminal may stop what prints in the background.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)


def _give_up(*_: Any) -> None:
    raise _ParentGone


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # There may be none, or nobody who reads it.
            stream.flush()


def check_may_start() -> None:
    """Keeps workers from starting workers that start workers.

    Raises:
        CallOrderError: This is a worker that imports what it is made from, and one of these modules
            makes a batcher when it is imported.
    """
    if _is_loading:
        raise CallOrderError(
            "RL_Batcher: expected modules that make none when they are imported, as workers import "
            "them too, got one that does; put it into a function, or under "
            "if __name__ == '__main__'"
        )


_is_loading = False


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    global _is_loading
    _is_loading = True
    try:
        yield
    finally:
        _is_loading = False


def _make_worker(connection: Connection) -> tuple[Worker, torch.device]:
    recipe = _load_recipe(connection)
    recipe.torch_settings.apply()
    logging.getLogger("rlbatch").setLevel(recipe.log_level)
    seed_generators(recipe.seeds.generators)
    torch.manual_seed(recipe.seeds.generators)  # CUDA's as well, once it is in use.
    return Worker(recipe, partial(_ask_for_slots, connection)), recipe.device


def _load_recipe(connection: Connection) -> Recipe:
    payload = _received(connection, received_message)
    with _loading():
        recipe, environments = loads(payload)
        register_environments(environments)
    _send(connection, Imported())
    return recipe


def _load(payload: bytes | mmap.mmap) -> tuple[Command, tuple]:
    with _loading():
        return loads(payload)


_served_by = 0  # The process that is the worker.


class _ParentGone(BaseException):  # noqa: N818 - no error, and not for an environment to catch
    """The parent has ended, or has given up on this worker."""


# What is wrong with this process, not with the pipe: no more files, or no more memory.
_OUT_OF_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


# Environments and agents may raise what a pipe raises; only here it is the parent's.
def _received(connection: Connection, receive: Callable[..., Any]) -> Any:
    try:
        return receive(connection)
    except (EOFError, OSError) as error:
        if getattr(error, "errno", None) in _OUT_OF_ROOM:
            raise
        raise _ParentGone from error


def _send(connection: Connection, message: Any) -> None:
    if os.getpid() != _served_by:
        # An environment has forked, and its child has returned from it as well. Two would answer.
        with contextlib.suppress(Exception):  # There may be no stream.
            sys.stderr.write("rlbatch: a child that was forked in an environment ends here\n")
        _flush()
        os._exit(1)
    try:
        connection.send(message)
    except OSError as error:
        raise _ParentGone from error


def _failure(error: BaseException) -> Failure:
    """Returns what the parent is told, whatever the class of the error does."""
    number, said, formatted = None, type(error).__name__, ""
    with contextlib.suppress(BaseException):
        formatted = "".join(traceback.format_exception(error))
    with contextlib.suppress(BaseException):
        number = getattr(error, "environment", None)
    with contextlib.suppress(BaseException):
        said = repr(error)
    return Failure(_cut(said), number if isinstance(number, int) else None, _cut(formatted))


def _cut(text: str) -> str:
    """Returns a text without its middle where it is too long for a pipe to take at once."""
    left_out = len(text) - _MOST_CHARACTERS
    if left_out <= 0:
        return text
    half = _MOST_CHARACTERS // 2
    return f"{text[:half]}\n[{left_out:,} characters left out]\n{text[-half:]}"


def _ask_for_slots(connection: Connection, layout: Layout) -> tuple[SlotWriter, float]:
    started = time.perf_counter()
    _send(connection, NeedSlots(layout))
    slots: Slots = _received(connection, Connection.recv)  # When the slowest worker has asked.
    waited_s = time.perf_counter() - started
    block = slots.cuda_block
    if block is None:
        descriptor = _received(connection, received_descriptor)
        block = map_block(descriptor, slots.layout.n_bytes(slots.n_slots, slots.n_timesteps))
        os.close(descriptor)
    store = SlotStore(slots.layout, slots.n_slots, slots.n_timesteps, block)
    return SlotWriter(store, slots.first, slots.n_envs), waited_s


def _let_parent_go_on() -> None:
    """Keeps a worker that wakes up from taking the core of the parent, which has others to wake.

    Without it the second of two workers starts a millisecond late where cores are few.
    """
    if hasattr(os, "SCHED_BATCH"):  # Linux.
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _end_with(parent: int, lifeline: int, group: int) -> None:
    """Ends this process soon after its parent, even inside a step that never returns."""
    _end_with_pipe(lifeline, group)
    # Another than the parent, where that has ended already, or where a launcher is between.
    above = os.getppid()

    def watch() -> None:
        with contextlib.suppress(ProcessLookupError):
            while os.getppid() == above:
                with contextlib.suppress(PermissionError):
                    os.kill(parent, 0)  # Does nothing but ask whether it is there.
                time.sleep(_WATCH_EVERY_S)
        _kill(group)

    threading.Thread(target=watch, daemon=True, name="rlbatch-watch-parent").start()


def _kill(group: int) -> None:
    """Ends this process, with all that environments have started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _end_with_pipe(lifeline: int, group: int) -> None:
    """Lets Linux end the process group when the last writer of a pipe is gone."""
    if hasattr(fcntl, "F_SETSIG"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -group)
            fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
