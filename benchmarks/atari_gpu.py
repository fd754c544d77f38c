"""Raw Atari frames per second of the kernels, by number of environments, game and use.

Each figure is the median of some rounds, each between two synchronisations. A raw frame is one of
the console: four per step. Environments begin in the middle of play: each where one of 64 consoles
is that the CPU has played at random, for 1 to 300 steps, so that all 32 of a warp are elsewhere.
Three uses:

- `emulation`: the RAM is observed, nothing is drawn;
- `observations`: 84x84 gray, stacks of 4, uint8;
- `agent`: the same, and actions are drawn from what a Nature CNN (bfloat16, channels last, random
  weights) makes of the observations.

Beside that: `start/GAME`, seconds from a process that has a GPU to the end of a first step, cold,
where the kernels are compiled first, and warm, and how much less of the GPU's memory is free from
then on, per environment, the driver's share and the step's observations included (the compiler, of
one thread, runs beside what is measured on the GPU; then the process waits for its turn, which does
not count); bytes per
environment beside its observation, registers and bytes of local memory of each kernel, the seconds
that it takes per step, and what a CUDA graph of agent and environment gains. And what the machine's
cores do instead of the GPU: the frames per second of `AtariEnv`, with one thread in `cpu_core/GAME`
and with one per core in `cpu/GAME`; how many times what all of them do the GPU does,
`machines/GAME`, and how many cores it stands for if each did what one alone does, `cores/GAME`.

What a case raises is printed, and its figure is None. Ctrl-C ends the benchmark early, without the
cases that were not reached.

JSON: `fps/USE/GAME/N_ENVS`; `geomean/USE/N_ENVS`, `min/USE/N_ENVS` and `n_games/USE/N_ENVS`, over
the games that were measured; `not_reached`, the games of the part `games` that were not.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import tyro
from torch import nn

from benchmarks.atari_cpu import our_frames_per_second
from benchmarks.report import Report
from rlbatch import DictTensor
from rlbatch.envs.atari import GAMES, AtariEnv, device_code, find_game

FRAME_SKIP = 4
# In a process of its own; the native library may be compiled before.
_START = """
import sys, time, torch
from rlbatch import DictTensor
from rlbatch.envs.atari import AtariEnv, device_code, find_game
from rlbatch.envs.atari.native_library import load_library
game, device, n_envs = sys.argv[1], sys.argv[2], int(sys.argv[3])
load_library()
action = DictTensor({"action": torch.zeros(n_envs, dtype=torch.int64, device=device)})
torch.cuda.synchronize(device)
begin = time.perf_counter()
device_code.compile_kernels([find_game(game)], torch.device(device))
compiled = time.perf_counter()
input()  # Until the GPU is free.
begin += time.perf_counter() - compiled
free, _ = torch.cuda.mem_get_info(device)
env = AtariEnv(game, n_envs, device=device, seed=0)
env.reset()
seen = env.step(action)
torch.cuda.synchronize(device)
print(time.perf_counter() - begin, (free - torch.cuda.mem_get_info(device)[0]) / n_envs)
"""
Part = Literal["games", "sweep", "kernels", "cpu"]
Use = Literal["emulation", "observations", "agent"]
Case = tuple[str, str, int]  # What for, which game, how many environments.
USES: tuple[Use, ...] = ("emulation", "observations", "agent")
# Half of the cores, so that those that measure are not waited for.
_PLAYERS = concurrent.futures.ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2))


@dataclass(frozen=True)
class Config:
    """What to measure."""

    parts: tuple[Part, ...] = ("games", "sweep", "kernels", "cpu")
    """`games`: all games with observations; `sweep`: uses and numbers of environments; `kernels`:
    what is beside that; `cpu`: what the processor does in the games of the sweep."""
    games: tuple[str, ...] = tuple(sorted(GAMES, key=lambda name: zlib.crc32(name.encode())))
    """Which games, with observations, at `n_envs`; in an order such that a part is a sample."""
    n_envs: int = 32768
    """Environments of the figures over all games."""
    sweep_games: tuple[str, ...] = ("pong", "breakout", "ms_pacman", "seaquest")
    """Which games in several uses and numbers of environments; `all` for `games`."""
    sweep: tuple[int, ...] = (1, 32, 1024, 4096, 32768, 131072)
    """Those numbers; `n_envs` is among them."""
    uses: tuple[Use, ...] = USES
    """Those uses."""
    start_games: tuple[str, ...] = ("sir_lancelot", "solaris")
    """Which games are started, the first one cold as well: that which compiles longest, and that
    which begins with most."""
    n_steps: int = 3
    """Steps of a round."""
    n_before: int = 300
    """Steps that the CPU has played before, at most."""
    n_apart: int = 64
    """Consoles that it has played so; the environments begin as copies of them."""
    n_warm_up: int = 3
    """Steps before the first round."""
    rounds: int = 3
    """Rounds."""
    device: str = "cuda"
    """The device."""
    out: str | None = None
    """File that the JSON object is written to as well."""


def nature_cnn(n_actions: int, device: str) -> nn.Module:
    """Returns the network of Mnih et al. (2015), "Human-level control", with random weights."""
    network = nn.Sequential(
        *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, n_actions)),
    )
    return network.to(device, torch.bfloat16, memory_format=torch.channels_last)


def actor(env: AtariEnv, use: str, device: str) -> Callable[[DictTensor], DictTensor]:
    """Returns what chooses actions: at random, or with a network in pieces of 8,192."""
    n_actions, n = int(env.action_space.n), env.n_envs()
    if use != "agent":
        return lambda _: DictTensor({"action": torch.randint(n_actions, (n,), device=device)})
    network = nature_cnn(n_actions, device)

    def act(observation: DictTensor) -> DictTensor:
        pieces = observation["frame"].split(8192)
        scaled = (piece.to(torch.bfloat16) / 255 for piece in pieces)
        logits = [network(one.to(memory_format=torch.channels_last)) for one in scaled]
        # By the largest of the logits and noise of Gumbel, as `Categorical` draws, without waiting.
        noise = -torch.empty(n, n_actions, device=device).exponential_().log()
        return DictTensor({"action": (torch.cat(logits) + noise).argmax(1)})

    return act


def play_on_cpu(game: str, n_envs: int, obs_type: str, n_before: int) -> torch.Tensor:
    """Returns states of consoles that the CPU has played at random."""
    options = {"seed": 0, "obs_type": obs_type, "decorrelate_steps": n_before, "num_threads": 1}
    with contextlib.closing(AtariEnv(game, n_envs, **options)) as native:
        native.reset()
        return native.get_state()


_begin_to_play = functools.cache(functools.partial(_PLAYERS.submit, play_on_cpu))


def played_apart(
    game: str, n_envs: int, obs_type: str, config: Config
) -> concurrent.futures.Future[torch.Tensor]:
    """Begins to play consoles, once, as many as there are environments or `n_apart`."""
    return _begin_to_play(game, min(config.n_apart, n_envs), obs_type, config.n_before)


def obs_type_of(use: str) -> str:
    """Returns what is observed in a use."""
    return "ram" if use == "emulation" else "pixels"


def begin_apart(env: AtariEnv, game: str, config: Config) -> None:
    """Puts the environments where consoles are that the CPU has played at random."""
    states = played_apart(game, env.n_envs(), env._batch.settings.obs_type, config).result()
    n = len(states)
    env.set_state(states, list(range(n)))
    shared = env._batch._shared
    names = ("states", "episodes", "pictures")  # Random numbers stay each environment's own.
    for rows in (*(shared[name][: env.n_envs()] for name in names), env._batch._ring):
        for begin in range(n, env.n_envs(), n):
            part = rows[begin : begin + n]
            part.copy_(rows[: len(part)])


@torch.no_grad()
def frames_per_second(game: str, n_envs: int, use: str, config: Config) -> float:
    """Measures one game; returns raw frames per second."""
    env = AtariEnv(game, n_envs, device=config.device, seed=0, obs_type=obs_type_of(use))
    env.reset()
    begin_apart(env, game, config)
    observation = env.observe()
    act = actor(env, use, config.device)

    def play(n_steps: int) -> float:
        nonlocal observation
        torch.cuda.synchronize(config.device)
        started = time.perf_counter()
        for _ in range(n_steps):
            _, (observation, _) = env.step(act(observation))
        torch.cuda.synchronize(config.device)
        return FRAME_SKIP * n_envs * n_steps / (time.perf_counter() - started)

    play(config.n_warm_up)
    figure = statistics.median(play(config.n_steps) for _ in range(config.rounds))
    env.get_ram([0])  # Which reports errors.
    env.close()
    return figure


@torch.no_grad()
def graph_gain(game: str, n_envs: int, config: Config) -> float:
    """Returns how many times faster agent and environment step as a CUDA graph than without one."""
    env = AtariEnv(game, n_envs, device=config.device, seed=0)
    env.reset()
    begin_apart(env, game, config)
    observation = env.observe()
    act = actor(env, "agent", config.device)
    static = observation.clone()

    def step() -> None:
        _, (following, _) = env.step(act(static))
        static["frame"].copy_(following["frame"])

    def seconds(run: Callable[[], None]) -> float:
        torch.cuda.synchronize(config.device)
        started = time.perf_counter()
        for _ in range(config.n_steps):
            run()
        torch.cuda.synchronize(config.device)
        return time.perf_counter() - started

    side = torch.cuda.Stream(config.device)
    side.wait_stream(torch.cuda.current_stream(config.device))
    with torch.cuda.stream(side):
        for _ in range(config.n_warm_up):  # Libraries allocate before a capture.
            step()
    torch.cuda.current_stream(config.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    ratios = [seconds(step) / seconds(graph.replay) for _ in range(config.rounds)]
    env.close()
    return statistics.median(ratios)


def kernel_seconds(game: str, config: Config) -> dict[str, float]:
    """Returns the seconds that each kernel takes per step, with observations."""
    env = AtariEnv(game, config.n_envs, device=config.device, seed=0)
    env.reset()
    begin_apart(env, game, config)
    act = actor(env, "observations", config.device)
    for _ in range(config.n_warm_up):
        env.step(act(DictTensor({})))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(config.n_steps):
            env.step(act(DictTensor({})))
        torch.cuda.synchronize(config.device)
    env.close()
    return {
        event.key: event.device_time_total / 1e6 / config.n_steps
        for event in profile.key_averages()
        if event.key.startswith("rlb_")
    }


def begin_start(game: str, config: Config, cache: str | None = None) -> subprocess.Popen[str]:
    """Begins to start a game in a process of its own, which compiles its kernels, and waits.

    Args:
        game: The game.
        config: Where.
        cache: Folder of what is compiled; None for the usual one.
    """
    command = [sys.executable, "-c", _START, game, config.device, str(config.n_envs)]
    env = os.environ if cache is None else {**os.environ, "XDG_CACHE_HOME": cache}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)


def end_start(process: subprocess.Popen[str]) -> dict[str, float]:
    """Lets a process that `begin_start` has begun go on; returns what it took.

    Raises:
        CalledProcessError: It has failed.
    """
    said, _ = process.communicate("\n")
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, "start")
    seconds, taken = map(float, said.split()[-2:])
    return {"seconds": seconds, "taken_bytes_per_env": taken}


@contextlib.contextmanager
def cold_start(config: Config) -> Iterator[subprocess.Popen[str]]:
    """Begins to start the first game that is to be started, in an empty cache."""
    # After an interrupt a compiler that the process has started may still write there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        process = begin_start(config.start_games[0], config, cache)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def starts(config: Config, report: Report, cold: subprocess.Popen[str]) -> None:
    """Reports how long games take to start."""
    measured(report, f"start/{config.start_games[0]}/cold", end_start, cold)
    for game in config.start_games:
        measured(report, f"start/{game}/warm", lambda g=game: end_start(begin_start(g, config)))


def measured(report: Report, name: str, measure: Callable[..., Any], *arguments: Any) -> Any:
    """Reports a figure, and returns it; None in the place of one whose measurement raises.

    Of what does not fit into the GPU's memory nothing is reported.
    """
    figure = None
    try:
        figure = measure(*arguments)
    except torch.OutOfMemoryError as error:
        print(f"{name}: {error}", flush=True)
        return None
    except Exception:
        traceback.print_exc()
    tell(report, name, figure)
    return figure


def tell(report: Report, name: str, figure: Any) -> None:
    """Reports a figure, and prints it, should the rest never come."""
    print(f"{name}: {figure}", flush=True)
    report.figure(name, figure)


def geomean(values: list[float]) -> float:
    """Returns the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def over_games(report: Report, figures: dict[Case, float], config: Config) -> None:
    """Reports the mean and the least of each use."""
    for use in USES:
        found = [fps for (of, _, n), fps in figures.items() if (of, n) == (use, config.n_envs)]
        report.figure(f"n_games/{use}/{config.n_envs}", len(found))
        for name, over in (("geomean", geomean), ("min", min)):
            if found:
                report.figure(f"{name}/{use}/{config.n_envs}", over(found))


def kernels(config: Config, report: Report) -> None:
    """Reports what the kernels take, in memory and per step."""
    game = config.sweep_games[0]
    env = AtariEnv(game, 2, device=config.device)
    tell(report, "bytes_per_env", env.bytes_per_env() - 4 * 84 * 84)
    tell(report, "kernels", device_code.kernel_attributes(find_game(game), env.device))
    env.close()
    for game in config.sweep_games:
        measured(report, f"kernel_seconds/{game}", kernel_seconds, game, config)
    for n_envs in dict.fromkeys((32, 1024, config.n_envs)):
        measured(report, f"graph_gain/{game}/{n_envs}", graph_gain, game, n_envs, config)


def cores(report: Report, figures: dict[Case, float], config: Config) -> None:
    """Reports what cores do, and how many of them would do what the GPU does."""
    n_cores = len(os.sched_getaffinity(0))
    for game in config.sweep_games:
        fps = figures.get(("observations", game, config.n_envs))
        for name, ratio, n in (("cpu_core", "cores", 1), ("cpu", "machines", n_cores)):
            found = measured(report, f"{name}/{game}", frames_per_second_of_cores, game, n)
            if found and fps:
                tell(report, f"{ratio}/{game}", fps / found)


def frames_per_second_of_cores(game: str, n_cores: int) -> float:
    """Measures `AtariEnv` on the CPU, with eight environments for each of its cores."""
    with contextlib.closing(AtariEnv(game, 8 * n_cores, seed=0, num_threads=n_cores)) as env:
        env.reset()
        # The first one fills caches.
        return statistics.median([our_frames_per_second(env, 0.5) for _ in range(4)][1:])


def cases_of(config: Config) -> list[Case]:
    """Returns the uses, games and numbers of environments to measure; `n_envs` come first."""
    cases = []
    if "games" in config.parts:
        cases += [("observations", game, config.n_envs) for game in config.games]
    if "sweep" in config.parts:
        sizes = dict.fromkeys((config.n_envs, *config.sweep))
        cases += [
            (use, game, n) for n in sizes for use in config.uses for game in config.sweep_games
        ]
    return list(dict.fromkeys(cases))


def measure(cases: list[Case], figures: dict[Case, float], report: Report, config: Config) -> None:
    """Measures the cases, and adds their figures to those that are given."""
    for use, game, n_envs in cases:
        played_apart(game, n_envs, obs_type_of(use), config)
    n_before = None
    for use, game, n_envs in cases:
        if n_envs != n_before:  # Memory of other sizes is of no use.
            torch.cuda.empty_cache()
        n_before = n_envs
        name = f"fps/{use}/{game}/{n_envs}"
        figure = measured(report, name, frames_per_second, game, n_envs, use, config)
        if figure is not None:
            figures[use, game, n_envs] = figure
            report.row(use, game, n_envs, f"{figure:,.0f}")


def measure_parts(
    cases: list[Case], figures: dict[Case, float], report: Report, config: Config
) -> None:
    """Measures what is wanted, and adds the figures of the cases to those that are given."""
    games = dict.fromkeys(game for _, game, _ in cases)
    if "kernels" in config.parts:
        games |= dict.fromkeys(config.start_games)
    device_code.compile_kernels([find_game(name) for name in games], torch.device(config.device))
    if "kernels" in config.parts:
        with cold_start(config) as cold:  # Which compiles meanwhile.
            kernels(config, report)
            measure(cases, figures, report, config)
            starts(config, report, cold)
    else:
        measure(cases, figures, report, config)
    if "cpu" in config.parts:
        cores(report, figures, config)


def main(config: Config) -> None:
    """Measures, prints a table and, last, one JSON object.

    Raises:
        SystemExit: Something could not be measured.
    """
    if config.sweep_games == ("all",):
        config = dataclasses.replace(config, sweep_games=config.games)
    report = Report("atari_gpu", ["use", "game", "environments", "frames/s"], config.device)
    cases = cases_of(config)
    figures: dict[Case, float] = {}
    try:
        measure_parts(cases, figures, report, config)
    except KeyboardInterrupt:
        print("interrupted")
    except Exception:  # What has been measured is to be reported.
        traceback.print_exc()
        report.figure("failed", None)
    _PLAYERS.shutdown(wait=False, cancel_futures=True)
    over_games(report, figures, config)
    if "games" in config.parts:
        done = {game for use, game, n in figures if (use, n) == ("observations", config.n_envs)}
        report.figure("not_reached", [game for game in config.games if game not in done])
    report.finish(config.out)
    if report.missing():
        raise SystemExit(f"expected a figure of every measurement, got none of {report.missing()}")


if __name__ == "__main__":
    chosen = tyro.cli(Config, description=__doc__)
    if not torch.cuda.is_available():
        raise SystemExit(
            f"device: expected {chosen.device}, got a machine on which PyTorch finds none"
        )
    with torch.cuda.device(chosen.device):  # CUDA graphs are of the current one.
        main(chosen)
