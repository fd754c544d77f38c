"""Plays every game with the kernels and with the native library, and compares all that they give.

    python -m scripts.gpu_equality --n-envs 64 --n-steps 150

Each environment gets actions of its own; observations are compared pixel for pixel after every
step and a second reset, states byte for byte before that. Prints the first difference of each game
when it has been played, then one JSON object; exits with 1 if there is a difference, or if a game
was not played.
After an error of CUDA nothing more runs in this process: the game that made it is among those that
end with one or as interrupted. On a machine without a GPU, RLBATCH_ATARI_GRID=1 and `--device cpu`
let the CPU play one.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tyro

from rlbatch import DictTensor
from rlbatch.envs.atari import GAMES, AtariEnv, device_code, find_game


@dataclass(frozen=True)
class Config:
    """What to compare."""

    games: tuple[str, ...] = tuple(GAMES)
    """Which games."""
    part: str = "1/1"
    """Of the games, such as the second half, 2/2."""
    n_envs: int = 64
    """Environments of each."""
    n_steps: int = 150
    """Steps."""
    frameskip: int = 4
    """Frames of a step."""
    repeat_action_probability: float = 0.25
    """Of sticky actions."""
    device: str = "cuda"
    """Where the kernels run."""
    n_games_at_once: int = 32
    """Games side by side, each in a thread and a stream of its own."""
    seed: int = 0
    """Of environments and actions."""
    states_of_every: int = 1
    """Of the states at the end only every so many are compared: they take 0.15 MB each."""
    n_warps: int | None = 1
    """Over how many warps the environments of a game are spread, until these are full: then there
    are blocks of four warps. None for as many as the GPU runs at once, as by default elsewhere."""


_NOT_PLAYED = "not played"
_interrupted = threading.Event()  # By the user, or by an error of CUDA.


def first_difference(found: DictTensor, expected: DictTensor) -> str | None:
    """Names the first key and environment that differ; None if none does."""
    # At once: each wait may take long where other processes use the GPU as well.
    if forms_of(found) == forms_of(expected) and torch.equal(
        bytes_of(found).cpu(), bytes_of(expected)
    ):
        return None
    for key in expected.keys():
        one, other = found[key].cpu(), expected[key]
        if not torch.equal(one, other):
            env = int((one != other).flatten(1 if one.dim() > 1 else 0).nonzero()[0, 0])
            return f"{key} of environment {env}"
    return None


def forms_of(observation: DictTensor) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Returns the shape and dtype of every key."""
    return {key: (tensor.shape, tensor.dtype) for key, tensor in observation.items()}


def bytes_of(observation: DictTensor) -> torch.Tensor:
    """Returns all of an observation, its keys in order, [n_envs, n_bytes] uint8."""
    rows = [observation[key].reshape(observation.n_elems(), -1) for key in sorted(observation)]
    return torch.cat([row.contiguous().view(torch.uint8) for row in rows], dim=1)


def compare(game: str, config: Config) -> str | None:
    """Plays one game; returns where the first difference is, None if there is none."""
    # Many games share the cores; one alone has all of them.
    options = {"seed": config.seed, "num_threads": int(config.n_games_at_once > 1)}
    options |= {name: getattr(config, name) for name in ("repeat_action_probability", "frameskip")}
    native, kernels = _native(game, config.n_envs, **options), None
    try:
        kernels = AtariEnv(game, config.n_envs, device=config.device, **options)
        if config.n_warps is not None:
            kernels._batch.n_warps = config.n_warps
        rng = np.random.default_rng(config.seed)
        difference = first_difference(kernels.reset()[0], native.reset()[0])
        for t in range(config.n_steps):
            if _interrupted.is_set():
                return f"step {t}: interrupted"
            if difference:
                return f"step {t}: {difference}"
            action = torch.from_numpy(rng.integers(0, native.action_space.n, config.n_envs))
            expected = native.step(DictTensor({"action": action}))
            found = kernels.step(DictTensor({"action": action.to(kernels.device)}))
            for (one, _), (other, _) in zip(found, expected, strict=True):
                difference = difference or first_difference(one, other)
        some = list(range(0, config.n_envs, config.states_of_every))
        same = torch.equal(kernels.get_state(some).cpu(), native.get_state(some))
        difference = difference or (None if same else "states at the end")
        if difference:
            return difference
        difference = first_difference(kernels.reset()[0], native.reset()[0])
        return f"second reset: {difference}" if difference else None
    finally:
        native.close()
        if kernels is not None:
            kernels.close()


def _native(game: str, n_envs: int, **options: Any) -> AtariEnv:
    plays = os.environ.pop(device_code.GRID_VARIABLE, None)
    try:
        return AtariEnv(game, n_envs, **options)
    finally:
        if plays is not None:
            os.environ[device_code.GRID_VARIABLE] = plays


def _in_a_stream(game: str, config: Config) -> str | None:
    if _interrupted.is_set():
        return _NOT_PLAYED
    try:
        if config.device == "cpu":
            return compare(game, config)
        with torch.cuda.stream(torch.cuda.Stream(config.device)):
            return compare(game, config)
    except torch.OutOfMemoryError as error:
        print(f"{game}: {error}", flush=True)
        return _NOT_PLAYED
    except Exception as error:
        if "CUDA" in f"{type(error).__name__} {error}":
            _interrupted.set()
        return f"{type(error).__name__}: {error}"


def main(config: Config) -> int:
    """Compares all games; returns the exit status. Ctrl-C leaves out the games that have not begun.

    Raises:
        ValueError: There is no game, or no such part.
    """
    number, n_parts = map(int, config.part.split("/"))
    games = config.games[number - 1 :: n_parts] if 0 < number <= n_parts else ()
    if not games:
        raise ValueError(f"games: expected some, got none in part {config.part} of {config.games}")
    config = dataclasses.replace(config, games=games)
    workers = 1
    if config.device != "cpu":
        workers = config.n_games_at_once
        device_code.compile_kernels(
            [find_game(name) for name in games], torch.device(config.device)
        )
    found = _play(config, workers)
    differences = {game: result for game, result in found.items() if result}
    unfinished = [game for game in config.games if game not in found]
    print(
        json.dumps(
            {
                "benchmark": "gpu_equality",
                "games": games,
                "n_games": len(games),
                "n_played": len(found),
                "n_envs": config.n_envs,
                "n_frames_per_game": config.frameskip * config.n_envs * config.n_steps,
                "n_different": len(differences),
                "differences": differences,
                "unfinished": unfinished,
                "device": config.device,
            }
        ),
        flush=True,
    )
    return int(bool(differences or unfinished))


def _play(config: Config, workers: int) -> dict[str, str | None]:
    """Compares games; returns what was found of those that were finished."""
    pool = concurrent.futures.ThreadPoolExecutor(workers)
    game_of = {pool.submit(_in_a_stream, game, config): game for game in config.games}
    found = {}
    try:
        for done in concurrent.futures.as_completed(game_of):
            game, result = game_of[done], done.result()
            if result != _NOT_PLAYED:
                found[game] = result
                print(f"{game}: {result or 'equal'}", flush=True)
    except KeyboardInterrupt:
        _interrupted.set()
    pool.shutdown(wait=False, cancel_futures=True)
    return found


if __name__ == "__main__":
    status = main(tyro.cli(Config, description=__doc__))
    if _interrupted.is_set():
        os._exit(status)  # A kernel that hangs would keep its thread, and so the process.
    sys.exit(status)
