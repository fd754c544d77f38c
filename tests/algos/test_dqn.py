"""DQN: its replay memory, its loss, that it learns, and that a run can be resumed."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algos import checkpoints
from algos.dqn.agent import Agent, Model, create_agent
from algos.dqn.memory import ReplayMemory
from algos.dqn.train import Config, correction, epsilon_at, loss, main, train
from algos.environments import Episodes, create_atari, episode_infos
from algos.evaluation import Evaluation
from algos.logs import read_table
from algos.play import Options, play
from rlbatch import DictTensor, TemporalDictTensor
from tests.algos.runs import assert_same, contents
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


# --- The memory. ---

N_ENVS, STACK = 3, 3
STACKED = spaces.Box(0, 255, (STACK, 2, 2), np.uint8)
FLAT = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Tape:
    """Made-up episodes of several environments, and a literal account of all their steps.

    Frames count up, so that each is seen once; the action is the frame's number modulo 5, the
    reward a power of two of it. Stacks begin with zeros.
    """

    def __init__(self, seed: int, space: spaces.Box):
        self.generator, self.space = np.random.default_rng(seed), space
        self.count = 0
        self.stacks = [self.begin() for _ in range(N_ENVS)]
        self.is_first = [True] * N_ENVS
        # Per environment: (observation, action, reward, next observation, terminated, done).
        self.account: list[list[tuple]] = [[] for _ in range(N_ENVS)]

    def frame(self) -> np.ndarray:
        self.count += 1
        return np.full(self.space.shape[1:] or self.space.shape, self.count, self.space.dtype)

    def begin(self) -> np.ndarray:
        if self.space is FLAT:
            return self.frame()
        stack = np.zeros(STACKED.shape, np.uint8)
        stack[-1] = self.frame()
        return stack

    def follow(self, stack: np.ndarray) -> np.ndarray:
        if self.space is FLAT:
            return self.frame()
        return np.concatenate([stack[1:], self.frame()[None]])

    def steps(self, n_timesteps: int) -> TemporalDictTensor:
        """Returns the next steps, as a batcher does."""
        columns: dict[str, list] = {}
        for _ in range(n_timesteps):
            rows = [self.step(env) for env in range(N_ENVS)]
            for key in rows[0]:
                columns.setdefault(key, []).append(np.stack([row[key] for row in rows]))
        return TemporalDictTensor(
            {key: torch.from_numpy(np.stack(column, 1)) for key, column in columns.items()}
        )

    def step(self, env: int) -> dict[str, Any]:
        stack, is_first = self.stacks[env], self.is_first[env]
        reward, action = np.float32(self.generator.integers(1, 9)), self.generator.integers(5)
        following = self.follow(stack)
        terminated, truncated = self.generator.random(2) < 0.15
        done = terminated | truncated
        self.account[env].append((stack, action, reward, following, terminated, done))
        self.stacks[env] = self.begin() if done else following
        self.is_first[env] = bool(done)
        return {
            "observation/frame": stack,
            "observation/initial_state": np.bool_(is_first),
            "action/action": action,
            "_observation/frame": following,
            "_observation/reward": reward,
            "_observation/terminated": np.bool_(terminated),
            "_observation/done": np.bool_(done),
        }

    def transitions(self, n_steps: int, discount: float) -> dict[int, tuple]:
        """Returns all transitions, by the number of their first frame."""
        found = {}
        for steps in self.account:
            for at, (stack, action, *_) in enumerate(steps):
                total, factor = 0.0, 1.0
                for step in steps[at : at + n_steps]:
                    _, _, reward, following, terminated, done = step
                    total += factor * reward
                    factor *= discount
                    if done:
                        break
                value = 0.0 if terminated else factor
                found[int(stack.flat[-1])] = stack, action, total, following, value
        return found


@pytest.mark.parametrize("space", [STACKED, FLAT], ids=["stacks", "vectors"])
@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("priority_exponent", [0.0, 0.5])
@pytest.mark.parametrize("n_timesteps", [1, 4])
def test_draws_are_transitions_that_were_seen(space, n_steps, priority_exponent, n_timesteps):
    torch.manual_seed(0)
    capacity = 17 * N_ENVS
    stack = space.shape[0] if space is STACKED else 1
    memory = ReplayMemory(capacity, N_ENVS, space, n_steps, 0.5, priority_exponent, stack=stack)
    memory.allocate()
    tape = Tape(0, space)
    newest = set()
    for turn in range(60 // n_timesteps):
        memory.add(tape.steps(n_timesteps))
        if turn * n_timesteps < 10:
            continue
        drawn = memory.sample(64)
        known = tape.transitions(n_steps, 0.5)
        for row in range(64):
            number = int(drawn["frame"][row].flatten()[-1])
            stack, action, total, following, value = known[number]
            assert np.array_equal(drawn["frame"][row].numpy(), stack)
            assert np.array_equal(drawn["next_frame"][row].numpy(), following)
            assert drawn["action"][row] == action
            assert drawn["reward"][row] == pytest.approx(total)
            assert drawn["discount"][row] == pytest.approx(value)
        newest |= {int(x) for x in drawn["frame"].flatten(1)[:, -1]}
    assert len(newest) > 60, "few transitions were drawn"


def test_all_transitions_are_drawn_equally_often_unless_priorities_differ():
    torch.manual_seed(0)
    memory = ReplayMemory(60, N_ENVS, FLAT, priority_exponent=1.0)
    memory.allocate()
    memory.add(Tape(1, FLAT).steps(14))
    drawn = memory.sample(20_000)
    places, counts = drawn["place"].unique(return_counts=True)
    assert (counts.double() / counts.double().mean() - 1).abs().max() < 0.25  # 5 deviations.
    memory.set_priorities(places, torch.ones(len(places)))
    memory.set_priorities(places[:1], torch.tensor([10.0]))
    drawn = memory.sample(20_000)
    is_first = drawn["place"] == places[0]
    expected = 10 / (len(places) + 9)
    assert is_first.double().mean().item() == pytest.approx(expected, rel=0.15)
    ratio = drawn["probability"][is_first][0] / drawn["probability"][~is_first][0]
    assert ratio.item() == pytest.approx(10)


@pytest.mark.parametrize("priority_exponent", [0.0, 0.5])
def test_episodes_of_any_length_are_drawn_from_alike(priority_exponent):
    """One environment has episodes of one step, so that half of its entries are ends."""
    torch.manual_seed(0)
    memory = ReplayMemory(200, 2, FLAT, priority_exponent=priority_exponent)
    memory.allocate()
    done = torch.stack([torch.ones(40, dtype=torch.bool), torch.zeros(40, dtype=torch.bool)])
    rows = [one_row(env.tolist(), env.tolist()) for env in done]
    memory.add(TemporalDictTensor({key: torch.cat([row[key] for row in rows]) for key in rows[0]}))
    drawn = memory.sample(20_000)
    is_short = drawn["place"] < 100
    assert is_short.double().mean().item() == pytest.approx(40 / 79, abs=0.02)  # 6 deviations.
    assert drawn["probability"].unique().numel() == 1


def test_priorities_count_for_nothing_where_their_exponent_is_0():
    memory = ReplayMemory(30, N_ENVS, FLAT, 1, 0.5, 0.0)
    memory.allocate()
    memory.add(Tape(0, FLAT).steps(8))
    torch.manual_seed(0)
    before = memory.sample(50)
    memory.set_priorities(before["place"], torch.full((50,), 1000.0))
    torch.manual_seed(0)
    assert torch.equal(memory.sample(50)["place"], before["place"])


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int16])
def test_numbers_of_any_kind_are_remembered(dtype):
    space = spaces.Box(0, 2000, (3,), dtype)
    memory = ReplayMemory(30, 1, space, 1, 0.5)
    memory.allocate()
    frames = torch.arange(1000, 1018).reshape(1, 6, 3)
    steps = {
        "observation/frame": frames[:, :-1].to(getattr(torch, np.dtype(dtype).name)),
        "_observation/frame": frames[:, 1:].to(getattr(torch, np.dtype(dtype).name)),
        "observation/initial_state": torch.tensor([[True, False, False, False, False]]),
        "action/action": torch.arange(5)[None],
        "_observation/reward": torch.zeros(1, 5),
        "_observation/terminated": torch.zeros(1, 5, dtype=torch.bool),
        "_observation/done": torch.zeros(1, 5, dtype=torch.bool),
    }
    memory.add(TemporalDictTensor(steps))
    drawn = memory.sample(40)
    assert drawn["frame"].dtype == steps["observation/frame"].dtype
    expected = steps["observation/frame"][0].tolist()
    for frame, action in zip(drawn["frame"].tolist(), drawn["action"].tolist(), strict=True):
        assert frame == expected[action]


def test_a_cut_ends_what_is_under_way_and_keeps_its_value():
    torch.manual_seed(0)
    memory = ReplayMemory(60, N_ENVS, FLAT)
    memory.allocate()
    memory.cut()  # Of nothing.
    tape = Tape(2, FLAT)
    memory.add(tape.steps(5))
    last = {int(steps[-1][0].flat[-1]): steps[-1] for steps in tape.account}
    before = {int(steps[-2][0].flat[-1]) for steps in tape.account if not steps[-2][-1]}
    memory.cut()
    tape.stacks, tape.is_first = [tape.begin() for _ in range(N_ENVS)], [True] * N_ENVS
    memory.add(tape.steps(5))
    drawn = memory.sample(2000)
    seen = {int(x) for x in drawn["frame"][:, -1]}
    assert not seen & {number for number, step in last.items() if not step[-1]}
    assert before <= seen
    for row in range(2000):
        number = int(drawn["frame"][row, -1])
        if number in before:
            assert int(drawn["next_frame"][row, -1]) in last
            assert drawn["discount"][row] == pytest.approx(0.99)


def test_a_million_atari_frames_take_7_2_gb_at_most():
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    memory = ReplayMemory(1_000_000, 16, space, n_steps=3, priority_exponent=0.5, stack=4)
    assert 84 * 84 * 1_000_000 < memory.n_bytes() <= 7.2e9
    memory = ReplayMemory(1000, 8, space, stack=4)
    memory.allocate()
    entries = memory.state_dict()["entries"].values()
    assert sum(tensor.nbytes for tensor in entries) == memory.n_bytes()


def test_refuses_a_memory_without_room_or_transitions():
    with pytest.raises(ValueError, match="capacity: expected at least 15, got 14"):
        ReplayMemory(14, N_ENVS, STACKED, n_steps=2, stack=3)
    memory = ReplayMemory(60, N_ENVS, STACKED, n_steps=2, stack=3)
    memory.allocate()
    memory.add(Tape(0, STACKED).steps(1))
    with pytest.raises(ValueError, match="sample: expected transitions of every environment"):
        memory.sample(1)
    memory = ReplayMemory(2 * N_ENVS, N_ENVS, FLAT)
    memory.allocate()
    steps = Tape(0, FLAT).steps(3)
    steps.set("_observation/done", torch.zeros(N_ENVS, 3, dtype=torch.bool))
    memory.add(steps.temporal_slice(0, 2))
    memory.cut()
    memory.add(steps.temporal_slice(2, 3))  # All that is followed by something is an end.
    with pytest.raises(ValueError, match="sample: expected room for more than the ends of episo"):
        memory.sample(1)


def test_stacks_are_those_that_an_atari_agent_saw():
    torch.manual_seed(0)
    env = create_atari("BreakoutNoFrameskip-v4", 2, "cpu", 0)
    memory = ReplayMemory(2 * 400, 2, env.observation_space, stack=4)
    memory.allocate()
    observation, _ = env.reset()
    seen, n_ended = [], 0
    for _ in range(400):
        action = DictTensor({"action": torch.randint(4, (2,))})
        (after, _), (following, _) = env.step(action)
        step = {f"observation/{key}": tensor for key, tensor in observation.items()}
        step |= {f"_observation/{key}": tensor for key, tensor in after.items()}
        step["action/action"] = action["action"]
        memory.add(TemporalDictTensor({key: x.unsqueeze(1).clone() for key, x in step.items()}))
        seen.append((observation["frame"].clone(), after["frame"].clone()))
        n_ended += int(after["done"].sum())
        observation = following
    assert n_ended >= 2
    pairs = {
        (frame[env].numpy().tobytes(), following[env].numpy().tobytes())
        for frame, following in seen
        for env in range(2)
    }
    drawn = memory.sample(300)
    for frame, following in zip(drawn["frame"], drawn["next_frame"], strict=True):
        assert (frame.numpy().tobytes(), following.numpy().tobytes()) in pairs


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
    total, error = loss(model, target_model, batch, weight, double)
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
    config = Config(prioritised=True, priority_correction=0.5)
    assert correction(batch, 0.0, config).tolist() == pytest.approx([0.25, 0.5, 1.0])
    assert correction(batch, 1.0, config).tolist() == pytest.approx([1 / 16, 1 / 4, 1.0])
    assert correction(batch, 0.0, Config()) == 1.0


def test_epsilon_falls_to_its_last_value():
    config = Config(exploration_steps=100, last_epsilon=0.1)
    found = [epsilon_at(n, config) for n in (0, 50, 100, 1000)]
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])


# --- The agent. ---


def test_every_environment_has_an_epsilon_of_its_own():
    agent = create_agent("CartPole-v1", 0.25, "cpu", hidden_size=8)
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


def test_duelling_values_are_a_value_and_advantages_around_it():
    model = Model(FLAT, spaces.Discrete(3), 8, duelling=True)
    frame = torch.randn(5, 2)
    torch.testing.assert_close(model(frame).mean(-1), model._value(model.encoder(frame))[:, 0])
    assert Agent(model, 0.0, "cpu").model is model
    with pytest.raises(TypeError, match="action_space: expected Discrete, got Box"):
        Model(FLAT, FLAT, 8)
    with pytest.raises(ValueError, match="action_space: expected actions from 0 on"):
        Model(FLAT, spaces.Discrete(3, start=1), 8)


# --- Training. ---

KINDS = {
    "plain": {},
    "rainbow's half": {"double": True, "duelling": True, "n_steps": 2, "prioritised": True},
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
        options["priority_correction"] = 1.0
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


@pytest.mark.parametrize(("capacity", "n_envs", "exponent"), [(40, 4, 0), (80, 2, 0), (80, 4, 1)])
def test_a_memory_of_another_size_is_refused(capacity: int, n_envs: int, exponent: float) -> None:
    space = spaces.Box(0, 1, (3,))
    saved, other = ReplayMemory(80, 4, space), ReplayMemory(capacity, n_envs, space, 1, 1, exponent)
    saved.allocate()
    with pytest.raises(ValueError, match="memory: expected one saved with the same capacity"):
        other.load_state_dict(saved.state_dict())


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


def one_row(terminated, truncated):
    """Returns steps [1, T] of one environment."""
    n = len(terminated)
    done = [a or b for a, b in zip(terminated, truncated, strict=True)]
    flags = {
        "_observation/terminated": terminated,
        "_observation/done": done,
        "observation/initial_state": [True, *done[:-1]],
    }
    frames = torch.arange(2.0 * n).reshape(1, n, 2)
    return TemporalDictTensor(
        {
            "observation/frame": frames,
            "_observation/frame": frames + 100,
            "action/action": torch.zeros(1, n, dtype=torch.int64),
            "_observation/reward": torch.ones(1, n),
            **{key: torch.tensor([flag]) for key, flag in flags.items()},
        }
    )


def test_the_end_of_the_next_episode_does_not_count():
    memory = ReplayMemory(20, 1, FLAT, n_steps=3, discount=0.5)
    memory.allocate()
    # Truncated after one step; the next episode terminates after one.
    memory.add(one_row([False, True, *[False] * 4], [True, *[False] * 5]))
    batch = memory.sample(200)
    cut = batch["place"] == 0
    assert cut.any()
    assert (batch["discount"][cut] == 0.5).all()
    assert (batch["reward"][cut] == 1).all()


def test_new_entries_have_the_highest_priority_of_all():
    memory = ReplayMemory(20, 1, FLAT, priority_exponent=1.0)
    memory.allocate()
    part = one_row([False] * 3, [False] * 3)
    memory.add(part)
    memory.set_priorities(torch.tensor([0]), torch.tensor([8.0]))
    memory.set_priorities(torch.tensor([1]), torch.tensor([2.0]))
    memory.add(part)
    assert memory.state_dict()["entries"]["priority"][3:6].tolist() == [8.0] * 3


def test_the_seed_and_the_choice_of_actions_reach_a_film(tmp_path, monkeypatch):
    train(small(tmp_path))
    asked = []
    monkeypatch.setattr("algos.play.record_episode", lambda *given: asked.append(given) or 0.0)
    play(Options(str(tmp_path), tmp_path / "a.mp4", seed=7, stochastic=False))
    play(Options(str(tmp_path), tmp_path / "a.mp4"))  # As in the run's evaluations.
    assert [given[3:] for given in asked] == [(7, False), (0, False)]
