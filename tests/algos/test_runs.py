"""Runs of the examples: their folders, and when they end."""

import dataclasses
import json
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from algos import checkpoints
from algos.environments import Episodes
from algos.evaluation import Score
from algos.folders import open_folder
from algos.logs import read_table
from algos.run import Averages, Run
from rlbatch import TemporalDictTensor
from tests.algos.runs import Config, Constant, countdown
from tests.algos.tasks import TWO_STATES


def folder_of(config: Config) -> Path:
    """Opens the folder of a run, and leaves it."""
    with open_folder(config) as folder:
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


def test_a_folder_may_be_named_in_two_ways(tmp_path, monkeypatch):
    config = countdown(checkpoint_dir=str(tmp_path))
    folder_of(config)
    checkpoints.save(tmp_path, {})
    monkeypatch.chdir(tmp_path)
    assert folder_of(dataclasses.replace(config, resume="checkpoint.pt")) == tmp_path


def test_two_runs_at_once_in_one_folder_are_refused(tmp_path):
    config = countdown(checkpoint_dir=str(tmp_path))
    again = dataclasses.replace(config, resume=str(tmp_path), seed=config.seed + 7)
    with open_folder(config):
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
        optimizer = torch.optim.Adam(weights.parameters(), 0.5)
        with Run(config, weights, optimizer, Constant) as run:
            run.report(one_step(), {"losses/x": 0.0})
            run._save()
        config = dataclasses.replace(config, checkpoint_dir=None, resume=str(tmp_path))
        optimizer = torch.optim.Adam(weights.parameters(), 0.25)
        return Run(config, weights, optimizer, Constant, others)

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
    class Cut(Config):
        longest_episode = n_steps

    config = Cut(env_id=TWO_STATES, n_processes=0, checkpoint_dir=str(tmp_path))
    model = torch.nn.Linear(1, 1)
    with Run(config, model, torch.optim.Adam(model.parameters()), Constant):
        pass
    said = capsys.readouterr().out
    assert f"episodes are cut after {n_steps} steps" in said if is_cut else not said


def test_updates_are_counted_that_were_made(scripted_run):
    run, _ = scripted_run({2: 1}, {})
    with run:
        for n_updates in (0, 3):
            run.report(one_step(), {"losses/x": 0.0}, n_updates)
        rows = read_table(run.folder / "training.csv")
        assert float(rows[0]["charts/UPS"]) == 0
        updates, steps = (float(rows[1][name]) for name in ("charts/UPS", "charts/SPS"))
        assert updates / steps == pytest.approx(3 / run.n_steps)


def test_a_score_has_the_time_of_its_weights(scripted_run):
    run, _ = scripted_run({2: 1, 4: 2}, {})
    with run:
        for _ in range(4):
            run.report(one_step(), {"losses/x": 0.0})
            time.sleep(0.01)
    trained = [float(row["seconds"]) for row in read_table(run.folder / "training.csv")]
    (scored,) = (float(row["seconds"]) for row in read_table(run.folder / "evaluation.csv"))
    assert trained[1] <= scored < trained[2]


@pytest.mark.usefixtures("terminal")
def test_a_terminal_shows_the_latest_return_and_score(scripted_run, capsys):
    run, _ = scripted_run({1: 7, 2: 8}, {}, evaluate_every=1)
    with run:
        run.report(one_step(), {"losses/x": 0.0})
        run.report(one_step().temporal_slice(0, 0), {"losses/x": 0.0})  # No episode ends.
    assert "return 1.0  score 7.0" in capsys.readouterr().out


def test_the_last_iterations_have_a_row_in_the_log_too(scripted_run):
    run, _ = scripted_run({2: 1}, {3: 1}, log_every=2, total_steps=6)
    with run:
        for figure in (1.0, 2.0, 5.0):
            run.report(one_step(), {"losses/x": figure})
        run.finish()
    rows = read_table(run.folder / "training.csv")
    assert [(int(row["step"]), float(row["losses/x"])) for row in rows] == [(4, 1.5), (6, 5.0)]


def test_a_run_that_is_resumed_counts_its_updates_on(resumed):
    with resumed() as run:
        run.report(one_step(), {"losses/x": 0.0})
    row = read_table(run.folder / "training.csv")[-1]
    assert float(row["charts/UPS"]) / float(row["charts/SPS"]) == pytest.approx(2 / run.n_steps)


def test_a_step_size_that_is_given_holds_in_a_run_that_is_resumed(resumed):
    with resumed() as run:
        assert run.n_steps == 2
        assert [group["lr"] for group in run._optimizer.param_groups] == [0.25]


def test_a_run_of_whole_episodes_goes_on_from_any_iteration(resumed, capsys):
    with resumed() as run:
        assert run.iteration % run.config.checkpoint_every
    assert "resumed" not in capsys.readouterr().out


def test_what_a_checkpoint_lacks_is_named(resumed):
    with pytest.raises(ValueError, match="^resume: expected a checkpoint with the memory, got one"):
        resumed(memory=torch.nn.Linear(1, 1))


def test_a_runs_folder_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = folder_of(Config(env_id="ALE/Pong-v5", seed=3))
    assert folder.parent == Path("runs")
    assert folder.name.startswith("ALE-Pong-v5__x__3__")
    folder = folder_of(Config(env_id=TWO_STATES))
    assert folder.name.startswith("tests.algos.tasks-TwoStates-v0__x__0__")


def test_runs_that_start_in_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda _: "now")
    names = [folder_of(Config(env_id="a")).name for _ in range(3)]
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
        return Run(config, model, optimizer, Constant), evaluation

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


def test_a_score_that_a_run_ends_with_counts_where_it_is_given_more_steps(tmp_path, scripted_run):
    run, _ = scripted_run({2: 11}, {3: 9}, total_steps=6)
    with run:
        while not run.finished:
            run.report(one_step(), {"losses/x": 0.0})
        run.finish()
    run, _ = scripted_run({}, {4: 13}, resume=str(tmp_path), checkpoint_dir=None)
    with run:
        while not run.finished:
            run.report(one_step(), {"losses/x": 0.0})
        result = run.finish()
    assert (run.solved, result.n_iterations, result.score.mean) == (True, 4, 13)
    rows = read_table(tmp_path / "evaluation.csv")
    figures = [(int(row["step"]), float(row["evaluation/return_mean"])) for row in rows]
    assert figures == [(4, 11), (6, 9), (8, 13)]


def test_a_run_that_has_reached_its_target_says_so_when_it_is_resumed(
    tmp_path, scripted_run, capsys
):
    run, _ = scripted_run({2: 11}, {4: 12})
    with run:
        while not run.finished:
            run.report(one_step(), {"losses/x": 0.0})
        run.finish()
    assert "resumed" not in capsys.readouterr().out
    run, _ = scripted_run({}, {}, resume=str(tmp_path), checkpoint_dir=None, total_steps=100)
    with run:
        assert run.finished
    assert "resumed where the score had reached 10: it goes on with a" in capsys.readouterr().out


def test_a_checkpoint_of_another_version_is_named(tmp_path, resumed):
    resumed()
    content = checkpoints.load(tmp_path)
    del content["n_rows"]
    checkpoints.save(tmp_path, content)
    config = countdown(resume=str(tmp_path), n_processes=0)
    model = torch.nn.Linear(1, 1)
    with pytest.raises(
        ValueError, match="^resume: expected a checkpoint of this version, got .*n_r"
    ):
        Run(config, model, torch.optim.Adam(model.parameters()), Constant)


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


def test_a_run_that_fails_leaves_the_signals_alone(scripted_run):
    run, _ = scripted_run({}, {})
    with pytest.raises(ZeroDivisionError), run:
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_that_is_to_stop_begins_no_evaluation(scripted_run):
    run, evaluation = scripted_run({2: 1}, {})
    with run:
        run.report(one_step(), {"losses/x": 0.0})
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            run.report(one_step(), {"losses/x": 0.0})
    assert (run.iteration, evaluation.tape) == (2, [])
