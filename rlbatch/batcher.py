"""Runs agents in environments, in processes or in the caller's, and returns trajectories."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from enum import Enum
from multiprocessing.connection import Connection
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

import torch

from rlbatch._arguments import (
    check_creates,
    check_info,
    check_timeout,
    info_rows,
    keyword_arguments,
    template_of,
)
from rlbatch._checks import check_integer
from rlbatch._crew import Crew
from rlbatch._memory import shared_block
from rlbatch._messages import Command, Done, Recipe, Slots, TorchSettings
from rlbatch._remote import timed_out
from rlbatch._slots import Layout, SlotStore, SlotWriter, check_same_layout
from rlbatch.devices import DeviceLike, as_present_device
from rlbatch.dicttensor import DictTensor, Trajectories
from rlbatch.errors import CallOrderError, WorkerError, WorkerTimeoutError
from rlbatch.seeding import worker_seeds

# How long environments and agents may take to close, such as one that writes a video.
_CLOSE_TIMEOUT_S = 60.0
# How long workers may take to end by themselves, having been told to, or when one has failed.
_CLOSE_GRACE_S, _FAIL_GRACE_S = 2.0, 0.5
_P = ParamSpec("_P")
_R = TypeVar("_R")


class _State(Enum):
    """Which calls mean something now."""

    NEW = "new: call reset"
    IDLE = "idle: call execute"
    EXECUTING = "executing: call get"
    CLOSED = "closed"
    FAILED = "failed: a worker raised or died, or Ctrl-C came while it worked; see the error before"


def _one_at_a_time(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keeps threads from making calls side by side, whose answers they would take from each other.

    `close` alone may come in between.
    """

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        batcher: Any = args[0]
        name, was_open = method.__name__, batcher._state is not _State.CLOSED
        if batcher._calls.locked():
            if not was_open:
                raise CallOrderError(f"{name}: expected an open batcher, got one that is closing")
            raise CallOrderError(
                f"{name}: expected one call at a time, got one while another has not returned"
            )
        try:
            # Ctrl-C may come between an `acquire` and a `try`, and the lock would stay taken.
            with batcher._calls:
                return method(*args, **kwargs)
        except Exception as error:
            if was_open and batcher._state is _State.CLOSED:
                raise CallOrderError(
                    f"{name}: expected a batcher that stays open, got one that another thread has "
                    "closed"
                ) from error
            raise
        finally:
            batcher._stop_if_closed()

    return call


class RL_Batcher:
    """Runs agents in environments and returns trajectories of up to T steps.

    Every process has an environment batch and an agent of its own. `execute()` sets all of them
    off, `get()` collects what they acquired; in between the caller is free. The batcher owns its
    processes and their memory; `close()` them, or use it in a `with`. One call is made at a time;
    only `close` may come from another thread in the middle of one.

    Environments that do not reset themselves run on over several `execute()` until their episode
    ends; then they drop out of the trajectories until the next `reset()`.

    Args:
        n_timesteps: T, the steps per `execute()`.
        create_agent: Called in each process with `agent_args`; returns an `RL_Agent`. May be a
            lambda, a closure or a function of a notebook.
        agent_args: Keyword arguments; copied into each process.
        create_env: Called in each process with `env_args` and `seed`; returns a `VecEnv`.
        env_args: Keyword arguments without `seed`; copied into each process.
        n_processes: How many processes; 0 acquires in the caller's own, during `execute()`: the
            mode for a debugger, and for environments on a GPU.
        seeds: An int from which all seeds follow; those of the environments do not depend on
            `n_processes`, what agents draw does. Or one int per process or per environment.
        agent_info: One row, in the form that `reset()` takes, used for all environments where
            `reset` is given none. None or empty for agents without.
        env_info: The same for the environments.
        agent_seeds: One per process, given to `RL_Agent.seed`, or an int; None to leave it out.
        device: Where trajectories are stored. Observations have to come from there and actions
            go there.
        info_device: Where agents find `agent_info`.
        num_threads: Of torch in each process; with 0 processes the caller's setting holds.
        timeout: Seconds that a worker may take to answer before it counts as stuck; what it imports
            when it starts may take a minute in any case. None waits as long as the process lives.

    Raises:
        TypeError: `create_env` or `create_agent` is not a function, or returns something else; an
            info is not a DictTensor, a count not an integer, or (with processes) something cannot
            be pickled.
        ValueError: A count is too small, a seed is negative, there are too many or too few seeds,
            `env_args` holds a `seed`, or there is no such device.
        ShapeError, DeviceMismatchError: An info does not have one row, or is not on the CPU.
        EnvContractError: The processes have unequal numbers of environments, or none; or the
            environments of some reset themselves, those of others do not.
        WorkerError: `create_env` or `create_agent` failed in a process. With 0 processes their
            own exception is raised, here and elsewhere.
        WorkerTimeoutError: They took longer than `timeout`.
        CallOrderError: A module that makes a batcher when it is imported is imported by a worker.
        OSError: The system has no room for more processes, files or memory.

    Example:
        >>> import gymnasium
        >>> from rlbatch import RL_Agent
        >>> from rlbatch.envs import GymEnv
        >>> class Left(RL_Agent):
        ...     def __call__(self, state, observation, agent_info, history=None):
        ...         action = torch.zeros(observation.n_elems(), dtype=torch.int64)
        ...         return DictTensor({"action": action}), DictTensor()
        >>> with RL_Batcher(
        ...     n_timesteps=100,
        ...     create_agent=Left,
        ...     agent_args={},
        ...     create_env=lambda seed: GymEnv([gymnasium.make("CartPole-v1")], seed),
        ...     env_args={},
        ...     n_processes=0,
        ...     seeds=0,
        ... ) as batcher:
        ...     batcher.reset()
        ...     batcher.execute()
        ...     trajectories, n_running = batcher.get()
        >>> n_running, bool(trajectories.trajectories["_observation/terminated"][0, -1])
        (0, True)
    """

    def __init__(  # noqa: PLR0913 - the constructor of rlstructures
        self,
        n_timesteps: int,
        create_agent: Callable[..., Any],
        agent_args: dict[str, Any],
        create_env: Callable[..., Any],
        env_args: dict[str, Any],
        n_processes: int,
        seeds: int | Sequence[int],
        agent_info: DictTensor | None = None,
        env_info: DictTensor | None = None,
        agent_seeds: int | Sequence[int] | None = None,
        device: DeviceLike = "cpu",
        *,
        info_device: DeviceLike = "cpu",
        num_threads: int = 1,
        timeout: float | None = 600.0,
    ):
        check_integer("n_timesteps", n_timesteps, 1)
        check_integer("n_processes", n_processes, 0)
        check_integer("num_threads", num_threads, 1)
        check_timeout(timeout)
        check_creates("create_agent", create_agent)
        check_creates("create_env", create_env)
        agent_args = keyword_arguments("agent_args", agent_args)
        env_args = keyword_arguments("env_args", env_args)
        if "seed" in env_args:
            raise ValueError(
                "env_args: expected none named seed, which create_env is given from seeds, got "
                f"{env_args['seed']!r}"
            )
        self._n_timesteps, self._timeout = n_timesteps, timeout
        self._device = as_present_device(device)
        agents_info_device = as_present_device(info_device, "info_device")
        settings = TorchSettings.of_the_caller(num_threads)
        self._templates = {"agent_info": template_of("agent_info", agent_info)}
        self._templates["env_info"] = template_of("env_info", env_info)
        self._store: Any = None  # A SlotStore, from the first step on.
        self._replies: list[Any] = []  # To EXECUTE, one Done per worker.
        self._due = math.inf  # Until when all of them are to be here, as of `time.monotonic`.
        self._policy_version = self._n_running = 0
        self._state, self._owner = _State.NEW, os.getpid()
        self._after_get = _State.IDLE
        self._calls = threading.Lock()
        recipes = [
            Recipe(
                create_env=create_env,
                env_args=env_args,
                create_agent=create_agent,
                agent_args=agent_args,
                seeds=own,
                n_timesteps=n_timesteps,
                device=self._device,
                info_device=agents_info_device,
                torch_settings=settings,
                log_level=logging.getLogger("rlbatch").level,
            )
            for own in worker_seeds(seeds, agent_seeds, max(n_processes, 1))
        ]
        self._crew, self._is_local = Crew(), not n_processes
        # Runs at the latest when the interpreter ends; holds the crew, not the batcher.
        self._stop = weakref.finalize(self, self._crew.stop, _CLOSE_GRACE_S)
        # Weakly, so that a worker does not keep its batcher alive.
        allocate = functools.partial(RL_Batcher._allocate_here, weakref.proxy(self))
        try:
            self._crew.start(recipes, None if n_processes else allocate, timeout)
        except BaseException:
            self._fail()
            raise

    def n_elems(self) -> int:
        """Returns the number of environments over all processes."""
        return self._crew.n_envs

    def device(self) -> torch.device:
        """Returns where trajectories are stored."""
        return self._device

    @_one_at_a_time
    def reset(
        self, agent_info: DictTensor | None = None, env_info: DictTensor | None = None
    ) -> None:
        """Starts an episode in every environment.

        Args:
            agent_info: [n_elems(), ...] on the CPU, one row per environment; None or empty for
                the one given to the constructor.
            env_info: The same, for the environments.

        Raises:
            CallOrderError: Between `execute` and `get`, or after `close` or a failure.
            ShapeError, KeyMismatchError, DtypeMismatchError, DeviceMismatchError: An info has not
                one row per environment, or is not like the constructor's; without one there, like
                that of the first trajectories.
            TypeError: An info is not a DictTensor.
            WorkerError: A worker failed.
            WorkerTimeoutError: It took longer than the batcher's `timeout`.
        """
        self._expect(_State.NEW, _State.IDLE, to="reset")
        infos = [self._rows("agent_info", agent_info), self._rows("env_info", env_info)]
        packed = []
        for worker, part in zip(self._crew.workers, self._crew.parts, strict=True):
            rows = (info.slice(part.start, part.stop).clone() for info in infos)
            packed.append(worker.pack(Command.RESET, *rows, part.start))
        replies = self._ask(Command.RESET, packed, self._timeout)
        self._n_running = sum(reply.n_running for reply in replies)
        self._after_get = _State.IDLE
        self._enter(_State.IDLE)

    @_one_at_a_time
    def execute(self, agent_info: DictTensor | None = None) -> None:
        """Sets the workers off to acquire up to T steps of the running environments.

        Args:
            agent_info: [n_elems(), ...] on the CPU, in the place of the one given to `reset`; rows
                of environments that do not run are not used. None or empty to keep it.

        Raises:
            CallOrderError: Before `reset`, before the `get` of an `execute`, when no environment
                runs, or after `close` or a failure.
            SharedMemoryError: The trajectories do not fit in memory (the first time only).
            TypeError, ShapeError, KeyMismatchError, DtypeMismatchError, DeviceMismatchError:
                `agent_info` is not as `reset` takes it; or (the first time only) the workers return
                different keys, shapes or dtypes.
            WorkerError: A worker failed.
            WorkerTimeoutError: Their first step took longer than the batcher's `timeout`.
        """
        self._expect(_State.IDLE, to="execute")
        if not self._n_running:
            raise CallOrderError(
                "execute: expected a running environment, got none: all have ended; reset"
            )
        check_info("agent_info", agent_info)
        keeps = agent_info is None or agent_info.empty()
        info = None if keeps else self._rows("agent_info", agent_info)
        longest = 0 if self._store is None else self._store.longest
        self._replies = [None] * len(self._crew.workers)
        try:
            self._finish_reading()
            for worker, part in zip(self._crew.workers, self._crew.parts, strict=True):
                rows = None if info is None else info.slice(part.start, part.stop).clone()
                worker.send(Command.EXECUTE, worker.pack(Command.EXECUTE, rows, longest))
            self._enter(_State.EXECUTING)
            if self._store is None:
                self._hand_out_slots()
            self._due = time.monotonic() + (math.inf if self._timeout is None else self._timeout)
        except BaseException:
            self._fail()
            raise

    def _finish_reading(self) -> None:
        """Waits until nothing here reads what other processes on the GPU are to write over."""
        if not self._is_local and self._device.type == "cuda" and self._store is not None:
            torch.cuda.synchronize(self._device)

    @overload
    def get(
        self, blocking: Literal[True] = True, timeout: float | None = None, copy: bool = True
    ) -> tuple[Trajectories, int]: ...

    @overload
    def get(
        self, blocking: bool, timeout: float | None = None, copy: bool = True
    ) -> tuple[Trajectories, int] | tuple[None, None]: ...

    @_one_at_a_time
    def get(
        self, blocking: bool = True, timeout: float | None = None, copy: bool = True
    ) -> tuple[Trajectories, int] | tuple[None, None]:
        """Returns what the last `execute` acquired.

        Args:
            blocking: Wait for it; otherwise return `(None, None)` if it is not complete.
            timeout: How long to wait, in seconds; None for the batcher's. To look now and then,
                use `blocking=False`: a timeout first collects the stacks of the workers, which
                takes time.
            copy: Return memory that the caller owns. False returns views that the next `execute`
                writes over, and copies only where some environments did not run.

        Returns:
            The trajectories of the environments that ran, in the order of their numbers, on the
            batcher's device; and how many environments run on. `info` holds `agent_info/...`,
            `env_info/...`, `agent_state/...` (before the first step), `env_id` and
            `policy_version` [B] int64 (how many `update`s the agent had seen).

        Raises:
            CallOrderError: There was no `execute`, or its trajectories have been taken.
            TypeError, ValueError: `timeout` is not a number of at least 0.
            WorkerTimeoutError: It took longer than that, or without `blocking` than the batcher's
                `timeout` since `execute`; nothing is lost, and `get` may be called again. The
                message holds the stacks of the workers that are busy.
            WorkerError: A worker failed; the batcher cannot be used any more.
            RuntimeError: Views of an earlier `get` have been shared with PyTorch's strategy
                `file_system`, which moves them.
        """
        self._expect(_State.EXECUTING, to="get")
        check_timeout(timeout)
        if not self._collect(self._timeout if timeout is None else timeout, blocking):
            return None, None
        trajectories = self._store.read(self._crew.autoreset, copy)
        # Not before: where that is interrupted, `get` may be called again.
        self._n_running = sum(reply.n_running for reply in self._replies)
        self._enter(self._after_get)
        return trajectories, self._n_running

    @_one_at_a_time
    def update(self, info: Any) -> None:
        """Gives every agent new weights; returns when all have them.

        Between `execute` and `get` it waits for the acquisition to end first.

        Args:
            info: What `RL_Agent.update` takes, usually a `state_dict`. Its CUDA tensors reach other
                processes through the CPU.

        Raises:
            CallOrderError: After `close` or a failure.
            TypeError: It cannot be copied into a process.
            WorkerError: A worker failed.
            WorkerTimeoutError: It took longer than the batcher's `timeout`. Where that was the
                acquisition, all goes on, with the weights of before.
        """
        self._expect(_State.NEW, _State.IDLE, _State.EXECUTING, to="update")
        if self._state is _State.EXECUTING:
            self._collect(self._timeout, blocking=True)
        version = self._policy_version + 1
        workers = self._crew.workers
        packed = [workers[0].pack(Command.UPDATE, info, version)] * len(workers)
        self._ask(Command.UPDATE, packed, self._timeout)
        self._policy_version = version

    def require_reset(self) -> None:
        """Requires a `reset` next, after a `get` where one is due.

        For helpers such as `acquire_episodes`, which have infos of their own and stop in the middle
        of episodes.
        """
        self._after_get = _State.NEW
        if self._state is _State.IDLE:
            self._state = _State.NEW

    @property
    def policy_version(self) -> int:
        """How many `update`s there were: `info["policy_version"]` of what agents do from now on."""
        return self._policy_version

    @_one_at_a_time
    def pending(self) -> list[Connection]:
        """Returns the pipes that `get` would wait for, none if it would not; see `wait_for_any`.

        Raises:
            CallOrderError: There was no `execute`, or its trajectories have been taken.
            WorkerTimeoutError: It has been longer than the batcher's `timeout` since `execute`.
            WorkerError: A worker failed; the batcher cannot be used any more.
        """
        self._expect(_State.EXECUTING, to="pending")
        self._collect(None, blocking=False)
        return [worker.connection for worker in self._crew.missing_from(self._replies)]

    def stats(self) -> list[dict[str, float]]:
        """Returns, per worker, where its time went since it was made.

        Returns:
            Per worker `env_s`, `agent_s`, `storage_s` and `wait_s` (for the caller, and once for
            the first step of all others) in seconds, and `n_steps` (of the batch); as of its last
            answer. On CUDA these are times of the host.
        """
        return [dict(stats) for stats in self._crew.stats]

    def close(self) -> None:
        """Closes environments, agents and processes. May be called twice, and after a failure.

        In the middle of an acquisition, and where a batcher is forgotten instead of closed, workers
        have two seconds to close. Then their running step is interrupted, and a second later they
        are killed.

        Raises:
            WorkerError: Closing an environment or an agent failed; the processes have ended.
            WorkerTimeoutError: It took longer than a minute, or than the batcher's `timeout`, and
                the processes were killed.
        """
        # In this order: a call of another thread looks at the state after it has released the lock.
        before, self._state = self._state, _State.CLOSED
        is_alone = not self._calls.locked()
        with self._calls if is_alone else contextlib.nullcontext():
            try:
                if is_alone and not self._is_forked():
                    self._close_politely(before)
            finally:
                # Also of a call before, in the middle of which Ctrl-C came.
                if is_alone or not self._is_local:
                    self._crew.stop(_CLOSE_GRACE_S)
                self._stop.detach()
                self._store = None

    def _close_politely(self, before: _State) -> None:
        """Tells workers to close, where they can still be told."""
        usable = before in (_State.NEW, _State.IDLE)
        if before is _State.EXECUTING:
            with contextlib.suppress(WorkerError):  # Nobody has asked what it acquired.
                usable = self._collect(None, blocking=False)
        if usable:
            packed = [worker.pack(Command.CLOSE) for worker in self._crew.workers]
            timeout = _CLOSE_TIMEOUT_S if self._timeout is None else self._timeout
            self._ask(Command.CLOSE, packed, min(timeout, _CLOSE_TIMEOUT_S))

    def _stop_if_closed(self) -> None:
        """Stops workers of this process that `close` has left to the call that made them work."""
        may_be_left = self._state is _State.CLOSED and self._is_local
        if may_be_left and not self._calls.locked():
            with self._calls:
                self._crew.stop(0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self.close()
        except Exception as closing:
            if error is None:
                raise
            # It is what the caller has to know of, and may wait for.
            error.add_note(f"RL_Batcher.close: {type(closing).__name__}: {closing}")

    # --- Talking to the workers. ---

    def _ask(self, command: Command, packed: list[Any], timeout: float | None) -> list[Done]:
        """Sends a command to all, packed for each of them; returns their answers."""
        try:
            return self._crew.ask(command, packed, timeout)
        except BaseException:
            self._fail()
            raise

    def _collect(self, timeout: float | None, blocking: bool) -> bool:
        # Waits for the answers to EXECUTE; returns whether all are here.
        try:
            self._crew.poll_into(self._replies, timeout if blocking else 0.0)
        except WorkerTimeoutError:
            if blocking:
                raise
            if time.monotonic() > self._due:  # Else who only looks now and then would never know.
                raise timed_out(self._crew.missing_from(self._replies), self._timeout) from None
            return False
        except WorkerError:
            self._fail()
            raise
        return True

    def _fail(self) -> None:
        if self._state is not _State.CLOSED:  # Then `close` does this.
            self._state = _State.FAILED
            self._crew.stop(_FAIL_GRACE_S)

    def _enter(self, state: _State) -> None:
        if self._state is _State.CLOSED:
            raise CallOrderError(
                "RL_Batcher: expected one that stays open, got one that was closed in the meantime"
            )
        self._state = state

    def _is_forked(self) -> bool:
        # Workers, and the memory of the trajectories, belong to the process that has made them.
        return os.getpid() != self._owner

    def _expect(self, *states: _State, to: str) -> None:
        if self._is_forked():
            raise CallOrderError(
                f"{to}: expected the process that has made the batcher, got one forked from it"
            )
        if self._state not in states:
            expected = " or ".join(state.name.lower() for state in states)
            raise CallOrderError(
                f"{to}: expected a batcher that is {expected}, got one that is {self._state.value}"
            )

    # --- Memory. ---

    @torch.inference_mode(False)  # The slots are written and read in any mode.
    def _hand_out_slots(self) -> None:
        """Answers the workers, which now know what they store; waits for the slowest first step."""
        if self._is_local:
            return  # It has called _allocate_here.
        layout, *others = [message.layout for message in self._crew.gather(self._timeout)]
        for number, other in enumerate(others, start=1):
            check_same_layout(f"worker {number}", layout, other)
        block, descriptor = self._new_block(layout)
        cuda_block = block if descriptor is None else None
        try:
            self._store = SlotStore(layout, self.n_elems(), self._n_timesteps, block)
            for worker, part in zip(self._crew.workers, self._crew.parts, strict=True):
                place = (self.n_elems(), self._n_timesteps, part.start, len(part))
                worker.send_slots(Slots(layout, *place, cuda_block), descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _allocate_here(self, layout: Layout) -> tuple[SlotWriter, float]:
        block, descriptor = self._new_block(layout)
        if descriptor is not None:
            os.close(descriptor)
        self._store = SlotStore(layout, self.n_elems(), self._n_timesteps, block)
        return SlotWriter(self._store, 0, self.n_elems()), 0.0

    def _new_block(self, layout: Layout) -> tuple[torch.Tensor, int | None]:
        """Returns zeroed memory for all slots; on a CPU with a descriptor, to be closed."""
        n_bytes = layout.n_bytes(self.n_elems(), self._n_timesteps)
        if self._device.type == "cpu":
            return shared_block(n_bytes)
        return torch.zeros(n_bytes, dtype=torch.uint8, device=self._device), None

    def _rows(self, name: str, info: DictTensor | None) -> DictTensor:
        stored = None if self._store is None else self._store.layout.no_rows(f"{name}/")
        return info_rows(name, info, self._templates[name], stored, self.n_elems())
