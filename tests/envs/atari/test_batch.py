"""What an environment of many consoles keeps to, at its borders."""

import numpy as np
import pytest
import torch

from rlbatch import DictTensor
from rlbatch.envs.atari import GAMES, AtariEnv
from rlbatch.envs.atari._options import Settings, native_options
from rlbatch.errors import CallOrderError

SMALL = {"img_height": 20, "img_width": 16}


def made(*arguments, **options):
    env = AtariEnv(*arguments, seed=0, **options)
    observation, _ = env.reset()
    return env, observation


def act(*actions):
    return DictTensor({"action": torch.tensor(actions)})


def arrays_like(observation):
    return {key: tensor.numpy().copy() for key, tensor in observation.items()}


def serve_or_move(t):
    return act(1 if t % 4 == 0 else 2)


def test_random_steps_before_an_episode_differ_from_reset_to_reset():
    env = AtariEnv("breakout", 6, seed=3, decorrelate_steps=40, noop_max=0)
    first, second = (env.reset()[0]["frame"] for _ in range(2))
    assert not torch.equal(first, second)


def test_the_most_random_steps_are_taken_by_some():
    env, _ = made("breakout", 20, decorrelate_steps=1, noop_max=0, **SMALL)
    assert len(np.unique(env._batch.results["frame_number"])) == 2


def test_lives_are_told_as_they_were_before_a_reset():
    (one, first), (other, _) = (made("breakout", episodic_life=True, **SMALL) for _ in range(2))
    after, following = arrays_like(first), arrays_like(first)
    n_lost = 0
    for t in range(300):
        (expected, _), _ = one.step(serve_or_move(t))
        other.step_into(serve_or_move(t), after, following)
        n_lost += int(expected["done"])
        assert after["lives"].tolist() == expected["lives"].tolist()
    assert n_lost > 4


def test_memory_that_may_not_be_written_is_left_alone():
    env, first = made("pong", **SMALL)
    after, following = arrays_like(first), arrays_like(first)
    after["frame"].flags.writeable = False
    before = after["frame"].copy()
    with pytest.raises(ValueError, match="expected|read-only"):
        env.step_into(act(0), after, following)
    assert np.array_equal(after["frame"], before)


def test_states_know_how_many_games_can_be_chosen():
    several, _ = made(None, 2, games=["pong", "breakout"])
    one, _ = made("pong")
    with pytest.raises(ValueError, match="states: expected one of pong"):
        one.set_state(several.get_state([0]), [0])


def test_the_default_mode_is_the_first_one():
    game = next(game for game in GAMES.values() if game.modes[0])
    (default, _), (named, _) = (made(game.name, mode=m, **SMALL) for m in (None, game.modes[0]))
    named.set_state(default.get_state([0]), [0])
    assert torch.equal(named.get_state(), default.get_state())


def test_closing_in_the_middle_of_a_call_is_refused():
    env, _ = made("pong", **SMALL)
    alone = env._batch._alone("step")
    with alone, pytest.raises(CallOrderError, match="^close: expected one thread"):
        env.close()
    env.step(act(0))


def test_states_of_a_closed_environment_are_refused():
    env, _ = made("pong", **SMALL)
    states = env.get_state()
    env.close()
    with pytest.raises(CallOrderError, match="set_state: expected an open environment"):
        env.set_state(states)


def test_the_size_of_pictures_does_not_matter_where_there_are_none():
    env = AtariEnv("pong", obs_type="ram", img_width=500, img_height=500, seed=0)
    assert env.reset()[0]["frame"].shape == (1, 128)
    env.close()


def test_a_game_may_be_there_twice():
    env, _ = made(games=["pong", "pong", "breakout"], n_envs=3)
    (after, _), _ = env.step(act(0, 0, 0))
    assert after["lives"].tolist() == [0, 0, 5]


def test_no_limit_of_frames_is_0_for_the_library():
    assert native_options(Settings(max_num_frames_per_episode=None)).max_frames == 0


def test_states_fit_where_the_default_difficulty_is_named() -> None:
    named, default = (AtariEnv("pong", 1, seed=0, difficulty=one, **SMALL) for one in (0, None))
    for env in (named, default):
        env.reset()
    named.step(act(1))
    assert not torch.equal(default.get_state(), named.get_state())
    default.set_state(named.get_state(), [0])
    assert torch.equal(default.get_state(), named.get_state())
