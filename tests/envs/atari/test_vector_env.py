"""`AtariVectorEnv` beside ale-py's, with no tolerance."""

import warnings
from contextlib import closing
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from rlbatch import DictTensor
from rlbatch.envs import GymEnv, GymEnvInf, check_env
from rlbatch.envs.atari import GAMES, AtariEnv, AtariVectorEnv
from rlbatch.envs.atari.games import ACTIONS
from rlbatch.envs.atari.registration import register
from rlbatch.errors import CallOrderError, EnvContractError
from tests.envs.atari.steps import play
from tests.helpers import episode_lengths

ale_vector_env = pytest.importorskip("ale_py.vector_env")

MODES = ("NextStep", "SameStep")

# Paddles and sticks, NTSC and PAL, every height of a screen, early ends, few and many actions.
GRID_GAMES = (
    "breakout",
    "pong",
    "ms_pacman",
    "space_invaders",
    "qbert",
    "klax",
    "journey_escape",
    "skiing",
    "pooyan",
    "carnival",
    "double_dunk",
    "tic_tac_toe_3d",  # Its frames may take several calls.
)

# Limits that are no multiples of the frame skip end an episode within a step.
OPTIONS = {
    "defaults": {},
    "episodic life": {"episodic_life": True, "max_num_frames_per_episode": 150},
    "life loss info": {"life_loss_info": True, "max_num_frames_per_episode": 150},
    "both, with a limit": {
        "episodic_life": True,
        "life_loss_info": True,
        "max_num_frames_per_episode": 49,
    },
    "frameskip 1": {"frameskip": 1, "max_num_frames_per_episode": 31},
    "frameskip 2": {"frameskip": 2, "max_num_frames_per_episode": 33},
    "frameskip 3, one frame": {
        "frameskip": 3,
        "maxpool": False,
        "max_num_frames_per_episode": 44,
    },
    "rgb": {"grayscale": False, "max_num_frames_per_episode": 45, "episodic_life": True},
    "sticky, no noops": {
        "noop_max": 0,
        "repeat_action_probability": 0.25,
        "max_num_frames_per_episode": 60,
    },
    "no stack, one noop": {"noop_max": 1, "stack_num": 1, "max_num_frames_per_episode": 47},
    "small, raw rewards": {
        "img_height": 42,
        "img_width": 100,
        "reward_clipping": False,
        "max_num_frames_per_episode": 46,
    },
    "all actions, no fire": {
        "use_fire_reset": False,
        "full_action_space": True,
        "max_num_frames_per_episode": 45,
    },
    "full size": {
        "img_height": 210,
        "img_width": 160,
        "stack_num": 2,
        "max_num_frames_per_episode": 48,
    },
    "rgb, frameskip 5": {
        "grayscale": False,
        "frameskip": 5,
        "img_width": 61,
        "max_num_frames_per_episode": 54,
    },
}


class Beside:
    """Two vector environments that have to answer alike, step for step.

    `seen` counts what happened, so that a comparison in which nothing did can be told.
    """

    def __init__(self, game, n_envs=2, **options):
        self.ale = ale_vector_env.AtariVectorEnv(game, n_envs, num_threads=1, **options)
        self.ours = AtariVectorEnv(game, n_envs, num_threads=1, **options)
        self.seen = dict.fromkeys(("terminated", "truncated", "ended", "rewarded"), 0)
        self.episode_frame_number = np.zeros(n_envs)

    def reset(self, **arguments):
        (observations, infos), found = self.ale.reset(**arguments), self.ours.reset(**arguments)
        assert_same(found[0], observations, "reset: observations")
        self.compare_infos(found[1], infos, "reset")

    def step(self, actions, where=""):
        *expected, infos = self.ale.step(actions)
        *found, found_infos = self.ours.step(actions)
        names = ("observations", "rewards", "terminations", "truncations")
        for name, one, other in zip(names, found, expected, strict=True):
            assert_same(one, other, f"{where}: {name}")
        self.compare_final(found_infos, infos, where)
        before = self.episode_frame_number
        self.compare_infos(found_infos, infos, where)
        self.seen["terminated"] += int(expected[2].sum())
        self.seen["truncated"] += int(expected[3].sum())
        self.seen["ended"] += int((infos["episode_frame_number"] < before).sum())
        self.seen["rewarded"] += int((expected[1] != 0).sum())

    def compare_final(self, found, expected, where):
        assert ("final_obs" in found) == ("final_obs" in expected), where
        if "final_obs" in expected:
            one, other = found.pop("final_obs"), expected.pop("final_obs")
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            # The other rows are not initialised in ale-py.
            rows = expected["episode_frame_number"] < self.episode_frame_number
            assert_same(one[rows], other[rows], f"{where}: final_obs")

    def compare_infos(self, found, expected, where):
        assert found.keys() == expected.keys(), where
        for key, array in expected.items():
            assert_same(found[key], array, f"{where}: infos {key}")
        self.episode_frame_number = expected["episode_frame_number"].copy()

    def play(self, n_steps, seed=0):
        """Plays at random, and returns what was seen."""
        generator = np.random.default_rng(seed)
        for t in range(n_steps):
            self.step(generator.integers(0, self.ale.action_space.nvec), f"step {t}")
        return self.seen

    def close(self):
        self.ours.close()


def assert_same(found, expected, where):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
    if not np.array_equal(found, expected):
        rows = [i for i in range(len(found)) if not np.array_equal(found[i], expected[i])]
        n = int((found != expected).sum())
        raise AssertionError(f"{where}: {n} of {found.size} values differ, in rows {rows}")


def compare(game, options, mode, n_steps, n_envs=2):
    beside = Beside(game, n_envs, autoreset_mode=mode, **options)
    beside.reset(seed=3)
    seen = beside.play(n_steps)
    beside.close()
    limit = options.get("max_num_frames_per_episode", 10**6)
    if limit < n_steps * options.get("frameskip", 4):
        assert seen["ended"], f"no episode ended: {seen}"
    return seen


# Every option set and every game, with as few combinations as that takes.
FAST = [(GRID_GAMES[i % len(GRID_GAMES)], name, MODES[i % 2]) for i, name in enumerate(OPTIONS)]


@pytest.mark.parametrize(("game", "name", "mode"), FAST)
def test_equals_ale_py(game, name, mode):
    compare(game, OPTIONS[name], mode, 40)


@pytest.mark.parametrize(
    ("game", "height", "width"),
    [("space_invaders", 1, 40), ("carnival", 2, 80), ("name_this_game", 1, 160)],
)
def test_one_row_or_two_equal_ale_py(game, height, width):
    """Of 210 and 214 rows: what OpenCV takes for the scale is no whole number there."""
    compare(game, {"img_height": height, "img_width": width, "stack_num": 1}, MODES[0], 60)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("game", GRID_GAMES)
def test_equals_ale_py_on_the_grid(game, name, mode):
    compare(game, OPTIONS[name], mode, 150)


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_every_game_equals_ale_py(game):
    short = {"max_num_frames_per_episode": 130, "repeat_action_probability": 0.25}
    compare(game, short, "NextStep", 100)
    compare(game, OPTIONS["full size"], "SameStep", 60)


def test_the_seventh_digit_of_a_probability_does_not_count_as_in_ale_py():
    options = {"frameskip": 1, "noop_max": 0, "use_fire_reset": False, "stack_num": 1}
    options |= {"maxpool": False, "img_height": 210, "img_width": 160}
    # These draw a number between 0.1 and 0.1000004 soon.
    seeds, played = np.array([8899, 17941, 20857, 22052, 27159]), []
    for kind, probability in (
        (ale_vector_env.AtariVectorEnv, 0.1000004), (AtariVectorEnv, 0.1000004),
        (AtariVectorEnv, 0.10001),
    ):  # fmt: skip
        env = kind("pong", 5, num_threads=1, repeat_action_probability=probability, **options)
        env.reset(seed=seeds)
        played.append(np.stack([env.step(np.full(5, 2 + t % 2))[0] for t in range(130)]))
    ale, ours, another = played
    assert_same(ours, ale, "steps")
    assert not np.array_equal(another, ours)


@pytest.mark.parametrize("mode", MODES)
def test_games_that_are_lost_equal_ale_py(mode):
    beside = Beside("breakout", autoreset_mode=mode, life_loss_info=True)
    beside.reset(seed=1)
    seen = beside.play(180)
    assert seen["terminated"] > seen["ended"] > 0, seen
    assert seen["rewarded"] > 0
    assert not seen["truncated"]


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_of_others_after_a_lost_life_equals_ale_py(mode):
    beside = Beside("breakout", autoreset_mode=mode, life_loss_info=True)
    beside.reset(seed=0)
    while not beside.seen["terminated"]:
        beside.step(np.array([1, 0]))
    assert not beside.seen["ended"]
    for mask in ([False, True], [False, False]):
        beside.reset(options={"reset_mask": np.array(mask)})
    beside.play(3)


@pytest.mark.parametrize("game", ["breakout", "space_invaders", "seaquest"])
def test_continuous_actions_equal_ale_py(game):
    beside = Beside(game, continuous=True, max_num_frames_per_episode=90, noop_max=5)
    assert str(beside.ours.action_space) == str(beside.ale.action_space)
    beside.reset(seed=2)
    beside.ours.action_space.seed(0)
    for t in range(60):
        beside.step(beside.ours.action_space.sample(), f"step {t}")
    assert beside.seen["ended"]


STICKS = {  # Radius and half turns.
    "": (0, 0),
    "RIGHT": (1, 0),
    "UPRIGHT": (1, 0.25),
    "UP": (1, 0.5),
    "UPLEFT": (1, 0.75),
    "LEFT": (1, 1),
    "DOWNLEFT": (1, -0.75),
    "DOWN": (1, -0.5),
    "DOWNRIGHT": (1, -0.25),
}


@pytest.mark.parametrize("fire", [0, 1])
def test_a_stick_in_every_direction_equals_ale_pys(fire):
    beside = Beside("seaquest", 1, continuous=True, noop_max=1)
    for name, (radius, half_turns) in STICKS.items():
        action = np.array([[radius, half_turns * np.pi, fire]], np.float32)
        (number,) = beside.ours._numbers(action)[0]
        assert ACTIONS[number] == (f"{name}{'FIRE' * fire}" or "NOOP")
        beside.reset(seed=2)
        for _ in range(12):
            beside.step(action, name)


@pytest.mark.parametrize("mode", MODES)
def test_resets_of_some_environments_equal_ale_py(mode):
    beside = Beside("ms_pacman", 3, autoreset_mode=mode, max_num_frames_per_episode=30)
    beside.reset(seed=5)
    beside.play(8)  # NextStep: all of them are over now, and reset in their next step.
    mask = np.array([True, False, True])
    beside.reset(options={"reset_mask": mask})
    beside.play(3)
    beside.reset(seed=9, options={"reset_mask": mask})
    beside.play(3)
    beside.reset(seed=np.array([4]), options={"reset_mask": ~mask, "other": 1})
    beside.reset(options={"reset_mask": np.zeros(3, np.bool_)})
    beside.play(12)
    beside.reset()
    beside.reset(seed=np.array([7, 2**31 - 1, 0]))
    beside.reset(seed=np.array([7, -1, 0]))  # A negative one is none.
    assert beside.play(10)["ended"]


@pytest.mark.parametrize("options", [*OPTIONS.values(), {"continuous": True}])
def test_spaces_equal_ale_py(options):
    beside = Beside("pong", **options)
    names = ("observation_space", "action_space")
    for name in (*names, *(f"single_{name}" for name in names)):
        assert getattr(beside.ours, name) == getattr(beside.ale, name)
    for name in ("num_envs", "batch_size", "autoreset_mode", "metadata", "render_mode"):
        assert getattr(beside.ours, name) == getattr(beside.ale, name)


# --- What ale-py's has not. ---


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("game", ["pong", "breakout", "space_invaders", "freeway", "adventure"])
def test_mode_and_difficulty_are_those_of_a_single_environment(game, several) -> None:
    """That equals ale-py's, see `test_env.py`."""
    found = GAMES[game]
    options = {"mode": found.modes[-1], "difficulty": found.difficulties[-1]}
    if several:
        options["mode"] = (found.modes[-1], found.modes[0])
    env = AtariVectorEnv(game, 2, autoreset_mode="SameStep", **options)
    beside, plain = AtariEnv(game, 2, seed=[3, 4], **options), AtariVectorEnv(game, 2)
    observations, _ = env.reset(seed=3)
    assert np.array_equal(observations, beside.reset()[0]["frame"])
    plain.reset(seed=3)
    differs = False
    for t in range(50):
        actions = np.full(2, t % len(found.minimal_actions))
        observations, *_ = env.step(actions)
        _, (following, _) = beside.step(DictTensor({"action": torch.from_numpy(actions)}))
        assert np.array_equal(observations, following["frame"])
        differs |= not np.array_equal(observations, plain.step(actions)[0])
    assert differs


def test_what_is_on_the_screens_can_be_recorded() -> None:
    env = gymnasium.make_vec("rlbatch/Pong-v5", num_envs=3, render_mode="rgb_array", frameskip=2)
    assert (env.render_mode, env.metadata["render_fps"]) == ("rgb_array", 30)
    with pytest.raises(CallOrderError, match="render: expected a reset"):
        env.render()
    env.reset(seed=0)
    beside = AtariEnv("pong", 3, seed=[0, 1, 2], repeat_action_probability=0.25, frameskip=2)
    beside.reset()
    for _ in range(5):
        env.step(np.full(3, 2))
        beside.step(DictTensor({"action": torch.full((3,), 2)}))
    pictures = env.render()
    assert [picture.shape for picture in pictures] == [(210, 160, 3)] * 3
    assert np.array_equal(np.stack(pictures), beside.render())
    env.unwrapped.send(np.zeros(3, np.int64))
    with pytest.raises(CallOrderError):
        env.render()
    env.close()
    with pytest.raises(ValueError, match="render_mode: expected 'rgb_array' or None, got 'human'"):
        AtariVectorEnv("pong", 1, render_mode="human")
    with pytest.raises(ValueError, match="render_mode: expected None with a batch_size of 1, got"):
        AtariVectorEnv("pong", 2, batch_size=1, render_mode="rgb_array")


# --- Fewer at a time. ---


def streams(env, n_steps, seed):
    """Plays with a batch size; returns what each environment saw, action by action."""
    seen = {i: [] for i in range(env.num_envs)}
    observations, infos = env.reset(seed=seed)
    nothing = np.zeros(len(observations), np.int32)
    results = (observations, nothing, nothing, nothing, infos)
    while min(map(len, seen.values())) < n_steps:
        actions = []
        for k, i in enumerate(results[4]["env_id"]):
            final = results[4].get("final_obs", results[0])[k]
            row = [x[k].copy() for x in results[:4]]
            row += [results[4][key][k] for key in ("lives", "frame_number")]
            seen[int(i)].append([*row, final.copy() if row[2] or row[3] else 0])
            actions.append((7 * i + 5 * len(seen[int(i)])) % env.single_action_space.n)
        results = env.step(np.array(actions))
    return seen


@pytest.mark.parametrize("mode", MODES)
def test_environments_in_the_order_in_which_they_finish_play_as_all_together(mode):
    options = {"max_num_frames_per_episode": 41, "autoreset_mode": mode}
    together = streams(AtariVectorEnv("pong", 5, **options), 40, seed=1)
    env = AtariVectorEnv("pong", 5, batch_size=2, num_threads=2, **options)
    assert env.observation_space.shape == (2, 4, 84, 84)
    assert env.action_space.shape == (2,)
    apart = streams(env, 40, seed=1)
    n_compared = 0
    for i in range(5):
        for one, other in zip(together[i], apart[i], strict=False):
            n_compared += 1
            same = [np.array_equal(x, y) for x, y in zip(one, other, strict=True)]
            assert all(same), (i, n_compared)
    assert n_compared > 5 * 20


def test_a_reset_forgets_what_is_under_way():
    env = AtariVectorEnv("pong", 4, batch_size=2)
    first, infos = env.reset(seed=3)
    env.send(np.array([0, 1]))
    again, infos_again = env.reset(seed=3)
    rows = {int(i): row for i, row in zip(infos["env_id"], first, strict=True)}
    for i, row in zip(infos_again["env_id"], again, strict=True):
        assert np.array_equal(rows.get(int(i), row), row)
    assert (infos_again["episode_frame_number"] <= 30).all()


# --- What Gymnasium makes of it. ---


@pytest.mark.parametrize("game", GAMES)
def test_every_game_is_registered(game):
    name = game.title().replace("_", "")
    ours, ale = (gymnasium.spec(f"{space}/{name}-v5") for space in ("rlbatch", "ALE"))
    assert ours.kwargs == ale.kwargs


def test_make_vec_makes_one():
    env = gymnasium.make_vec("rlbatch/Breakout-v5", num_envs=64)
    assert isinstance(env, AtariVectorEnv)
    observations, infos = env.reset(seed=0)
    assert observations.shape == (64, 4, 84, 84)
    env.action_space.seed(0)
    observations, rewards, terminations, truncations, infos = env.step(env.action_space.sample())
    assert env.observation_space.contains(observations)
    assert {len(x) for x in (rewards, terminations, truncations, infos["lives"])} == {64}
    assert env.spec.id == "rlbatch/Breakout-v5"
    env.close()


def test_wrappers_and_gym_env_take_it():
    env = gymnasium.make_vec("rlbatch/Pong-v5", num_envs=2, max_num_frames_per_episode=41)
    env = RecordEpisodeStatistics(env)
    env.reset(seed=0)
    lengths = []
    for _ in range(24):
        *_, infos = env.step(np.zeros(2, np.int64))
        lengths += list(infos["episode"]["l"]) if "episode" in infos else []
    assert 11 in lengths
    for mode in AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP:
        env = AtariVectorEnv("pong", 2, autoreset_mode=mode, max_num_frames_per_episode=90)
        assert check_env(GymEnvInf(env, seed=0), 80).n_truncated > 0


# --- Mistakes. ---


@pytest.mark.parametrize("name", ["rlbatch/Breakout-v5", "ALE/Breakout-v5"])
def test_lives_that_end_without_a_reset_are_refused_where_one_would_follow(name):
    make = partial(gymnasium.make_vec, name, num_envs=1, life_loss_info=True)
    for one in (RecordEpisodeStatistics(make()), AtariVectorEnv("pong", 1, life_loss_info=True)):
        with pytest.raises(ValueError, match="^gym_env: expected an .*, got one with life_loss"):
            GymEnvInf(one)
        GymEnv(one).close()
    GymEnvInf(make(autoreset_mode=AutoresetMode.SAME_STEP)).close()
    GymEnvInf(make(episodic_life=True)).close()  # Which starts a new game.


def test_no_reward_is_lost_in_a_reset_that_does_not_come():
    """Of ale-py's own, which does not tell its options."""
    options = {"life_loss_info": True, "reward_clipping": False, "frameskip": 8, "num_threads": 1}
    env = GymEnvInf(ale_vector_env.AtariVectorEnv("riverraid", 2, **options), seed=[5, 6])
    env.reset()
    with pytest.raises(EnvContractError, match="^reward: expected 0 in the step after") as caught:
        list(play(env, 1000))
    assert caught.value.environment in (0, 1)
    env.close()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"game": "no_such_game"}, ValueError, "game: expected one of the 104"),
        ({"game": "combat"}, ValueError, "single player"),
        ({"num_envs": 0}, ValueError, "num_envs: expected an integer from 1"),
        ({"batch_size": 3}, ValueError, "batch_size: expected an integer from 0 to 2, got 3"),
        ({"frameskip": 0}, ValueError, "frameskip: .* got 0"),
        ({"frameskip": 2.0}, TypeError, "frameskip: expected an integer, got 2.0"),
        ({"stack_num": 0}, ValueError, "stack_num"),
        ({"noop_max": -1}, ValueError, "noop_max"),
        ({"img_height": 211}, ValueError, "img_height: expected at most 210, .* breakout, got 211"),
        ({"img_width": 161}, ValueError, "img_width: expected at most 160, got 161"),
        ({"repeat_action_probability": 1.5}, ValueError, "from 0 to 1, got 1.5"),
        ({"max_num_frames_per_episode": 0}, ValueError, "max_num_frames_per_episode"),
        ({"autoreset_mode": "Disabled"}, ValueError, "autoreset_mode: expected one of"),
        ({"episodic_life": 1}, TypeError, "episodic_life: expected a bool, got 1"),
        ({"game": "skiing", "continuous": True}, ValueError, "continuous: .* got skiing"),
        ({"continuous": "no"}, TypeError, "continuous: expected a bool, got 'no'"),
        ({"full_action_space": "no"}, TypeError, "full_action_space: expected a bool"),
        ({"continuous_action_threshold": "a"}, TypeError, "threshold: expected a number, got 'a'"),
        ({"continuous_action_threshold": np.nan}, ValueError, "threshold: .* got nan"),
        ({"num_threads": None}, TypeError, "num_threads: expected an integer, got None"),
        (
            {"thread_affinity_offset": None},
            TypeError,
            "thread_affinity_offset: expected an integer",
        ),
    ],
)
def test_rejects_what_makes_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        AtariVectorEnv(**{"game": "breakout", "num_envs": 2, **options})


def test_one_that_was_refused_has_nothing_to_close():
    AtariVectorEnv.__new__(AtariVectorEnv).close()  # As Gymnasium 1.2 does with what is deleted.


def test_all_have_to_answer_in_a_batcher():
    env = AtariVectorEnv("pong", 4, batch_size=2)
    with pytest.raises(ValueError, match="steps all 4 of its environments at once, got batch_size"):
        GymEnvInf(env)
    env.close()


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        ([0, 0], TypeError, "actions: expected an array of int32 or int64"),
        (np.zeros(2, np.float32), TypeError, "got float32"),
        (np.zeros(3, np.int64), ValueError, r"expected shape \(2,\), got \(3,\)"),
        (np.array([0, 4]), ValueError, "expected numbers from 0 to 3"),
        (np.array([-1, 0]), ValueError, "expected numbers from 0 to 3"),
    ],
)
def test_rejects_actions_that_do_not_fit(actions, error, message):
    env = AtariVectorEnv("breakout", 2)
    env.reset(seed=0)
    with pytest.raises(error, match=message):
        env.step(actions)
    env.step(np.array([0, 1], np.int32))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"seed": "1"}, TypeError, "seed: expected an int"),
        ({"seed": np.array([1.5, 2.0])}, TypeError, "expected integers"),
        ({"seed": np.array([1, 2, 3])}, ValueError, "one per environment"),
        ({"seed": 2**31}, ValueError, "32-bit"),
        ({"seed": 2**63}, ValueError, "32-bit"),
        ({"seed": 2**31 - 1}, ValueError, "32-bit"),  # The second environment's would be one more.
        ({"options": {"reset_mask": [True, False]}}, TypeError, "boolean numpy array"),
        ({"options": {"reset_mask": np.array([True])}}, ValueError, r"shape \(2,\)"),
    ],
)
def test_rejects_resets_that_make_no_sense(arguments, error, message):
    env = AtariVectorEnv("breakout", 2)
    env.reset()
    with pytest.raises(error, match=message):
        env.reset(**arguments)


def test_calls_out_of_order_are_refused():
    env, mask = AtariVectorEnv("breakout", 2), np.array([True, False])
    with pytest.raises(CallOrderError, match="send: expected a reset"):
        env.step(np.array([0, 0]))
    with pytest.raises(CallOrderError, match="recv: expected 2 jobs under way, got 0"):
        env.recv()
    with pytest.raises(CallOrderError, match="reset_mask: expected a reset of all"):
        env.reset(options={"reset_mask": mask})
    env.reset()
    env.send(np.array([0, 0]))
    with pytest.raises(CallOrderError, match="send: expected a recv"):
        env.send(np.array([0, 0]))
    env.recv()
    env.close()
    with pytest.raises(CallOrderError, match="closed"):
        env.step(np.array([0, 0]))
    with pytest.raises(ValueError, match="batch_size == num_envs"):
        AtariVectorEnv("breakout", 2, batch_size=1).reset(options={"reset_mask": mask})
    with pytest.raises(NotImplementedError, match="JAX"):
        AtariVectorEnv("breakout", 1).xla()


def test_what_was_returned_is_left_alone():
    env = AtariVectorEnv("breakout", 2, autoreset_mode="SameStep", max_num_frames_per_episode=9)
    env.reset(seed=0)
    kept = []
    for _ in range(7):
        *arrays, infos = env.step(np.array([1, 2]))
        arrays += list(infos.values())
        kept.append((arrays, [array.copy() for array in arrays]))
    for arrays, copies in kept:
        assert all(np.array_equal(one, other) for one, other in zip(arrays, copies, strict=True))


@pytest.mark.parametrize("make", [AtariVectorEnv, ale_vector_env.AtariVectorEnv])
def test_in_batches_every_environment_has_its_own_seed_however_they_are_split(make) -> None:
    def frames(n_envs, seeds):
        env = GymEnvInf(make("breakout", n_envs, num_threads=1), seeds)
        env.reset()
        for t in range(40):
            _, (observation, _) = env.step(DictTensor({"action": torch.full((n_envs,), t % 4)}))
        env.close()
        return observation["frame"]

    seeds = [0, 2**31 - 1, 2**32 - 1, 5, 5]
    together = frames(5, seeds)
    for part in (slice(0, 2), slice(2, 5)):
        assert torch.equal(together[part], frames(len(seeds[part]), seeds[part]))
    assert torch.equal(together[3], together[4])
    assert not torch.equal(together[0], together[3])


@pytest.mark.parametrize("make", [AtariVectorEnv, ale_vector_env.AtariVectorEnv])
@pytest.mark.parametrize("mode", MODES)
def test_who_else_plays_changes_no_game(make, mode) -> None:
    options = {"episodic_life": True, "repeat_action_probability": 0.25, "num_threads": 1}

    def lengths(seeds):
        vector = make("breakout", len(seeds), autoreset_mode=AutoresetMode(mode), **options)
        with closing(GymEnv(vector, seeds)) as env:
            return episode_lengths(
                env, 3, lambda frame: frame.flatten(1).sum(1, dtype=torch.int64) % 4
            )

    together = lengths([5, 6, 7])
    assert torch.equal(together, torch.cat([lengths([5]), lengths([6, 7])]))
    assert len(together.unique()) > 3


@pytest.mark.parametrize("radius", [np.inf, -np.inf, np.nan, 1e30])
def test_continuous_actions_are_near_their_space(radius) -> None:
    env = AtariVectorEnv("breakout", 1, continuous=True)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="^actions: expected numbers in the action space, got"):
        env.step(np.array([[radius, 0, 0]], np.float32))
    env.close()


# --- What is the caller's, and borders. ---

SMALL = {"img_height": 20, "img_width": 16}


def serve_or_move(t):
    return np.array([1 if t % 4 == 0 else 2])


def test_infos_are_the_callers():
    env = AtariVectorEnv("pong", 2, **SMALL)
    _, infos = env.reset(seed=0)
    infos["env_id"][:] = 0
    *_, infos = env.step(np.zeros(2, np.int64))
    assert infos["env_id"].tolist() == [0, 1]


def test_the_last_observation_of_a_life_is_the_one_to_go_on_with():
    options = {"autoreset_mode": AutoresetMode.SAME_STEP, "life_loss_info": True, **SMALL}
    env = AtariVectorEnv("breakout", 1, **options)
    env.reset(seed=0)
    for t in range(300):
        observation, _, terminated, _, infos = env.step(serve_or_move(t))
        if terminated[0]:
            break
    assert infos["lives"].tolist() == [4]
    assert np.array_equal(infos["final_obs"], observation)


def test_the_last_observation_of_a_life_belongs_to_the_one_that_answers():
    options = {"autoreset_mode": AutoresetMode.SAME_STEP, "life_loss_info": True, **SMALL}
    env = AtariVectorEnv("breakout", 3, batch_size=1, num_threads=1, **options)
    env.reset(seed=0)
    before, lost = [5, 5, 5], set()
    for t in range(900):
        observation, _, terminated, _, infos = env.step(serve_or_move(t))
        (number,), (lives,) = infos["env_id"], infos["lives"]
        if terminated[0] and lives < before[number]:
            lost.add(int(number))
            assert np.array_equal(infos["final_obs"], observation)
        before[number] = lives
    assert lost - {0}


def test_without_seeds_environments_differ():
    env = AtariVectorEnv("breakout", 16, **SMALL)
    _, infos = env.reset()
    assert len(np.unique(infos["frame_number"])) > 1


def test_a_mask_of_all_is_a_reset_also_of_some_at_a_time():
    env = AtariVectorEnv("pong", 4, batch_size=2, **SMALL)
    observations, _ = env.reset(seed=0, options={"reset_mask": np.ones(4, np.bool_)})
    assert len(observations) == 2


@pytest.mark.parametrize(
    ("action", "threshold", "expected"),
    [
        ([0, 0, 0.3], 0.2, 1),  # FIRE.
        ([0, 0, 0.7], 0.8, 0),
        ([0.5, 0, 0], 0.5, 0),  # Neither side is pressed at the threshold itself.
        ([0.5, 0, 0.5], 0.5, 0),
    ],
)
def test_what_is_beyond_the_threshold_is_pressed(action, threshold, expected):
    options = {"continuous": True, "continuous_action_threshold": threshold, **SMALL}
    env = AtariVectorEnv("breakout", 1, **options)
    assert env._numbers(np.array([action], np.float32))[0].tolist() == [expected]


def test_the_mode_of_one_environment_is_not_that_of_another():
    first = AtariVectorEnv("pong", 1, autoreset_mode=AutoresetMode.SAME_STEP, **SMALL)
    AtariVectorEnv("pong", 1, autoreset_mode=AutoresetMode.NEXT_STEP, **SMALL)
    assert first.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


@pytest.mark.parametrize("options", [{}, {"batch_size": 2, "num_threads": 1}])
def test_final_observations_are_zeros_where_no_episode_ended(options):
    env = AtariVectorEnv("breakout", 3, autoreset_mode="SameStep", **options, **SMALL)
    env.reset(seed=0)
    n_apart = 0
    for t in range(900):
        _, _, terminated, truncated, infos = env.step(np.full(env.batch_size, t % 4))
        done = terminated | truncated
        if done.any():
            assert not infos["final_obs"][~done].any()
            n_apart += not done.all()
    assert n_apart
    env.close()


def test_negative_numbers_stand_for_none_as_in_ale_py():
    env = AtariVectorEnv("pong", 2, num_threads=-1, **SMALL)
    env.reset(seed=0)
    _, infos = env.reset(seed=-5)
    assert len(infos["lives"]) == 2
    with pytest.raises(ValueError, match="seed: expected 32-bit integers"):
        env.reset(seed=np.array([0, -(2**31) - 1]))


def test_a_film_of_a_pal_game_is_slower():
    env = AtariVectorEnv("adventure", 1, render_mode="rgb_array")
    assert env.metadata["render_fps"] == 12.5


def test_its_attributes_are_its_arguments():
    env = AtariVectorEnv("breakout", 1, continuous=True, grayscale=False)
    assert (env.grayscale, env.continuous) == (False, True)


def test_registering_again_changes_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register()
