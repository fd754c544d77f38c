"""Environments and videos of the examples."""

import contextlib
import math
import resource
import subprocess
from collections.abc import Iterator
from importlib import import_module

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from PIL import Image

import algos.a2c.agent as a2c
import algos.dqn.agent as dqn
from algos import environments
from algos.environments import (
    Episodes,
    UntilDone,
    create_env,
    episode_infos,
    frame_statistics,
    frames_per_step,
    is_atari,
    longest_episode,
    make_gym,
    reward_threshold,
    spaces_of,
    time_limit,
    whole_episodes_ended,
)
from algos.networks import NatureCNN
from algos.run import Run
from algos.videos import check_can_draw, record_episode
from rlbatch import CallOrderError, DictTensor, RL_Batcher, TemporalDictTensor
from rlbatch.envs import GymEnv, GymEnvInf
from rlbatch.envs.atari import AtariEnv
from tests.algos.runs import Constant, countdown
from tests.algos.tasks import COUNTDOWN, ENDLESS, TWO_STATES, Countdown
from tests.processes import at_most

# --- Environments. ---


def test_seeds_of_episodes_differ_in_everything_they_depend_on():
    seeds = [
        seed
        for run in range(3)
        for use in Episodes
        for iteration in range(20)
        for seed in episode_infos(8, run, use, iteration)[1]["seed"].tolist()
    ]
    assert len(set(seeds)) == len(seeds) == 3 * 3 * 20 * 8


def test_an_environment_resets_itself_with_new_episodes():
    env = create_env(COUNTDOWN, 2, "cpu", seed=0, autoreset=True)
    observation, _ = env.reset(episode_infos(2, 0, Episodes.TRAINING, 0)[1])
    lengths = set()
    for _ in range(50):
        _, (observation, _) = env.step(DictTensor({"action": torch.zeros(2, dtype=torch.int64)}))
        lengths |= set(observation["frame"][:, 0].tolist())
    assert len(lengths) > 3


def test_an_episode_that_is_waited_for_ends(monkeypatch):
    monkeypatch.setattr(environments, "MOST_STEPS", 20)
    for autoreset, expected in ((False, [20, 20]), (True, [])):
        env = create_env(ENDLESS, 2, "cpu", seed=0, autoreset=autoreset)
        (observation, running), ended = env.reset(), []
        while len(running) and not (observation["episode_length"] == 30).any():
            action = DictTensor({"action": torch.zeros(2, dtype=torch.int64)})
            (after, _), (observation, running) = env.step(action)
            ended += after["episode_length"][after["truncated"]].tolist()
        assert ended == expected


def test_a_limit_of_its_own_is_all_that_cuts_an_episode(monkeypatch):
    monkeypatch.setattr(environments, "MOST_STEPS", 5)
    env = create_env(TWO_STATES, 1, "cpu", seed=0)
    _, running = env.reset()
    while len(running):
        (after, _), (_, running) = env.step(DictTensor({"action": torch.tensor([0])}))
    assert after["episode_length"].tolist() == [8]


def test_observations_are_flat_and_real_actions_are_clipped():
    observation_space, action_space = spaces_of(TWO_STATES)
    assert observation_space.shape == (2,)
    assert action_space == spaces.Discrete(2)
    rewards = []
    for action in (1.0, 50.0):  # Which costs the square of it.
        env = create_env("MountainCarContinuous-v0", 1, "cpu", seed=0)
        env.reset()
        (after, _), _ = env.step(DictTensor({"action": torch.tensor([[action]])}))
        rewards.append(after["reward"])
    assert torch.equal(*rewards)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((40, 36, 3), (3, 40, 36)),
        ((40, 36, 4), (4, 40, 36)),
        ((4, 36, 40), (4, 36, 40)),
        ((7, 7, 3), (147,)),
        ((3, 4), (12,)),
        ((40, 40), (1600,)),
        ((2, 40, 40, 3), (9600,)),
    ],
)
def test_images_come_as_the_networks_take_them(shape, expected):
    with registered_images(shape) as env_id:
        space, _ = spaces_of(env_id)
        assert (space.shape, space.dtype) == (expected, np.uint8)
        (observation, _) = create_env(env_id, 2, "cpu", seed=0).reset()
        image = np.arange(np.prod(shape)).astype(np.uint8).reshape(shape)
        turned = np.moveaxis(image, -1, 0) if shape[-1] in (3, 4) and len(expected) > 1 else image
        assert (observation["frame"].numpy() == turned.reshape(expected)).all()
        for module in (a2c, dqn) if len(expected) == 3 else ():
            model = module.Model(*spaces_of(env_id), hidden_size=8)
            assert isinstance(model.encoder, NatureCNN)


@contextlib.contextmanager
def registered_images(shape: tuple[int, ...], actions: spaces.Space | None = None) -> Iterator[str]:
    class Images(gymnasium.Env):
        observation_space = spaces.Box(0, 255, shape, np.uint8)
        action_space = actions or spaces.Discrete(2)
        image = np.arange(np.prod(shape)).astype(np.uint8).reshape(shape)

        def reset(self, *, seed=None, options=None):
            return self.image, {}

        def step(self, action):
            return self.image, 0.0, True, False, {}

    gymnasium.register("Images-v0", Images, max_episode_steps=9)
    try:
        yield "Images-v0"
    finally:
        del gymnasium.registry["Images-v0"]


def test_actions_that_are_whole_numbers_keep_their_bounds():
    actions = spaces.Box(0, 3, (2,), np.int64)
    with registered_images((7, 7, 3), actions) as env_id:
        assert spaces_of(env_id)[1] == actions


def test_an_environment_that_is_only_looked_at_is_closed(monkeypatch):
    closed = []
    monkeypatch.setattr(AtariEnv, "close", lambda env: closed.append("atari"))
    monkeypatch.setattr(CartPoleEnv, "close", lambda env: closed.append("gym"))
    for look, *arguments in (
        (spaces_of, "CartPole-v1"),
        (spaces_of, "pong"),
        (time_limit, "CartPole-v1"),
        (check_can_draw, "CartPole-v1"),
        (frame_statistics, "pong", 0),
    ):
        closed.clear()
        look(*arguments)
        assert closed == ["gym" if "CartPole-v1" in arguments else "atari"]


def test_an_environment_can_look_as_if_it_were_elsewhere():
    observation, running = create_env(TWO_STATES, 3, "meta", seed=0).reset()
    assert observation.device() == running.device == torch.device("meta")


def test_facts_about_an_environment():
    assert (time_limit("CartPole-v1"), reward_threshold("CartPole-v1")) == (500, 475.0)
    assert (time_limit(TWO_STATES), reward_threshold(TWO_STATES)) == (8, 7.5)
    assert reward_threshold(COUNTDOWN) is None
    with pytest.raises(ValueError, match="expected an environment registered with max_episode_ste"):
        time_limit(ENDLESS)
    found = [longest_episode(env_id) for env_id in ("CartPole-v1", ENDLESS, "ALE/Pong-v5")]
    assert found == [500, math.inf, 27_000]


def test_what_can_not_draw_itself_is_named_before_the_training():
    check_can_draw("CartPole-v1")
    check_can_draw("pong")
    with pytest.raises(ValueError, match="env_id: expected an environment that can draw itself"):
        check_can_draw(COUNTDOWN)
    config = countdown(capture_video=True, n_processes=0)
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="can draw itself"):
        Run(config, model, torch.optim.Adam(model.parameters()), Constant)


def test_rejects_observations_that_differ_in_size(monkeypatch):
    monkeypatch.setattr(Countdown, "observation_space", spaces.Sequence(spaces.Discrete(3)))
    with pytest.raises(ValueError, match="env_id: expected observations of a fixed size, got Seq"):
        make_gym(COUNTDOWN)


def test_what_can_not_draw_itself_is_named_when_it_is_to_be_played(tmp_path):
    with pytest.raises(ValueError, match="env_id: expected an environment that can draw itself"):
        record_episode(tmp_path / "a.gif", Constant("cpu"), COUNTDOWN, 0)
    assert not list(tmp_path.iterdir())


def test_what_draws_itself_in_letters_alone_can_not_be_filmed(monkeypatch):
    monkeypatch.setattr(Countdown, "metadata", {"render_modes": ["ansi"]})
    with pytest.raises(ValueError, match=r"expected .* with the render mode rgb_array, .*'ansi'"):
        check_can_draw(COUNTDOWN)


def test_an_atari_game_is_told_by_its_id():
    for env_id in ("ALE/Pong-v5", "MsPacmanNoFrameskip-v4", "ms_pacman", "ale_py:ALE/Pong-v5"):
        assert is_atari(env_id)
        assert (reward_threshold(env_id), frames_per_step(env_id)) == (None, 4)
    others = ("ALE/Pong-v4", "x:PongNoFrameskip-v4", "PongNoFrameskip-v0", "ALE/Pong-v55")
    for env_id in ("CartPole-v1", TWO_STATES, *others):
        assert not is_atari(env_id)
        assert frames_per_step(env_id) == 1
    observation_space, action_space = spaces_of("PongNoFrameskip-v4")
    assert (observation_space.shape, int(action_space.n)) == ((4, 84, 84), 6)


def test_environments_that_reset_themselves_can_play_one_episode_each():
    class Counting(GymEnvInf):
        """Remembers all actions."""

        def step(self, action):
            self.actions = action["action"].tolist()
            return super().step(action)

    infos = episode_infos(5, 0, Episodes.EVALUATION, 0)[1]
    inner = Counting([make_gym(COUNTDOWN) for _ in range(5)], 0)
    env, plain = UntilDone(inner), create_env(COUNTDOWN, 5, "cpu", 0)
    (observation, running), (expected, expected_running) = env.reset(infos), plain.reset(infos)
    lengths = []
    while len(expected_running):
        assert torch.equal(running, expected_running)
        assert all(torch.equal(observation[key], expected[key]) for key in expected)
        action = DictTensor({"action": torch.ones(len(running), dtype=torch.int64)})
        (after, ran), (observation, running) = env.step(action)
        (expected, expected_ran), (expected, expected_running) = plain.step(action)
        assert torch.equal(ran, expected_ran)
        assert [inner.actions[k] for k in ran.tolist()] == [1] * len(ran)
        lengths += after["episode_length"][after["done"]].tolist()
    assert not len(running)
    with pytest.raises(CallOrderError, match="expected a running environment"):
        env.step(DictTensor({"action": torch.zeros(0, dtype=torch.int64)}))
    assert len(lengths) == 5
    assert len(set(lengths)) > 1, "no episode was shorter than another"


def test_environments_that_play_one_episode_each_are_closed():
    inner = GymEnvInf([make_gym(COUNTDOWN)], 0)
    closed = []
    inner.close = lambda: closed.append(inner)
    UntilDone(inner).close()
    assert closed == [inner]


def test_what_frames_are_centred_by_is_whole_and_follows_from_the_seed():
    mean, scale = frame_statistics("breakout", seed=0)
    other, _ = frame_statistics("breakout", seed=1)
    assert (mean.shape, mean.dtype, scale.dtype) == ((84, 84), torch.float32, torch.float32)
    assert torch.equal(mean, mean.round())
    assert not torch.equal(mean, other)


def test_frames_are_centred_and_scaled_by_the_newest_of_a_stack(monkeypatch):
    class Blinking(AtariEnv):
        """Shows 10 and 30 in turn, and 99 in all older frames of a stack."""

        def step(self, action):
            pair = super().step(action)
            actions.append(action["action"])
            for observation, _ in pair:
                observation["frame"][:] = 99
                observation["frame"][:, -1] = 10 if len(actions) % 2 else 30
            return pair

    actions = []
    monkeypatch.setattr(environments, "AtariEnv", Blinking)
    mean, scale = frame_statistics("pong", 0)
    assert (mean == 20).all()
    assert scale == 10
    assert torch.cat(actions).unique().tolist() == list(range(6))


@pytest.mark.parametrize("shown", [0, 255])
def test_frames_that_are_all_the_same_are_not_scaled(monkeypatch, shown):
    class Still(AtariEnv):
        def step(self, action):
            pair = super().step(action)
            for observation, _ in pair:
                observation["frame"][:] = shown
            return pair

    monkeypatch.setattr(environments, "AtariEnv", Still)
    mean, scale = frame_statistics("pong", 0)
    assert (mean == shown).all()
    assert scale == 1


@pytest.mark.parametrize("algorithm", ["a2c", "dqn"])
def test_an_agent_on_a_gpu_acts_without_the_host(algorithm, gpu, leave_alone):
    train = import_module(f"algos.{algorithm}.train")
    env_args = {"env_id": "PongNoFrameskip-v4", "n_envs": 2, "device": gpu, "autoreset": True}
    create_agent = train.agent_factory(train.Config(env_id=env_args["env_id"]))
    devices = {"device": gpu, "info_device": gpu}
    with RL_Batcher(
        3, create_agent, {"device": gpu}, create_env, env_args, 0, seeds=0, **devices
    ) as batcher:
        batcher.reset(*episode_infos(2, 0, Episodes.TRAINING, 0))
        batcher.execute()
        batcher.get()
        with leave_alone():
            batcher.execute()
            found, _ = batcher.get()
    assert found.trajectories["action/action"].shape == (2, 3)


def test_atari_games_are_not_all_at_one_place_in_training():
    env = create_env("breakout", 8, "cpu", 0, autoreset=True)
    env.reset()
    assert env._batch.results["frame_number"].max() > 200
    env.close()


def test_atari_games_play_whole_episodes_with_the_seeds_of_a_reset():
    infos = episode_infos(2, 0, Episodes.EVALUATION, 3)[1]
    first = create_env("BreakoutNoFrameskip-v4", 2, "cpu", 0).reset(infos)[0]["frame"]
    env = create_env("BreakoutNoFrameskip-v4", 2, "cpu", 1)
    assert torch.equal(env.reset(infos)[0]["frame"], first)
    observation, running = env.reset(infos)
    assert torch.equal(observation["frame"], first)
    n_lives = []
    while len(running):
        action = DictTensor({"action": torch.ones(len(running), dtype=torch.int64)})
        (after, _), (observation, running) = env.step(action)
        n_lives += after["lives"][after["done"]].tolist()
    assert n_lives == [0, 0]


@pytest.mark.parametrize("env_id", ["BreakoutNoFrameskip-v4", "PongNoFrameskip-v4", COUNTDOWN])
def test_a_lost_life_can_end_what_counts_but_no_episode(env_id):
    torch.manual_seed(0)
    n_envs, infos = 4, episode_infos(4, 0, Episodes.TRAINING, 0)[1]
    lives_count, plain = (
        create_env(env_id, n_envs, "cpu", 0, autoreset=True, life_loss_ends=ends)
        for ends in (True, False)
    )
    observations = [env.reset(infos)[0] for env in (lives_count, plain)]
    n_ended = n_lost = 0
    for _ in range(900):
        action = DictTensor({"action": torch.randint(plain.action_space.n, (n_envs,))})
        before = observations[0]
        (after, _), (observations[0], _) = lives_count.step(action)
        (expected, _), (observations[1], _) = plain.step(action)
        assert torch.equal(observations[0]["frame"], observations[1]["frame"])
        step = {f"observation/{key}": before[key].unsqueeze(1) for key in before}
        step |= {f"_observation/{key}": after[key].unsqueeze(1) for key in after}
        ended = whole_episodes_ended(TemporalDictTensor(step)).squeeze(1)
        assert torch.equal(ended, expected["done"])
        n_ended += int(ended.sum())
        n_lost += int((after["done"] & ~ended).sum())
    assert n_ended
    assert n_lost > 2 * n_ended if "Breakout" in env_id else n_lost == 0


def test_a_game_that_is_over_or_cut_is_a_whole_episode_whatever_its_lives():
    before, after = torch.tensor([[3, 3, 1, 3]]), torch.tensor([[3, 2, 0, 2]])
    steps = TemporalDictTensor(
        {
            "observation/lives": before,
            "_observation/lives": after,
            "_observation/truncated": torch.tensor([[False, False, False, True]]),
            "_observation/done": torch.ones(1, 4, dtype=torch.bool),
        }
    )
    assert whole_episodes_ended(steps).tolist() == [[True, False, True, True]]


# --- Videos. ---


@pytest.mark.parametrize(
    ("env_id", "size", "fps"),
    [("CartPole-v1", (400, 600), b" 50 fps"), ("PongNoFrameskip-v4", (210, 160), b" 15 fps")],
)
@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_a_video_shows_every_step_of_an_episode(tmp_path, env_id, size, fps, suffix):
    import imageio_ffmpeg  # noqa: PLC0415 - Of an extra, which a machine with a GPU may lack.

    agent = Constant("cpu")
    path = tmp_path / f"episode.{suffix}"
    found = record_episode(path, agent, env_id, seed=0, stochastic=False)
    # By ffmpeg itself: imageio's reader leaves files open.
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-i",
        path,
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-",
    ]
    read = subprocess.run(command, capture_output=True, check=True)
    pictures = np.frombuffer(read.stdout, np.uint8).reshape(-1, *size, 3)
    env = create_env(env_id, 1, "cpu", 0)
    observation, running = env.reset()
    n_steps = 0
    while len(running):
        (after, _), (_, running) = env.step(
            agent(None, observation, {"stochastic": torch.tensor([False])})[0]
        )
        n_steps += 1
    assert found == after["episode_return"].item()
    if suffix == "mp4":  # A GIF leaves out what is as before.
        assert len(pictures) == n_steps
        assert fps in read.stderr
    assert not np.array_equal(pictures[0], pictures[-1])


@pytest.mark.parametrize(
    ("env_id", "probability"),
    [("ALE/Pong-v5", 0.25), ("ale_py:ALE/Pong-v5", 0.25), ("PongNoFrameskip-v4", 0), ("pong", 0)],
)
def test_actions_are_sticky_where_gymnasiums_are(env_id, probability):
    env = create_env(env_id, 1, "cpu", seed=0, autoreset=True)
    assert env._batch.settings.repeat_action_probability == probability
    env.close()


@pytest.mark.parametrize(("env_id", "fps"), [("CartPole-v1", 50), ("PongNoFrameskip-v4", 15)])
def test_a_gif_lasts_as_long_as_its_episode(tmp_path, env_id, fps):
    path, agent = tmp_path / "episode.gif", Counting("cpu")
    record_episode(path, agent, env_id, 0, False)
    with Image.open(path) as image:
        durations = []
        for k in range(image.n_frames):
            image.seek(k)
            durations.append(image.info["duration"])
    assert sum(durations) == pytest.approx(1000 * agent.n_steps / fps, abs=5)


class Counting(Constant):
    """Counts its steps, in its state."""

    def initial_state(self, agent_info, B):
        return DictTensor({"n_steps": torch.zeros(B, dtype=torch.int64)})

    def __call__(self, state, observation, agent_info, history=None):
        action, _ = super().__call__(state, observation, agent_info, history)
        self.n_steps = state["n_steps"] + 1
        assert self.n_steps <= 1000
        return action, DictTensor({"n_steps": self.n_steps})


def test_an_agent_remembers_in_a_film(tmp_path):
    agent = Counting("cpu")
    assert record_episode(tmp_path / "one.gif", agent, "CartPole-v1", 0, False) == agent.n_steps > 1


def test_the_seed_of_a_film_is_that_of_its_episode_and_of_its_agent(tmp_path):
    class Seeded(Constant):
        def initial_state(self, agent_info, B):
            seeds.append(agent_info["seed"].tolist())
            return super().initial_state(agent_info, B)

    seeds, agent, path = [], Seeded("cpu"), tmp_path / "one.gif"
    returns = [record_episode(path, agent, "CartPole-v1", seed, False) for seed in range(4)]
    assert len(set(returns)) > 1
    assert returns == [record_episode(path, agent, "CartPole-v1", k, False) for k in range(4)]
    assert seeds == 2 * [[0], [1], [2], [3]]


def test_a_film_ends_where_its_episode_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "MOST_STEPS", 20)
    entry = "gymnasium.envs.classic_control:MountainCarEnv"
    monkeypatch.setitem(gymnasium.registry, "Uphill-v0", EnvSpec("Uphill-v0", entry))
    agent = Counting("cpu")
    record_episode(tmp_path / "one.gif", agent, "Uphill-v0", 0, False)
    assert agent.n_steps == 20


def test_a_film_that_does_not_fit_on_the_disk_leaves_the_one_before(tmp_path):
    path = tmp_path / "episode.mp4"
    record_episode(path, Constant("cpu"), "CartPole-v1", 0, False)
    film = path.read_bytes()
    with (
        at_most(resource.RLIMIT_FSIZE, 1000),
        pytest.raises(OSError, match="expected a film of"),
    ):
        record_episode(path, Constant("cpu"), "CartPole-v1", 0, False)
    assert path.read_bytes() == film
    assert list(tmp_path.iterdir()) == [path]


class Failing(Constant):
    """Raises an error in its first step."""

    def __call__(self, *_):
        raise RuntimeError("no idea")


@pytest.mark.parametrize("agent", [Constant, Failing])
def test_the_environment_of_a_film_is_closed(tmp_path, monkeypatch, agent):
    closed = []
    monkeypatch.setattr(GymEnv, "close", lambda env: closed.append(env))
    error = pytest.raises(RuntimeError) if agent is Failing else contextlib.nullcontext()
    with error:
        record_episode(tmp_path / "one.gif", agent("cpu"), "CartPole-v1", 0, False)
    assert len(closed) == 1
