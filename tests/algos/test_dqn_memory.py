"""The replay memory of DQN, beside a literal account of what was put in."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algos.dqn.memory import ReplayMemory
from algos.environments import create_atari
from rlbatch import DictTensor, DtypeMismatchError, ShapeError, TemporalDictTensor

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
    expected = 118 / 79 if priority_exponent else 1.0  # Of 118 entries 79 begin a transition.
    assert drawn["probability"].unique().tolist() == pytest.approx([expected])


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


@pytest.mark.parametrize("space", [FLAT, STACKED])
def test_entries_where_no_transition_begins_yet_weigh_nothing(monkeypatch, space):
    """They have the highest priority, beside which that of the others may be next to nothing."""
    monkeypatch.setattr("algos.dqn.memory._MOST_REDRAWS", 1)
    stack = 1 if space is FLAT else STACK
    memory = ReplayMemory(24 * N_ENVS, N_ENVS, space, 4, priority_exponent=1.0, stack=stack)
    memory.allocate()
    tape = Tape(1, space)
    for _ in range(5):  # The ring comes round.
        memory.add(tape.steps(10))
        place = memory.sample(500)["place"]
        memory.set_priorities(place, torch.full(place.shape, 1e-9))
        memory.add(tape.steps(1))
        assert (memory.sample(500)["probability"] > 0).all()


@pytest.mark.parametrize(("capacity", "n_envs", "exponent"), [(40, 4, 0), (80, 2, 0), (80, 4, 1)])
def test_a_memory_of_another_size_is_refused(capacity: int, n_envs: int, exponent: float) -> None:
    space = spaces.Box(0, 1, (3,))
    saved, other = ReplayMemory(80, 4, space), ReplayMemory(capacity, n_envs, space, 1, 1, exponent)
    saved.allocate()
    with pytest.raises(ValueError, match="memory: expected one saved with the same capacity"):
        other.load_state_dict(saved.state_dict())


def test_a_memory_with_another_exponent_or_other_frames_is_refused():
    space = spaces.Box(0, 1, (3,), np.float32)
    bytes_, one, half = (
        ReplayMemory(80, 4, *options)
        for options in (
            (spaces.Box(0, 255, (3,), np.uint8), 1, 0.99, 1.0), (space, 1, 0.99, 1.0),
            (space, 1, 0.99, 0.5),
        )
    )  # fmt: skip
    one.allocate()
    for other in (bytes_, half):
        with pytest.raises(ValueError, match="memory: expected one saved with the same capacity"):
            other.load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"n_envs": 0}, "n_envs: expected at least 1, got 0"),
        ({"n_steps": 0}, "n_steps: expected at least 1, got 0"),
        ({"stack": 0}, "stack: expected at least 1, got 0"),
    ],
)
def test_a_memory_of_nothing_is_refused(options, expected):
    with pytest.raises(ValueError, match=f"^{expected}$"):
        ReplayMemory(**{"capacity": 80, "n_envs": 2, "observation_space": FLAT, **options})


def test_steps_that_are_not_those_of_the_environments_are_refused():
    memory = ReplayMemory(60, N_ENVS, FLAT)
    memory.allocate()
    steps = Tape(0, FLAT).steps(4)
    with pytest.raises(ShapeError, match=r"^observation/frame: expected \(3, 2\) .*got \(1, 2\)"):
        memory.add(steps.slice(0, 1))
    steps.set("observation/frame", steps["observation/frame"].double())
    with pytest.raises(DtypeMismatchError, match="^observation/frame: expected torch.float32"):
        memory.add(steps)
    assert memory.n_entries() == 0


@pytest.mark.parametrize("priority", [math.nan, math.inf])
def test_a_priority_that_is_no_number_is_what_the_error_is_about(priority):
    memory = ReplayMemory(60, N_ENVS, FLAT, priority_exponent=1.0)
    memory.allocate()
    memory.add(Tape(0, FLAT).steps(10))
    place = memory.sample(4)["place"]
    memory.set_priorities(place, torch.full((4,), priority))
    with pytest.raises(ValueError, match="^sample: expected finite priorities, got others"):
        memory.sample(4)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.uint32, np.uint8])
def test_frames_before_an_episode_are_zeros_whatever_was_there(dtype):
    space = spaces.Box(0, 9, (2, 1), dtype)
    memory = ReplayMemory(40, 1, space, stack=2)
    memory.allocate()
    worst = math.inf if dtype is np.float32 else 9
    frames = torch.tensor([[[0], [worst]], [[0], [1]], [[1], [2]], [[2], [3]]])
    frames = frames.to(torch.from_numpy(np.zeros(0, dtype)).dtype).unsqueeze(0)
    ends = torch.tensor([[True, False, False, False]])
    steps = {
        "observation/frame": frames,
        "observation/initial_state": torch.tensor([[True, True, False, False]]),
        "action/action": torch.zeros(1, 4, dtype=torch.int64),
        "_observation/frame": frames,
        "_observation/reward": torch.zeros(1, 4),
        "_observation/terminated": ends,
        "_observation/done": ends,
    }
    memory.add(TemporalDictTensor(steps))
    drawn = memory.sample(100)["frame"].flatten(1).tolist()
    assert sorted({tuple(stack) for stack in drawn}) == [(0, 1), (0, worst), (1, 2)]


@pytest.mark.parametrize("stack", [1, 3])
def test_every_step_that_is_followed_by_one_is_drawn(stack):
    torch.manual_seed(0)
    memory = ReplayMemory(200, 2, spaces.Box(0, 255, (3, 1), np.uint8), stack=stack)
    memory.allocate()
    frame, never = torch.zeros(2, 6, 3, 1, dtype=torch.uint8), torch.zeros(2, 6, dtype=torch.bool)
    begins = never.clone()
    begins[:, 0] = True
    steps = {
        "observation/frame": frame,
        "observation/initial_state": begins,
        "action/action": torch.arange(12).view(2, 6),
        "_observation/frame": frame,
        "_observation/reward": torch.zeros(2, 6),
        "_observation/terminated": never,
        "_observation/done": never,
    }
    memory.add(TemporalDictTensor(steps))
    drawn = set(memory.sample(2000)["action"].tolist())
    assert drawn == set(range(12)) - {5, 11}


def test_priorities_count_to_the_power_of_their_exponent():
    torch.manual_seed(0)
    memory = ReplayMemory(20, 1, FLAT, priority_exponent=0.5)
    memory.allocate()
    memory.add(one_row([False] * 3, [False] * 3))
    memory.set_priorities(torch.tensor([0, 1]), torch.tensor([1.0, 9.0]))
    n_drawn = memory.sample(10_000)["place"].bincount()
    assert (n_drawn[1] / n_drawn[0]).item() == pytest.approx(3, rel=0.15)


def test_one_environment_without_transitions_is_enough_to_refuse():
    memory = ReplayMemory(60, 2, FLAT)
    memory.allocate()
    rows = [one_row([True], [True]), one_row([False], [False])]  # 2 entries and 1.
    memory.add(TemporalDictTensor({key: torch.cat([row[key] for row in rows]) for key in rows[0]}))
    with pytest.raises(ValueError, match="sample: expected transitions of every environment"):
        memory.sample(2)
