"""Ctrl-C in the middle of steps, and processes that are forked meanwhile: nothing hangs."""

import contextlib
import os
import signal
import time
from collections.abc import Callable

import numpy as np
import pytest

from rlbatch.envs.atari import AtariVectorEnv
from rlbatch.errors import CallOrderError
from tests.alarms import AlarmAfter

pytest.importorskip("ale_py")
pytestmark = pytest.mark.usefixtures("alarms")

N_ENVS = 64
ACTIONS = np.zeros(N_ENVS, np.int64)


def step_for_ever(env: AtariVectorEnv, actions: np.ndarray, results: list[tuple]) -> None:
    # Not in the block that is interrupted: Python 3.11 may take the jump back to its first line for
    # one that is outside.
    while True:
        results.append(env.step(actions))


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("autoreset_mode", ["NextStep", "SameStep"])
def test_a_step_that_was_interrupted_can_be_received_or_left(num_threads, autoreset_mode) -> None:
    options = {"num_threads": num_threads, "autoreset_mode": autoreset_mode}
    env, twin = (AtariVectorEnv("pong", N_ENVS, **options) for _ in range(2))
    n_received = 0
    for _ in range(6):
        env.reset(seed=3)
        twin.reset(seed=3)
        results: list[tuple] = []
        with pytest.raises(KeyboardInterrupt), AlarmAfter(0.1, KeyboardInterrupt()):
            step_for_ever(env, ACTIONS, results)
        if env._batch.n_pending:  # As nearly always: it came while the library was at work.
            with pytest.raises(CallOrderError, match="send: expected a recv after the last"):
                env.step(ACTIONS)
            observations = env.recv()[0]
            n_received += 1
            for _ in range(len(results) + 1):
                expected = twin.step(ACTIONS)[0]
            assert np.array_equal(observations, expected)
            assert np.array_equal(env.step(ACTIONS)[0], twin.step(ACTIONS)[0])
            with pytest.raises(KeyboardInterrupt), AlarmAfter(0.1, KeyboardInterrupt()):
                step_for_ever(env, ACTIONS, results)
    assert n_received
    assert np.array_equal(env.reset(seed=5)[0], twin.reset(seed=5)[0])
    assert np.array_equal(env.step(ACTIONS)[0], twin.step(ACTIONS)[0])
    env.close()
    twin.close()


def reset_for_ever(env: AtariVectorEnv) -> None:
    while True:
        env.reset(seed=1)


def test_a_reset_that_was_interrupted_begins_once_more() -> None:
    env, twin = AtariVectorEnv("pong", N_ENVS), AtariVectorEnv("pong", N_ENVS)
    with pytest.raises(KeyboardInterrupt), AlarmAfter(0.02, KeyboardInterrupt()):
        reset_for_ever(env)
    with contextlib.suppress(CallOrderError):
        env.step(ACTIONS)  # Whatever it says, it gives nobody a second job.
    assert np.array_equal(env.reset(seed=2)[0], twin.reset(seed=2)[0])
    assert np.array_equal(env.step(ACTIONS)[0], twin.step(ACTIONS)[0])
    env.close()
    twin.close()


def test_environments_go_on_after_ctrl_c_at_any_moment() -> None:
    env, twin = AtariVectorEnv("pong", 1), AtariVectorEnv("pong", 1)
    for seconds in np.random.default_rng(0).uniform(5e-4, 2e-3, 500):
        env.reset()
        with pytest.raises(KeyboardInterrupt), AlarmAfter(seconds, KeyboardInterrupt()):
            step_for_ever(env, ACTIONS[:1], [])
    assert np.array_equal(env.reset(seed=2)[0], twin.reset(seed=2)[0])
    env.close()
    twin.close()


def outcome_in_a_child(call: Callable[[], object]) -> str:
    """Returns what a call says in a forked process: an error's message, or nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            call()
        except CallOrderError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "it hung"
    return said


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_threads_that_it_has_not() -> None:
    env = AtariVectorEnv("pong", N_ENVS, num_threads=2)
    env.reset(seed=0)

    def play() -> None:
        env.step(ACTIONS)
        env.reset()
        env.step(ACTIONS)

    assert outcome_in_a_child(play) == ""
    env.send(ACTIONS)
    time.sleep(0.001)  # So that they are at work.
    for call in (env.recv, env.reset):
        assert "recv: expected the process that gave the envi" in outcome_in_a_child(call)
    assert outcome_in_a_child(env.close) == ""
    env.recv()
    assert outcome_in_a_child(play) == ""
    env.close()
