"""The parts that the examples share."""

import ast
import contextlib
import dataclasses
import importlib.util
import inspect
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import algos
import algos.a2c.agent as a2c
import algos.dqn.agent as dqn
from algos import checkpoints, environments
from algos.command_line import RunConfig, parse
from algos.curves import draw_curve
from algos.environments import (
    Episodes,
    SeedInOptions,
    UntilDone,
    create_env,
    episode_infos,
    frames_per_step,
    is_atari,
    longest_episode,
    make_gym,
    reward_threshold,
    spaces_of,
    time_limit,
    whole_episodes_ended,
)
from algos.evaluation import Evaluation, Score
from algos.folders import open_folder
from algos.logs import Log, Table, read_table
from algos.networks import NatureCNN
from algos.policies import policy_head
from algos.reproducibility import get_generators, set_generators, set_up
from algos.run import Averages, Run
from algos.videos import check_can_draw, record_episode
from rlbatch import CallOrderError, DictTensor, RL_Agent, RL_Batcher, TemporalDictTensor
from rlbatch.envs import GymEnv, GymEnvInf
from tests.algos.tasks import COUNTDOWN, ENDLESS, TWO_STATES

# --- Policies. ---

SPACES = {
    "discrete": spaces.Discrete(5),
    "several": spaces.MultiDiscrete([3, 2, 4]),
    "grid": spaces.MultiDiscrete([[3, 2], [2, 4]]),
    "real": spaces.Box(-1, 1, (3,)),
    "scalar": spaces.Box(-1, 1, ()),
    "matrix": spaces.Box(-1, 1, (2, 3)),
}


def head_of(space: spaces.Space, n_features: int = 4) -> torch.nn.Module:
    """Returns a head whose weights are far from zero."""
    head = policy_head(space, n_features)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return head


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_policy_gives_actions_of_its_space_and_one_number_per_row(space):
    with torch.no_grad():
        policy = head_of(space)(torch.randn(6, 7, 4))
    for action in (policy.sample(), policy.mode):
        assert action.shape == (6, 7, *space.shape)
        assert policy.log_prob(action).shape == policy.entropy().shape == (6, 7)
        for one in action.flatten(0, 1).numpy():
            # A Box is not a bound: environments get clipped actions.
            assert isinstance(space, spaces.Box) or space.contains(one.astype(space.dtype))
        assert action.dtype == (torch.float32 if isinstance(space, spaces.Box) else torch.int64)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_gradients_of_a_policy_are_finite(space):
    head = head_of(space)
    policy = head(torch.randn(6, 4))
    (policy.log_prob(policy.sample()) + policy.entropy()).sum().backward()
    for parameter in head.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


def test_several_choices_add_up():
    head = head_of(SPACES["several"])
    features = torch.randn(1, 4)
    logits = head.logits(features).view(3, 4)
    parts = [logits[choice, :size].log_softmax(-1) for choice, size in enumerate([3, 2, 4])]
    policy = head(features)
    action = torch.tensor([[2, 0, 3]])
    log_prob = parts[0][2] + parts[1][0] + parts[2][3]
    torch.testing.assert_close(policy.log_prob(action), log_prob[None])
    entropy = -sum((part.exp() * part).sum() for part in parts)
    torch.testing.assert_close(policy.entropy(), entropy[None])


def test_a_new_policy_is_nearly_uniform():
    policy = policy_head(spaces.Discrete(4), 16)(torch.rand(100, 16) * 2 - 1)
    assert (policy.probs - 0.25).abs().max() < 0.05


@pytest.mark.parametrize(
    ("space", "error"),
    [
        (spaces.Discrete(3, start=1), ValueError),
        (spaces.MultiDiscrete([2, 2], start=[0, 1]), ValueError),
        (spaces.MultiBinary(3), TypeError),
    ],
)
def test_rejects_an_action_space_that_it_does_not_know(space, error):
    with pytest.raises(error, match="action_space: expected"):
        policy_head(space, 4)


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


def test_the_seed_of_a_reset_may_come_in_its_options():
    env = SeedInOptions(gymnasium.make("CartPole-v1"))
    plain = gymnasium.make("CartPole-v1")
    for seed in (3, 4, 3):
        found, _ = env.reset(seed=99, options={"seed": seed})
        np.testing.assert_array_equal(found, plain.reset(seed=seed)[0])
    # The same options again, as an environment that resets itself repeats them.
    found, _ = env.reset(options={"seed": 3})
    np.testing.assert_array_equal(found, plain.reset()[0])


def test_other_options_reach_the_environment():
    env = SeedInOptions(gymnasium.make("CartPole-v1"))
    found, _ = env.reset(options={"seed": 0, "low": 0.2, "high": 0.3})
    assert ((found >= 0.2) & (found <= 0.3)).all()


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
        turned = np.moveaxis(image, -1, 0) if shape[-1] == 3 and len(expected) > 1 else image
        assert (observation["frame"].numpy() == turned.reshape(expected)).all()
        for module in (a2c, dqn) if len(expected) == 3 else ():
            model = module.Model(*spaces_of(env_id), hidden_size=8)
            assert isinstance(model.encoder, NatureCNN)


@contextlib.contextmanager
def registered_images(shape: tuple[int, ...]) -> Iterator[str]:
    class Images(gymnasium.Env):
        observation_space = spaces.Box(0, 255, shape, np.uint8)
        action_space = spaces.Discrete(2)
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
        Run("x", config, model, torch.optim.Adam(model.parameters()), Constant)


def test_an_atari_game_is_told_by_its_id():
    for env_id in ("ALE/Pong-v5", "MsPacmanNoFrameskip-v4", "ms_pacman", "ale_py:ALE/Pong-v5"):
        assert is_atari(env_id)
        assert (reward_threshold(env_id), frames_per_step(env_id)) == (None, 4)
    for env_id in ("CartPole-v1", TWO_STATES, "ALE/Pong-v4", "x:PongNoFrameskip-v4"):
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


@pytest.mark.parametrize("algorithm", ["a2c", "dqn"])
def test_an_agent_on_a_gpu_acts_without_the_host(algorithm, gpu, leave_alone):
    train = import_module(f"algos.{algorithm}.train")
    env_args = {"env_id": "PongNoFrameskip-v4", "n_envs": 2, "device": gpu, "autoreset": True}
    create_agent = train.new_agent(train.Config(env_id=env_args["env_id"]))
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


# --- Videos. ---


@pytest.mark.parametrize(
    ("env_id", "size"), [("CartPole-v1", (400, 600)), ("PongNoFrameskip-v4", (210, 160))]
)
@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_a_video_shows_every_step_of_an_episode(tmp_path, env_id, size, suffix):
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
    assert not np.array_equal(pictures[0], pictures[-1])


# --- Reproducibility. ---


def draws() -> tuple:
    return random.random(), np.random.random(), torch.rand(()).item()


def test_generators_go_on_where_a_checkpoint_was_written(tmp_path):
    set_up(seed=7, torch_deterministic=False, n_threads=1)
    first = draws()
    checkpoints.save(tmp_path, {"algorithm": "x", "generators": get_generators()})
    second = draws()
    set_up(seed=7, torch_deterministic=True, n_threads=1)
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert torch.are_deterministic_algorithms_enabled()
    assert draws() == first
    set_generators(checkpoints.load(tmp_path, "x")["generators"])
    assert draws() == second


# --- Checkpoints. ---


def test_a_checkpoint_that_fails_half_way_leaves_the_last_one(tmp_path):
    checkpoints.save(tmp_path, {"algorithm": "x", "n": 1})
    with pytest.raises((AttributeError, TypeError), match="local object"):
        checkpoints.save(tmp_path, {"algorithm": "x", "n": 2, "file": lambda: None})
    assert checkpoints.load(tmp_path, "x")["n"] == 1
    assert checkpoints.load(tmp_path / "checkpoint.pt", "x")["n"] == 1


def test_a_missing_or_foreign_checkpoint_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a file or a run's folder, got"):
        checkpoints.load(tmp_path, "x")
    file = tmp_path / "checkpoint.pt"
    checkpoints.save(tmp_path, {"algorithm": "x", "weights": torch.zeros(1000)})
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(ValueError, match="checkpoint.pt: expected a checkpoint, got a damaged"):
        checkpoints.load(tmp_path, "x")
    torch.save([1], file)
    with pytest.raises(ValueError, match="checkpoint.pt: expected a checkpoint of a run"):
        checkpoints.load(tmp_path, "x")
    checkpoints.save(tmp_path, {"algorithm": "x"})
    with pytest.raises(ValueError, match="expected y, got a run of x"):
        checkpoints.load(tmp_path, "y")
    checkpoints.save(tmp_path, {"algorithm": "x", "env_id": "A-v1"})
    with pytest.raises(ValueError, match=r"env_id: expected A-v1, as in .*, got B-v1"):
        checkpoints.load(tmp_path, "x", "B-v1")


# --- Logs and curves. ---


def test_a_table_keeps_what_came_before_the_step_it_goes_on_from(tmp_path):
    path = tmp_path / "table.csv"
    table = Table(path, step=0)
    for step in (10, 20, 30):
        table.write({"step": step, "x": step / 10})
    table.close()
    table = Table(path, step=20)
    table.write({"step": 25, "x": 2.5})
    table.close()
    assert [(row["step"], row["x"]) for row in read_table(path)] == [
        ("10", "1.0"),
        ("20", "2.0"),
        ("25", "2.5"),
    ]
    table = Table(path, step=25, n_rows=2)
    assert table.n_rows == 2
    table.close()
    assert [row["step"] for row in read_table(path)] == ["10", "20"]
    Table(path, step=0).close()
    assert read_table(path) == []


def test_a_table_that_can_not_be_written_anew_stays_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    table = Table(path, step=0)
    for step in (10, 20, 30):
        table.write({"step": step, "x": step / 10})
    table.close()
    before = path.read_text()

    def is_full(self, row):
        raise OSError("No space left on device")

    monkeypatch.setattr(Table, "write", is_full)
    with pytest.raises(OSError, match="No space"):
        Table(path, step=20)
    assert path.read_text() == before


def test_a_table_refuses_a_column_that_the_first_row_had_not(tmp_path):
    table = Table(tmp_path / "table.csv", step=0)
    table.write({"step": 1, "x": 1.0})
    with pytest.raises(ValueError, match="y"):
        table.write({"step": 2, "x": 1.0, "y": 1.0})
    table.close()


def test_figures_are_in_the_table_and_in_tensorboard(tmp_path, capsys):
    with Log(tmp_path, total_steps=100) as log:
        log.write("training", 10, 0.5, {"losses/policy": torch.tensor(0.25)})
        log.write("training", 20, 1.0, {"losses/policy": math.nan})
        log.show(20, latest="1", score="2", speed="3")
        log.say("a line")
    assert capsys.readouterr().out == "a line\n"
    rows = read_table(tmp_path / "training.csv")
    assert [row["losses/policy"] for row in rows] == ["0.25", "nan"]
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    scalars = events.Scalars("losses/policy")
    assert [scalar.step for scalar in scalars] == [10, 20]
    assert scalars[0].value == 0.25


def test_tracking_without_its_package_says_what_to_install(tmp_path):
    if importlib.util.find_spec("wandb"):
        pytest.skip("wandb is installed")
    with pytest.raises(ImportError, match="track: expected the package wandb, got none; pip inst"):
        Log(tmp_path, total_steps=1, track=True)


def test_a_curve_needs_no_evaluation(tmp_path):
    with Log(tmp_path, total_steps=100) as log:
        log.write("training", 10, 0.5, {"charts/episodic_return": 1.0})
    draw_curve(tmp_path)
    assert (tmp_path / "curve.png").stat().st_size > 1000


# --- Evaluation. ---


class Constant(RL_Agent):
    """Always takes the first action, slowly where `wait_s` says so."""

    def __init__(self, device: Any, wait_s: float = 0.0):
        self.wait_s = wait_s

    def __call__(self, state, observation, agent_info, history=None):
        time.sleep(self.wait_s)
        assert not agent_info["stochastic"].any()
        action = torch.zeros(observation.n_elems(), dtype=torch.int64)
        return DictTensor({"action": action}), DictTensor()

    def update(self, info: Any) -> None:
        pass


def countdown(**options: Any) -> RunConfig:
    common = {"env_id": COUNTDOWN, "n_envs": 2, "n_processes": 0, "evaluation_episodes": 30}
    return RunConfig(**{**common, **options})


def countdown_lengths(config: RunConfig, use: Episodes, iteration: int) -> list[float]:
    """Returns the lengths of the episodes, each played in an environment of its own."""
    seeds = episode_infos(config.evaluation_episodes, config.seed, use, iteration)[1]["seed"]
    env = gymnasium.make(COUNTDOWN)
    return [float(env.reset(seed=seed)[0][0]) for seed in seeds.tolist()]


@pytest.mark.parametrize("evaluation_timesteps", [100, 3])
def test_a_score_is_the_mean_over_complete_episodes(evaluation_timesteps):
    config = countdown(evaluation_timesteps=evaluation_timesteps)
    with Evaluation(config, Constant) as evaluation:
        assert evaluation.finish() is None
        evaluation.start({}, Episodes.EVALUATION, 4)
        score = evaluation.finish()
        other = evaluation.run({}, Episodes.EVALUATION, 5)
    lengths = countdown_lengths(config, Episodes.EVALUATION, 4)
    assert max(lengths) > 6, "no episode was longer than two turns"
    assert score == pytest.approx((np.mean(lengths), np.std(lengths), 30))
    assert other.mean == pytest.approx(np.mean(countdown_lengths(config, Episodes.EVALUATION, 5)))


@pytest.mark.parametrize("processes", [{"n_processes": 2}, {"evaluation_processes": 1}])
def test_an_evaluation_runs_beside_its_caller(processes):
    config = countdown(**processes, evaluation_timesteps=4)
    with Evaluation(config, partial(Constant, wait_s=0.05)) as evaluation:
        evaluation.start({}, Episodes.EVALUATION, 0)
        assert evaluation.poll() is None
        with pytest.raises(CallOrderError, match="expected no evaluation under way"):
            evaluation.start({}, Episodes.EVALUATION, 1)
        score = evaluation.finish()
        assert evaluation.poll() is None
    assert score.mean == np.mean(countdown_lengths(config, Episodes.EVALUATION, 0))


# --- The command line. ---


@dataclasses.dataclass(frozen=True)
class Options(RunConfig):
    """Of an algorithm."""

    width: int = 8
    """Of its network."""


def saved_run(folder: Path) -> None:
    config = dataclasses.asdict(Options(seed=5, width=16, checkpoint_dir="elsewhere"))
    checkpoints.save(folder, {"algorithm": "x", "config": config})


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_options_come_from_the_run_then_from_the_command_line(tmp_path, flag):
    saved_run(tmp_path)
    config = parse(Options, "x", [flag, str(tmp_path), "--seed", "6"])
    assert (config.width, config.seed, config.checkpoint_dir) == (16, 6, None)
    assert getattr(config, flag.removeprefix("--")) == str(tmp_path)


def test_the_target_is_the_environments_unless_another_is_given():
    assert countdown(env_id="CartPole-v1").target == 475
    assert countdown().target == math.inf  # It names none.
    assert parse(Options, "x", ["--target-return", "3"]).target == 3
    assert parse(Options, "x", ["--target-return", "None"]).target == math.inf


def test_atari_games_have_defaults_of_their_own():
    @dataclasses.dataclass(frozen=True)
    class WithAtari(Options):
        """Of an algorithm."""

        atari: ClassVar[dict[str, Any]] = {"width": 512, "n_envs": 121, "n_processes": 0}

    config = parse(WithAtari, "x", ["--env-id", "ALE/Pong-v5", "--seed", "3"])
    assert (config.env_id, config.width, config.n_envs, config.seed) == ("ALE/Pong-v5", 512, 121, 3)
    assert parse(WithAtari, "x", ["--env-id", "ALE/Pong-v5", "--width", "9"]).width == 9
    assert parse(WithAtari, "x", ["--env-id", "CartPole-v1"]).width == 8
    assert parse(WithAtari, "x", []).n_envs == 16


@pytest.mark.parametrize("algorithm", ["reinforce", "a2c", "dqn"])
def test_rejects_numbers_that_are_too_small(algorithm):
    config_type = import_module(f"algos.{algorithm}.train").Config
    assert "n_envs" in config_type.at_least_1
    for name in config_type.at_least_1:
        with pytest.raises(ValueError, match=f"{name}: expected at least 1, got 0"):
            config_type(**{name: 0})
    with pytest.raises(ValueError, match="n_processes: expected at least 0, got -1"):
        config_type(n_processes=-1)
    with pytest.raises(ValueError, match="target_return: .* got nan"):
        config_type(target_return=math.nan)


@pytest.mark.parametrize("algorithm", ["reinforce", "a2c", "dqn"])
@pytest.mark.parametrize("value", [math.nan, -0.5, 5.0])
def test_rejects_numbers_that_mean_nothing(algorithm, value):
    config_type = import_module(f"algos.{algorithm}.train").Config
    assert "discount" in config_type.fractions
    for name in config_type.fractions:
        with pytest.raises(ValueError, match=f"^{name}: expected from 0 to 1, got {value}$"):
            config_type(**{name: value})
    for name in config_type.positive if value != 5 else ():
        with pytest.raises(ValueError, match=f"^{name}: expected more than 0, got {value}$"):
            config_type(**{name: value})


@pytest.mark.parametrize("algorithm", ["a2c", "dqn"])
def test_rejects_frames_where_there_are_none(algorithm):
    config_type = import_module(f"algos.{algorithm}.train").Config
    with pytest.raises(ValueError, match="normalize_frames: expected an Atari game, got CartPole"):
        config_type(normalize_frames=True)


def test_rejects_a_run_to_resume_beside_one_to_evaluate():
    with pytest.raises(ValueError, match="evaluate: expected no resume beside it, got a"):
        RunConfig(resume="a", evaluate="b")


def test_rejects_checkpoints_amid_a_row_of_the_log():
    with pytest.raises(ValueError, match=r"expected a multiple of log_every \(3\), got 50"):
        RunConfig(log_every=3)


def test_rejects_environments_that_can_not_be_dealt_out():
    with pytest.raises(ValueError, match=r"n_envs: expected a multiple of n_processes \(2\), got"):
        RunConfig(n_envs=3, n_processes=2)
    assert RunConfig(n_envs=3, n_processes=0).n_envs_per_process == 3


def sentences(config_type: type) -> dict[str, str]:
    """Returns the string under each field of a class."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(config_type)).body)
    names = {field.name for field in dataclasses.fields(config_type)}
    fields = [node for node in body if isinstance(node, ast.AnnAssign) and node.target.id in names]
    return {
        field.target.id: ast.literal_eval(body[body.index(field) + 1].value) for field in fields
    }


@pytest.mark.parametrize("algorithm", ["reinforce", "a2c", "dqn"])
def test_help_lists_every_option_with_its_sentence(capsys, algorithm):
    config_type = import_module(f"algos.{algorithm}.train").Config
    with pytest.raises(SystemExit, match="0"):
        parse(config_type, algorithm, ["--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    described = {**sentences(RunConfig), **sentences(config_type)}
    assert described.keys() == {field.name for field in dataclasses.fields(config_type)}
    for name, sentence in described.items():
        assert f"--{name.replace('_', '-')}" in text
        assert " ".join(sentence.split()) in text


# --- Runs. ---


def folder_of(config: RunConfig) -> Path:
    """Opens the folder of a run, and leaves it."""
    with open_folder("x", config) as folder:
        return folder


def test_a_run_does_not_write_over_another(tmp_path):
    config = countdown(checkpoint_dir=str(tmp_path))
    assert folder_of(config) == tmp_path
    with pytest.raises(FileExistsError, match="expected no run in it, .* it has no checkpoint yet"):
        folder_of(config)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    checkpoints.save(elsewhere, {})
    with pytest.raises(FileExistsError, match="expected no run in it"):
        folder_of(dataclasses.replace(config, resume=str(elsewhere)))
    checkpoints.save(tmp_path, {})
    with pytest.raises(FileExistsError, match="expected no run in it, .* resume it?"):
        folder_of(config)
    with pytest.raises(NotADirectoryError, match="checkpoint_dir: expected a folder, got the file"):
        folder_of(dataclasses.replace(config, checkpoint_dir=str(tmp_path / "config.json")))
    assert folder_of(dataclasses.replace(config, resume=str(tmp_path))) == tmp_path


def test_two_runs_at_once_in_one_folder_are_refused(tmp_path):
    config = countdown(checkpoint_dir=str(tmp_path))
    again = dataclasses.replace(config, resume=str(tmp_path), seed=config.seed + 7)
    with open_folder("x", config):
        checkpoints.save(tmp_path, {})
        options = (tmp_path / "config.json").read_text()
        with pytest.raises(RuntimeError, match="expected a folder without a run under way, got "):
            folder_of(again)
        assert (tmp_path / "config.json").read_text() == options
    assert json.loads(options)["seed"] == config.seed
    assert folder_of(again) == tmp_path
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == again.seed


def test_a_run_that_fails_before_it_begins_leaves_its_folder_to_another(scripted_run, monkeypatch):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), scripted_run({}, {})[0]:
            raise ZeroDivisionError
    with monkeypatch.context() as broken:
        broken.setattr("algos.run.Log", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            scripted_run({}, {})
    with scripted_run({}, {})[0] as run:
        run.report(one_step(), {"losses/x": 0.0})
    with pytest.raises(FileExistsError, match="expected no run in it"):
        scripted_run({}, {})


@pytest.fixture
def resumed(tmp_path) -> Callable[..., Run]:
    """Creates a run that resumes one with the step size 0.5."""

    def create(**others: Any) -> Run:
        weights = torch.nn.Linear(1, 1)
        config = countdown(checkpoint_dir=str(tmp_path), n_processes=0)
        with Run(
            "x", config, weights, torch.optim.Adam(weights.parameters(), 0.5), Constant
        ) as run:
            run.report(one_step(), {"losses/x": 0.0})
            run._save()
        config = dataclasses.replace(config, checkpoint_dir=None, resume=str(tmp_path))
        optimizer = torch.optim.Adam(weights.parameters(), 0.25)
        return Run("x", config, weights, optimizer, Constant, others)

    return create


def test_scores_at_the_step_of_one_under_way_are_kept(tmp_path, scripted_run):
    """An evaluation that misses a target is followed by one of the same weights."""
    run, _ = scripted_run({2: 11, 4: 12}, {4: 9})
    with run:
        for _ in range(4):
            run.report(one_step(), {"losses/x": 0.0})
        run._save()
        rows = read_table(tmp_path / "evaluation.csv")
        assert [row["step"] for row in rows] == ["4", "8"]
        run._take_score()  # After the checkpoint: it comes again.
    run, _ = scripted_run({4: 12, 6: 9}, {6: 13}, resume=str(tmp_path), checkpoint_dir=None)
    with run:
        while not run.finished:
            run.report(one_step(), {"losses/x": 0.0})
        run.finish()
    rows = read_table(tmp_path / "evaluation.csv")
    found = [(int(row["step"]), float(row["evaluation/return_mean"])) for row in rows]
    assert found == [(4, 11), (8, 9), (8, 12), (12, 13)]


@pytest.mark.parametrize(("n_steps", "is_cut"), [(7, True), (8, False)])
def test_a_run_says_where_episodes_are_cut(tmp_path, capsys, n_steps, is_cut):
    class Cut(RunConfig):
        longest_episode = n_steps

    config = Cut(env_id=TWO_STATES, n_processes=0, checkpoint_dir=str(tmp_path))
    model = torch.nn.Linear(1, 1)
    with Run("x", config, model, torch.optim.Adam(model.parameters()), Constant):
        pass
    assert ("episodes are cut after 7 steps" in capsys.readouterr().out) == is_cut


def test_updates_are_counted_that_were_made(scripted_run):
    run, _ = scripted_run({2: 1}, {})
    with run:
        for n_updates in (0, 3):
            run.report(one_step(), {"losses/x": 0.0}, n_updates)
        rows = read_table(run.folder / "training.csv")
        assert float(rows[0]["charts/UPS"]) == 0
        updates, steps = (float(rows[1][name]) for name in ("charts/UPS", "charts/SPS"))
        assert updates / steps == pytest.approx(3 / run.n_steps)


def test_a_step_size_that_is_given_holds_in_a_run_that_is_resumed(resumed):
    with resumed() as run:
        assert run.n_steps == 2
        assert [group["lr"] for group in run._optimizer.param_groups] == [0.25]


def test_what_a_checkpoint_lacks_is_named(resumed):
    with pytest.raises(ValueError, match="^resume: expected a checkpoint with the memory, got one"):
        resumed(memory=torch.nn.Linear(1, 1))


def test_a_runs_folder_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = folder_of(RunConfig(env_id="ALE/Pong-v5", seed=3))
    assert folder.parent == Path("runs")
    assert folder.name.startswith("ALE-Pong-v5__x__3__")


def test_runs_that_start_in_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda _: "now")
    names = [folder_of(RunConfig(env_id="a")).name for _ in range(3)]
    assert names == ["a__x__0__now", "a__x__0__now-2", "a__x__0__now-3"]


def test_charts_are_of_the_episodes_that_ended_in_all_iterations():
    steps = TemporalDictTensor(
        {
            "_observation/done": torch.tensor([[False, True, True], [True, False, True]]),
            "_observation/episode_return": torch.tensor([[1.0, 2.0, 9.0], [4.0, 1.0, 3.0]]),
            "_observation/episode_length": torch.tensor([[1, 2, 9], [1, 1, 2]]),
        },
        torch.tensor([2, 3]),
    )
    averages = Averages()
    averages.add(steps, {"losses/x": torch.tensor(1.0)})
    averages.add(steps.temporal_slice(0, 1), {"losses/x": torch.tensor(2.0)})
    charts, figures = averages.take()
    assert charts["charts/episodic_return"] == (2 + 4 + 3 + 4) / 4
    assert charts["charts/episodic_length"] == pytest.approx((2 + 1 + 2 + 1) / 4)
    assert figures == {"losses/x": 1.5}
    averages.add(steps.temporal_slice(0, 0), {"losses/x": 3.0})
    charts, figures = averages.take()
    assert all(math.isnan(figure) for figure in charts.values())
    assert figures == {"losses/x": 3.0}


class Scripted:
    """Stands in for `Evaluation`: gives scores by the iteration whose weights they are of."""

    def __init__(self, running: dict[int, float], final: dict[int, float]):
        self.scores = {Episodes.EVALUATION: running, Episodes.FINAL_EVALUATION: final}
        self.tape: list[tuple[str, int]] = []
        self.due: Score | None = None

    def start(self, weights: Any, use: Episodes, iteration: int) -> None:
        assert self.due is None
        self.tape.append((use.name, iteration))
        self.due = Score(self.scores[use][iteration], 0.0, 1)

    def poll(self) -> None:
        pass

    def finish(self) -> Score | None:
        score, self.due = self.due, None
        return score

    def run(self, weights: Any, use: Episodes, iteration: int) -> Score:
        self.start(weights, use, iteration)
        return self.finish()

    def close(self) -> None:
        pass


@pytest.fixture
def scripted_run(tmp_path, monkeypatch) -> Callable[..., tuple[Run, Scripted]]:
    def create(
        running: dict[int, float], final: dict[int, float], **options: Any
    ) -> tuple[Run, Scripted]:
        evaluation = Scripted(running, final)
        monkeypatch.setattr("algos.run.Evaluation", lambda *_: evaluation)
        usual = {"checkpoint_dir": str(tmp_path), "target_return": 10.0, "evaluate_every": 2}
        config = countdown(**{**usual, "total_steps": 12, **options})
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.Adam(model.parameters())
        return Run("x", config, model, optimizer, Constant), evaluation

    return create


def one_step() -> TemporalDictTensor:
    """Returns two environments, one step each."""
    return TemporalDictTensor(
        {
            "_observation/done": torch.ones(2, 1, dtype=torch.bool),
            "_observation/episode_return": torch.ones(2, 1),
            "_observation/episode_length": torch.ones(2, 1, dtype=torch.int64),
        }
    )


def test_a_run_ends_when_two_evaluations_reach_the_target(scripted_run):
    # The weights of iteration 2 and 4 reach it, but a second look at those of 4 does not.
    run, evaluation = scripted_run({2: 11, 4: 12, 6: 9}, {4: 9, 6: 13})
    with run:
        while not run.finished:
            run.report(one_step(), {"losses/x": 0.0})
        result = run.finish()
    assert run.solved
    assert (result.n_iterations, result.n_steps, result.score.mean) == (6, 12, 13)
    assert evaluation.tape == [
        ("EVALUATION", 2),
        ("FINAL_EVALUATION", 4),
        ("EVALUATION", 4),
        ("FINAL_EVALUATION", 6),
    ]
    rows = read_table(result.folder / "evaluation.csv")
    figures = [(int(row["step"]), float(row["evaluation/return_mean"])) for row in rows]
    assert figures == [(4, 11), (8, 9), (8, 12), (12, 13)]


def test_a_run_ends_when_its_steps_are_used_up(scripted_run):
    run, evaluation = scripted_run({2: 1, 4: 2, 6: 3}, {6: 4})
    with run:
        while not run.finished:
            run.report(one_step(), {"losses/x": 0.0})
        result = run.finish()
    assert not run.solved
    assert (result.n_iterations, result.score.mean) == (6, 4)
    assert checkpoints.load(result.folder, "x")["n_steps"] == 12
    rows = read_table(result.folder / "evaluation.csv")
    assert [float(row["evaluation/return_mean"]) for row in rows] == [1, 2, 3, 4]


def test_what_is_missing_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ImportError, match=r"found no rich: pip install 'rlbatch\[algos\]'"):
        importlib.reload(algos)


@pytest.mark.parametrize(
    ("env_id", "probability"),
    [("ALE/Pong-v5", 0.25), ("ale_py:ALE/Pong-v5", 0.25), ("PongNoFrameskip-v4", 0), ("pong", 0)],
)
def test_actions_are_sticky_where_gymnasiums_are(env_id, probability):
    env = create_env(env_id, 1, "cpu", seed=0, autoreset=True)
    assert env._batch.settings.repeat_action_probability == probability
    env.close()


def test_frames_are_centred_and_scaled():
    net = NatureCNN((4, 84, 84), 16)
    frame = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    mean, scale = torch.randint(0, 100, (84, 84)).float(), torch.tensor(40.0)
    plain = torch.nn.Sequential(net._first, *net._others)
    torch.testing.assert_close(net(frame), plain(frame.float() / 255))
    net.normalize(mean, scale)
    torch.testing.assert_close(net(frame), plain((frame.float() - mean) / scale))


def test_the_environment_of_a_film_is_closed(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(GymEnv, "close", lambda env: closed.append(env))
    record_episode(tmp_path / "one.gif", Constant("cpu"), "CartPole-v1", 0, False)
    assert len(closed) == 1


# --- What all algorithms must do. ---


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "seconds"), [("reinforce", 180), ("a2c", 180), ("dqn", 360)])
def test_the_default_run_solves_cartpole(tmp_path, algorithm, seconds):
    module = import_module(f"algos.{algorithm}.train")
    result = module.train(module.Config(checkpoint_dir=str(tmp_path)))
    assert result.score.n_episodes == 100
    assert result.score.mean >= 475
    assert result.seconds < seconds


@pytest.mark.parametrize("make", [a2c.Model, dqn.Model])
def test_vectors_of_bytes_are_observations_too(make):
    model = make(spaces.Box(0, 255, (3,), "uint8"), spaces.Discrete(2), hidden_size=4)
    frame = torch.tensor([[0, 128, 255]], dtype=torch.uint8)
    features = getattr(model, "features", model)(frame)
    assert torch.equal(features, getattr(model, "features", model)(frame.float()))
