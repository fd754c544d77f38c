"""What a caller may get wrong: the error says where, what was expected and what was found."""

import copy
import pickle
import re

import numpy as np
import pytest
import torch

from rlbatch import DictTensor
from rlbatch.envs import check_env
from rlbatch.envs.atari import AtariEnv, AtariVectorEnv, Console, ConsoleState, record_video
from rlbatch.errors import CallOrderError

pytest.importorskip("ale_py")


def made(*arguments, **options) -> AtariEnv:
    env = AtariEnv(*arguments, seed=0, num_threads=1, **options)
    env.reset()
    return env


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"games": 5}, TypeError, "games: expected a list of names, got 5"),
        ({"games": b"x"}, TypeError, "games: expected a list of names, got b'x'"),
        ({"games": {"pong"}}, TypeError, "games: expected a list of names, got {'pong'}"),
        ({"game": "pong", "seed": {1, 2}}, TypeError, "seed: expected an integer, got {1, 2}"),
        ({"game": "pong", "seed": {1: 2}}, TypeError, "seed: expected an integer, got {1: 2}"),
        ({"game": "pong", "seed": b"12"}, TypeError, "seed: expected an integer, got b'12'"),
        (
            {"game": "pong", "obs_type": np.array(["rgb", "ram"])},
            ValueError,
            "obs_type: expected one of",
        ),
        (
            {"game": "pong", "repeat_action_probability": np.complex64(0.25)},
            TypeError,
            "repeat_action_probability: expected a number, got",
        ),
    ],
)
def test_arguments_of_an_environment(options, error, message) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        AtariEnv(n_envs=2, **options)


@pytest.mark.parametrize("name", ["autoreset_mode", "render_mode"])
def test_arguments_of_a_vector_environment(name) -> None:
    value = np.array(["NextStep", "SameStep"])
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got array"):
        AtariVectorEnv("pong", 2, **{name: value})


@pytest.mark.parametrize("options", [5, [], "reset_mask"])
def test_options_of_a_reset(options) -> None:
    env = AtariVectorEnv("pong", 2)
    with pytest.raises(TypeError, match=r"^options: expected a dict or None, got"):
        env.reset(options=options)
    env.close()


def test_no_environment_is_reset_with_no_seeds() -> None:
    env = AtariVectorEnv("pong", 2)
    observations, _ = env.reset(seed=0)
    mask = np.zeros(2, np.bool_)
    after, _ = env.reset(seed=np.array([]), options={"reset_mask": mask})
    assert np.array_equal(after, observations)
    env.close()


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", [AtariEnv, AtariVectorEnv])
def test_an_environment_is_not_copied(kind, make_copy) -> None:
    env = kind("pong", 2)
    with pytest.raises(TypeError, match="copy: expected none of an Atari environment"):
        make_copy(env)
    env.close()


def test_a_closed_environment_says_which_call_came_late() -> None:
    env, vector = made("pong", 2), AtariVectorEnv("pong", 2)
    action = DictTensor({"action": torch.zeros(2, dtype=torch.int64)})
    vector.reset()
    env.close()
    vector.close()
    calls = {
        "reset": env.reset,
        "step": lambda: env.step(action),
        "observe": env.observe,
        "reset_where": lambda: env.reset_where(torch.ones(2, dtype=torch.bool)),
        "get_ram": env.get_ram,
    }
    for name, call in calls.items():
        with pytest.raises(CallOrderError, match=f"^{name}: expected an open environment"):
            call()
    with pytest.raises(CallOrderError, match="^reset: expected an open environment"):
        vector.reset()
    with pytest.raises(CallOrderError, match="^send: expected an open environment"):
        vector.step(np.zeros(2, np.int64))


def test_a_console_is_none_of_ale_py() -> None:
    env = made("pong", 1)
    with pytest.raises(TypeError, match=r"ale: expected an ale_py.ALEInterface, got <rlbatch"):
        env.from_ale(Console("pong"))
    env.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": None}, "path: expected a path, got None"),
        ({"seed": "x"}, "seed: expected an integer, got 'x'"),
    ],
)
def test_arguments_of_a_film(tmp_path, options, message) -> None:
    env = made("pong", 1)
    with pytest.raises(TypeError, match=f"^{message}"):
        record_video(**{"env": env, "path": tmp_path / "x.gif", "n_steps": 1, **options})
    env.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda console: console.setInt("frame_skip", 1.5), "frame_skip: expected an integer"),
        (lambda console: console.setMode("x"), "mode: expected an integer, got 'x'"),
        (lambda console: console.setRAM("a", 0), "index: expected an integer, got 'a'"),
        (
            lambda console: console.setFloat("repeat_action_probability", None),
            "repeat_action_probability: expected a number, got None",
        ),
        (lambda console: console.loadROM(None), "rom: expected a path, .* got None"),
        (lambda console: console.loadROM(bytearray(4)), "rom: expected a path, .* got bytearray"),
        (lambda console: ConsoleState(None), "serialized: expected bytes, got None"),
    ],
)
def test_arguments_of_a_console(call, message) -> None:
    with pytest.raises(TypeError, match=f"^{message}"):
        call(Console("pong"))


def test_states_of_one_game_fit_where_the_actions_are_the_same() -> None:
    mixed = made(games=["pong", "breakout"], n_envs=2)
    single = made("pong", 1, full_action_space=True)
    single.set_state(mixed.get_state([0]))
    assert torch.equal(single.get_ram(), mixed.get_ram([0]))
    with pytest.raises(ValueError, match="states: expected one of pong with the options"):
        made("pong", 1).set_state(mixed.get_state([0]))


def test_the_contract_holds_where_rewards_are_clipped() -> None:
    env = AtariEnv("seaquest", 4, seed=0)
    check_env(env, n_steps=200)
    env.close()
