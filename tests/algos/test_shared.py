"""The parts that the examples share."""

import ast
import dataclasses
import importlib.util
import inspect
import math
import os
import random
import re
import sys
import threading
import time
import zipfile
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch._dynamo.utils import counters

import algos
import algos.a2c.agent as a2c
import algos.dqn.agent as dqn
from algos import checkpoints
from algos.command_line import Limits, RunConfig, parse
from algos.curves import draw_curve
from algos.environments import Episodes, episode_infos
from algos.evaluation import Evaluation, evaluate
from algos.logs import Log, Table, read_table
from algos.networks import NatureCNN, encoder
from algos.policies import policy_head
from algos.reproducibility import get_generators, set_generators, set_up
from rlbatch import CallOrderError
from tests.algos.runs import Constant, countdown
from tests.algos.tasks import COUNTDOWN

SAVED = {  # What every checkpoint holds.
    "algorithm": "x",
    "env_id": "A-v1",
    "config": {},
    "model": {},
    "iteration": 0,
    "rlbatch_version": "9.9",
}

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


def test_real_actions_deviate_as_far_as_was_learned():
    head = head_of(SPACES["real"])
    policy = head(torch.randn(6, 4))
    z = torch.randn(6, 3)
    log_prob = (-(z**2) / 2 - head.log_std - math.log(2 * math.pi) / 2).sum(-1)
    action = policy.mean + z * head.log_std.exp()
    torch.testing.assert_close(policy.log_prob(action), log_prob)


def test_a_new_policy_is_nearly_uniform():
    policy = policy_head(spaces.Discrete(4), 16)(torch.rand(100, 16) * 2 - 1)
    assert (policy.probs - 0.25).abs().max() < 0.05


@pytest.mark.parametrize(
    ("space", "error"),
    [
        (spaces.Discrete(3, start=1), ValueError),
        (spaces.MultiDiscrete([2, 2], start=[0, 1]), ValueError),
        (spaces.MultiBinary(3), TypeError),
        (spaces.Box(0, 9, (2,), np.int32), TypeError),
    ],
)
def test_rejects_an_action_space_that_it_does_not_know(space, error):
    with pytest.raises(error, match="action_space: expected"):
        policy_head(space, 4)


# --- Reproducibility. ---


def draws() -> tuple:
    return random.random(), np.random.random(), torch.rand(()).item()


def test_generators_go_on_where_a_checkpoint_was_written(tmp_path):
    set_up(seed=7, torch_deterministic=False, n_threads=1)
    first = draws()
    checkpoints.save(tmp_path, {**SAVED, "generators": get_generators()})
    second = draws()
    set_up(seed=7, torch_deterministic=True, n_threads=1)
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert torch.are_deterministic_algorithms_enabled()
    assert [draws(), draws()] == [first, second]
    set_generators(checkpoints.load(tmp_path, "x")["generators"])
    assert draws() == second


@pytest.mark.parametrize("deterministic", [False, True])
def test_algorithms_are_deterministic_where_they_are_to_be(monkeypatch, deterministic):
    name = "CUBLAS_WORKSPACE_CONFIG"
    monkeypatch.setenv(name, ":16:8")
    set_up(seed=0, torch_deterministic=deterministic, n_threads=1)
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert os.environ[name] == ":16:8"  # What a user has set.
    monkeypatch.delenv(name)
    set_up(seed=0, torch_deterministic=deterministic, n_threads=1)
    assert os.environ.get(name) == (":4096:8" if deterministic else None)


def test_pytorch_takes_as_many_threads_as_it_may():
    for n_threads in (2, 1):
        set_up(seed=0, torch_deterministic=False, n_threads=n_threads)
        assert torch.get_num_threads() == n_threads


def test_the_largest_seed_is_one_for_all_generators():
    set_up(seed=2**64 - 1, torch_deterministic=False, n_threads=1)
    first = draws()
    set_up(seed=2**64 - 1, torch_deterministic=False, n_threads=1)
    assert draws() == first


# --- Checkpoints. ---


def test_a_checkpoint_that_fails_half_way_leaves_the_last_one(tmp_path):
    checkpoints.save(tmp_path, {**SAVED, "n": 1})
    with pytest.raises((AttributeError, TypeError), match="local object"):
        checkpoints.save(tmp_path, {**SAVED, "n": 2, "file": lambda: None})
    assert checkpoints.load(tmp_path, "x")["n"] == 1
    assert checkpoints.load(tmp_path / "checkpoint.pt", "x")["n"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_missing_or_foreign_checkpoint_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="expected checkpoint.pt in .*, got a folder without"
    ):
        checkpoints.load(tmp_path, "x")
    file = tmp_path / "checkpoint.pt"
    for path in (file, ""):
        with pytest.raises(FileNotFoundError, match=f"a file or a run's folder, got '{path}'$"):
            checkpoints.load(path, "x")
    checkpoints.save(tmp_path, {**SAVED, "weights": torch.zeros(1000)})
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(ValueError, match="checkpoint.pt: .* a file that is none, or a part"):
        checkpoints.load(tmp_path, "x")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(ValueError, match="checkpoint.pt: expected a checkpoint, got a damaged"):
        checkpoints.load(tmp_path, "x")
    torch.save([1], file)
    with pytest.raises(ValueError, match="checkpoint.pt: expected a checkpoint of a run, got a li"):
        checkpoints.load(tmp_path, "x")
    checkpoints.save(tmp_path, SAVED)
    with pytest.raises(ValueError, match="expected y, got a run of x"):
        checkpoints.load(tmp_path, "y")
    with pytest.raises(ValueError, match=r"env_id: expected A-v1, as in .*, got B-v1"):
        checkpoints.load(tmp_path, "x", "B-v1")


@pytest.mark.parametrize("key", SAVED)
def test_a_checkpoint_that_lacks_what_all_hold_is_none(tmp_path, key):
    checkpoints.save(tmp_path, {name: value for name, value in SAVED.items() if name != key})
    with pytest.raises(ValueError, match=rf"checkpoint.pt: expected .* without \['{key}'\]$"):
        checkpoints.load(tmp_path)


def test_a_checkpoint_can_hold_no_code(tmp_path):
    checkpoints.save(tmp_path, {**SAVED, "folder": tmp_path})
    with pytest.raises(ValueError, match="checkpoint.pt: expected a checkpoint, got a damaged"):
        checkpoints.load(tmp_path, "x")


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


@pytest.mark.parametrize("cut", ["25", "25,1.5,3", "\0\0"])
def test_a_row_that_a_full_disk_has_cut_is_none(tmp_path, cut):
    path = tmp_path / "training.csv"
    path.write_text("step,seconds,loss\r\n10,1.0,2.0\r\n" + cut)
    assert [row["step"] for row in read_table(path)] == ["10"]
    table = Table(path, step=30)
    table.write({"step": 20, "seconds": 1.5, "loss": 1.0})
    table.close()
    assert [row["step"] for row in read_table(path)] == ["10", "20"]


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


def test_tensorboard_keeps_what_came_before_the_step_it_goes_on_from(tmp_path):
    with Log(tmp_path, total_steps=100) as log:
        for step in (10, 20, 30):
            log.write("training", step, 0.5, {"losses/policy": 0.0})
    # TensorBoard reads files in the order of their names: by second, process, and a number of which
    # the tenth comes before the ninth.
    time.sleep(1 - time.time() % 1)
    with Log(tmp_path, total_steps=100, step=20) as log:
        log.write("training", 25, 0.5, {"losses/policy": 0.0})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [scalar.step for scalar in events.Scalars("losses/policy")] == [10, 20, 25]


def test_a_line_that_is_longer_than_the_terminal_is_not_broken(tmp_path, capsys):
    text = "a line that goes on " * 20
    with Log(tmp_path, total_steps=100) as log:
        log.say(text)
    assert capsys.readouterr().out == f"{text}\n"


@pytest.mark.usefixtures("terminal")
def test_a_terminal_shows_how_a_run_stands(tmp_path, capsys):
    with Log(tmp_path, total_steps=100, step=10) as log:
        log.show(20, latest="1.5", score="2.5", speed="3 steps/s")
    shown = re.sub(r"\x1b\[[0-9;?]*\w", "", capsys.readouterr().out)
    assert " 10/100 steps  return -  score - " in shown
    assert " 20/100 steps  return 1.5  score 2.5 3 steps/s" in shown


def test_a_log_leaves_no_thread(tmp_path):
    before = set(threading.enumerate())
    with Log(tmp_path, total_steps=100) as log:
        log.write("training", 10, 0.5, {"losses/policy": 0.0})
        assert set(threading.enumerate()) - before
    assert set(threading.enumerate()) <= before


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


@pytest.fixture
def curve(tmp_path, monkeypatch) -> Axes:
    """What is drawn of a run: no episode ended at its second row; scores are 5 ± 2 and 8 ± 1."""
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    with Log(tmp_path, total_steps=100) as log:
        for step, found in ((10, 1.0), (20, math.nan), (30, 3.0)):
            log.write("training", step, 0.5, {"charts/episodic_return": found})
        for step, mean, std in ((10, 5.0, 2.0), (30, 8.0, 1.0)):
            figures = {"evaluation/return_mean": mean, "evaluation/return_std": std}
            log.write("evaluation", step, 0.5, figures)
    draw_curve(tmp_path)
    ((axes,),) = (figure.axes for figure in drawn)
    return axes


def test_a_curve_goes_on_over_rows_in_which_no_episode_has_ended(curve):
    training, evaluation = curve.get_lines()
    assert training.get_xydata().tolist() == [[10, 1], [30, 3]]
    assert evaluation.get_xydata().tolist() == [[10, 5], [30, 8]]


def test_a_curve_shows_how_far_apart_returns_are_on_both_sides_of_a_score(curve):
    (band,) = curve.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert corners == {(10, 3), (10, 7), (30, 7), (30, 9)}


# --- Evaluation. ---


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


def test_the_episodes_of_an_evaluation_follow_from_the_seed_of_the_run():
    config = countdown(seed=7)
    with Evaluation(config, Constant) as evaluation:
        score = evaluation.run({}, Episodes.EVALUATION, 4)
    assert score.mean == pytest.approx(np.mean(countdown_lengths(config, Episodes.EVALUATION, 4)))
    other = np.mean(countdown_lengths(countdown(), Episodes.EVALUATION, 4))
    assert score.mean != pytest.approx(other)


def test_a_look_at_an_evaluation_does_not_wait():
    config = countdown(evaluation_processes=1)
    with Evaluation(config, partial(Constant, wait_s=0.2)) as evaluation:
        evaluation.start({}, Episodes.EVALUATION, 0)
        start = time.perf_counter()
        assert evaluation.poll() is None
        looked = time.perf_counter() - start
        evaluation.finish()
        assert looked < (time.perf_counter() - start) / 4


def test_a_closed_evaluation_has_no_batcher_any_more():
    with Evaluation(countdown(), Constant) as evaluation:
        pass
    with pytest.raises(CallOrderError, match="closed"):
        evaluation.start({}, Episodes.EVALUATION, 0)


@pytest.mark.parametrize(
    "processes", [{"n_processes": 2}, {"evaluation_processes": 1}, {"evaluation_processes": 3}]
)
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

    algorithm: ClassVar[str] = "x"

    width: int = 8
    """Of its network."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_envs": 3}, r"n_envs: expected a multiple of n_processes \(2\), got 3"),
        (
            {"evaluation_processes": 3},
            r"evaluation_episodes: expected a multiple of evaluation_processes \(3\), got 100",
        ),
        ({"log_every": 3}, r"checkpoint_every: expected a multiple of log_every \(3\), got 50"),
        ({"seed": -1}, "seed: expected at least 0, got -1"),
        ({"evaluation_processes": -1}, "evaluation_processes: expected at least 0, got -1"),
        *(
            ({name: 0}, f"{name}: expected at least 1, got 0")
            for name in (
                *("total_steps", "n_envs", "n_threads", "evaluation_episodes"),
                *("evaluation_timesteps", "evaluate_every", "checkpoint_every", "log_every"),
            )
        ),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        RunConfig(**options)


def test_the_memorys_device_is_looked_at_too():
    with pytest.raises(ValueError, match="^memory_device: expected one that is there, got cuda:99"):
        import_module("algos.dqn.train").Config(memory_device="cuda:99").check_devices()


@pytest.mark.parametrize("name", ["device", "batcher_device", "evaluation_device"])
def test_a_device_that_is_missing_is_named_before_a_run(name):
    with pytest.raises(ValueError, match=f"^{name}: expected one that is there, got cuda:99"):
        countdown(**{name: "cuda:99"}).check_devices()
    with pytest.raises(ValueError, match=f"^{name}: expected a device such as cuda:0, got 'cudda'"):
        countdown(**{name: "cudda"}).check_devices()


def test_a_device_that_is_missing_is_named_before_an_evaluation(tmp_path):
    config = countdown(evaluate=str(tmp_path), evaluation_device="cuda:99")
    with pytest.raises(ValueError, match="^evaluation_device: expected one that is there, got"):
        evaluate(config, Constant)


def saved_run(folder: Path) -> None:
    config = dataclasses.asdict(Options(seed=5, width=16, checkpoint_dir="elsewhere"))
    checkpoints.save(folder, {**SAVED, "config": config})


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_options_come_from_the_run_then_from_the_command_line(tmp_path, flag):
    saved_run(tmp_path)
    config = parse(Options, [flag, str(tmp_path), "--seed", "6"])
    assert (config.width, config.seed, config.checkpoint_dir) == (16, 6, None)
    assert getattr(config, flag.removeprefix("--")) == str(tmp_path)


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_options_of_another_algorithm_are_refused(tmp_path, flag):
    @dataclasses.dataclass(frozen=True)
    class Others(RunConfig):
        """Of another algorithm."""

        algorithm: ClassVar[str] = "y"

    saved_run(tmp_path)
    with pytest.raises(ValueError, match="expected y, got a run of x"):
        parse(Others, [flag, str(tmp_path)])


def test_the_target_is_the_environments_unless_another_is_given():
    assert countdown(env_id="CartPole-v1").target == 475
    assert countdown().target == math.inf  # It names none.
    assert parse(Options, ["--target-return", "3"]).target == 3
    assert parse(Options, ["--target-return", "None"]).target == math.inf


def test_atari_games_have_defaults_of_their_own():
    @dataclasses.dataclass(frozen=True)
    class WithAtari(Options):
        """Of an algorithm."""

        atari: ClassVar[dict[str, Any]] = {"width": 512, "n_envs": 121, "n_processes": 0}

    config = parse(WithAtari, ["--env-id", "ALE/Pong-v5", "--seed", "3"])
    assert (config.env_id, config.width, config.n_envs, config.seed) == ("ALE/Pong-v5", 512, 121, 3)
    assert parse(WithAtari, ["--env-id", "ALE/Pong-v5", "--width", "9"]).width == 9
    assert parse(WithAtari, ["--env-id", "CartPole-v1"]).width == 8
    assert parse(WithAtari, []).n_envs == 16


def options_with(config_type: type[RunConfig], limits: Limits) -> list[str]:
    hints = get_type_hints(config_type, include_extras=True)
    return [name for name, hint in hints.items() if limits in getattr(hint, "__metadata__", ())]


@pytest.mark.parametrize("algorithm", ["reinforce", "a2c", "dqn"])
def test_rejects_numbers_that_are_too_small(algorithm):
    config_type = import_module(f"algos.{algorithm}.train").Config
    counts = options_with(config_type, Limits(at_least=1))
    assert {"n_envs", "total_steps", "checkpoint_every", "hidden_size"} <= set(counts)
    for name in (*counts, "n_threads"):
        with pytest.raises(ValueError, match=f"{name}: expected at least 1, got 0"):
            config_type(**{name: 0})
    for name in ("n_processes", "evaluation_processes", "seed"):
        with pytest.raises(ValueError, match=f"{name}: expected at least 0, got -1"):
            config_type(**{name: -1})
    with pytest.raises(ValueError, match="target_return: .* got nan"):
        config_type(target_return=math.nan)


@pytest.mark.parametrize("algorithm", ["reinforce", "a2c", "dqn"])
def test_rejects_numbers_without_end(algorithm):
    config_type = import_module(f"algos.{algorithm}.train").Config
    values = vars(config_type())
    numbers = [name for name, value in values.items() if isinstance(value, float)]
    assert "learning_rate" in numbers
    for name in set(numbers) - {"max_gradient_norm"}:
        for value in (math.inf, -math.inf, math.nan):
            with pytest.raises(ValueError, match=f"^{name}: expected .*, got {value}$"):
                config_type(**{name: value})
    assert config_type(max_gradient_norm=math.inf, target_return=-math.inf, seed=2**64 - 1)
    for name, most in (("seed", 2**64 - 1), ("n_threads", 1024)):
        with pytest.raises(ValueError, match=f"^{name}: expected at most {most}, got {most + 1}$"):
            config_type(**{name: most + 1})


def test_rejects_options_of_another_version(tmp_path):
    config = {**dataclasses.asdict(Options()), "height": 3}
    checkpoints.save(tmp_path, {**SAVED, "config": config})
    with pytest.raises(ValueError, match=r"options of today, got \['height'\] of rlbatch 9"):
        parse(Options, ["--resume", str(tmp_path)])


@pytest.mark.parametrize("algorithm", ["reinforce", "a2c", "dqn"])
@pytest.mark.parametrize("value", [math.nan, -0.5, 5.0])
def test_rejects_numbers_that_mean_nothing(algorithm, value):
    config_type = import_module(f"algos.{algorithm}.train").Config
    fractions = options_with(config_type, Limits(at_least=0, at_most=1))
    assert "discount" in fractions
    wanted = "a number" if math.isnan(value) else "at least 0" if value < 0 else "at most 1"
    for name in fractions:
        with pytest.raises(ValueError, match=f"^{name}: expected {wanted}, got {value}$"):
            config_type(**{name: value})
    positive = [*options_with(config_type, Limits(more_than=0)), "max_gradient_norm"]
    assert "learning_rate" in positive
    wanted = "a number" if math.isnan(value) else "more than 0"
    for name in positive if value != 5 else ():
        with pytest.raises(ValueError, match=f"^{name}: expected {wanted}, got {value}$"):
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


@pytest.mark.parametrize(("n_processes", "expected"), [(0, 0), (1, 1), (4, 1)])
def test_one_process_evaluates_where_others_train(n_processes, expected):
    assert RunConfig(n_processes=n_processes).n_evaluation_processes == expected


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
        parse(config_type, ["--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    described = {**sentences(RunConfig), **sentences(config_type)}
    assert described.keys() == {field.name for field in dataclasses.fields(config_type)}
    for name, sentence in described.items():
        assert f"--{name.replace('_', '-')}" in text
        assert " ".join(sentence.split()) in text


def test_what_is_missing_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ImportError, match=r"found no rich: pip install 'rlbatch\[algos\]'"):
        importlib.reload(algos)


def test_torch_compile_looks_into_features_of_vectors():
    torch.compiler.reset()
    counters.clear()
    features = encoder(spaces.Box(-1, 1, (4,)), 8)
    features.compile(backend="eager")  # As `compiled` does, but for the code that is made.
    features(torch.rand(3, 4))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (4, 84, 84)), spaces.Box(-1, 1, (3, 4)), spaces.Box(0, 1, ())]
)
def test_rejects_observations_that_no_network_takes(space):
    with pytest.raises(ValueError, match="^observation_space: expected "):
        encoder(space, 8)


def test_features_of_vectors_are_from_minus_1_to_1():
    features = encoder(spaces.Box(-1, 1, (4,)), 8)(100 * torch.randn(50, 4))
    assert features.abs().max() <= 1


def test_frames_are_centred_and_scaled():
    net = NatureCNN((4, 84, 84), 16)
    frame = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    mean, scale = torch.randint(0, 100, (84, 84)).float(), torch.tensor(40.0)
    plain = torch.nn.Sequential(net._first, *net._others)
    torch.testing.assert_close(net(frame), plain(frame.float() / 255))
    net.normalize(mean, scale)
    torch.testing.assert_close(net(frame), plain((frame.float() - mean) / scale))


def test_features_of_images_are_rectified():
    frame = torch.randint(0, 256, (20, 4, 84, 84), dtype=torch.uint8)
    features = NatureCNN((4, 84, 84), 16)(frame)
    assert features.min() == 0 < features.max()


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
