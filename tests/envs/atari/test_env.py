"""`AtariEnv`: the contract, its numbers beside `AtariVectorEnv` and `Console`, states, mistakes."""

import copy
import dataclasses
import os
import pickle
import signal

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlbatch import DictTensor
from rlbatch.envs import DeviceEnv, check_env
from rlbatch.envs.atari import AtariEnv, AtariVectorEnv, Console, find_game
from rlbatch.envs.atari._options import AtariOptions, Settings
from rlbatch.errors import (
    CallOrderError,
    DeviceMismatchError,
    DtypeMismatchError,
    EnvContractError,
    KeyMismatchError,
    ShapeError,
)
from rlbatch.seeding import process_seeds
from tests.envs.atari.steps import actions_of, check_equal, play

pytest.importorskip("ale_py")

N_MOST_BYTES = 128 * 1024  # Per environment, observations of the default options included.


# --- The contract. ---


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_frames_per_episode": 50},
        {"episodic_life": True},
        {"life_loss_info": True},
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


class Miscounts(AtariEnv):
    """Counts on over its lives, but one too many."""

    def step(self, action):
        after, (following, running) = super().step(action)
        following = following.clone()
        goes_on = following["initial_state"] & (following["episode_length"] > 0)
        following["episode_length"][goes_on] += 1
        return after, (following, running)


def test_counts_that_go_on_over_a_life_are_looked_at():
    clause = "step that resets: episode_length of a first observation is 0"
    with pytest.raises(EnvContractError, match=f"^{clause}, or that of before, with counts_on"):
        check_env(Miscounts("breakout", 2, seed=1, life_loss_info=True), 200)
    env = AtariEnv("breakout", 2, seed=1, life_loss_info=True)
    assert DeviceEnv(env, "cpu", "cpu").counts_on
    env.counts_on = False
    with pytest.raises(EnvContractError, match=f"^{clause}, of environments"):
        check_env(env, 200)


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


@pytest.mark.parametrize("game", ["breakout", "space_invaders", "pacman", "hangman", "surround"])
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
        check_equal(DictTensor(after), expected)
        check_equal(DictTensor(following), expected_following)


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
        ({"game": None, "games": []}, ValueError, "games: expected at least one name, got none"),
        ({"game": None, "games": {"pong"}}, TypeError, "games: expected a list of names, got {"),
        ({"game": None, "games": "pong"}, TypeError, "games: expected a list of names, got 'pong'"),
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
    with pytest.raises(ShapeError, match="env_info: expected 2 rows, got 1"):
        env.reset(DictTensor({"seed": torch.tensor([0])}))
    with pytest.raises(DtypeMismatchError, match=r"seed: expected integers, got torch\.float32"):
        env.reset(DictTensor({"seed": torch.tensor([0.0, 1.5])}))


def test_refuses_what_it_can_not_do():
    env = AtariEnv("pong", 2, seed=0)
    action = DictTensor({"action": torch.tensor([0, 0])})
    for call in (lambda: env.step(action), env.observe, env.get_state, env.get_ram, env.render):
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
        env.set_state(env.get_state([0, 1]), [1, 1])
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
    second.set_state(first.get_state())
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


def test_editors_know_every_option() -> None:
    names = {field.name for field in dataclasses.fields(Settings)}
    names |= {"mode", "difficulty", "num_threads", "decorrelate_steps"}
    assert set(AtariOptions.__annotations__) == names


def test_a_step_lasts_as_long_as_its_frames() -> None:
    env = AtariEnv(games=["pong", "adventure"], n_envs=2, seed=0, frameskip=5)  # NTSC and PAL.
    assert env.seconds_per_step() == pytest.approx(5 / 60)
    assert env.seconds_per_step(1) == pytest.approx(5 / 50)
    with pytest.raises(ValueError, match="env: expected an integer from 0 to 1, got 2"):
        env.seconds_per_step(2)
    with pytest.raises(TypeError, match=r"env: expected an integer, got \[0\]"):
        env.seconds_per_step([0])  # type: ignore[arg-type]
    env.close()


def test_mistakes_with_types_are_named() -> None:
    env = AtariEnv("pong", 1, seed=0)
    env.reset()
    with pytest.raises(TypeError, match="^states: expected a tensor, got ndarray"):
        env.set_state(env.get_state().numpy())
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
