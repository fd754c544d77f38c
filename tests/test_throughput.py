"""`tune_throughput` with environments and agents whose speed is known."""

import logging
import multiprocessing
import types

import pytest
import torch

from rlbatch import CallOrderError, DictTensor, RL_Agent, RL_Batcher, throughput, tune_throughput
from tests.helpers import CountingEnv

now = 0.0


class Slow(RL_Agent):
    """Every step takes so many seconds of `now`."""

    def __init__(self, delay):
        self.delay = delay

    def __call__(self, state, observation, agent_info, history=None):
        global now
        now += self.delay
        action = torch.zeros(observation.n_elems(), dtype=torch.int64)
        return DictTensor({"action": action}), DictTensor()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the agent takes time."""
    clock = types.SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr(throughput, "time", clock)


def make_batcher(n_envs=2, n_processes=0, delay=0.25, autoreset=True, made=None):
    batcher = RL_Batcher(
        3,
        Slow,
        {"delay": delay},
        CountingEnv,
        {"lengths": [2] * (n_envs - 1) + [5], "autoreset": autoreset},
        n_processes=n_processes,
        seeds=0,
    )
    if made is not None:
        made.append(batcher)
    return batcher


def test_the_fastest_of_all_combinations_comes_first(clock) -> None:
    speeds = tune_throughput(make_batcher, seconds=9, delay=[1, 0.25], n_envs=[2, 16])
    assert speeds == [
        (64.0, {"delay": 0.25, "n_envs": 16}),
        (16.0, {"delay": 1, "n_envs": 16}),
        (8.0, {"delay": 0.25, "n_envs": 2}),
        (2.0, {"delay": 1, "n_envs": 2}),
    ]


def test_environments_that_end_begin_again_and_count_while_they_ran(clock) -> None:
    # Slots are of 3 and 2 steps in turn: of both environments, of which one ends after 2, and of
    # the other. The first one is not measured.
    ((speed, choice),) = tune_throughput(make_batcher, seconds=10.5, autoreset=[False])
    assert choice == {"autoreset": False}
    assert speed == (2 + 8 * (5 + 2)) / 10.5


def test_processes_are_tried_and_are_gone() -> None:
    made: list[RL_Batcher] = []
    speeds = tune_throughput(make_batcher, seconds=0.1, n_processes=[0, 2], made=[made])
    assert {speed.choice["n_processes"] for speed in speeds} == {0, 2}
    assert min(speed.steps_per_second for speed in speeds) > 0
    assert not multiprocessing.active_children()
    for batcher in made:
        with pytest.raises(CallOrderError, match="closed"):
            batcher.execute()


def test_the_log_tells(clock, caplog) -> None:
    with caplog.at_level(logging.INFO, "rlbatch"):
        tune_throughput(make_batcher, seconds=1, n_envs=[3])
    assert caplog.messages == ["{'n_envs': 3}: 12 steps/s"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"seconds": 0}, ValueError, "seconds: expected a number above 0, got 0"),
        ({"seconds": float("nan")}, ValueError, "seconds: expected a number above 0, got nan"),
        ({"seconds": "2"}, TypeError, "seconds: expected a number, got '2'"),
        ({"n_envs": 4}, TypeError, "n_envs: expected a list of values to try, got 4"),
        ({"n_envs": "48"}, TypeError, "n_envs: expected a list of values to try, got '48'"),
        ({"n_envs": iter(())}, ValueError, "n_envs: expected at least one value to try, got none"),
        ({"n_envs": []}, ValueError, "n_envs: expected at least one value to try, got none"),
    ],
)
def test_what_it_does_not_take(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        tune_throughput(make_batcher, **arguments)


def test_what_fails_is_named_and_closed(clock) -> None:
    with pytest.raises(ValueError, match="n_processes") as caught:
        tune_throughput(make_batcher, seconds=1, n_processes=[0, -1])
    (note,) = caught.value.__notes__
    assert note == (
        "tune_throughput: with {'n_processes': -1}; measured before: "
        "[Throughput(steps_per_second=8.0, choice={'n_processes': 0})]"
    )
    made: list[RL_Batcher] = []
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        tune_throughput(make_batcher, delay=[None], made=[made])
    assert "tune_throughput: with {'delay': None" in caught.value.__notes__[-1]
    with pytest.raises(CallOrderError, match="closed"):
        made[0].execute()
    with pytest.raises(TypeError, match="make_batcher: expected it to return an RL_Batcher, got 3"):
        tune_throughput(lambda: 3)
