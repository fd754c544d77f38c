"""Checks of what the caller's functions, agents and environments return to a worker."""

from __future__ import annotations

from typing import Any

import torch

from rlbatch._checks import check_same_keys, check_same_rows
from rlbatch.dicttensor import DictTensor
from rlbatch.errors import EnvContractError, ShapeError


def check_has(where: str, made: Any, expected: str, names: tuple[str, ...]) -> None:
    """Checks that what `create_env` or `create_agent` has made has some methods.

    Raises:
        TypeError: One is missing, or it is a class.
    """
    missing = [name for name in names if not callable(getattr(made, name, None))]
    if isinstance(made, type):
        raise TypeError(f"{where}: expected {expected}, got a class: {made!r}")
    if missing:
        raise TypeError(f"{where}: expected {expected}, got {made!r}, which has no {missing[0]}")


def check_answer(answer: Any) -> None:
    """Checks that an agent has returned two DictTensors.

    Raises:
        TypeError: It has returned something else.
    """
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise TypeError(f"agent.__call__: expected a pair (output, new state), got {answer!r}")
    check_is_dicttensor("agent.__call__", "output", answer[0])
    check_is_dicttensor("agent.__call__", "new state", answer[1])


def check_is_dicttensor(stage: str, name: str, value: Any) -> None:
    """Checks that something is a DictTensor.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, DictTensor):
        raise TypeError(f"{stage}: {name}: expected a DictTensor, got {value!r}")


def check_rows(where: str, tensors: DictTensor, n: int) -> None:
    """Checks that there is a row for each of `n` environments, or nothing at all.

    Raises:
        ShapeError: There are more or fewer.
    """
    if tensors.variables and tensors.n_elems() != n:
        raise ShapeError(f"{where}: expected {n} rows, got {tensors.n_elems()}")


def check_new_state(found: DictTensor, before: DictTensor, n: int) -> None:
    """Checks that the state of `n` environments can stand where the one before did.

    Raises:
        ShapeError: It has not `n` rows, or other rows.
        KeyMismatchError, DtypeMismatchError, DeviceMismatchError: It differs otherwise.
    """
    check_rows("agent.__call__: new state", found, n)
    if before.keys() != found.keys():
        check_same_keys("agent.__call__: new state, as of initial_state", before, found)
    for key, tensor in before.items():
        new = found[key]
        if new.shape != tensor.shape or new.dtype != tensor.dtype or new.device != tensor.device:
            where = f"new state/{key}, as of initial_state"
            check_same_rows(where, new, tensor, n_common=1, stage="agent.__call__")


def two_pairs(answer: Any) -> Any:
    """Returns what a step has returned, if it looks like what `VecEnv.step` is to return.

    Raises:
        EnvContractError: It does not.
    """
    try:
        (after, ran), (following, running) = answer
    except (TypeError, ValueError):
        raise EnvContractError(
            "env.step: expected ((observation, running), (observation, running)), after the action "
            f"and to act on next, got {answer!r}"
        ) from None
    return (after, ran), (following, running)


def check_done(after: DictTensor, n: int) -> None:
    """Checks that it is told which of `n` episodes ended.

    Raises:
        EnvContractError: It is not, or in another form.
    """
    done = after.variables.get("done")
    if done is None or done.dtype != torch.bool or done.shape != (n,):
        found = "none" if done is None else f"{tuple(done.shape)} {done.dtype}"
        raise EnvContractError(f"env.step: _observation/done: expected ({n},) bool, got {found}")


def check_running(expected: torch.Tensor, found: torch.Tensor) -> None:
    """Checks that exactly those environments run on whose episode has not ended.

    Raises:
        EnvContractError: Others do.
    """
    if not torch.equal(expected, found):
        raise EnvContractError(
            "env.step: running: expected the numbers, since the reset, of those that ran and are "
            f"not done, {expected.tolist()}, got {found.tolist()}, with autoreset False (True is "
            "for those that reset themselves)"
        )
