"""REINFORCE: its loss, that it learns, and that a run is what its seed and its weights make it."""

import dataclasses
import json
import math
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from algos import checkpoints
from algos.a2c import train as a2c
from algos.environments import Episodes, create_env, episode_infos
from algos.evaluation import evaluate
from algos.logs import read_table
from algos.reinforce.agent import create_agent
from algos.reinforce.train import Config, agent_factory, loss, train
from rlbatch import DictTensor, RL_Batcher, TemporalDictTensor, Trajectories
from tests.algos.runs import assert_same, contents, gradient_norms
from tests.algos.tasks import COUNTDOWN, EPISODE_STEPS, TWO_STATES

NAN = math.nan


def small(folder: Path | None, **options: Any) -> Config:
    """Returns a run of three iterations, each of 4 episodes of the two-state task."""
    common = {
        "env_id": TWO_STATES,
        "n_envs": 4,
        "n_processes": 0,
        "total_steps": 3 * 4 * EPISODE_STEPS,
        "evaluation_episodes": 10,
        "evaluate_every": 2,
        "target_return": None,
        "hidden_size": 8,
        "checkpoint_dir": None if folder is None else str(folder),
    }
    return Config(**{**common, **options})


def acquire(agent_seed: int, n_processes: int = 0, stochastic: bool = True, **weights: Any) -> Any:
    """Returns trajectories of four environments, and the agent whose weights acted."""
    torch.manual_seed(agent_seed)
    agent = create_agent("CartPole-v1", "cpu", hidden_size=8)
    with RL_Batcher(
        n_timesteps=30,
        create_agent=create_agent,
        agent_args={"env_id": "CartPole-v1", "hidden_size": 8, "device": "cpu"},
        create_env=create_env,
        env_args={"env_id": "CartPole-v1", "n_envs": 4, "device": "cpu"},
        n_processes=n_processes,
        seeds=0,
    ) as batcher:
        batcher.update(agent.model.state_dict())
        batcher.reset(*episode_infos(4, 0, Episodes.TRAINING, 0, stochastic))
        batcher.execute()
        return batcher.get()[0], agent


# --- The loss. ---

# Two episodes, the second shorter: it was cut, the first terminated. NaN is padding.
REWARD = [[1.0, 2.0, 3.0], [4.0, 5.0, NAN]]
LOG_PROB = [[-0.1, -0.2, -0.3], [-0.4, -0.5, NAN]]
BASELINE = [[0.5, 1.5, 2.5], [3.5, 4.5, NAN]]
ENTROPY = [[0.6, 0.7, 0.8], [0.9, 1.0, NAN]]
LAST_VALUE = [100.0, 10.0]
DISCOUNT = 0.5
VALID = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


class KnownAgent:
    """Replays the tables above."""

    def __init__(self) -> None:
        self.outputs = {
            "log_prob": torch.tensor(LOG_PROB, requires_grad=True),
            "baseline": torch.tensor(BASELINE, requires_grad=True),
            "entropy": torch.tensor(ENTROPY, requires_grad=True),
        }
        self.model = SimpleNamespace(baseline=lambda frame: frame[:, 0])

    def replay(self, trajectories: Trajectories) -> TemporalDictTensor:
        return TemporalDictTensor(self.outputs, trajectories.trajectories.lengths)


def known_trajectories() -> Trajectories:
    frame = torch.full((2, 3, 1), NAN)
    frame[0, 2], frame[1, 1] = LAST_VALUE[0], LAST_VALUE[1]
    terminated = torch.tensor([[False, False, True], [False, False, False]])
    truncated = torch.tensor([[False, False, False], [False, True, False]])
    steps = {
        "_observation/reward": torch.tensor(REWARD),
        "_observation/terminated": terminated,
        "_observation/truncated": truncated,
        "_observation/frame": frame,
    }
    return Trajectories(DictTensor(), TemporalDictTensor(steps, torch.tensor([3, 2])))


def literal_returns() -> dict[tuple[int, int], float]:
    """Sums rewards by the definition; what follows the cut is worth LAST_VALUE, an end nothing."""
    first = REWARD[0]
    second = [*REWARD[1][:2], LAST_VALUE[1]]
    return {
        (row, t): sum(DISCOUNT**k * reward for k, reward in enumerate(rewards[t:]))
        for row, rewards in ((0, first), (1, second))
        for t in range(3 - row)
    }


@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_and_its_gradients_are_those_of_the_definition(normalize):
    options = {"entropy_coefficient": 0.25, "baseline_coefficient": 2.0}
    config = Config(discount=DISCOUNT, normalize_advantages=normalize, **options)
    agent = KnownAgent()

    total, parts = loss(agent, known_trajectories(), config)
    total.backward()

    returns = literal_returns()
    advantage = {at: returns[at] - BASELINE[at[0]][at[1]] for at in VALID}
    if normalize:
        mean = sum(advantage.values()) / 5
        deviation = math.sqrt(sum((a - mean) ** 2 for a in advantage.values()) / 5)
        scaled = {at: (advantage[at] - mean) / deviation for at in VALID}
    else:
        scaled = advantage
    policy = -sum(LOG_PROB[b][t] * scaled[b, t] for b, t in VALID) / 5
    baseline = sum(advantage[at] ** 2 for at in VALID) / 5
    entropy = sum(ENTROPY[b][t] for b, t in VALID) / 5
    found = {name: part.item() for name, part in parts.items()}
    expected = {"policy": policy, "baseline": baseline, "entropy": entropy}
    assert found == pytest.approx({f"losses/{name}": v for name, v in expected.items()}, rel=1e-5)
    assert total.item() == pytest.approx(policy + 2.0 * baseline - 0.25 * entropy, rel=1e-5)

    slopes = {
        "log_prob": {at: -scaled[at] / 5 for at in VALID},
        "baseline": {at: -2.0 * 2 * advantage[at] / 5 for at in VALID},
        "entropy": dict.fromkeys(VALID, -0.25 / 5),
    }
    for name, slope in slopes.items():
        gradient = torch.zeros(2, 3)
        for at, value in slope.items():
            gradient[at] = value
        torch.testing.assert_close(agent.outputs[name].grad, gradient)


def test_images_are_refused():
    with pytest.raises(ValueError, match=r"expected a shape \[n\], got \[4, 84, 84\]"):
        create_agent("ALE/Pong-v5", "cpu", hidden_size=8)


def test_a_step_down_the_loss_makes_good_actions_likelier():
    agent = create_agent(TWO_STATES, "cpu", hidden_size=8)
    frame = torch.eye(2)[torch.tensor([[0, 1, 0, 1]])]
    action = torch.tensor([[0, 0, 1, 1]])
    right = action == frame.argmax(-1)
    never = torch.zeros(1, 4, dtype=torch.bool)
    steps = TemporalDictTensor(
        {
            "observation/frame": frame,
            "_observation/frame": frame,
            "action/action": action,
            "_observation/reward": right.float(),
            "_observation/terminated": never,
            "_observation/truncated": never,
        }
    )
    trajectories = Trajectories(DictTensor(), steps)
    before = agent.replay(trajectories)["log_prob"].detach()
    total, _ = loss(agent, trajectories, Config(discount=0.0))
    total.backward()
    with torch.no_grad():
        for parameter in agent.model.parameters():
            parameter -= 0.1 * parameter.grad
    change = agent.replay(trajectories)["log_prob"].detach() - before
    assert ((change > 0) == right).all()


# --- The agent. ---


def test_replaying_gives_the_log_probabilities_of_acting():
    trajectories, agent = acquire(agent_seed=1)
    steps = trajectories.trajectories
    mask = steps.mask(torch.bool)
    assert not mask.all(), "no episode was shorter than another"
    replay = agent.replay(trajectories)
    torch.testing.assert_close(replay["log_prob"][mask], steps["action/log_prob"][mask])
    assert replay["log_prob"].requires_grad


def test_only_rows_that_are_stochastic_draw():
    agent = create_agent("CartPole-v1", "cpu", hidden_size=8)
    n = 1000
    observation = DictTensor({"frame": torch.randn(1, 4).expand(n, 4)})
    stochastic = torch.arange(n) % 2 == 0
    info = DictTensor({"stochastic": stochastic, "seed": torch.arange(n)})
    state = agent.initial_state(info, n)
    action = agent(state, observation, info)[0]["action"]
    logits = agent.model.policy(observation["frame"][0]).logits
    assert (action[~stochastic] == logits.argmax()).all()
    share = action[stochastic].float().mean().item()
    assert share == pytest.approx(logits.softmax(-1)[1].item(), abs=0.1)  # 4 deviations.


def test_episodes_depend_on_their_seeds_and_not_on_what_came_before():
    agent = create_agent("CartPole-v1", "cpu", hidden_size=8)
    with RL_Batcher(
        n_timesteps=500,
        create_agent=create_agent,
        agent_args={"env_id": "CartPole-v1", "hidden_size": 8, "device": "cpu"},
        create_env=create_env,
        env_args={"env_id": "CartPole-v1", "n_envs": 3, "device": "cpu"},
        n_processes=0,
        seeds=0,
    ) as batcher:
        batcher.update(agent.model.state_dict())
        seen = []
        for iteration in (5, 6, 5):
            batcher.reset(*episode_infos(3, 0, Episodes.TRAINING, iteration))
            batcher.execute()
            steps = batcher.get()[0].trajectories
            seen.append((steps["observation/frame"], steps["action/action"]))
    assert all(torch.equal(x, y) for x, y in zip(seen[0], seen[2], strict=True))
    assert not torch.equal(seen[0][0][:, 0], seen[1][0][:, 0])


# --- Training. ---


def test_learns_the_two_state_task(tmp_path):
    config = small(tmp_path, total_steps=20_000, target_return="threshold", learning_rate=0.03)
    result = train(config)
    first, *_ = read_table(tmp_path / "training.csv")
    assert float(first["charts/episodic_return"]) < 6  # A guess is worth 4.
    assert result.score.mean >= 7.5
    assert result.n_steps < 20_000, "it did not stop when the task was solved"


def test_a_run_leaves_its_files(tmp_path):
    folder = tmp_path / "run"
    result = train(small(folder))
    assert result.folder == folder
    names = {path.name.partition(".tfevents")[0] for path in folder.iterdir()}
    files = {"checkpoint.pt", "config.json", "curve.png", "training.csv", "evaluation.csv"}
    assert names == {*files, "events.out"}
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == 8
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    training = read_table(folder / "training.csv")
    assert [int(row["step"]) for row in training] == [32, 64, 96]
    assert {"losses/policy", "losses/baseline", "losses/entropy"} < training[0].keys()
    evaluation = read_table(folder / "evaluation.csv")
    assert [int(row["step"]) for row in evaluation] == [64, 96]
    assert float(evaluation[-1]["evaluation/return_mean"]) == result.score.mean


def test_a_checkpoint_holds_data_only_and_scores_as_the_run_did(tmp_path):
    result = train(small(tmp_path))
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert content.keys() == {
        *("algorithm", "env_id", "rlbatch_version", "config", "model", "optimizer", "generators"),
        *("others", "evaluation", "is_evaluation_due", "n_rows", "n_updates", "averages"),
        *("iteration", "n_steps", "seconds", "solved", "final", "reported"),
    }
    config = dataclasses.replace(small(tmp_path), evaluate=str(tmp_path))
    again = evaluate(config, lambda device: create_agent(TWO_STATES, device, hidden_size=8))
    assert again == result.score


RESUMED = [
    (TWO_STATES, 0),
    pytest.param("CartPole-v1", 0, id="episodes of any length"),
    pytest.param("CartPole-v1", 2, id="two processes", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("env_id", "n_processes"), RESUMED)
def test_a_resumed_run_is_the_run_that_was_never_interrupted(tmp_path, env_id, n_processes):
    options = {"env_id": env_id, "n_processes": n_processes, "evaluate_every": 5}
    half = train(small(tmp_path / "half", **options, total_steps=200))
    twice = {**options, "total_steps": 2 * half.n_steps}
    whole = train(small(tmp_path / "whole", **twice))
    resumed = train(small(None, **twice, resume=str(half.folder)))
    assert resumed.folder == half.folder
    assert half.n_iterations < resumed.n_iterations == whole.n_iterations
    assert resumed.score == whole.score
    assert_same(contents(resumed.folder, "reinforce"), contents(whole.folder, "reinforce"))


@pytest.mark.parametrize(("stop_at", "log_every"), [(5, 1), (6, 1), (5, 2)])
def test_a_run_that_was_stopped_goes_on_with_the_same_figures(
    tmp_path, monkeypatch, stop_at, log_every
):
    """Also where an evaluation was due, and within a row of the log."""
    options, updates = {"total_steps": 10 * 4 * EPISODE_STEPS, "evaluate_every": 2}, []
    options["log_every"] = log_every

    def stops(*given):
        updates.append(given)
        if len(updates) == stop_at:
            signal.raise_signal(signal.SIGINT)
        return loss(*given)

    whole = train(small(tmp_path / "whole", **options))
    with monkeypatch.context() as patch:
        patch.setattr("algos.reinforce.train.loss", stops)
        with pytest.raises(KeyboardInterrupt):
            train(small(tmp_path / "stopped", **options))
    stopped = checkpoints.load(tmp_path / "stopped", "reinforce")
    assert stopped["iteration"] == stop_at
    resumed = train(small(None, **options, resume=str(tmp_path / "stopped")))
    assert_same(contents(resumed.folder, "reinforce"), contents(whole.folder, "reinforce"))
    rows, expected = (read_table(run.folder / "evaluation.csv") for run in (resumed, whole))
    for name in ("step", "evaluation/return_mean"):
        assert [row[name] for row in rows] == [row[name] for row in expected]


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(tmp_path):
    train(small(tmp_path))
    with (tmp_path / "training.csv").open("a") as file:  # Of an iteration that was never saved.
        file.write("128,9.9" + ",0" * 8 + "\n")
    train(small(tmp_path, resume=str(tmp_path / "checkpoint.pt"), total_steps=160))
    rows = read_table(tmp_path / "training.csv")
    assert [int(row["step"]) for row in rows] == [32, 64, 96, 128, 160]
    assert rows[3]["seconds"] != "9.9"
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds), "the clock did not go on"
    with pytest.raises(ValueError, match="^env_id: expected .*, as in .*, got Acrobot-v1$"):
        train(small(tmp_path, resume=str(tmp_path), env_id="Acrobot-v1", target_return=None))


def test_weights_of_another_network_are_told_with_the_options_they_have(tmp_path):
    train(small(tmp_path))
    with pytest.raises(ValueError, match=r"^resume: expected the weights .* {'hidden_size': 8}: "):
        train(small(tmp_path, resume=str(tmp_path), hidden_size=9))
    config = small(None, evaluate=str(tmp_path), hidden_size=9)
    with pytest.raises(ValueError, match=r"^evaluate: expected the weights .*'hidden_size': 8}: "):
        evaluate(config, agent_factory(config))


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_trains_with_real_actions(tmp_path, env_id):
    options = {"env_id": env_id, "total_steps": 2000, "evaluation_episodes": 2}
    result = train(small(tmp_path, **options))
    losses = [row["losses/policy"] for row in read_table(tmp_path / "training.csv")]
    assert len(losses) == result.n_iterations > 0
    assert all(math.isfinite(float(value)) for value in losses)
    weights = checkpoints.load(tmp_path, "reinforce")["model"]
    assert weights["_policy.4.log_std"].abs().max() > 0, "the deviation was not learned"


def test_training_and_evaluation_play_different_episodes(tmp_path, monkeypatch):
    seeds: dict[Episodes, list[int]] = {use: [] for use in Episodes}

    def spy(n_envs: int, seed: int, use: Episodes, *rest: Any) -> Any:
        infos = episode_infos(n_envs, seed, use, *rest)
        seeds[use] += infos[1]["seed"].tolist()
        return infos

    monkeypatch.setattr("algos.reinforce.train.episode_infos", spy)
    monkeypatch.setattr("algos.evaluation.episode_infos", spy)
    train(small(tmp_path, total_steps=320))
    assert {use: len(found) for use, found in seeds.items()} == {
        Episodes.TRAINING: 10 * 4,
        Episodes.EVALUATION: 5 * 10,
        Episodes.FINAL_EVALUATION: 10,
    }
    everything = sum(seeds.values(), [])
    assert len(set(everything)) == len(everything)


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["device", "batcher_device", "evaluation_device"])
def test_each_part_may_be_on_a_gpu(tmp_path, place):
    result = train(small(tmp_path, **{place: "cuda"}))
    assert result.n_iterations == 3


def test_what_follows_a_cut_is_a_number_without_gradients():
    agent, scale = KnownAgent(), torch.ones((), requires_grad=True)
    agent.model = SimpleNamespace(baseline=lambda frame: frame[:, 0] * scale)
    total, _ = loss(agent, known_trajectories(), Config())
    total.backward()
    assert scale.grad is None


def test_gradients_are_no_longer_than_their_limit(tmp_path):
    with gradient_norms() as norms:
        train(small(tmp_path, max_gradient_norm=1e-3))
    assert norms == [pytest.approx(1e-3, rel=0.1)] * 3


def test_the_newest_weights_have_acted(tmp_path, monkeypatch):
    seen = []

    def spy(agent, trajectories, config):
        steps = trajectories.trajectories
        replay = agent.replay(trajectories)["log_prob"]
        torch.testing.assert_close(replay, steps["action/log_prob"])  # None is shorter.
        seen.append(replay.detach())
        return loss(agent, trajectories, config)

    monkeypatch.setattr("algos.reinforce.train.loss", spy)
    train(small(tmp_path, learning_rate=0.1))
    assert len(seen) == 3


def test_a_run_of_another_environment_or_algorithm_is_not_evaluated(tmp_path):
    train(small(tmp_path))
    config = small(None, evaluate=str(tmp_path), env_id=COUNTDOWN)
    with pytest.raises(ValueError, match="env_id: expected"):
        evaluate(config, agent_factory(config))
    config = a2c.Config(env_id=config.env_id, evaluate=str(tmp_path))
    with pytest.raises(ValueError, match="expected a2c, got a run of reinforce"):
        evaluate(config, a2c.agent_factory(config))


@pytest.mark.parametrize("greedy", [False, True])
def test_a_film_is_of_the_final_weights_as_they_are_evaluated(tmp_path, monkeypatch, greedy):
    asked = []
    monkeypatch.setattr("algos.run.check_can_draw", lambda env_id: None)
    monkeypatch.setattr("algos.run.record_episode", lambda *given: asked.append(given) or 0.0)
    train(small(tmp_path, capture_video=True, greedy_evaluation=greedy, seed=7))
    ((path, agent, env_id, seed, draws),) = asked
    assert (path, env_id, seed, draws) == (tmp_path / "episode.mp4", TWO_STATES, 7, not greedy)
    assert_same(dict(agent.model.state_dict()), checkpoints.load(tmp_path, "reinforce")["model"])
