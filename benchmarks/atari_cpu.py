"""Raw Atari frames per second on a CPU: this library beside ale-py, and EnvPool where installed.

Every game plays with the same options (84x84 gray, a stack of 4, frame skip 4, maximum of two
frames, the defaults of ale-py's AtariVectorEnv), the same number of environments and threads, and
random actions; competitors run in turn, and the ratio of a game is the median of those of the
rounds. That the outputs of the first two are equal is a test (tests/envs/atari). A raw frame is one
of the console: four per step.

- `geomean_ratio`, `min_ratio`: AtariVectorEnv here against ale-py's, over all games and numbers of
  threads; `ratio/GAME/THREADS` of each.
- `env_geomean_ratio`, `env_min_ratio`, `env_ratio/GAME/THREADS`: the same for AtariEnv, the form
  that batchers take.
- `envpool_geomean_ratio`: EnvPool against ale-py's AtariVectorEnv; None where it is not installed.
- `emulation_ratio`: emulation alone, in one thread: `AtariEnv` with the RAM as observation against
  `ALEInterface.act`, with the same frame skip; the geometric mean, and `emulation/GAME` of each.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import Any

import ale_py
import numpy as np
import torch
import tyro
from ale_py.vector_env import AtariVectorEnv as AleVectorEnv

from benchmarks.report import Report
from rlbatch import DictTensor
from rlbatch.envs.atari import GAMES, AtariEnv, AtariVectorEnv
from rlbatch.envs.atari.roms import rom_folder

FRAME_SKIP = 4


@dataclass(frozen=True)
class Config:
    """What to measure."""

    games: tuple[str, ...] = tuple(GAMES)
    """Which games."""
    threads: tuple[int, ...] = (1, 2)
    """Numbers of threads."""
    n_envs: int = 8
    """Environments."""
    n_ram_envs: int = 64
    """The same where only the RAM is observed."""
    rounds: int = 3
    """How often each competitor runs."""
    seconds: float = 0.2
    """How long each run lasts at least, in seconds."""
    out: str | None = None
    """File that the JSON object is written to as well."""


def steps_per_second(env: Any, n_envs: int, n_actions: int, seconds: float) -> float:
    """Plays random actions for that long; returns environment steps per second."""
    rng = np.random.default_rng(0)
    n_steps, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        action = rng.integers(0, n_actions, n_envs)
        if isinstance(env, AtariEnv):
            env.step(DictTensor({"action": torch.from_numpy(action)}))
        else:
            env.step(action)
        n_steps += n_envs
    return n_steps / elapsed


def envpool(game: str, n_envs: int, n_threads: int) -> Any:
    """Returns EnvPool's environments, None where it is not installed or lacks the game."""
    try:
        import envpool  # noqa: PLC0415

        name = "".join(part.capitalize() for part in game.split("_")) + "-v5"
        made = envpool.make_gymnasium(name, num_envs=n_envs, num_threads=n_threads)
    except Exception:  # Whatever it raises: it is an extra column.
        return None
    made.reset()
    return made


def compare(game: str, n_threads: int, config: Config) -> dict[str, float]:
    """Runs the competitors in turn; returns frames per second and ratios, medians of the rounds."""
    n, ours = config.n_envs, AtariVectorEnv(game, config.n_envs, num_threads=n_threads)
    env = AtariEnv(game, n, seed=0, num_threads=n_threads)
    envs = {"ale": AleVectorEnv(game, n, num_threads=n_threads), "ours": ours, "env": env}
    if pool := envpool(game, n, n_threads):
        envs["envpool"] = pool
    n_actions = int(ours.single_action_space.n)
    for name in ("ale", "ours"):
        envs[name].reset(seed=0)
    env.reset()
    rounds = [
        {name: steps_per_second(env, n, n_actions, config.seconds) for name, env in envs.items()}
        for _ in range(config.rounds + 1)
    ][1:]  # The first one fills caches.
    figures = {name: FRAME_SKIP * statistics.median(r[name] for r in rounds) for name in envs}
    for name in set(envs) - {"ale"}:
        figures[f"{name}_ratio"] = statistics.median(r[name] / r["ale"] for r in rounds)
    for env in envs.values():
        env.close()
    return figures


def ale_frames_per_second(ale: ale_py.ALEInterface, seconds: float) -> float:
    """Plays random actions on one console for that long; returns frames per second."""
    actions = ale.getLegalActionSet()
    rng = np.random.default_rng(0)
    n_acts, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for number in rng.integers(0, len(actions), 50).tolist():
            ale.act(actions[number])
            if ale.game_over():
                ale.reset_game()
        n_acts += 50
    return FRAME_SKIP * n_acts / elapsed


def our_frames_per_second(env: AtariEnv, seconds: float) -> float:
    """Plays random actions in all environments for that long; returns frames per second."""
    generator, n_actions = torch.Generator().manual_seed(0), int(env.action_space.n)
    n_steps, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        action = torch.randint(n_actions, (env.n_envs(),), generator=generator)
        env.step(DictTensor({"action": action}))
        n_steps += env.n_envs()
    return FRAME_SKIP * n_steps / elapsed


def compare_emulation(game: str, config: Config) -> float:
    """Returns how many times faster than `ALEInterface.act` emulation alone is, in one thread."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0)
    ale.setInt("frame_skip", FRAME_SKIP)
    ale.loadROM(str(rom_folder() / f"{game}.bin"))
    options = {"obs_type": "ram", "frameskip": FRAME_SKIP, "full_action_space": True}
    env = AtariEnv(game, config.n_ram_envs, seed=0, num_threads=1, **options)
    env.reset()
    rounds = [
        (ale_frames_per_second(ale, config.seconds), our_frames_per_second(env, config.seconds))
        for _ in range(config.rounds + 1)
    ]
    env.close()
    return statistics.median(ours / theirs for theirs, ours in rounds[1:])


def geomean(values: list[float]) -> float:
    """Returns the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def main(config: Config) -> None:
    """Measures, prints a table and, last, one JSON object."""
    report = Report(
        "atari_cpu",
        ["game", "threads", "ale-py", "EnvPool", "rlbatch", "ratio", "AtariEnv", "emulation"],
    )
    ratios, env_ratios, pool_ratios, emulation = [], [], [], []
    for game in config.games:
        alone = compare_emulation(game, config)
        emulation.append(alone)
        report.figure(f"emulation/{game}", alone)
        for n_threads in config.threads:
            found = compare(game, n_threads, config)
            ratios.append(found["ours_ratio"])
            env_ratios.append(found["env_ratio"])
            report.figure(f"ratio/{game}/{n_threads}", found["ours_ratio"])
            report.figure(f"env_ratio/{game}/{n_threads}", found["env_ratio"])
            pool = f"{found['envpool']:,.0f}" if "envpool" in found else "-"
            if "envpool" in found:
                pool_ratios.append(found["envpool_ratio"])
            cells = (f"{found['ale']:,.0f}", pool, f"{found['ours']:,.0f}")
            report.row(
                game,
                n_threads,
                *cells,
                f"{ratios[-1]:.2f}",
                f"{env_ratios[-1]:.2f}",
                f"{alone:.2f}",
            )
    report.figure("geomean_ratio", geomean(ratios))
    report.figure("min_ratio", min(ratios))
    report.figure("env_geomean_ratio", geomean(env_ratios))
    report.figure("env_min_ratio", min(env_ratios))
    report.figure("envpool_geomean_ratio", geomean(pool_ratios) if pool_ratios else None)
    report.figure("emulation_ratio", geomean(emulation))
    report.finish(config.out)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
