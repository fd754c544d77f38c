"""Threads of `AtariEnv`: one caller at a time, the end of the interpreter; and memory."""

import contextlib
import subprocess
import sys
import threading
import time

import pytest
import torch

from rlbatch import DictTensor
from rlbatch.envs.atari import AtariEnv
from rlbatch.errors import CallOrderError

pytest.importorskip("ale_py")


def test_as_many_threads_play_as_the_system_allows() -> None:
    script = """
import logging, os, resource, sys
import torch
from rlbatch import DictTensor
from rlbatch.envs.atari import AtariEnv, _native_batch, find_game

# Another user may not read it.
rom = _native_batch.read_rom(find_game("pong"))
_native_batch.read_rom = lambda game: rom

def rewards(num_threads):
    env = AtariEnv("pong", 8, seed=0, num_threads=num_threads)
    env.reset()
    action = DictTensor({"action": torch.full((8,), 2)})
    seen = [env.step(action)[0][0]["reward_raw"].tolist() for _ in range(80)]
    env.close()
    return seen

expected = rewards(8)
assert any(map(any, expected))
logging.basicConfig()
if os.getuid() == 0:  # Whom no limit holds.
    try:
        os.setuid(65534)
    except OSError:  # There is nobody else in some containers.
        sys.exit(77)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
assert rewards(8) == expected
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode == 77:
        pytest.skip("the user cannot be changed")
    assert done.returncode == 0, done.stderr
    assert "num_threads: expected 8, but the system allows no more than " in done.stderr


def test_calls_of_several_threads_at_once_are_refused() -> None:
    env = AtariEnv("pong", 16, seed=0, num_threads=2)
    env.reset()
    action, found = DictTensor({"action": torch.zeros(16, dtype=torch.int64)}), []

    def play() -> None:
        for _ in range(100):
            try:
                env.step(action)
            except CallOrderError as error:
                found.append(str(error))

    threads = [threading.Thread(target=play) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {"run: expected one thread at a time, got a call of another"}
    env.close()


def until_refused(call, n_times=100):
    """Makes a call again and again: some come between two steps of another thread."""
    for _ in range(n_times):
        call()
        time.sleep(0.001)


def test_nothing_else_is_done_while_another_thread_steps() -> None:
    env = AtariEnv("pong", 64, seed=0, num_threads=1, frameskip=100)  # Long steps.
    env.reset()
    action = DictTensor({"action": torch.zeros(64, dtype=torch.int64)})
    states, is_over = env.get_state(), threading.Event()

    def play() -> None:
        while not is_over.is_set():
            with contextlib.suppress(CallOrderError):
                env.step(action)

    player = threading.Thread(target=play, daemon=True)
    player.start()
    calls = {
        "get_ram": env.get_ram,
        "render": env.render,
        "get_state": env.get_state,
        "set_state": lambda: env.set_state(states),
        "bytes_per_env": env.bytes_per_env,
        "close": env.close,
    }
    try:
        for name, call in calls.items():
            message = f"{name}: expected one thread at a time, got a call of another"
            with pytest.raises(CallOrderError, match=message):
                until_refused(call)
    finally:
        is_over.set()
        player.join()
    env.observe()  # It is still open.
    env.close()


def test_the_interpreter_ends_while_a_thread_steps() -> None:
    # Of NumPy alone: PyTorch's own calls do not bear it.
    script = """
import threading
import numpy as np
from rlbatch.envs.atari import AtariVectorEnv
env = AtariVectorEnv("pong", 64, num_threads=2)
env.reset()
has_begun = threading.Event()
def play():
    while True:
        env.step(np.zeros(64, np.int64))
        has_begun.set()
threading.Thread(target=play, daemon=True).start()
has_begun.wait()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_an_environment_may_be_closed_once_more_when_the_interpreter_ends() -> None:
    script = """
from rlbatch.envs.atari import AtariEnv
class Owner:
    def __init__(self):
        self.env = AtariEnv("pong", 2, num_threads=2)
    def __del__(self):
        self.env.close()
        print("closed")
owner = Owner()
"""
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert (result.stdout, result.stderr) == (b"closed\n", b"")


def test_what_no_thread_has_played_takes_no_memory() -> None:
    script = """
import os
from rlbatch.envs.atari import GAMES, AtariEnv
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
AtariEnv("pong", 1, seed=0).close()
before = resident()
env = AtariEnv(games=list(GAMES), n_envs=len(GAMES), seed=0, num_threads=16)
print((resident() - before) / len(GAMES) / 16)
"""
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert float(result.stdout) < 100_000  # Per game and thread; tables alone would be 500,000.


def test_the_memory_that_is_checked_is_what_environments_take(monkeypatch) -> None:
    env = AtariEnv("pong", 8, seed=0, num_threads=1)
    n_bytes = 8 * env.bytes_per_env()
    env.close()
    monkeypatch.setattr("rlbatch.envs.atari._native_batch.free_memory", lambda: n_bytes)
    with pytest.raises(MemoryError, match="^n_envs: expected .* got 8 that take .* num_threads=1$"):
        AtariEnv("pong", 8, seed=0, num_threads=1)
    monkeypatch.setattr("rlbatch.envs.atari._native_batch.free_memory", lambda: n_bytes + 4_000_000)
    AtariEnv("pong", 8, seed=0, num_threads=1).close()
