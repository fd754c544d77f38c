"""What an environment of many consoles keeps to, at its borders."""

import numpy as np
import pytest
import torch

from rlbatch.envs.atari import GAMES, AtariEnv, find_game
from rlbatch.envs.atari._batch import checksums, checksums_anywhere
from rlbatch.envs.atari._options import Settings, native_options
from rlbatch.errors import CallOrderError
from tests.helpers import actions

SMALL = {"img_height": 20, "img_width": 16}


def made(*arguments, **options):
    env = AtariEnv(*arguments, seed=0, **options)
    observation, _ = env.reset()
    return env, observation


def arrays_like(observation):
    return {key: tensor.numpy().copy() for key, tensor in observation.items()}


def serve_or_move(t):
    return actions(1 if t % 4 == 0 else 2)


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
        env.step_into(actions(0), after, following)
    assert np.array_equal(after["frame"], before)


def test_states_know_how_many_games_can_be_chosen():
    several, _ = made(None, 2, games=["pong", "breakout"])
    one, _ = made("pong")
    with pytest.raises(ValueError, match="states: expected one of pong"):
        one.set_state(several.get_state([0]), [0])


@pytest.mark.parametrize("n_bytes", [4, 20, 22, 40_000])
def test_checksums_are_the_same_on_every_device(n_bytes):
    numbers = np.random.default_rng(0).integers(0, 256, (3, 16 + n_bytes), dtype=np.uint8)
    rows = torch.from_numpy(numbers)[:, 16:]
    whole = torch.nn.functional.pad(rows, (0, -n_bytes % 4))
    odd = 0x9E3779B97F4A7C15
    words = [np.frombuffer(row.numpy().tobytes(), "<i4").tolist() for row in whole]
    expected = [sum(w * (2 * k + 1) * odd for k, w in enumerate(row)) % 2**64 for row in words]
    found = checksums(rows)
    assert [number % 2**64 for number in found.tolist()] == expected
    assert torch.equal(found, checksums_anywhere(whole))


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
    env.step(actions(0))


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
    (after, _), _ = env.step(actions(0, 0, 0))
    assert after["lives"].tolist() == [0, 0, 5]


def test_no_limit_of_frames_is_0_for_the_library():
    assert native_options(Settings(max_num_frames_per_episode=None)).max_frames == 0


def test_states_fit_where_the_default_difficulty_is_named() -> None:
    named, default = (AtariEnv("pong", 1, seed=0, difficulty=one, **SMALL) for one in (0, None))
    for env in (named, default):
        env.reset()
    named.step(actions(1))
    assert not torch.equal(default.get_state(), named.get_state())
    default.set_state(named.get_state(), [0])
    assert torch.equal(default.get_state(), named.get_state())


@pytest.mark.parametrize("option", ["episodic_life", "life_loss_info"])
def test_a_life_that_is_lost_in_the_last_frame_of_an_episode_is_no_truncation(option):
    def end(limit):
        options = {"frameskip": 1, "noop_max": 1, option: True, **SMALL}
        env, _ = made("breakout", max_num_frames_per_episode=limit, **options)
        for t in range(300):
            (after, _), _ = env.step(serve_or_move(t))
            if after["done"]:
                return [after[key].item() for key in ("episode_length", "terminated", "truncated")]

    length, *_ = end(None)
    assert end(length) == [length, True, False]
    assert end(length - 1) == [length - 1, False, True]


def test_the_default_difficulty_is_0_also_where_it_is_not_listed():
    game = find_game("backgammon")
    assert 0 not in game.difficulties
    (default, _), (named, _) = (made("backgammon", difficulty=d, **SMALL) for d in (None, 3))
    states = default.get_state()
    with pytest.raises(ValueError, match="states: expected one of backgammon with the options"):
        named.set_state(states)


def test_the_rewards_of_a_last_step_are_not_those_of_a_first_one():
    def last(limit):
        env, _ = made("pong", noop_max=0, max_num_frames_per_episode=limit, **SMALL)
        for _ in range(300):
            (after, _), (following, _) = env.step(actions(0))
            if after["reward_raw"]:
                return after, following

    length = last(None)[0]["episode_length"].item()
    after, following = last(4 * length)
    assert after["truncated"]
    for key in ("reward", "reward_raw"):
        assert (after[key].item(), following[key].item()) == (-1, 0)


def test_the_last_action_stays_when_the_caller_changes_the_actions():
    env, _ = made("pong", 2, **SMALL)
    action = actions(1, 2)
    (after, _), (following, _) = env.step(action)
    action["action"].fill_(0)
    assert after["last_action"].tolist() == following["last_action"].tolist() == [1, 2]


def test_every_action_is_looked_at_and_not_the_first_alone():
    env, _ = made("pong", **SMALL)
    env.step(actions(5))
    before = env.get_state()
    with pytest.raises(ValueError, match=r"action: expected numbers from 0 to 5, got \[6\]"):
        env.step(actions(6))
    assert torch.equal(env.get_state(), before)


def test_environments_are_not_counted_from_the_end():
    env, _ = made("pong", 2, **SMALL)
    for number in (-1, 2):
        with pytest.raises(ValueError, match=f"ids: expected numbers from 0 to 1, got {number}"):
            env.get_ram([number])


def test_states_know_the_difficulty():
    env, _ = made("pong", 2, difficulty=[0, 1])
    with pytest.raises(ValueError, match="states: expected one of pong with the options of"):
        env.set_state(env.get_state([1]), [0])


def test_a_limit_may_be_long():
    limit = 2**31 - 1
    assert Settings(max_num_frames_per_episode=limit).max_num_frames_per_episode == limit


def test_counts_begin_anew_where_a_life_ends_the_episode():
    assert not made("pong", episodic_life=True, **SMALL)[0].counts_on
    assert made("pong", life_loss_info=True, **SMALL)[0].counts_on
