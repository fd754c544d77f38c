"""DQN: its loss, that it learns, and that a run can be resumed."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algos import checkpoints
from algos.dqn.agent import Agent, Model, create_agent
from algos.dqn.train import Config, agent_factory, correction, epsilon_at, loss, main, train
from algos.environments import Episodes, episode_infos
from algos.evaluation import Evaluation
from algos.logs import read_table
from algos.play import Options, play
from rlbatch import DictTensor, RL_Batcher
from tests.algos.runs import assert_same, contents, gradient_norms
from tests.algos.tasks import TWO_STATES


def small(folder: Path | None, **options: Any) -> Config:
    """Returns a run of 12 iterations of the two-state task, with a checkpoint in the middle."""
    common = {
        "env_id": TWO_STATES,
        "n_envs": 4,
        "n_timesteps": 4,
        "n_updates": 2,
        "batch_size": 8,
        "n_processes": 0,
        "memory_capacity": 400,
        "learning_starts": 32,
        "target_every": 4,
        "exploration_steps": 100,
        "total_steps": 12 * 16,
        "evaluation_episodes": 10,
        "evaluate_every": 6,
        "checkpoint_every": 6,
        "target_return": None,
        "hidden_size": 8,
        "checkpoint_dir": None if folder is None else str(folder),
    }
    return Config(**{**common, **options})


FLAT = spaces.Box(-np.inf, np.inf, (2,), np.float32)


# --- The loss. ---


class Table(torch.nn.Module):
    """Values of three actions in states 0 to 3, which are the frames."""

    def __init__(self, values: list[list[float]]):
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor(values))

    def forward(self, frame: torch.Tensor) -> torch.Tensor:
        return self.values[frame.long()]


VALUES = [[1.0, 2.0, 3.0], [4.0, 6.0, 5.0], [0.5, 0.0, 0.25], [1.0, 1.0, 1.0]]
TARGET_VALUES = [[1.0, 1.0, 1.0], [8.0, 7.0, 9.0], [3.0, 5.0, 4.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("double", [False, True])
def test_the_loss_and_its_gradients_are_those_of_the_definition(double):
    batch = DictTensor(
        {
            "frame": torch.tensor([0, 1, 2]),
            "next_frame": torch.tensor([1, 2, 3]),
            "action": torch.tensor([2, 0, 1]),
            "reward": torch.tensor([-5.5, 0.75, 0.5]),
            "discount": torch.tensor([0.5, 0.25, 0.0]),  # The last one terminated.
        }
    )
    model, target_model = Table(VALUES), Table(TARGET_VALUES)
    weight = torch.tensor([1.0, 0.5, 0.25])
    total, error = loss(model, target_model, batch, weight, Config(double=double))
    total.backward()
    # Greedy by the target's own values, or by the model's: action 1 in state 1, 0 in state 2.
    following = [7.0, 3.0] if double else [9.0, 5.0]
    targets = [-5.5 + 0.5 * following[0], 0.75 + 0.25 * following[1], 0.5]
    errors = [3.0 - targets[0], 4.0 - targets[1], 0.0 - targets[2]]
    assert error.tolist() == pytest.approx(errors)
    assert abs(errors[0]) > 1 > abs(errors[2]), "both parts of the loss are needed"
    losses = [abs(e) - 0.5 if abs(e) > 1 else e * e / 2 for e in errors]
    assert total.item() == pytest.approx(
        sum(w * x for w, x in zip([1, 0.5, 0.25], losses, strict=True)) / 3
    )
    gradient = torch.zeros(4, 3)
    for row, (state, action, w) in enumerate([(0, 2, 1.0), (1, 0, 0.5), (2, 1, 0.25)]):
        gradient[state, action] = w * max(-1.0, min(1.0, errors[row])) / 3
    torch.testing.assert_close(model.values.grad, gradient)
    assert target_model.values.grad is None


def test_weights_make_up_for_priorities():
    batch = DictTensor({"probability": torch.tensor([4.0, 1.0, 0.25])})
    config = Config(prioritized=True, importance_exponent=0.5)
    assert correction(batch, 0.0, config).tolist() == pytest.approx([0.25, 0.5, 1.0])
    assert correction(batch, 1.0, config).tolist() == pytest.approx([1 / 16, 1 / 4, 1.0])
    assert correction(batch, 0.0, Config()) == 1.0


def test_epsilon_falls_to_its_last_value():
    config = Config(exploration_steps=100, final_epsilon=0.1)
    found = [epsilon_at(n, config) for n in (0, 50, 100, 1000)]
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])


# --- The agent. ---


def test_every_environment_has_an_epsilon_of_its_own():
    agent = create_agent("CartPole-v1", "cpu", epsilon=0.25, hidden_size=8)
    n = 4000
    observation = DictTensor({"frame": torch.randn(1, 4).expand(n, 4)})
    agent_info, _ = episode_infos(n, 0, Episodes.TRAINING, 0)
    epsilon = torch.where(torch.arange(n) % 2 == 0, 0.0, 1.0)
    agent.initial_state(agent_info, n)
    best = agent.model(observation["frame"][0]).argmax()

    def share(info: DictTensor) -> list[float]:
        is_best = agent(DictTensor(), observation, info)[0]["action"] == best
        return [is_best[0::2].double().mean().item(), is_best[1::2].double().mean().item()]

    assert share(agent_info + DictTensor({"epsilon": epsilon})) == pytest.approx([1, 0.5], abs=0.05)
    assert share(agent_info) == pytest.approx([0.875, 0.875], abs=0.04)
    greedy, _ = episode_infos(n, 0, Episodes.TRAINING, 0, stochastic=False)
    assert share(greedy) == [1.0, 1.0]


def test_dueling_values_are_a_value_and_advantages_around_it():
    model = Model(FLAT, spaces.Discrete(3), 8, dueling=True)
    frame = torch.randn(5, 2)
    torch.testing.assert_close(model(frame).mean(-1), model._value(model.encoder(frame))[:, 0])
    assert Agent(model, "cpu", 0.0).model is model
    with pytest.raises(TypeError, match="action_space: expected Discrete, got Box"):
        Model(FLAT, FLAT, 8)
    with pytest.raises(ValueError, match="action_space: expected actions from 0 on"):
        Model(FLAT, spaces.Discrete(3, start=1), 8)


# --- Training. ---

KINDS = {
    "plain": {},
    "rainbow's half": {"double": True, "dueling": True, "n_steps": 2, "prioritized": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_learns_the_two_state_task(tmp_path, kind):
    options = {"total_steps": 40_000, "evaluate_every": 20, "target_return": "threshold"}
    options |= {"memory_capacity": 4000, "batch_size": 32, "hidden_size": 32}
    options |= {"checkpoint_every": 1000, "exploration_steps": 4000, "discount": 0.5}
    config = small(tmp_path, **options, **KINDS[kind])
    result = train(config)
    returns = [
        float(row["charts/episodic_return"]) for row in read_table(tmp_path / "training.csv")
    ]
    assert [x for x in returns if not math.isnan(x)][0] < 6.5  # A guess is worth 4.
    assert result.score.mean >= 7.5
    assert result.n_steps < 40_000, "it did not stop when the task was solved"


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_run_that_was_never_interrupted(tmp_path, kind):
    options = {"save_memory": True, **KINDS[kind]}
    if kind != "plain":  # Weights depend on how far the training is to go.
        options["importance_exponent"] = 1.0
    half = train(small(tmp_path / "half", **options, total_steps=6 * 16))
    whole = train(small(tmp_path / "whole", **options))
    resumed = train(small(None, **options, resume=str(tmp_path / "half")))
    assert (half.n_iterations, resumed.n_iterations, whole.n_iterations) == (6, 12, 12)
    assert resumed.score == whole.score
    assert_same(contents(resumed.folder, "dqn"), contents(whole.folder, "dqn"))


def test_a_run_resumed_without_its_memory_fills_it_anew(tmp_path):
    train(small(tmp_path))
    train(small(None, resume=str(tmp_path), total_steps=15 * 16))
    losses = [float(row["losses/value"]) for row in read_table(tmp_path / "training.csv")]
    assert losses[11] > 0
    assert math.isnan(losses[12])
    assert losses[14] > 0


def test_a_run_can_be_played(tmp_path):
    result = train(small(tmp_path, env_id="CartPole-v1", total_steps=160, capture_video=True))
    assert (tmp_path / "episode.mp4").stat().st_size > 1000
    film = tmp_path / "film.gif"
    options = Options(str(tmp_path), film, seed=1, stochastic=False)
    found = play(options)
    assert film.read_bytes().startswith(b"GIF")
    assert 8 <= found <= 500
    assert play(options) == found
    assert result.n_steps == 160


def test_options_of_play_that_make_no_sense(tmp_path):
    for seed in (-1, 2**63):
        with pytest.raises(ValueError, match=f"^seed: expected from 0 to 2.63 - 1, got {seed}$"):
            Options("run", seed=seed)
    with pytest.raises(ValueError, match="^output: expected a folder that exists, got .*/no$"):
        Options("run", tmp_path / "no" / "film.gif")
    with pytest.raises(ValueError, match="^output: expected a name in .mp4 or .gif, got film.avi$"):
        Options("run", Path("film.avi"))


def test_a_run_says_how_much_memory_it_takes(tmp_path, monkeypatch, capsys):
    arguments = ["--env-id", "KlaxNoFrameskip-v4", "--memory-capacity", "2000"]
    arguments += ["--total-steps", "128", "--evaluation-episodes", "1", "--learning-starts", "96"]
    arguments += ["--n-threads", "1", "--hidden-size", "16", "--log-every", "1"]
    monkeypatch.setattr("sys.argv", ["dqn", *arguments, "--checkpoint-dir", str(tmp_path / "run")])
    main()
    assert capsys.readouterr().out.startswith("replay memory: 14.1 MB on cpu\n")
    rows = read_table(tmp_path / "run" / "training.csv")
    assert [int(row["step"]) for row in rows] == [32, 64, 96, 128]
    losses = [float(row["losses/value"]) for row in rows]
    assert math.isnan(losses[0])  # Before learning starts.
    assert losses[-1] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, when it compiles.
def test_compiled_features_learn_the_same(tmp_path):
    results = {}
    for name, compiled in (("plain", False), ("compiled", True)):
        train(small(tmp_path / name, compiled=compiled))
        results[name] = contents(tmp_path / name, "dqn")["model"]
    assert results["plain"].keys() == results["compiled"].keys()
    for key, weight in results["plain"].items():
        torch.testing.assert_close(results["compiled"][key], weight, rtol=1e-3, atol=1e-4)


def test_a_memory_too_empty_to_draw_from_is_refused():
    with pytest.raises(ValueError, match="^learning_starts: expected at least 41 with .* got 40$"):
        small(None, n_steps=5, learning_starts=40)
    small(None, n_steps=5, learning_starts=41)


def test_rejects_segments_of_one_step():
    with pytest.raises(
        ValueError, match="^checkpoint_every: expected at least 2 where n_timesteps"
    ):
        small(None, n_timesteps=1, checkpoint_every=1)
    small(None, n_timesteps=1, checkpoint_every=2)
    small(None, n_timesteps=2, checkpoint_every=1)


# --- What a run keeps to. ---


def test_exploration_falls_while_steps_are_taken(tmp_path, monkeypatch):
    seen, call = [], Agent.__call__

    def spy(self, state, observation, agent_info, history=None):
        if "epsilon" in agent_info:  # In training.
            seen.append(agent_info["epsilon"].tolist())
        return call(self, state, observation, agent_info, history)

    monkeypatch.setattr(Agent, "__call__", spy)
    options = {"total_steps": 48, "exploration_steps": 40, "learning_starts": 32}
    config = small(tmp_path, n_timesteps=1, **options)
    train(config)
    assert seen == [pytest.approx([epsilon_at(4 * k, config)] * 4) for k in range(12)]


def test_what_is_learnt_from_ends_with_its_segment(tmp_path):
    train(small(tmp_path, checkpoint_every=3, save_memory=True))  # In the middle of episodes of 8.
    entries = checkpoints.load(tmp_path, "dqn")["others"]["memory"]["entries"]
    begins, is_end = (entries[key].unflatten(0, (4, -1)) for key in ("begins", "is_end"))
    assert begins[:, 1:].sum() >= 4 * 6
    assert is_end[:, :-1][begins[:, 1:]].all()


@pytest.mark.parametrize(("n_iterations", "is_between"), [(7, True), (8, False)])
def test_a_run_that_ends_within_a_segment_is_resumed(tmp_path, capsys, n_iterations, is_between):
    train(small(tmp_path, total_steps=n_iterations * 16, checkpoint_every=4))
    assert "resumed" not in capsys.readouterr().out
    train(small(None, resume=str(tmp_path), total_steps=n_iterations * 16, checkpoint_every=4))
    assert "resumed" not in capsys.readouterr().out  # It is finished.
    result = train(small(None, resume=str(tmp_path), total_steps=9 * 16, checkpoint_every=4))
    assert result.n_iterations == 9
    assert ("environments begin anew here" in capsys.readouterr().out) == is_between


def test_the_evaluation_of_a_run_is_closed(tmp_path, monkeypatch):
    closed, close = [], Evaluation.close
    monkeypatch.setattr(Evaluation, "close", lambda self: closed.append(self) or close(self))
    train(small(tmp_path))
    assert len(closed) == 1


def test_weights_that_are_evaluated_stay_as_they_were(tmp_path, monkeypatch):
    saved, save = [], checkpoints.save

    def spy(folder, content):
        save(folder, content)
        saved.append(checkpoints.load(folder, "dqn"))

    monkeypatch.setattr(checkpoints, "save", spy)
    train(small(tmp_path, evaluate_every=4, checkpoint_every=6))
    under_way = saved[0]["evaluation"]
    assert (saved[0]["iteration"], under_way["iteration"]) == (6, 4)
    pairs = zip(saved[0]["model"].values(), under_way["weights"].values(), strict=True)
    assert any(not torch.equal(now, then) for now, then in pairs)


@pytest.mark.parametrize("greedy", [False, True])
def test_the_seed_and_the_choice_of_actions_reach_a_film(tmp_path, monkeypatch, greedy):
    train(small(tmp_path, greedy_evaluation=greedy))
    asked = []
    monkeypatch.setattr("algos.play.record_episode", lambda *given: asked.append(given) or 0.0)
    play(Options(str(tmp_path), tmp_path / "a.mp4", seed=7, stochastic=greedy))
    play(Options(str(tmp_path), tmp_path / "a.mp4"))  # As in the run's evaluations.
    assert [given[3:] for given in asked] == [(7, greedy), (0, not greedy)]


def test_targets_are_of_the_weights_at_every_so_many_iterations(tmp_path):
    train(small(tmp_path / "short", total_steps=8 * 16))
    train(small(tmp_path / "long"))  # 12 iterations; the last copy is of those after 8.
    expected = checkpoints.load(tmp_path / "short", "dqn")["model"]
    assert_same(checkpoints.load(tmp_path / "long", "dqn")["others"]["target_model"], expected)


def test_gradients_are_no_longer_than_their_limit(tmp_path):
    with gradient_norms() as norms:
        train(small(tmp_path, max_gradient_norm=1e-3))
    assert len(norms) > 10
    assert norms == [pytest.approx(1e-3, rel=0.1)] * len(norms)


def test_a_run_asks_for_what_its_options_say(tmp_path, monkeypatch):
    resets, progress = [], []

    def spy(n_envs, seed, use, iteration):
        resets.append((use, iteration))
        return episode_infos(n_envs, seed, use, iteration)

    def corrected(batch, so_far, config):
        progress.append(so_far)
        return correction(batch, so_far, config)

    monkeypatch.setattr("algos.dqn.train.episode_infos", spy)
    monkeypatch.setattr("algos.dqn.train.correction", corrected)
    train(small(tmp_path, prioritized=True))
    assert resets == [(Episodes.TRAINING, 0), (Episodes.TRAINING, 6)]
    assert progress == pytest.approx([k / 12 for k in range(1, 12) for _ in range(2)])
    assert checkpoints.load(tmp_path, "dqn")["n_updates"] == 22


def test_evaluations_have_an_epsilon_of_their_own():
    agent = agent_factory(Config(evaluation_epsilon=1.0, final_epsilon=0.0))(device="cpu")
    info, _ = episode_infos(100, 0, Episodes.EVALUATION, 0)
    observation = DictTensor({"frame": torch.zeros(100, 4)})
    assert len(agent(DictTensor(), observation, info)[0]["action"].unique()) == 2


def test_a_segment_is_as_long_as_its_iterations():
    assert Config(checkpoint_every=100, n_timesteps=8).longest_episode == 800


@pytest.mark.parametrize("env_id", ["CartPole-v1", "PongNoFrameskip-v4"])
def test_values_in_bfloat16_are_nearly_the_same(env_id):
    plain = create_agent(env_id, "cpu", epsilon=0.0, hidden_size=16).model
    rounded = create_agent(env_id, "cpu", epsilon=0.0, hidden_size=16, bf16=True).model
    rounded.load_state_dict(plain.state_dict())
    shape = (3, 4, 84, 84) if "Pong" in env_id else (3, 4)
    frame = torch.randint(256, shape, dtype=torch.uint8)
    found, expected = rounded(frame), plain(frame)
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_the_newest_weights_act(tmp_path, monkeypatch):
    versions, get = [], RL_Batcher.get

    def spy(self, *args, **options):
        found = get(self, *args, **options)
        if found[0] is not None and found[0].n_elems() == 4:  # Not an evaluation's.
            versions.append(found[0].info["policy_version"].unique().tolist())
        return found

    monkeypatch.setattr(RL_Batcher, "get", spy)
    train(small(tmp_path))
    assert versions == [[k] for k in range(1, 13)]


def test_draws_follow_from_the_seed():
    agent = create_agent("CartPole-v1", "cpu", epsilon=1.0, hidden_size=8)
    info, _ = episode_infos(100, 0, Episodes.TRAINING, 0)
    observation, found = DictTensor({"frame": torch.zeros(100, 4)}), []
    for _ in range(2):
        state = agent.initial_state(info, 100)
        found.append(agent(state, observation, info)[0]["action"])
    assert torch.equal(*found)
