"""Where a run keeps its files."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import time
from pathlib import Path
from typing import IO

import torch

import rlbatch
from algos import checkpoints
from algos.command_line import RunConfig


def open_folder(algorithm: str, config: RunConfig) -> Path:
    """Creates the run's folder and writes `config.json` into it.

    Raises:
        FileExistsError: There is another run in it, which would be overwritten.
        NotADirectoryError: It is a file.
        RuntimeError: Another run is in it.
    """
    resumed = checkpoints.locate(config.resume).parent if config.resume else None
    folder = Path(config.checkpoint_dir) if config.checkpoint_dir else resumed
    if folder is None:
        folder = _new_folder(algorithm, config)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"checkpoint_dir: expected a folder, got the file {folder}")
    if (folder / "config.json").exists() and folder != resumed:
        has_checkpoint = (folder / checkpoints.NAME).exists()
        hint = (
            "resume it?" if has_checkpoint else "it has no checkpoint yet: wait for it, or delete"
        )
        raise FileExistsError(f"checkpoint_dir: expected no run in it, got {folder}; {hint}")
    folder.mkdir(parents=True, exist_ok=True)
    versions = {"rlbatch": rlbatch.__version__, "torch": str(torch.__version__)}
    content = {"algorithm": algorithm, **dataclasses.asdict(config), "versions": versions}
    lock(folder).close()  # Whose options would be written over?
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n")
    return folder


def lock(folder: Path) -> IO[str]:
    """Keeps other runs out of a folder until what it returns is closed, at the latest by the end.

    Raises:
        RuntimeError: Another run is in it.
    """
    file = (folder / "config.json").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RuntimeError(
            f"checkpoint_dir: expected a folder without a run under way, got {folder}"
        ) from None
    return file


def _new_folder(algorithm: str, config: RunConfig) -> Path:
    """Creates a folder that no other run has, also not one that starts in the same second."""
    env = config.env_id.replace("/", "-").replace(":", "-")
    now = time.strftime("%Y%m%d-%H%M%S")
    name = f"{env}__{algorithm}__{config.seed}__{now}"
    for number in itertools.count(1):
        folder = Path("runs", name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder
