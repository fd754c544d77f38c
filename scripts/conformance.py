"""Runs rlbatch's console and ale-py's side by side and reports the first frame that differs.

Both get the same ROM, settings and actions. After loading, after every frame and every reset the
128 bytes of RAM, the screen (as palette indices), reward, lives, game over and both frame counters
are compared. Each ROM runs in a process of its own: a crash or an endless loop is that ROM's
failure and stops nothing else.

Prints the failures, a table and, as its last line, one JSON object; the exit status is 1 unless
everything is equal.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from benchmarks.report import Report
from rlbatch.envs.atari import GAMES, Console, Game, build, find_game
from rlbatch.envs.atari.roms import rom_folder
from scripts.cartridges import cartridge

ROOT = Path(__file__).parents[1]

# ale-py runs any file of this name by this game's rules: they end no episode and press no switch.
CARTRIDGE_RULE = "pitfall2"

# Every kind of cartridge, PAL, paddles, both ports, permanent Cosmic-Ark mode, partial frames, and
# what changes with the number of resets or has variables beside RAM.
LONG_GAMES = (
    "adventure", "air_raid", "backgammon", "breakout", "darkchambers", "elevator_action", "enduro",
    "journey_escape", "klax", "miniature_golf", "montezuma_revenge", "ms_pacman", "pitfall2",
    "pong", "robotank", "seaquest", "solaris", "surround", "tic_tac_toe_3d", "yars_revenge",
)  # fmt: skip

_PROGRESS_EVERY = 250  # Frames.


@dataclass(frozen=True)
class Config:
    """What to compare: without any of the options all games in their default mode."""

    games: tuple[str, ...] = ()
    """Names of games; all of them if there is none."""
    frames: int = 3000
    """Frames per game."""
    mode: Literal["default", "last", "every"] = "default"
    """Mode and difficulty: the first ones, the last ones, or each once of each game."""
    sticky: float = 0.0
    """Probability that an action is repeated."""
    fuzz: int = 0
    """How many generated cartridges to run; the games are left out unless named."""
    fuzz_frames: int = 200
    """Frames per cartridge."""
    long: bool = False
    """Run 20 games for 60,000 frames; the others are left out unless named."""
    full: bool = False
    """Everything that has to be equal before a release."""
    sanitize: bool = False
    """Compile with the address and undefined-behaviour sanitizers; by default, less of it all."""
    interpret: bool = False
    """Interpret programs rather than translate them."""
    processes: int = 2
    """ROMs that run at a time."""
    seed: int = 0
    """Seed of actions and emulators, and the first cartridge's number."""
    out: str | None = None
    """File that the JSON object is written to as well."""


@dataclass(frozen=True)
class Case:
    """One ROM to compare on.

    Attributes:
        game: Name of the game, or the kind of the generated cartridge.
        n_frames: Frames to play.
        seed: Seed of the actions and of the emulators.
        mode: Mode of the game; None for the one that it starts in.
        difficulty: Difficulty of the game, where there is a `mode`.
        sticky: Probability that an action is repeated.
        number: Number of a generated cartridge; None for a game.
    """

    game: str
    n_frames: int
    seed: int = 0
    mode: int | None = None
    difficulty: int = 0
    sticky: float = 0.0
    number: int | None = None

    def __str__(self) -> str:
        if self.number is not None:
            return f"cartridge {self.number} ({self.game})"
        mode = f"mode {self.mode}, difficulty {self.difficulty}"
        mode = "default mode" if self.mode is None else mode
        return f"{self.game} ({mode}, sticky {self.sticky})"

    def rom_path(self, folder: Path) -> Path:
        """Returns the file of the ROM, written to `folder` if it is a generated one."""
        if self.number is None:
            return rom_folder() / f"{self.game}.bin"
        path = folder / f"{CARTRIDGE_RULE}.bin"
        path.write_bytes(cartridge(self.number)[1])
        return path


@dataclass
class Result:
    """What came of a case.

    Attributes:
        case: The case.
        n_frames: Frames that were compared.
        n_resets: Resets that were compared.
        failure: What differed first, or how the process ended; None if all was equal.
    """

    case: Case
    n_frames: int = 0
    n_resets: int = 0
    failure: str | None = None


class Pair:
    """ale-py's console and ours with the same ROM and settings.

    Args:
        case: What is compared.
        path: File of the ROM.
    """

    def __init__(self, case: Case, path: Path):
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.expected, self.found = ale_py.ALEInterface(), Console()
        for console in (self.expected, self.found):
            console.setInt("random_seed", case.seed)
            console.setFloat("repeat_action_probability", case.sticky)
            console.loadROM(str(path))
        height = max(self.expected.getScreenDims()[0], self.found.getScreenDims()[0])
        self._screens = np.zeros((2, height, 160), np.uint8)
        self._rams = np.zeros((2, 128), np.uint8)

    def use_mode(self, mode: int, difficulty: int) -> None:
        """Chooses a mode and a difficulty, and resets."""
        for console in (self.expected, self.found):
            console.setMode(mode)
            console.setDifficulty(difficulty)
        self.reset()

    def reset(self) -> None:
        """Starts the next episode."""
        self.expected.reset_game()
        self.found.reset_game()

    def act(self, action: int, strength: float) -> str | None:
        """Plays one frame and returns the first difference."""
        expected = self.expected.act(action, strength)
        found = self.found.act(action, strength)
        if expected != found:
            return f"reward: expected {expected}, got {found}"
        return self.compare()

    def compare(self) -> str | None:
        """Returns the first difference between what both show now."""
        for name in (
            "lives",
            "game_over",
            "game_truncated",
            "getFrameNumber",
            "getEpisodeFrameNumber",
        ):
            expected, found = getattr(self.expected, name)(), getattr(self.found, name)()
            if expected != found:
                return f"{name}: expected {expected}, got {found}"
        self.expected.getRAM(self._rams[0])
        self.found.getRAM(self._rams[1])
        if not np.array_equal(*self._rams):
            return _first_difference("RAM", *self._rams, lambda at: f"at {0x80 + at[0]:02X}h")
        self.expected.getScreen(self._screens[0])
        self.found.getScreen(self._screens[1])
        if not np.array_equal(*self._screens):
            return _first_difference(
                "screen", *self._screens, "at row {0[0]}, column {0[1]}".format
            )
        return None

    def compare_properties(self) -> str | None:
        """Returns the first difference between what is known of the game."""
        for name in (
            "getScreenDims",
            "getAvailableModes",
            "getAvailableDifficulties",
            "getLegalActionSet",
            "getMinimalActionSet",
        ):
            expected, found = getattr(self.expected, name)(), getattr(self.found, name)()
            if [int(getattr(one, "value", one)) for one in expected] != list(map(int, found)):
                return f"{name}: expected {expected}, got {found}"
        return None


def _first_difference(what: str, expected: np.ndarray, found: np.ndarray, place: Any) -> str:
    places = np.argwhere(expected != found)
    first = tuple(int(part) for part in places[0])
    return (
        f"{what}: {len(places)} bytes differ, the first {place(first)}: "
        f"expected {expected[first]:02X}h, got {found[first]:02X}h"
    )


def compare(case: Case, path: Path, progress: Any = None) -> Result:
    """Plays one ROM in both consoles until they differ.

    Besides the resets when a game is over there is one in the middle, so that there is one at all.

    Args:
        case: What to play.
        path: File of the ROM.
        progress: Called now and then with the number of frames played.
    """
    pair, result = Pair(case, path), Result(case)

    def differs(difference: str | None, when: str) -> bool:
        result.failure = f"{when}: {difference}" if difference else None
        return difference is not None

    if differs(pair.compare_properties() or pair.compare(), "after loading"):
        return result
    if case.mode is not None:
        pair.use_mode(case.mode, case.difficulty)
        if differs(pair.compare(), f"after choosing mode {case.mode}"):
            return result
    for frame, (action, strength) in enumerate(_inputs(case, pair.expected), start=1):
        difference = pair.act(action, strength)
        if differs(difference, f"frame {frame}, reset {result.n_resets}, action {action}"):
            return result
        result.n_frames = frame
        if pair.expected.game_over() or frame == case.n_frames // 2:
            pair.reset()
            result.n_resets += 1
            if differs(pair.compare(), f"reset {result.n_resets}, after frame {frame}"):
                return result
        if progress and frame % _PROGRESS_EVERY == 0:
            progress(frame)
    return result


def _inputs(case: Case, ale: Any) -> Iterator[tuple[int, float]]:
    """Yields random actions and strengths: held for some frames, most of them of the minimal set.

    Among the others there are those that the game does not accept.
    """
    rng = np.random.default_rng([case.seed, case.n_frames])
    minimal = [action.value for action in ale.getMinimalActionSet()]
    n_left = case.n_frames
    while n_left:
        held = min(n_left, int(rng.integers(1, 9)))
        n_left -= held
        everything = rng.random() < 0.25
        action = int(rng.integers(18) if everything else rng.choice(minimal))
        strength = float(np.float32(rng.random())) if rng.random() < 0.25 else 1.0
        yield from [(action, strength)] * held


# Processes


def run_cases(
    cases: Sequence[Case],
    n_processes: int = 2,
    timeout_s: float | None = None,
    library: Path | None = None,
) -> Iterator[Result]:
    """Compares every case in a process of its own and yields the results as they come.

    Args:
        cases: What to compare.
        n_processes: How many run at a time.
        timeout_s: How long one may take; by default a minute, and more for many frames.
        library: File of the host library; by default one made of the sources as they are now.
    """
    # All of them run the same, even if the sources change meanwhile.
    library = library or build.host_library()
    # Children come from a server that has imported the slow part; it has the environment of now.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ale_py", "benchmarks.report", "rlbatch.envs.atari", "tyro"])
    waiting, running = list(reversed(cases)), {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                while waiting and len(running) < n_processes:
                    child = _Child(context, library, waiting.pop(), Path(folder), timeout_s)
                    running[child.connection] = child
                ready = wait(list(running), timeout=0.5)
                for connection, child in list(running.items()):
                    result = child.poll(is_ready=connection in ready)
                    if result:
                        del running[connection]
                        yield result
        finally:
            for child in running.values():
                child.stop()


@dataclass
class _Child:
    """A process that compares one case, seen from outside."""

    context: Any
    host_library: Path
    case: Case
    folder: Path
    timeout_s: float | None
    frame: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._log = tempfile.NamedTemporaryFile(dir=self.folder, suffix=".log")
        self.connection, theirs = self.context.Pipe(duplex=False)
        self._process = self.context.Process(
            target=_run_child,
            args=(self.case, self.host_library, theirs, self._log.name),
            daemon=True,
        )
        self._process.start()
        theirs.close()
        limit_s = self.timeout_s or 60 + 0.02 * self.case.n_frames
        self._deadline = time.monotonic() + limit_s

    def poll(self, is_ready: bool) -> Result | None:
        """Returns the result if there is one, or the failure if there will be none."""
        if is_ready:
            try:
                message = self.connection.recv()
            except EOFError:
                self._process.join()
                return self._failed(_describe_exit(self._process.exitcode))
            if isinstance(message, Result):
                self.stop()
                return message
            self.frame = message
        if time.monotonic() > self._deadline:
            # faulthandler then writes where it is.
            os.kill(self._process.pid, signal.SIGABRT)
            self._process.join(10)
            return self._failed("took too long")
        return None

    def stop(self) -> None:
        """Ends the process and drops what it has written."""
        self._process.join(0 if self._process.exitcode is None else None)
        self._process.kill()
        self._process.join()
        self.connection.close()
        self._log.close()

    def _failed(self, what: str) -> Result:
        text = Path(self._log.name).read_text(errors="replace").strip()
        self.stop()
        failure = f"{what}, after frame {self.frame} or up to {_PROGRESS_EVERY} later"
        if len(text) > 4000:  # Sanitizers begin with what matters, Python ends with it.
            text = f"{text[:2500]}\n...\n{text[-1500:]}"
        return Result(self.case, self.frame, failure=f"{failure}\n{text}".rstrip())


def _run_child(case: Case, library: Path, connection: Connection, log: str) -> None:
    os.environ[build.LIBRARY_VARIABLE] = str(library)
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable(file=2)
    with tempfile.TemporaryDirectory() as folder:
        result = compare(case, case.rom_path(Path(folder)), progress=connection.send)
    connection.send(result)


def _describe_exit(code: int) -> str:
    return (
        f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
    )


# What there is to compare


def game_cases(
    n_frames: int, games: Sequence[str] = (), mode: str = "default", sticky: float = 0.0
) -> list[Case]:
    """Returns the cases of each game, all games if none is named; see `Config.mode`."""
    return [
        Case(game.name, n_frames, mode=chosen, difficulty=difficulty, sticky=sticky)
        for game in [find_game(name) for name in games] or GAMES.values()
        for chosen, difficulty in _settings(game, mode)
    ]


def _settings(game: Game, mode: str) -> list[tuple[int | None, int]]:
    """Returns modes, each with a difficulty."""
    modes, difficulties = game.modes, game.difficulties
    if mode == "default":
        return [(None, 0)]
    if mode == "last":
        return [(modes[-1], difficulties[-1])]
    n = max(len(modes), len(difficulties))
    return [(modes[k % len(modes)], difficulties[k % len(difficulties)]) for k in range(n)]


def cartridge_cases(n: int, n_frames: int, first: int = 0) -> list[Case]:
    """Returns a case for each of `n` generated cartridges."""
    numbers = range(first, first + n)
    return [Case(cartridge(k)[0], n_frames, number=k, sticky=0.25 * (k % 2)) for k in numbers]


def parts(config: Config) -> dict[str, list[Case]]:
    """Returns what the command line asks for, by name."""
    found: dict[str, list[Case]] = {}
    if config.full:
        found["default mode"] = game_cases(3000, config.games)
        found["every mode, sticky"] = game_cases(1500, config.games, "every", 0.25)
        found["cartridges"] = cartridge_cases(300, config.fuzz_frames, config.seed)
        found["long"] = game_cases(60_000, LONG_GAMES)
    elif config.sanitize and not (config.games or config.fuzz or config.long):
        found["default mode"] = game_cases(150)
        found["last mode, sticky"] = game_cases(150, (), "last", 0.25)
        found["cartridges"] = cartridge_cases(300, 60, config.seed)
    else:
        if config.games or not (config.fuzz or config.long):
            chosen = game_cases(config.frames, config.games, config.mode, config.sticky)
            found[f"{config.mode} mode"] = chosen
        if config.fuzz:
            found["cartridges"] = cartridge_cases(config.fuzz, config.fuzz_frames, config.seed)
        if config.long:
            found["long"] = game_cases(60_000, LONG_GAMES)
    return {
        name: [replace(case, seed=config.seed) for case in cases] for name, cases in found.items()
    }


def compilers_file(name: str) -> str:
    """Returns the path of a library that comes with the compiler; its name if there is none."""
    command = [*build.find_compiler(), f"-print-file-name={name}"]
    return subprocess.check_output(command, text=True).strip()


def use_sanitizers() -> None:
    """Compiles the library with sanitizers and makes the processes that start from now on use it.

    Raises:
        BuildError: It cannot be compiled.
    """
    compiler = build.find_compiler()
    library = ROOT / "build" / "librlbatch_atari_sanitized.so"
    flags = "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
    # With everything inlined and then instrumented, the compiler would take many minutes.
    build.compile_library(library, compiler, [*flags.split(), "-Dalways_inline=unused"])
    # The second one early as well, or what ale-py throws finds the sanitizer unprepared.
    runtimes = [compilers_file(name) for name in ("libasan.so", "libstdc++.so.6")]
    os.environ[build.LIBRARY_VARIABLE] = str(library)
    os.environ["LD_PRELOAD"] = ":".join(runtimes)
    os.environ["ASAN_OPTIONS"] = "detect_leaks=0"  # Python and ale-py leave memory behind.
    os.environ["UBSAN_OPTIONS"] = "print_stacktrace=1"


def main(config: Config) -> int:
    """Compares, prints, and returns the number of failures.

    Raises:
        RuntimeError: A part has compared nothing.
    """
    if config.interpret:
        os.environ["RLBATCH_ATARI_TRANSLATE"] = "0"
    if config.sanitize:
        use_sanitizers()
    library = build.host_library()
    report = Report("conformance", ["part", "ROMs", "frames", "resets", "failures"])
    failures = []
    for name, cases in parts(config).items():
        start, results = time.monotonic(), []
        for result in run_cases(cases, config.processes, library=library):
            results.append(result)
            if result.failure is not None:
                failures.append(result)
                print(f"{result.case}: {result.failure}", flush=True)
        n_frames = sum(result.n_frames for result in results)
        n_resets = sum(result.n_resets for result in results)
        n_failures = sum(result.failure is not None for result in results)
        if not n_frames and not n_failures:
            raise RuntimeError(f"{name}: expected frames to compare, got none")
        report.row(name, len(results), f"{n_frames:,}", f"{n_resets:,}", n_failures)
        for key, value in (("roms", len(results)), ("frames", n_frames), ("resets", n_resets)):
            report.figure(f"{name}/{key}", value)
        report.figure(f"{name}/failures", n_failures)
        report.figure(f"{name}/seconds", round(time.monotonic() - start, 1))
    report.figure("failures", len(failures))
    report.finish(config.out)
    return len(failures)


if __name__ == "__main__":
    sys.exit(bool(main(tyro.cli(Config, description=__doc__))))
