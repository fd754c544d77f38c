"""Where a run keeps its files."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import rlbatch
from algos import checkpoints
from algos.command_line import RunConfig


@contextlib.contextmanager
def open_folder(config: RunConfig) -> Iterator[Path]:
    """Creates the run's folder, writes `config.json` into it, and keeps other runs out of it.

    Raises:
        FileExistsError: There is another run in it, which would be overwritten.
        NotADirectoryError: It is a file.
        RuntimeError: Another run is in it.
    """
    folder = _choose_folder(config)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"algorithm": config.algorithm, **dataclasses.asdict(config), "versions": _versions()}
    with (folder / "config.json").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Until it is closed.
        except BlockingIOError:
            raise RuntimeError(
                f"checkpoint_dir: expected a folder without a run under way, got {folder}"
            ) from None
        file.truncate(0)
        file.write(json.dumps(content, indent=2) + "\n")
        file.flush()
        yield folder


def _versions() -> dict[str, str]:
    """Returns the versions of what a run's results depend on, as far as it is there."""
    found = {"rlbatch": rlbatch.__version__, "torch": str(torch.__version__)}
    for package in ("gymnasium", "ale-py", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _choose_folder(config: RunConfig) -> Path:
    """Returns the folder that is given, the one of the run to be resumed, or a new one.

    Raises:
        FileExistsError: There is another run in it.
        NotADirectoryError: It is a file.
    """
    resumed = None if config.resume is None else checkpoints.locate(config.resume).parent
    folder = Path(config.checkpoint_dir) if config.checkpoint_dir else resumed
    if folder is None:
        folder = _new_folder(config)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"checkpoint_dir: expected a folder, got the file {folder}")
    is_resumed = resumed is not None and folder.resolve() == resumed.resolve()
    if (folder / "config.json").exists() and not is_resumed:
        has_checkpoint = (folder / checkpoints.NAME).exists()
        hint = (
            "resume it?" if has_checkpoint else "it has no checkpoint yet: wait for it, or delete"
        )
        raise FileExistsError(f"checkpoint_dir: expected no run in it, got {folder}; {hint}")
    return folder


def _new_folder(config: RunConfig) -> Path:
    """Creates a folder that no other run has, also not one that starts in the same second."""
    env = config.env_id.replace("/", "-").replace(":", "-")
    now = time.strftime("%Y%m%d-%H%M%S")
    name = f"{env}__{config.algorithm}__{config.seed}__{now}"
    for number in itertools.count(1):
        folder = Path("runs", name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder
