"""Checkpoints: one file with everything that a run needs to go on."""

from __future__ import annotations

import dataclasses
import os
import zipfile
from pathlib import Path
from typing import Any

import torch

NAME = "checkpoint.pt"
_ALL_HOLD = {"algorithm", "env_id", "config", "model", "iteration", "rlbatch_version"}
_OF_THIS_RUN_ALONE = {"checkpoint_dir", "resume", "evaluate"}


def save(folder: Path, content: dict[str, Any]) -> None:
    """Writes a checkpoint in the place of the last one; at no time is there only half of one.

    Args:
        folder: The run's folder, which is there already.
        content: Tensors, numbers and strings, in dicts, lists and tuples.

    Raises:
        OSError: It could not be written, as on a full disk.
        RuntimeError: PyTorch's, of anything else.
    """
    unfinished = folder / f"{NAME}.tmp"
    try:
        with unfinished.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(folder / NAME)
    except RuntimeError as error:
        cause = error.__context__
        if isinstance(cause, OSError):  # PyTorch's own words do not tell of a full disk.
            raise OSError(cause.errno, cause.strerror, str(unfinished)) from None
        raise
    finally:
        unfinished.unlink(missing_ok=True)  # A full disk needs the room.


def locate(path: str | Path) -> Path:
    """Returns the checkpoint's file, given the file or the run's folder.

    Raises:
        FileNotFoundError: There is none.
    """
    file = Path(path)
    if str(path) and file.is_dir():
        file /= NAME
        if not file.is_file():
            raise FileNotFoundError(f"checkpoint: expected {NAME} in {path}, got a folder without")
    if not file.is_file():
        raise FileNotFoundError(f"checkpoint: expected a file or a run's folder, got {str(path)!r}")
    return file


def load(
    path: str | Path,
    algorithm: str | None = None,
    env_id: str | None = None,
    *,
    mmap: bool = False,
) -> dict[str, Any]:
    """Reads a checkpoint onto the CPU; it can hold no code.

    Args:
        path: The file, or the run's folder.
        algorithm: The one that has to have written it; None for any.
        env_id: The environment that it has to be of; None for any.
        mmap: Map tensors into memory instead of reading them, for a caller that wants the rest.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It belongs to another algorithm or environment, or is no checkpoint.
    """
    file = locate(path)
    if not zipfile.is_zipfile(file):  # As PyTorch writes them.
        raise ValueError(
            f"{file}: expected a checkpoint, got a file that is none, or a part of one"
        )
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # Of many classes, where a file is damaged.
        raise ValueError(f"{file}: expected a checkpoint, got a damaged file: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: expected a checkpoint of a run, got a {type(content).__name__}")
    if lacking := sorted(_ALL_HOLD - content.keys()):
        raise ValueError(f"{file}: expected a checkpoint of a run, got one without {lacking}")
    if algorithm not in (None, content["algorithm"]):
        raise ValueError(f"{path}: expected {algorithm}, got a run of {content['algorithm']}")
    if env_id not in (None, content["env_id"]):
        raise ValueError(f"env_id: expected {content['env_id']}, as in {path}, got {env_id}")
    return content


def load_weights(model: torch.nn.Module, content: dict[str, Any], config: Any, option: str) -> None:
    """Gives a model the weights of a checkpoint.

    Args:
        model: Made as `config` says.
        content: Of the checkpoint.
        config: The options of now, a dataclass.
        option: The one that the checkpoint was named by.

    Raises:
        ValueError: The weights are of another network; with the options that differ.
    """
    try:
        model.load_state_dict(content["model"])
    except RuntimeError as error:
        here, saved = dataclasses.asdict(config), content["config"]
        differ = {name for name in saved if saved[name] != here.get(name)}
        others = {name: saved[name] for name in sorted(differ - _OF_THIS_RUN_ALONE)}
        raise ValueError(
            f"{option}: expected the weights of this network, got those of {others}: {error}"
        ) from error
