"""A worker in the caller's process, and how it is kept apart from the caller."""

from __future__ import annotations

import contextlib
import copy
import gc
import random
import types
from collections.abc import Callable
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import torch

from rlbatch._messages import Command, Done, Recipe
from rlbatch._slots import Layout, SlotWriter
from rlbatch._worker import Worker, seed_generators

_Returned = TypeVar("_Returned")


class LocalWorker:
    """A worker in the caller's process, with the interface of `RemoteWorker`.

    Exceptions are raised as they are, where they happen, so that a debugger finds them. The
    global random generators are the worker's own while it works: it draws what a process of its
    own would draw, and the caller's draws are not disturbed; not so where several threads do this.

    Args:
        recipe: What to make the worker from. Arguments are copied, as they would be on their way
            to a process.
        allocate: See `Worker`.
    """

    connection = None
    is_importing = False

    def __init__(self, recipe: Recipe, allocate: Callable[[Layout], tuple[SlotWriter, float]]):
        self._generators: Any = None
        self._device = recipe.device
        self._worker = self._as_in_a_process(_new_worker, recipe, allocate)
        self._reply: Any = self._worker.ready

    @staticmethod
    def pack(command: Command, *arguments: Any) -> tuple:
        """Returns arguments as they would arrive in a process: what is not the caller's own.

        Raises:
            TypeError: One cannot be copied.
        """
        if command is not Command.UPDATE:
            return arguments
        try:
            with torch.inference_mode(False):  # A process has no modes of the caller's.
                return _copied(arguments)
        except Exception as error:
            expected = f"{command.value}: expected something that can be copied"
            raise TypeError(f"{expected}, got {arguments[0]!r}: {error}") from error

    def send(self, command: Command, arguments: tuple) -> None:
        """Carries out a command that has been packed, before it returns."""
        carry_out = getattr(self._worker, command.value)
        n_running = self._as_in_a_process(carry_out, *arguments)
        self._reply = Done(n_running, dict(self._worker.stats))

    def poll(self) -> Any:
        """Returns the reply to the last command."""
        return self._reply

    def hang_up(self) -> None:
        """Does nothing: there is no pipe."""

    def ends_within(self, seconds: float) -> bool:
        """Returns True: there is no process to wait for."""
        return True

    def stop(self) -> None:
        """Closes environments and agent, unless a command has done so."""
        with contextlib.suppress(Exception):
            self._as_in_a_process(self._worker.close)

    # Not a context manager: contextlib assigns to the exception that it raises again, which fails
    # for those of frozen classes.
    def _as_in_a_process(self, call: Callable[..., _Returned], *arguments: Any) -> _Returned:
        callers = _get_generators(self._device)
        try:
            if self._generators is not None:
                _set_generators(self._generators)
            with contextlib.ExitStack() as modes:  # Of the caller's thread; a process has none.
                modes.enter_context(torch.inference_mode(False))
                for kind in ("cpu", "cuda"):
                    if torch.is_autocast_enabled(kind):
                        modes.enter_context(torch.autocast(kind, enabled=False))
                return call(*arguments)
        finally:
            self._generators = _get_generators(self._device)
            _set_generators(callers)


def _new_worker(recipe: Recipe, allocate: Callable[[Layout], tuple[SlotWriter, float]]) -> Worker:
    _set_numpy_generator(np.random.MT19937())  # Of its own: the caller's stays as it is.
    seed_generators(recipe.seeds.generators)
    # Only if CUDA is in use: PyTorch defers the call otherwise, and would then seed the caller's.
    if _uses_cuda(recipe.device):
        torch.cuda.manual_seed_all(recipe.seeds.generators)
    return Worker(recipe._replace(**_copied_args(recipe)), allocate)


def _copied_args(recipe: Recipe) -> dict[str, Any]:
    """Returns copies of the arguments, by their names; what both have stays one object.

    Raises:
        TypeError: One cannot be copied; with its name.
    """
    both = {"agent_args": recipe.agent_args, "env_args": recipe.env_args}
    try:
        return _copied(both)
    except Exception:
        for name, key in [(name, key) for name, args in both.items() for key in args]:
            value = both[name][key]
            try:
                _copied(value)
            except Exception as error:
                expected = f"{name}[{key!r}]: expected something that can be copied"
                raise TypeError(f"{expected}, got {value!r}: {error}") from error
        # In different ways, which do not go together.
        return {name: _copied(args) for name, args in both.items()}


def _copied(value: Any) -> Any:
    """Returns a copy as it would arrive in a process."""
    # Tensors by themselves: that is faster, and PyTorch refuses to copy deeply what was computed
    # with gradients.
    copies = {
        id(one): one.detach().clone().requires_grad_(one.requires_grad)
        for one in _tensors_in(value)
        if not (isinstance(one, torch.nn.Parameter) or (one.is_leaf and vars(one)))
    }
    try:
        return copy.deepcopy(value, memo=copies)
    except Exception:  # A module or an open file, which reach a process.
        return cloudpickle.loads(cloudpickle.dumps(value))


def _tensors_in(value: Any) -> list[torch.Tensor]:
    """Returns the tensors that a deep copy of something comes to."""
    found, seen, waiting = [], set(), [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _NOT_COPIED):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found.append(one)
        else:
            waiting += gc.get_referents(one)
    return found


# Into which a deep copy does not look.
_NOT_COPIED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, str, int)


def _uses_cuda(device: torch.device) -> bool:
    return device.type == "cuda" or torch.cuda.is_initialized()


def _get_generators(device: torch.device) -> tuple:
    # A CUDA generator's state (seed and offset) is kept on the host: this does not wait. All of
    # them: that is what `torch.manual_seed` seeds.
    cuda = torch.cuda.get_rng_state_all() if _uses_cuda(device) else []
    return random.getstate(), _get_numpy_generator(), torch.get_rng_state(), cuda


def _set_generators(states: tuple) -> None:
    python, numpy, cpu, cuda = states
    random.setstate(python)
    _set_numpy_generator(*numpy)
    torch.set_rng_state(cpu)
    torch.cuda.set_rng_state_all(cuda)


def _get_numpy_generator() -> tuple[Any, dict[str, Any] | None]:
    """Returns NumPy's global generator, and its state where the object alone does not tell it."""
    state = np.random.get_state(legacy=False)
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    return generator, state if state["has_gauss"] else None


def _set_numpy_generator(generator: Any, state: dict[str, Any] | None = None) -> None:
    # A hundred times as fast as to write a state into the one that is there.
    np.random.set_bit_generator(generator)  # type: ignore[attr-defined]
    if state is not None:  # With the second one of a pair of normal numbers, yet to be drawn.
        np.random.set_state(state)
