"""A2C: its loss, its memory, its groups, that it learns, and that a run can be resumed."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from algos import checkpoints
from algos.a2c.agent import create_agent
from algos.a2c.train import Config, loss, main, train
from algos.a2c.window import Window
from algos.environments import Episodes, create_env, episode_infos, frame_statistics
from algos.logs import read_table
from algos.run import Run
from rlbatch import DictTensor, RL_Batcher, TemporalDictTensor, Trajectories
from tests.algos.runs import assert_same, contents, gradient_norms
from tests.algos.tasks import COUNTDOWN, TWO_STATES


def small(folder: Path | None, **options: Any) -> Config:
    """Returns a run of 12 iterations of the two-state task, with a checkpoint in the middle."""
    common = {
        "env_id": TWO_STATES,
        "n_envs": 4,
        "n_timesteps": 4,
        "n_processes": 0,
        "total_steps": 12 * 16,
        "evaluation_episodes": 10,
        "evaluate_every": 5,
        "checkpoint_every": 6,
        "target_return": None,
        "hidden_size": 8,
        "checkpoint_dir": None if folder is None else str(folder),
    }
    return Config(**{**common, **options})


def acquire(env_id: str, n_timesteps: int, n_executes: int = 1, **options: Any) -> Any:
    """Returns what four environments that reset themselves give, and the agent that acted."""
    arguments = {"hidden_size": 8, "recurrent": False, "bf16": False, "device": "cpu", **options}
    torch.manual_seed(1)
    agent = create_agent(env_id, **arguments)
    with RL_Batcher(
        n_timesteps=n_timesteps,
        create_agent=create_agent,
        agent_args={"env_id": env_id, **arguments},
        create_env=create_env,
        env_args={"env_id": env_id, "n_envs": 4, "device": "cpu", "autoreset": True},
        n_processes=0,
        seeds=0,
    ) as batcher:
        batcher.update(agent.model.state_dict())
        batcher.reset(*episode_infos(4, 0, Episodes.TRAINING, 0))
        found = []
        for _ in range(n_executes):
            batcher.execute()
            found.append(batcher.get()[0])
    return found, agent


# --- The loss. ---

# One row: an episode terminates at 1; the next one is cut at 3; the slot ends in a third.
REWARD = [1.0, 2.0, 3.0, 4.0, 5.0]
VALUE = [0.5, 1.5, 2.5, 3.5, 4.5]
NEXT_VALUE = [1.5, 0.0, 3.5, 7.0, 8.0]
LOG_PROB = [-0.1, -0.2, -0.3, -0.4, -0.5]
BEHAVIOUR = [-0.3, -0.1, -0.3, -1.0, -0.2]
ENTROPY = [0.6, 0.7, 0.8, 0.9, 1.0]
ENDS = [False, True, False, True, True]  # After which nothing of the row counts.
DISCOUNT = 0.5


class KnownAgent:
    """Replays the tables above."""

    def __init__(self) -> None:
        tables = {"log_prob": LOG_PROB, "value": VALUE, "entropy": ENTROPY}
        self.outputs = {
            name: torch.tensor([table], requires_grad=True) for name, table in tables.items()
        }

    def replay(self, trajectories: Trajectories) -> TemporalDictTensor:
        outputs = {**self.outputs, "next_value": torch.tensor([NEXT_VALUE])}
        return TemporalDictTensor(outputs, trajectories.trajectories.lengths)


def known_trajectories() -> Trajectories:
    steps = {
        "_observation/reward": torch.tensor([REWARD]),
        "_observation/terminated": torch.tensor([[False, True, False, False, False]]),
        "_observation/truncated": torch.tensor([[False, False, False, True, False]]),
        "action/log_prob": torch.tensor([BEHAVIOUR]),
    }
    return Trajectories(DictTensor(), TemporalDictTensor(steps))


def literal_targets(config: Config) -> tuple[list[float], list[float]]:
    """Returns advantages and targets of the value, by their definitions, from the last step on."""
    advantages, targets = [0.0] * 5, [0.0] * 5
    for t in reversed(range(5)):
        ratio = math.exp(LOG_PROB[t] - BEHAVIOUR[t]) if config.vtrace else 1.0
        weight = min(1.0, ratio)
        trace = weight * (1.0 if config.vtrace else config.gae_lambda)
        reward = config.reward_scale * REWARD[t]
        delta = reward + DISCOUNT * NEXT_VALUE[t] - VALUE[t]
        rest = 0.0 if ENDS[t] else targets[t + 1] - VALUE[t + 1]
        targets[t] = VALUE[t] + weight * delta + DISCOUNT * trace * rest
        if config.vtrace:
            following = NEXT_VALUE[t] if ENDS[t] else targets[t + 1]
            advantages[t] = weight * (reward + DISCOUNT * following - VALUE[t])
        else:
            advantages[t] = targets[t] - VALUE[t]
    return advantages, targets


@pytest.mark.parametrize(
    "options",
    [
        {"gae_lambda": 1.0},
        {"gae_lambda": 0.25},
        {"vtrace": True},
        {"gae_lambda": 0.25, "reward_scale": 0.5},
    ],
    ids=str,
)
def test_the_loss_and_its_gradients_are_those_of_the_definition(options):
    config = Config(discount=DISCOUNT, entropy_coefficient=0.25, value_coefficient=2.0, **options)
    agent = KnownAgent()
    total, parts = loss(agent, known_trajectories(), config)
    total.backward()

    advantages, targets = literal_targets(config)
    policy = -sum(lp * a for lp, a in zip(LOG_PROB, advantages, strict=True)) / 5
    value = sum((v - target) ** 2 for v, target in zip(VALUE, targets, strict=True)) / 5
    entropy = sum(ENTROPY) / 5
    found = {name: part.item() for name, part in parts.items()}
    expected = {"losses/policy": policy, "losses/value": value, "losses/entropy": entropy}
    assert found == pytest.approx(expected, rel=1e-5)
    assert total.item() == pytest.approx(policy + 2.0 * value - 0.25 * entropy, rel=1e-5)
    slopes = {
        "log_prob": [-a / 5 for a in advantages],
        "value": [2.0 * 2 * (v - target) / 5 for v, target in zip(VALUE, targets, strict=True)],
        "entropy": [-0.25 / 5] * 5,
    }
    for name, slope in slopes.items():
        torch.testing.assert_close(agent.outputs[name].grad, torch.tensor([slope]))


# --- The agent. ---


@pytest.mark.parametrize("recurrent", [False, True])
def test_replaying_gives_what_acting_gave(recurrent):
    (_, second), agent = acquire(COUNTDOWN, 12, n_executes=2, recurrent=recurrent)
    steps = second.trajectories
    assert steps["observation/initial_state"][:, 1:].any(), "no episode began within the slot"
    if recurrent:
        assert second.info["agent_state/memory"].any(), "the slot began with an empty memory"
    replay = agent.replay(second)
    torch.testing.assert_close(replay["log_prob"], steps["action/log_prob"])
    assert replay["log_prob"].requires_grad
    assert replay["value"].requires_grad
    assert not replay["next_value"].requires_grad


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("env_id", [COUNTDOWN, TWO_STATES], ids=["terminated", "truncated"])
def test_the_next_value_is_that_of_what_a_step_led_to(env_id, recurrent):
    (trajectories,), agent = acquire(env_id, 20, recurrent=recurrent)
    steps, model = trajectories.trajectories, agent.model
    replay = agent.replay(trajectories)
    n_cut = 0
    for row in range(4):
        memory = torch.zeros(1, 8)
        for t in range(20):
            if recurrent:
                memory *= ~steps["observation/initial_state"][row, t]
                memory = model.memory(
                    model.features(steps["observation/frame"][row, t])[None], memory
                )
            features = model.features(steps["_observation/frame"][row, t])[None]
            if recurrent:
                features = model.memory(features, memory)
            expected = model.value(features)[0] * ~steps["_observation/terminated"][row, t]
            n_cut += int(steps["_observation/done"][row, t])
            torch.testing.assert_close(replay["next_value"][row, t], expected.detach())
    assert n_cut >= 4
    features = model.features(steps["observation/frame"])
    if recurrent:
        features = agent._remembered(features, trajectories)
    of_all = agent._value_after(steps["_observation/frame"], features)  # As on a GPU.
    of_all = of_all.masked_fill(steps["_observation/terminated"], 0.0)
    torch.testing.assert_close(of_all.detach(), replay["next_value"])


# A GPU that is played has no GRU.
@pytest.mark.parametrize("recurrent", [False, pytest.param(True, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("env_id", [COUNTDOWN, TWO_STATES], ids=["terminated", "truncated"])
def test_a_loss_is_the_same_on_a_gpu_and_does_not_wait_for_it(env_id, recurrent, gpu, leave_alone):
    (trajectories,), agent = acquire(env_id, 20, recurrent=recurrent)
    config = Config(vtrace=True)
    with torch.no_grad():  # A GPU that is played has no gradients.
        expected, _ = loss(agent, trajectories, config)
        on_gpu = create_agent(env_id, gpu, hidden_size=8, recurrent=recurrent, bf16=False)
        on_gpu.update({name: one.to(gpu) for name, one in agent.model.state_dict().items()})
        there = trajectories.to(gpu)
        with leave_alone():
            found, _ = loss(on_gpu, there, config)
    torch.testing.assert_close(found.cpu(), expected)


# --- Groups. ---


def part(first: int, n_timesteps: int) -> Trajectories:
    """Returns steps of four environments, with 100 times the environment plus the time."""
    times = torch.arange(first, first + n_timesteps)
    steps = {"x": 100 * torch.arange(4)[:, None] + times}
    info = {
        "policy_version": torch.full((4,), first),
        "agent_state/memory": 100 * torch.arange(4) + first,
    }
    return Trajectories(DictTensor(info), TemporalDictTensor(steps))


def test_groups_take_turns_with_their_last_steps():
    window = Window(n_groups=2)
    window.add(part(0, 2))
    assert window.group(0).trajectories["x"].tolist() == [[0, 1], [100, 101]]
    window.add(part(2, 2))
    window.add(part(4, 2))
    for number, rows in ((1, (2, 3)), (2, (0, 1)), (3, (2, 3))):
        found = window.group(number)
        assert found.trajectories["x"].tolist() == [
            [100 * row + t for t in range(2, 6)] for row in rows
        ]
        assert found.trajectories["policy_version"].tolist() == [[2, 2, 4, 4]] * 2
        assert found.info["agent_state/memory"].tolist() == [100 * row + 2 for row in rows]
    window.clear()
    window.add(part(6, 2))
    assert window.group(0).trajectories["x"].tolist() == [[6, 7], [106, 107]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_groups": 3}, r"n_timesteps: expected a multiple of n_groups \(3\), got 16"),
        ({"n_groups": 8, "n_envs": 12}, r"n_envs: expected a multiple of n_groups \(8\), got 12"),
        ({"asynchronous": True, "n_processes": 0}, "n_processes: expected 1 or more for asynchr"),
        ({"reward_scale": 0.0}, r"reward_scale: expected more than 0, got 0\.0"),
    ],
)
def test_rejects_options(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)


# --- Training. ---

KINDS = {
    "plain": {},
    "recurrent": {"recurrent": True},
    "groups": {"vtrace": True, "n_groups": 2},
}


@pytest.mark.parametrize("kind", KINDS)
def test_learns_the_two_state_task(tmp_path, kind):
    options = {"total_steps": 60_000, "evaluate_every": 20, "target_return": "threshold"}
    # Nothing that is done has any effect later.
    sizes = {"n_envs": 8, "n_timesteps": 8, "hidden_size": 32, "discount": 0.5}
    options |= {"learning_rate": 0.003, "checkpoint_every": 1000, **sizes}
    config = small(tmp_path, **options, **KINDS[kind])
    result = train(config)
    returns = [
        float(row["charts/episodic_return"]) for row in read_table(tmp_path / "training.csv")
    ]
    assert [x for x in returns if not math.isnan(x)][0] < 6  # A guess is worth 4.
    assert result.score.mean >= 7.5
    assert result.n_steps < 60_000, "it did not stop when the task was solved"


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_run_that_was_never_interrupted(tmp_path, kind):
    options = {"evaluate_every": 6, **KINDS[kind]}
    n_steps = 6 * 16 // options.get("n_groups", 1)
    half = train(small(tmp_path / "half", **options, total_steps=n_steps))
    whole = train(small(tmp_path / "whole", **options, total_steps=2 * n_steps))
    resumed = train(small(None, **options, total_steps=2 * n_steps, resume=str(tmp_path / "half")))
    assert (half.n_iterations, resumed.n_iterations, whole.n_iterations) == (6, 12, 12)
    assert resumed.score == whole.score
    assert_same(contents(resumed.folder, "a2c"), contents(whole.folder, "a2c"))


def test_an_evaluation_that_is_under_way_is_resumed_too(tmp_path, monkeypatch):
    def scores(folder: Path) -> list[dict[str, str]]:
        rows = read_table(folder / "evaluation.csv")
        return [{name: row[name] for name in row if name != "seconds"} for row in rows]

    class EndedError(Exception):
        pass

    def save_and_end(run: Run) -> None:
        save(run)
        raise EndedError

    save = Run._save
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_save", save_and_end)
        with pytest.raises(EndedError):
            train(small(tmp_path / "cut", evaluate_every=6))
    # Its score came in before the run was cut; of what came after the checkpoint nothing is kept.
    header = "step,seconds,evaluation/return_mean,evaluation/return_std"
    (tmp_path / "cut" / "evaluation.csv").write_text(f"{header}\n96,1.0,2.0,3.0\n")
    train(small(None, evaluate_every=6, resume=str(tmp_path / "cut")))
    train(small(tmp_path / "whole", evaluate_every=6))
    assert [row["step"] for row in scores(tmp_path / "whole")] == ["96", "192", "192"]
    assert scores(tmp_path / "cut") == scores(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(0, 0, 0)] * 12),
        ({"n_groups": 2, "vtrace": True}, [(0, 0, 0), *[(0, 0.5, 1)] * 5] * 2),
        # The first steps after a checkpoint have to wait for the weights.
        (
            {"asynchronous": True, "n_processes": 1, "vtrace": True},
            [(0, 0, 0), *[(1, 1, 1)] * 5] * 2,
        ),
    ],
    ids=["blocking", "groups", "asynchronous"],
)
def test_the_lag_of_the_policy_is_reported(tmp_path, options, expected):
    train(small(tmp_path, **options, total_steps=12 * 16 // options.get("n_groups", 1)))
    rows = read_table(tmp_path / "training.csv")
    names = [f"charts/policy_lag{which}" for which in ("_min", "", "_max")]
    assert [tuple(float(row[name]) for name in names) for row in rows] == expected


def test_a_run_of_an_atari_game(tmp_path, monkeypatch):
    options = ["--n-envs", "4", "--n-groups", "2", "--n-timesteps", "4", "--total-steps", "64"]
    few = ["--evaluation-episodes", "1", "--hidden-size", "16", "--checkpoint-every", "100"]
    folder = tmp_path / "run"
    arguments = [
        "--env-id",
        "BreakoutNoFrameskip-v4",
        *options,
        *few,
        "--checkpoint-dir",
        str(folder),
    ]
    monkeypatch.setattr("sys.argv", ["a2c", *arguments, "--log-every", "4", "--n-threads", "1"])
    main()
    assert json.loads((folder / "config.json").read_text())["vtrace"] is True
    rows = read_table(folder / "training.csv")
    assert [int(row["step"]) for row in rows] == [32, 64]
    for row in rows:
        assert float(row["charts/raw_FPS"]) == pytest.approx(4 * float(row["charts/SPS"]))
        assert math.isfinite(float(row["losses/policy"]))
        assert 0 < float(row["losses/entropy"]) < math.log(4)
    mean, scale = frame_statistics("BreakoutNoFrameskip-v4", seed=0)
    weights = checkpoints.load(folder, "a2c")["model"]
    assert torch.equal(weights["encoder.mean"], mean)
    assert torch.equal(weights["encoder.scale"], scale)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, when it compiles.
def test_compiled_features_are_the_same():
    options = {"env_id": "PongNoFrameskip-v4", "device": "cpu", "hidden_size": 16}
    plain, compiled = create_agent(**options).model, create_agent(**options, compiled=True).model
    compiled.load_state_dict(plain.state_dict())
    assert plain.encoder._compiled_call_impl is None
    assert compiled.encoder._compiled_call_impl is not None
    for shape in ((3,), (2, 3)):  # To act on, and to learn from.
        frame = torch.randint(256, (*shape, 4, 84, 84), dtype=torch.uint8)
        gradients = []
        for model in (plain, compiled):
            model.zero_grad()
            model.features(frame).square().mean().backward()
            gradients.append([p.grad for p in model.parameters() if p.grad is not None])
        torch.testing.assert_close(compiled.features(frame), plain.features(frame))
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_the_learning_rate_goes_down_to_its_last_share(tmp_path):
    train(small(tmp_path / "run", anneal_learning_rate=True, learning_rate=0.5))
    (group,) = checkpoints.load(tmp_path / "run", "a2c")["optimizer"]["param_groups"]
    assert group["lr"] == pytest.approx(0.5 / 12)


def test_advantages_may_be_shifted_and_scaled():
    config = Config(discount=DISCOUNT, normalize_advantages=True)
    _, parts = loss(KnownAgent(), known_trajectories(), config)
    advantages = torch.tensor(literal_targets(config)[0])
    scaled = (advantages - advantages.mean()) / advantages.std(correction=0)
    expected = -(torch.tensor(LOG_PROB) * scaled).mean()
    torch.testing.assert_close(parts["losses/policy"], expected)


def test_gradients_are_no_longer_than_their_limit(tmp_path):
    with gradient_norms() as norms:
        train(small(tmp_path, max_gradient_norm=1e-3))
    assert norms == [pytest.approx(1e-3, rel=0.1)] * 12


def test_a_run_asks_for_what_its_options_say(tmp_path, monkeypatch):
    groups, resets, envs, group = [], [], [], Window.group
    monkeypatch.setattr(
        Window, "group", lambda self, number: groups.append(number % 2) or group(self, number)
    )

    def spy(n_envs, seed, use, iteration):
        resets.append((use, iteration))
        return episode_infos(n_envs, seed, use, iteration)

    def create(**given):
        envs.append(given)
        return create_env(**given)

    monkeypatch.setattr("algos.a2c.train.episode_infos", spy)
    monkeypatch.setattr("algos.a2c.train.create_env", create)
    options = {"n_groups": 2, "vtrace": True, "recurrent": True, "life_loss_ends": True}
    train(small(tmp_path, **options, total_steps=12 * 8))
    assert groups == [0, 1] * 6
    assert resets == [(Episodes.TRAINING, 0), (Episodes.TRAINING, 6)]
    assert [given["life_loss_ends"] for given in envs] == [True]
    assert "memory.weight_ih" in checkpoints.load(tmp_path, "a2c")["model"]


def test_a_segment_is_as_long_as_its_iterations():
    options = {"checkpoint_every": 100, "n_timesteps": 8}
    assert Config(**options).longest_episode == 800
    assert Config(**options, n_groups=2).longest_episode == 400


def test_only_rows_that_are_stochastic_draw():
    agent = create_agent("CartPole-v1", "cpu", hidden_size=8)
    n = 1000
    observation = DictTensor({"frame": torch.randn(1, 4).expand(n, 4)})
    stochastic = torch.arange(n) % 2 == 0
    info = DictTensor({"stochastic": stochastic, "seed": torch.arange(n)})
    action = agent(agent.initial_state(info, n), observation, info)[0]["action"]
    assert len(action[~stochastic].unique()) == 1
    assert len(action[stochastic].unique()) == 2


@pytest.mark.parametrize(
    ("env_id", "recurrent", "is_shared"),
    [
        (TWO_STATES, False, False),
        (TWO_STATES, True, True),
        ("PongNoFrameskip-v4", False, True),
    ],
)
def test_policy_and_value_share_features_of_images_and_memories(env_id, recurrent, is_shared):
    model = create_agent(env_id, "cpu", hidden_size=8, recurrent=recurrent).model
    frame = torch.ones(1, 4, 84, 84, dtype=torch.uint8) if "Pong" in env_id else torch.eye(2)[:1]
    features = model.features(frame)
    model.value(features).sum().backward()
    slopes = [p.grad for p in model.encoder.parameters() if p.grad is not None]
    assert any(bool(slope.any()) for slope in slopes) == is_shared


@pytest.mark.parametrize("env_id", [TWO_STATES, "PongNoFrameskip-v4"])
def test_features_in_bfloat16_are_nearly_the_same(env_id):
    plain = create_agent(env_id, "cpu", hidden_size=16).model
    rounded = create_agent(env_id, "cpu", hidden_size=16, bf16=True).model
    rounded.load_state_dict(plain.state_dict())
    shape = (3, 4, 84, 84) if "Pong" in env_id else (3, 2)
    frame = torch.randint(256, shape, dtype=torch.uint8)
    found, expected = rounded.features(frame), plain.features(frame)
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    encoder = rounded.encoder
    assert encoder(frame if "Pong" in env_id else frame.float()).dtype == torch.float32
