"""`AtariEnv`: the contract, its numbers beside `AtariVectorEnv` and `Console`, states, mistakes."""

import copy
import os
import pickle
import signal
import threading

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlbatch import DictTensor, RL_Agent, RL_Batcher
from rlbatch.envs import DeviceEnv, check_env
from rlbatch.envs.atari import GAMES, AtariEnv, AtariVectorEnv, Console, find_game
from rlbatch.errors import (
    CallOrderError,
    DeviceMismatchError,
    DtypeMismatchError,
    KeyMismatchError,
    ShapeError,
)
from rlbatch.seeding import Seed, Seeds, env_seeds, process_seeds

pytest.importorskip("ale_py")

N_MOST_BYTES = 128 * 1024  # Per environment, observations of the default options included.


def actions_of(env, generator):
    return DictTensor(
        {"action": torch.from_numpy(generator.integers(0, env.action_space.n, env.n_envs()))}
    )


def play(env, n_steps, seed=0):
    """Plays at random; returns both observations of every step."""
    generator = np.random.default_rng(seed)
    for _ in range(n_steps):
        (after, _), (following, _) = env.step(actions_of(env, generator))
        yield after, following


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for key in expected.keys():
        assert found[key].dtype == expected[key].dtype, key
        assert torch.equal(found[key], expected[key]), key


# --- The contract. ---


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_frames_per_episode": 50},
        {"episodic_life": True},
        {"obs_type": "ram"},
        {"obs_type": "rgb", "stack_num": 2},
        {"decorrelate_steps": 30, "max_num_frames_per_episode": 300},
        {"frameskip": 1, "stack_num": 1, "maxpool": False, "max_num_frames_per_episode": 60},
    ],
)
def test_keeps_the_contract(options):
    options = {"img_height": 20, "img_width": 16, **options}
    env = AtariEnv("breakout", 2, seed=1, reward_clipping=False, **options)
    report = check_env(env, 200)
    assert report.n_terminated + report.n_truncated > 0


def test_has_the_spaces_and_keys_of_one_environment():
    env = AtariEnv("pong", 2, seed=0)
    assert env.action_space == spaces.Discrete(6)
    assert env.observation_space == spaces.Box(0, 255, (4, 84, 84), np.uint8)
    first, running = env.reset()
    assert running.tolist() == [0, 1]
    dtypes = {key: tensor.dtype for key, tensor in first.items()}
    assert dtypes == {
        "frame": torch.uint8,
        **dict.fromkeys(("reward", "reward_raw", "episode_return"), torch.float32),
        **dict.fromkeys(("terminated", "truncated", "done", "initial_state"), torch.bool),
        **dict.fromkeys(("last_action", "episode_length", "lives"), torch.int64),
    }


@pytest.mark.parametrize(
    "name", ["ms_pacman", "MsPacman", "ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4"]
)
def test_takes_every_form_of_a_name(name):
    first, _ = AtariEnv(name, 1, seed=[4]).reset()
    assert torch.equal(first["frame"], AtariEnv("ms_pacman", 1, seed=[4]).reset()[0]["frame"])


# --- The numbers. ---


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_frames_per_episode": 203},
        {"episodic_life": True, "repeat_action_probability": 0.25},
        {"max_num_frames_per_episode": 45, "grayscale": False},
        {"reward_clipping": False, "img_height": 100, "max_num_frames_per_episode": 150},
    ],
)
def test_equals_the_vector_environment(options):
    seeds = np.array([3, 2, 50])
    env = AtariEnv("breakout", 3, seed=seeds.tolist(), **options)
    vector_env = AtariVectorEnv("breakout", 3, autoreset_mode="SameStep", **options)
    first, _ = env.reset()
    observations, infos = vector_env.reset(seed=seeds)
    assert np.array_equal(first["frame"], observations)
    assert first["lives"].tolist() == infos["lives"].tolist()
    generator, n_ends = np.random.default_rng(0), 0
    for _ in range(80):
        action = actions_of(env, generator)
        (after, _), (following, _) = env.step(action)
        observations, rewards, terminations, truncations, infos = vector_env.step(
            action["action"].numpy()
        )
        done = terminations | truncations
        final = infos.get("final_obs", observations)
        assert np.array_equal(following["frame"], observations)
        assert np.array_equal(after["frame"][done], final[done])
        assert np.array_equal(after["frame"][~done], observations[~done])
        assert np.array_equal(after["reward"], rewards)
        assert np.array_equal(after["terminated"], terminations)
        assert np.array_equal(after["truncated"], truncations)
        assert np.array_equal(following["lives"], infos["lives"])
        assert np.array_equal(following["initial_state"], done)
        n_ends += done.sum()
    assert n_ends


def test_rewards_are_clipped_beside_the_raw_ones_which_are_summed():
    env, raw = AtariEnv("space_invaders", 2, seed=0), torch.zeros(2)
    env.reset()
    for after, following in play(env, 200):
        raw += after["reward_raw"]
        assert torch.equal(after["reward"], after["reward_raw"].sign())
        assert torch.equal(after["episode_return"], raw)
        raw[after["done"]] = 0
        assert torch.equal(following["episode_return"], raw)
    assert after["episode_return"].max() > after["reward"].max()


def test_a_lost_life_that_is_only_told_does_not_end_the_count():
    env = AtariEnv("breakout", 4, seed=1, life_loss_info=True)
    first, _ = env.reset()
    lives, n_lost, n_ended = first["lives"], 0, 0
    for after, following in play(env, 200):
        lost = after["lives"] < lives
        assert torch.equal(after["done"], lost)
        assert torch.equal(following["initial_state"], lost)
        assert not following["done"].any()
        now = env.observe()
        for key in following:
            assert torch.equal(now[key], following[key]), key
        goes_on = lost & (after["lives"] > 0)
        for key in ("episode_return", "episode_length", "frame", "lives"):
            assert torch.equal(following[key][goes_on], after[key][goes_on])
        ended = lost & ~goes_on
        assert (following["episode_length"][ended] == 0).all()
        assert (following["lives"][ended] == 5).all()
        n_lost, n_ended, lives = n_lost + lost.sum(), n_ended + ended.sum(), following["lives"]
    assert n_lost > n_ended > 0


@pytest.mark.parametrize("game", ["breakout", "space_invaders", "pacman", "hangman"])
@pytest.mark.parametrize("last", [False, True])
def test_mode_difficulty_ram_and_picture_equal_a_console(game, last):
    found = find_game(game)
    options = {"mode": found.modes[-1], "difficulty": found.difficulties[-1]} if last else {}
    env = AtariEnv(
        game, 1, seed=[7], noop_max=0, use_fire_reset=False, frameskip=1, stack_num=1, **options
    )
    console = Console()
    console.setInt("random_seed", 7)
    console.setFloat("repeat_action_probability", 0.0)
    console.loadROM(game)
    if last:
        console.setMode(options["mode"])
        console.setDifficulty(options["difficulty"])
    env.reset()
    console.reset_game()
    generator = np.random.default_rng(0)
    for _ in range(60):
        action = actions_of(env, generator)
        env.step(action)
        console.act(found.minimal_actions[action["action"].item()])
        assert np.array_equal(env.get_ram()[0], console.getRAM())
        assert np.array_equal(env.render()[0], console.getScreenRGB())


def test_the_ram_is_an_observation():
    env = AtariEnv("pong", 3, seed=0, obs_type="ram")
    seen = AtariEnv("pong", 3, seed=0)
    assert env.observation_space.shape == (128,)
    assert torch.equal(env.reset()[0]["frame"], env.get_ram())
    seen.reset()
    for (_, following), _ in zip(play(env, 30), play(seen, 30), strict=True):
        assert torch.equal(following["frame"], env.get_ram())
        assert torch.equal(following["frame"], seen.get_ram())
    assert torch.equal(env.get_ram([2, 0]), following["frame"][[2, 0]])


@pytest.mark.parametrize("limit", [30, None])
def test_step_into_writes_what_step_returns(limit):
    options = {"seed": 5, "max_num_frames_per_episode": limit, "life_loss_info": True}
    one, other = (AtariEnv("breakout", 3, **options) for _ in range(2))
    first, _ = one.reset()
    other.reset()
    generator = np.random.default_rng(0)
    # Of which one lies in pieces, as a view of a larger array may.
    pieces = {key: torch.empty(3, 2, *v.shape[1:], dtype=v.dtype) for key, v in first.items()}
    after = {key: tensor[:, 1] for key, tensor in pieces.items()}
    following = {key: torch.empty_like(tensor) for key, tensor in first.items()}
    for _ in range(60):
        action = actions_of(one, generator)
        (expected, _), (expected_following, _) = one.step(action)
        other.step_into(action, *({k: v.numpy() for k, v in x.items()} for x in (after, following)))
        assert_equal(DictTensor(after), expected)
        assert_equal(DictTensor(following), expected_following)


# --- Several games, seeds, batchers. ---


def assert_plays_as_alone(env, alone):
    """Asserts that the environments of a batch are equal to others of one environment each."""
    first, _ = env.reset()
    for i, one in enumerate(alone):
        assert torch.equal(first["frame"][i], one.reset()[0]["frame"][0])
    generator = np.random.default_rng(0)
    for _ in range(30):
        action = actions_of(env, generator)
        _, (following, _) = env.step(action)
        for i, one in enumerate(alone):
            _, (expected, _) = one.step(action.slice(i))
            assert_equal(following.slice(i), expected)


def test_several_games_play_in_one_batch_as_alone():
    names = ["pong", "klax", "journey_escape"]
    env = AtariEnv(games=names, n_envs=5, seed=[1, 2, 3, 4, 5], max_num_frames_per_episode=50)
    assert env.action_space == spaces.Discrete(18)
    alone = [
        AtariEnv(
            names[i % 3], 1, seed=[i + 1], full_action_space=True, max_num_frames_per_episode=50
        )
        for i in range(5)
    ]
    assert_plays_as_alone(env, alone)
    assert env.render([0, 3]).shape == (2, 210, 160, 3)
    with pytest.raises(ValueError, match=r"screens of one height, got \[210, 250\]"):
        env.render([0, 1])


@pytest.mark.parametrize("n_envs", [3, 7])  # Of six, half are there, or one is there twice.
@pytest.mark.parametrize("process", [0, 1])
def test_several_modes_and_difficulties_play_in_one_batch_as_alone(n_envs, process):
    modes, difficulties, first = [4, 0, 20], [0, 1], process * n_envs
    seed = Seeds.of(process, range(first, first + n_envs))
    options = {"max_num_frames_per_episode": 50, "noop_max": 3}
    env = AtariEnv("breakout", n_envs, seed=seed, mode=modes, difficulty=difficulties, **options)
    assert env.action_space == spaces.Discrete(4)
    assert_plays_as_alone(
        env,
        [
            AtariEnv(
                "breakout",
                1,
                seed=[i],
                mode=modes[i % 3],
                difficulty=difficulties[i % 2],
                **options,
            )
            for i in range(first, first + n_envs)
        ],
    )
    states = env.get_state()
    with pytest.raises(ValueError, match="states: expected one of breakout with the options of"):
        env.set_state([0], states[1:2])
    env.set_state([0], states[:1])


def test_several_games_have_modes_of_their_own():
    games, modes = ["breakout", "pong", "breakout"], [4, None, 0, 20, 1, 0]
    env = AtariEnv(games=games, n_envs=6, seed=[0, 1, 2, 3, 4, 5], mode=modes)
    assert env.action_space == spaces.Discrete(18)
    assert_plays_as_alone(
        env,
        [
            AtariEnv(games[i % 3], 1, seed=[i], mode=modes[i], full_action_space=True)
            for i in range(6)
        ],
    )


def test_modes_go_on_over_the_processes_of_a_batcher():
    def play(n_processes, modes):
        n_envs = 6 // max(n_processes, 1)
        env_args = {"game": "pong", "n_envs": n_envs, "mode": modes, "num_threads": 1}
        with RL_Batcher(40, Wanderer, {}, AtariEnv, env_args, n_processes, seeds=3) as batcher:
            batcher.reset()
            batcher.execute()
            return batcher.get()[0].trajectories["_observation/frame"]

    expected = play(0, (1, 0))
    assert torch.equal(play(2, torch.tensor([1, 0])), expected)
    assert not torch.equal(play(0, (0, 1)), expected)


def test_seeds_decide_and_differ():
    def frames(seed, n_envs=3):
        env = AtariEnv("pong", n_envs, seed=seed, obs_type="ram", repeat_action_probability=0.25)
        env.reset()
        *_, (after, _) = play(env, 30)
        return after["frame"]

    assert torch.equal(frames(0), frames(0))
    assert not torch.equal(frames(0), frames(1))
    assert not torch.equal(frames(0)[0], frames(0)[1])
    assert not torch.equal(frames(None), frames(None))
    assert torch.equal(frames(0), frames(env_seeds(0, 3)))
    process = AtariEnv("pong", 2, seed=Seed(9, 0, 1))
    whole = AtariEnv("pong", 4, seed=0)
    assert torch.equal(process.reset()[0]["frame"], whole.reset()[0]["frame"][2:])


def test_the_random_streams_go_on_after_a_reset():
    env = AtariEnv("pong", 4, seed=0, obs_type="ram")
    starts = [env.reset()[0]["frame"] for _ in range(3)]
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[1], starts[2])


@pytest.mark.parametrize("obs_type", ["pixels", "ram"])
def test_some_environments_begin_anew_and_the_others_go_on(obs_type):
    options = {"obs_type": obs_type, "life_loss_info": True, "repeat_action_probability": 0.25}
    env, beside = (AtariEnv("breakout", 4, seed=2, **options) for _ in range(2))
    for one in (env, beside):
        one.reset()
        *_, (_, before) = play(one, 60)
    chosen = torch.tensor([False, True, True, False])
    states = env.get_state()
    observation, running = env.reset_where(chosen)
    everywhere, _ = beside.reset()
    assert set(observation) == set(before)
    for key in before:
        assert torch.equal(observation[key][~chosen], before[key][~chosen]), key
        assert torch.equal(observation[key][chosen], everywhere[key][chosen]), key
    assert torch.equal(env.get_state([0, 3]), states[[0, 3]])
    assert torch.equal(env.get_state([1, 2]), beside.get_state([1, 2]))
    assert running.tolist() == [0, 1, 2, 3]
    assert env.reset_where(~chosen)[0]["initial_state"].all()


def test_who_begins_anew_is_said_by_bools():
    env = AtariEnv("pong", 2, seed=0)
    with pytest.raises(CallOrderError, match="reset_where: expected a reset before"):
        env.reset_where(torch.tensor([True, False]))
    env.reset()
    with pytest.raises(TypeError, match="chosen: expected a tensor"):
        env.reset_where([True, False])
    with pytest.raises(DtypeMismatchError, match="chosen: expected torch.bool, got torch.int64"):
        env.reset_where(torch.tensor([1, 0]))
    with pytest.raises(ShapeError, match=r"chosen: expected shape \(2,\), got \(3,\)"):
        env.reset_where(torch.zeros(3, dtype=torch.bool))
    with pytest.raises(DeviceMismatchError, match="chosen"):
        env.reset_where(torch.zeros(2, dtype=torch.bool, device="meta"))


def test_decorrelated_environments_begin_apart():
    def start(n_steps, n_envs=6, seed=3):
        env = AtariEnv("breakout", n_envs, seed=seed, decorrelate_steps=n_steps, noop_max=0)
        return env.reset()[0]

    assert (start(0)["frame"] == start(0)["frame"][:1]).all()
    apart = start(40)
    assert len(apart["frame"].flatten(1).unique(dim=0)) == 6
    assert torch.equal(apart["frame"], start(40)["frame"])
    assert torch.equal(apart["frame"][:2], start(40, n_envs=2)["frame"])
    assert apart["initial_state"].all()
    assert not apart["episode_length"].any()
    env = AtariEnv("breakout", 6, seed=3, decorrelate_steps=40, noop_max=0)
    first, second = env.reset()[0], env.reset()[0]
    assert not torch.equal(first["frame"], second["frame"])
    env.seed(3)
    assert torch.equal(env.reset()[0]["frame"], first["frame"])
    assert torch.equal(env.reset()[0]["frame"], second["frame"])


class Wanderer(RL_Agent):
    """Acts on what it sees, so that one wrong byte leads elsewhere."""

    def __call__(self, state, observation, agent_info, history=None):
        action = observation["frame"].long().sum((1, 2, 3)) % 6
        return DictTensor({"action": action}), DictTensor()


def create_env(n_envs, seed):
    return AtariEnv("pong", n_envs, seed=seed, num_threads=1, max_num_frames_per_episode=70)


@pytest.mark.parametrize("n_processes", [0, 2])
def test_a_batcher_stores_bytes(n_processes):
    reference = AtariEnv("pong", 4, seed=11, num_threads=1, max_num_frames_per_episode=70)
    env_args = {"n_envs": 4 // max(n_processes, 1)}
    with RL_Batcher(
        10, Wanderer, {}, create_env, env_args, n_processes=n_processes, seeds=11
    ) as batcher:
        batcher.reset()
        observation, _ = reference.reset()
        n_ends = 0
        for _ in range(3):
            batcher.execute()
            steps = batcher.get()[0].trajectories
            assert steps["observation/frame"].dtype == torch.uint8
            assert steps["_observation/frame"].dtype == torch.uint8
            for t in range(10):
                action, _ = Wanderer()(None, observation, None)
                (after, _), (following, _) = reference.step(action)
                for key in observation.keys():
                    assert torch.equal(steps[f"observation/{key}"][:, t], observation[key])
                    assert torch.equal(steps[f"_observation/{key}"][:, t], after[key])
                observation = following
                n_ends += after["done"].sum()
    assert n_ends


# --- States. ---


def check_restores(game, n_steps, **options):
    env = AtariEnv(game, 2, seed=0, repeat_action_probability=0.25, num_threads=1, **options)
    env.reset()
    list(play(env, 20))
    states, now = env.get_state(), env.observe()
    once = list(play(env, n_steps, seed=1))
    env.set_state(None, states)
    assert_equal(env.observe(), now)
    for (after, following), (expected, expected_following) in zip(
        play(env, n_steps, seed=1), once, strict=True
    ):
        assert_equal(after, expected)
        assert_equal(following, expected_following)
    env.close()
    return sum(int(after["done"].sum()) for after, _ in once)


def test_what_is_restored_plays_on_as_before():
    assert check_restores("breakout", 300, max_num_frames_per_episode=400)


@pytest.mark.parametrize("options", [{"obs_type": "ram"}, {"obs_type": "rgb"}])
def test_all_kinds_of_observations_are_restored(options):
    assert check_restores("tic_tac_toe_3d", 40, max_num_frames_per_episode=90, **options)


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_every_game_plays_on_as_before(game):
    check_restores(game, 1000, obs_type="ram")
    check_restores(game, 150, max_num_frames_per_episode=300, stack_num=2)


def test_one_state_branches_into_many():
    env = AtariEnv("breakout", 4, seed=0)
    env.reset()
    list(play(env, 15))
    env.set_state([0, 1, 2, 3], env.get_state([2]).repeat(4, 1))
    frames = env.observe()["frame"]
    assert (frames == frames[:1]).all()
    env.step(DictTensor({"action": torch.tensor([0, 1, 2, 3])}))
    assert len(env.get_ram().unique(dim=0)) > 1


def test_states_of_other_environments_and_damaged_ones_are_refused():
    env = AtariEnv(games=["pong", "breakout"], n_envs=2, seed=0)
    env.reset()
    states = env.get_state()
    with pytest.raises(ValueError, match="states: expected one of pong with the options"):
        env.set_state([0], states[1:])
    with pytest.raises(ShapeError, match="states: expected"):
        env.set_state([0], states[:1, 1:])
    with pytest.raises(ShapeError, match="states: expected"):
        env.set_state([0], states[:1].long())
    damaged = states.clone()
    damaged[0, 100] ^= 1
    with pytest.raises(ValueError, match="got one that was changed"):
        env.set_state(None, damaged)
    other = AtariEnv(games=["pong", "breakout"], n_envs=2, seed=0, noop_max=3)
    other.reset()
    with pytest.raises(ValueError, match="other options"):
        other.set_state(None, states)
    env.set_state(None, states)


# --- Memory, devices, mistakes. ---


@pytest.mark.parametrize("game", ["breakout", "pitfall2", "pacman", "klax"])
def test_an_environment_takes_at_most_128_kib(game):
    env = AtariEnv(game, 3, seed=0)
    env.reset()
    most = max(env.bytes_per_env() for _ in play(env, 60))
    height = find_game(game).height
    assert 2 * height * 160 + 4 * 84 * 84 < most <= N_MOST_BYTES


def test_other_devices_are_refused_and_reached_by_device_env():
    with pytest.raises(NotImplementedError, match="expected cpu or cuda, got meta; .* DeviceEnv"):
        AtariEnv("pong", 1, device="meta")
    env = DeviceEnv(AtariEnv("pong", 2, seed=0), "cpu", "meta")
    assert env.reset()[0]["frame"].device.type == "meta"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"game": "no_such_game"}, ValueError, "game: expected one of the 104"),
        ({"game": None}, ValueError, "game: expected either game or games"),
        ({"games": ["pong"]}, ValueError, "game: expected either game or games"),
        ({"game": None, "games": []}, ValueError, "games: expected a list"),
        (
            {"game": None, "games": ["pong"] * 3},
            ValueError,
            "games: expected a list of 1 to 2, one per env",
        ),
        ({"game": ["pong"]}, TypeError, "several are `games`"),
        ({"game": "ALE/Pong-ram-v5"}, ValueError, "without -ram, .* use obs_type='ram'"),
        ({"game": "Pong-ramNoFrameskip-v4"}, ValueError, "without -ram, got 'Pong-ramNoFr"),
        ({"n_envs": 0}, ValueError, "n_envs: expected an integer from 1"),
        (
            {"frame_skip": 4},
            TypeError,
            r"options: expected some of .*, got frame_skip; closest: frameskip$",
        ),
        ({"num_envs": 4}, TypeError, "options: expected .*, got num_envs; closest: n_envs$"),
        ({"obs_type": "grey"}, ValueError, "obs_type: expected one of"),
        ({"mode": 7}, ValueError, r"mode: expected one of pong's \(0, 1\), got 7"),
        ({"difficulty": 9}, ValueError, "difficulty: expected one of pong's"),
        ({"decorrelate_steps": -1}, ValueError, "decorrelate_steps"),
        ({"num_threads": -1}, ValueError, "num_threads"),
        ({"seed": [1, 2, 3]}, ValueError, "seed: expected 2 seeds"),
        ({"seed": [1, 2**32]}, ValueError, r"seed: expected seeds from 0 to 2\*\*32 - 1"),
        ({"max_num_frames_per_episode": 0}, ValueError, "max_num_frames_per_episode"),
    ],
)
def test_rejects_what_makes_no_sense(arguments, error, message):
    with pytest.raises(error, match=message):
        AtariEnv(**{"game": "pong", "n_envs": 2, **arguments})


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32])
def test_the_lowest_32_bits_of_a_seed_count_whatever_its_dtype(dtype):
    seeds = []
    for numbers in (torch.tensor([-1, 3], dtype=dtype), torch.tensor([2**32 - 1, 3])):
        env = AtariEnv("breakout", 2, seed=0)
        env.reset(DictTensor({"seed": numbers}))
        seeds.append(env._seeds.tolist())
    assert seeds[0] == seeds[1] == [2**32 - 1, 3]


def test_seeds_of_a_reset_are_those_of_a_new_environment():
    env_info = DictTensor({"seed": torch.tensor([7 + 2**40, 2**32 - 1])})
    action = DictTensor({"action": torch.tensor([2, 3])})

    def play(env, info):
        observation, _ = env.reset(info)
        return [observation["frame"], *(env.step(action)[1][0]["frame"] for _ in range(30))]

    options = {"decorrelate_steps": 20, "repeat_action_probability": 0.25}
    expected = play(AtariEnv("breakout", 2, seed=[7, 2**32 - 1], **options), None)
    env = AtariEnv("breakout", 2, seed=0, **options)
    other = play(env, None)
    for _ in range(2):  # Whatever came before.
        found = play(env, env_info)
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    assert not all(torch.equal(x, y) for x, y in zip(other, expected, strict=True))
    with pytest.raises(ValueError, match="expected 2 seeds, one per environment, got 1"):
        env.reset(DictTensor({"seed": torch.tensor([0])}))
    with pytest.raises(DtypeMismatchError, match=r"seed: expected integers, got torch\.float32"):
        env.reset(DictTensor({"seed": torch.tensor([0.0, 1.5])}))


def test_refuses_what_it_can_not_do():
    env = AtariEnv("pong", 2, seed=0)
    action = DictTensor({"action": torch.tensor([0, 0])})
    for call in (lambda: env.step(action), env.observe, env.get_state, env.render):
        with pytest.raises(CallOrderError, match="expected a reset before, got none"):
            call()
    with pytest.raises(ValueError, match=r"env_info: expected seed alone, got \['x'\]"):
        env.reset(DictTensor({"x": torch.zeros(2)}))
    env.reset(DictTensor())
    for wrong, error, message in (
        (torch.tensor([0, 6]), ValueError, "expected numbers from 0 to 5"),
        (torch.tensor([0]), ShapeError, r"expected shape \(2,\), got \(1,\)"),
        (torch.zeros(2), DtypeMismatchError, "expected integers, got torch.float32"),
        (torch.zeros(2, dtype=torch.long, device="meta"), DeviceMismatchError, "action"),
    ):
        with pytest.raises(error, match=message):
            env.step(DictTensor({"action": wrong}))
    with pytest.raises(ValueError, match="ids: expected numbers from 0 to 1, got 2"):
        env.render([2])
    with pytest.raises(ValueError, match=r"ids: expected every environment once, got \[1, 1\]"):
        env.set_state([1, 1], env.get_state([0, 1]))
    ram = AtariEnv("pong", 1, obs_type="ram")
    ram.reset()
    with pytest.raises(ValueError, match="got ram, which draws nothing"):
        ram.render()
    env.close()
    env.close()
    with pytest.raises(CallOrderError, match="expected an open environment, got a closed one"):
        env.step(action)


@pytest.mark.parametrize("ids", [np.array([True, False]), [0.7], "1", [[0, 1]], [None]])
def test_ids_are_integers(ids) -> None:
    env = AtariEnv("pong", 2, seed=0)
    env.reset()
    with pytest.raises(TypeError, match="^ids: expected integers, got "):
        env.get_ram(ids)
    env.close()


def test_options_may_be_numpys_numbers() -> None:
    plain = {"frameskip": 3, "repeat_action_probability": 0.25, "maxpool": False, "mode": None}
    numpy = {
        "frameskip": np.int64(3),
        "repeat_action_probability": np.float32(0.25),
        "maxpool": np.bool_(False),
        "mode": np.int32(0),
    }
    first, second = AtariEnv("pong", 1, seed=0, **plain), AtariEnv("pong", 1, seed=1, **numpy)
    first.reset()
    second.reset()
    second.set_state(None, first.get_state())
    assert torch.equal(second.get_state(), first.get_state())
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"stack_num": 1 << 20}, ValueError, "stack_num: expected observations of at most"),
        ({"n_envs": 1 << 20, "stack_num": 400}, MemoryError, "n_envs: expected environments that"),
        ({"mode": 0.0}, TypeError, "mode: expected an integer, got 0.0"),
        ({"difficulty": True}, TypeError, "difficulty: expected an integer, got True"),
        ({"mode": [0, 1], "n_envs": 1}, ValueError, "mode: expected a list of 1 to 1, .* got 2"),
        ({"mode": [], "n_envs": 1}, ValueError, "mode: expected a list of 1 to 1, .* got 0"),
        ({"mode": "01", "n_envs": 2}, TypeError, "mode: expected an integer, got '01'"),
        (
            {"mode": np.array([[0]]), "n_envs": 2},
            TypeError,
            r"mode: expected an integer, got \[0\]",
        ),
        (
            {"mode": [0, 7], "n_envs": 2},
            ValueError,
            r"mode: expected one of pong's \(0, 1\), got 7",
        ),
        ({"repeat_action_probability": "x"}, TypeError, "expected a number, got 'x'"),
    ],
)
def test_what_would_end_the_process_is_refused(options, error, message) -> None:
    with pytest.raises(error, match=message):
        AtariEnv("pong", **options)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_that_is_forked_can_close_it() -> None:
    env = AtariEnv("pong", 4, seed=0, num_threads=3)
    env.reset()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        env.close()
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    env.close()


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


def test_mistakes_with_types_are_named() -> None:
    env = AtariEnv("pong", 1, seed=0)
    env.reset()
    with pytest.raises(TypeError, match="^states: expected a tensor, got ndarray"):
        env.set_state(None, env.get_state().numpy())
    with pytest.raises(DtypeMismatchError, match="expected integers, got torch.uint16"):
        env.step(DictTensor({"action": torch.zeros(1, dtype=torch.uint16)}))
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="get_state and set_state carry games over"):
            copied(env)
    env.close()
    with pytest.raises(TypeError, match="^game: expected a name, got 5"):
        AtariEnv(games=[5])
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="^device: expected one that is there, got cuda:0"):
            AtariEnv("pong", device="cuda:0")


def test_what_is_no_dicttensor_is_refused() -> None:
    env = AtariEnv("pong", 2, seed=0)
    with pytest.raises(TypeError, match="env_info: expected a DictTensor or None, got 3"):
        env.reset(3)  # type: ignore[arg-type]
    env.reset()
    with pytest.raises(TypeError, match="action: expected a DictTensor, got tensor"):
        env.step(torch.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(KeyMismatchError, match=r"action: expected the keys \['action'\], got \['a"):
        env.step(DictTensor({"act": torch.zeros(2)}))
    with pytest.raises(ValueError, match="device: expected a device such as cuda:0, got 'gpu'"):
        AtariEnv("pong", 2, device="gpu")


@pytest.mark.parametrize("game", ["skiing", "lost_luggage"])
def test_a_game_without_fire_begins_without_it_beside_others(game: str) -> None:
    """Though FIRE is among the actions of all."""
    alone = AtariEnv(game, 1, seed=[7], noop_max=0)
    mixed = AtariEnv(games=["pong", game], n_envs=2, seed=[5, 7], noop_max=0)
    frames = [env.reset()[0]["frame"] for env in (alone, mixed)]
    assert torch.equal(frames[0][0], frames[1][1])
    found = [env._batch.results["episode_frame_number"].tolist() for env in (alone, mixed)]
    assert found[1][1:] == found[0]


def test_games_go_on_over_the_processes_of_a_batcher() -> None:
    games = ["pong", "breakout", "qbert"]
    for seeds, n_envs in ((7, 5), (7, 2), (list(range(10)), 5)):  # Of the run, or of each.
        (of_all,), of_each = process_seeds(seeds, 1), process_seeds(seeds, 2)
        of_each = pickle.loads(pickle.dumps(of_each))
        whole = AtariEnv(games=games, n_envs=2 * n_envs, seed=of_all)
        parts = [AtariEnv(games=games, n_envs=n_envs, seed=seed) for seed in of_each]
        frames = [part.reset()[0]["frame"] for part in parts]
        assert torch.equal(whole.reset()[0]["frame"], torch.cat(frames))
