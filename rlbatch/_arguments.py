"""What a batcher is given, looked at before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rlbatch._checks import check_same_keys, check_same_rows
from rlbatch.agent import RL_Agent
from rlbatch.dicttensor import DictTensor
from rlbatch.envs.base import VecEnv
from rlbatch.errors import DeviceMismatchError, ShapeError

_CPU = torch.device("cpu")


def check_info(name: str, info: Any) -> None:
    """Checks that an info is a DictTensor or None.

    Raises:
        TypeError: It is something else.
    """
    if not (info is None or isinstance(info, DictTensor)):
        raise TypeError(f"{name}: expected a DictTensor or None, got {info!r}")


def check_creates(name: str, create: Any) -> None:
    """Checks what environments or agents are made with.

    Raises:
        TypeError: It is not a function, or what it should make.
    """
    if not callable(create) or isinstance(create, (RL_Agent, VecEnv)):
        raise TypeError(
            f"{name}: expected a function or a class, to be called in each process, got {create!r}"
        )


def keyword_arguments(name: str, args: Any) -> dict[str, Any]:
    """Returns arguments as a dict of the batcher's own.

    Raises:
        TypeError: They have no names.
    """
    if not isinstance(args, Mapping):
        raise TypeError(f"{name}: expected a dict of keyword arguments, got {args!r}")
    return dict(args)


def check_timeout(timeout: float | None) -> None:
    """Checks a number of seconds.

    Raises:
        TypeError: It is not a number.
        ValueError: It is less than 0.
    """
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, np.number)):
        raise TypeError(f"timeout: expected seconds or None, got {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout: expected at least 0 s, got {timeout}")


def template_of(name: str, info: DictTensor | None) -> DictTensor:
    """Returns a row that says what an info is like; none where it is not known.

    Raises:
        TypeError: It is not a DictTensor.
        ShapeError: It is not one row.
        DeviceMismatchError: It is not on the CPU.
    """
    check_info(name, info)
    info = DictTensor() if info is None else info
    if not info.empty():
        if info.device() != _CPU:
            raise DeviceMismatchError(name, _CPU, info.device())
        if info.n_elems() != 1:
            key, tensor = next(iter(info.items()))
            found = f"{key} {tuple(tensor.shape)}"
            raise ShapeError(
                f"{name}: expected one row as an example, tensors [1, ...], got {found}"
            )
    return info


def info_rows(
    name: str,
    info: DictTensor | None,
    template: DictTensor,
    stored: DictTensor | None,
    n_envs: int,
) -> DictTensor:
    """Returns an info with one row per environment, in the form that it has had before.

    Args:
        name: Of the argument.
        info: As given; None or empty for the template's row.
        template: The row that the constructor was given; empty without one.
        stored: No rows, in the form of the first trajectories; None before there are any.
        n_envs: How many environments there are.

    Raises:
        TypeError: It is not a DictTensor.
        DeviceMismatchError: It is not on the CPU.
        ShapeError: It has not that many rows, or others.
        KeyMismatchError, DtypeMismatchError: It has other keys or dtypes.
    """
    check_info(name, info)
    if info is None or info.empty():
        info = template.index([0] * n_envs)
    elif info.device() != _CPU:
        raise DeviceMismatchError(name, _CPU, info.device())
    elif info.n_elems() != n_envs:
        raise ShapeError(f"{name}: expected {n_envs} rows, got {info.n_elems()}")
    has_template = not template.empty()
    form = template if has_template else stored
    if form is not None:
        where = "the constructor" if has_template else "the first trajectories"
        check_same_keys(f"{name}, as in {where}", form, info)
        for key, tensor in form.items():
            check_same_rows(f"{name}/{key}, as in {where}", info[key], tensor, n_common=1)
    return info
