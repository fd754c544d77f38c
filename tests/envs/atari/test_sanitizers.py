"""No memory is touched that is not one's own, and by no thread what another one writes.

The CPU plays the grid, compiled with sanitizers. To the one for threads every thread of every
block is a thread of its own (`native/grid.h`): what one of them writes, another must not touch
unless both were at a barrier in between. It does not depend on which of them happens to run first.
It also watches the threads that step environments on a host.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rlbatch.envs.atari import GAMES, AtariEnv, build, device_code
from scripts.conformance import compilers_file
from tests.envs.atari.steps import check_steps

FOUND = 66  # The exit status of a process in which a sanitizer has found something.

# With everything inlined and then instrumented, the compiler would take many minutes.
FLAGS = ("-g1", "-Dalways_inline=unused")

# In each of three steps an episode ends: an environment begins the next one while others wait.
COMMON = {"n_envs": 5, "max_num_frames_per_episode": 60}
COLOURS = {"obs_type": "rgb", "repeat_action_probability": 0.25}


class Sanitizer(NamedTuple):
    flags: tuple[str, ...]
    runtimes: tuple[str, ...]  # Those that Python has to load before anything else.
    variable: str
    options: str


# Of what PyTorch and Python do with threads it would see but a part.
THREADS = Sanitizer(
    ("-fsanitize=thread",), ("libtsan.so",), "TSAN_OPTIONS", "ignore_noninstrumented_modules=1"
)
# Threads of the grid leave their stacks where it does not expect it; Python leaves memory behind.
MEMORY = Sanitizer(
    ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    ("libasan.so", "libstdc++.so.6"),
    "ASAN_OPTIONS",
    "detect_leaks=0:detect_stack_use_after_return=0",
)


def environment(sanitizer: Sanitizer) -> dict[str, str]:
    """Returns what a process needs around it for its libraries to be looked at."""
    runtimes = [compilers_file(name) for name in sanitizer.runtimes]
    if not all(Path(runtime).exists() for runtime in runtimes):
        pytest.skip(f"the compiler has none of {sanitizer.runtimes}")
    variables = os.environ | {
        "LD_PRELOAD": ":".join(runtimes),
        sanitizer.variable: f"{sanitizer.options}:halt_on_error=1:exitcode={FOUND}",
        "OMP_NUM_THREADS": "1",
    }
    probe = subprocess.run([sys.executable, "-c", ""], env=variables, stderr=subprocess.PIPE)
    if probe.returncode:
        pytest.skip(f"{sanitizer.runtimes}: does not start: {probe.stderr.decode()}")
    return variables


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the native sources."""
    return Path(shutil.copytree(build.NATIVE, tmp_path / "native"))


def run(sources: Path, sanitizer: Sanitizer, game: str, **options: Any) -> tuple[int, str]:
    """Compiles the kernels of a game, and runs this file with them; returns status and output."""
    variables = environment(sanitizer)
    library = sources / "sanitized.so"
    flags = (
        *device_code._GRID_FLAGS,
        *FLAGS,
        *sanitizer.flags,
        *device_code.grid_options(GAMES[game]),
    )
    build.compile_library(library, None, flags, sources / "device.cu")
    case = json.dumps([str(library), game, COMMON | options])
    command = [sys.executable, "-m", "tests.envs.atari.test_sanitizers", case]
    result = subprocess.run(command, capture_output=True, text=True, env=variables)
    return result.returncode, result.stdout + result.stderr


def play(library: str, game: str, options: dict[str, Any]) -> None:
    """Plays a game with the kernels of a library, and compares with the native one."""
    n_warps = options.pop("n_warps", 2)
    kernels = device_code._GridKernels(Path(library))
    device_code.device_kernels = lambda games, _: [kernels for _ in games]
    native = AtariEnv(game, seed=1, decorrelate_steps=20, **options)
    os.environ[device_code.GRID_VARIABLE] = "1"
    sanitized = AtariEnv(game, seed=1, **options)
    sanitized._batch.n_warps = n_warps
    native.reset()
    sanitized._n_resets = 1  # It goes on where the other one is: a reset is most of the time.
    sanitized.set_state(native.get_state())
    check_steps(sanitized, native, 3)


def slow(*case: Any) -> Any:
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("pong", {}),
        slow("elevator_action", {}),  # Whose resets are emulated.
        slow("elevator_action", {"img_height": 83, "img_width": 85, "stack_num": 1}),  # Unaligned.
        slow("sir_lancelot", {}),  # Also with its program compiled.
        slow("klax", COLOURS),
        slow("breakout", {"obs_type": "ram"}),
        slow("pong", {"n_envs": 34, "n_warps": 1}),
        slow("pong", {"img_height": 11, "img_width": 17, "stack_num": 1}),  # Not in words.
    ],
)
@pytest.mark.parametrize("sanitizer", [THREADS, MEMORY], ids=["threads", "memory"])
def test_nothing_is_found(sources, sanitizer, game, options) -> None:
    status, output = run(sources, sanitizer, game, **options)
    assert status == 0, output


# In each the last barrier, behind which a thread uses what others have made.
@pytest.mark.parametrize(
    ("header", "function"),
    [
        ("uniform.h", "come_near"),
        slow("device.h", "draw_frame"),
        slow("device.h", "observe_kernel"),
        slow("device.h", "save_kernel"),
        slow("device.h", "restore_kernel"),
    ],
)
def test_a_missing_barrier_is_found(sources, header, function) -> None:
    before, start, after = (sources / header).read_text().partition(f"void {function}(")
    body, end, rest = after.partition("\n}\n")
    without = "".join(body.rsplit("block_barrier();", 1))
    assert without != body
    (sources / header).write_text(before + start + without + end + rest)
    status, output = run(sources, THREADS, "pong", **COLOURS)
    assert (status, "data race" in output) == (FOUND, True), output


@pytest.mark.parametrize(
    ("header", "right", "wrong"),
    [
        ("device.h", "env < b.n_envs ? env : -1", "env"),
        slow("uniform.h", "i < kNearProgram / 4;", "i < 3 * kNearProgram / 4;"),
    ],
)
def test_a_wrong_bound_is_found(sources, header, right, wrong) -> None:
    text = (sources / header).read_text()
    assert right in text
    (sources / header).write_text(text.replace(right, wrong))
    status, output = run(sources, MEMORY, "pong")
    assert (status, "AddressSanitizer" in output) == (FOUND, True), output


# All of a batch in each step, and those that are ready first.
ON_A_HOST = """
import numpy as np
from rlbatch.envs.atari import AtariVectorEnv, find_game
from rlbatch.envs.atari._native_batch import NativeBatch
for batch_size in (7, 3):
    options = {"num_threads": 3, "max_num_frames_per_episode": 60}
    envs = AtariVectorEnv("pong", 7, batch_size=batch_size, **options)
    envs.reset(seed=0)
    for _ in range(40):
        envs.step(np.zeros(batch_size, np.int32))
    envs.close()
NativeBatch([find_game("solaris")], 1, envs._batch.settings, 3, knows_all=True).close()
"""


QUEUES = "std::atomic<size_t> n_queued{0}, n_finished{0}"
NEXT = "std::atomic<size_t> next_number{0}"


@pytest.mark.parametrize(
    ("atomic", "expected"),
    [("", 0), slow(QUEUES, FOUND), slow(NEXT, FOUND)],
    ids=["as_it_is", "plain_queues", "plain_next"],
)
def test_threads_of_a_host(sources, atomic, expected) -> None:
    variables = environment(THREADS)
    # Threads look at the sizes without the mutex until there is work, however slow the machine is.
    changes = {"kPatience{200}": "kPatience{60'000'000}"}
    changes[atomic] = atomic.replace("std::atomic<size_t>", "size_t")
    for old, new in changes.items():
        headers = [one for one in sources.glob("host_*.h") if old in one.read_text()]
        assert headers
        for header in headers:
            header.write_text(header.read_text().replace(old, new))
    library = sources / "host.so"
    build.compile_library(library, None, (*FLAGS, *THREADS.flags), sources / "host.cpp")
    variables["RLBATCH_ATARI_LIBRARY"] = str(library)
    command = [sys.executable, "-c", ON_A_HOST]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=variables)
    assert result.returncode == expected, result.stderr


if __name__ == "__main__":
    play(*json.loads(sys.argv[1]))
