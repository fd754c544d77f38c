"""`GymEnv` and `GymEnvInf` against Gymnasium environments that are stepped by hand."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import TransformReward

from rlbatch.dicttensor import DictTensor
from rlbatch.envs import GymEnv, GymEnvInf, gym
from rlbatch.errors import CallOrderError, DeviceMismatchError, DtypeMismatchError, ShapeError
from tests.helpers import BACKENDS, CountingGym, actions, episode_lengths, gym_env

# Python 3.12 warns of every fork beside a thread; the children here run NumPy alone.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SEEDS = [5, 6, 2**32 - 1]
# Some of a random agent's episodes end before this, others are cut by it.
make_cartpole = partial(gymnasium.make, "CartPole-v1", max_episode_steps=20)

FLAGS = {"reward": 0.0, "terminated": False, "truncated": False, "done": False}
DTYPES = {
    "frame": torch.float32,
    "reward": torch.float32,
    "terminated": torch.bool,
    "truncated": torch.bool,
    "done": torch.bool,
    "initial_state": torch.bool,
    "last_action": torch.int64,
    "episode_return": torch.float32,
    "episode_length": torch.int64,
}


def play_by_hand(env, tape, seed=None, late=False, resets=()) -> Iterator[tuple[dict, dict]]:
    """Yields what is acted on and what that leads to, episode after episode.

    `late`: the reset is a step of its own, which acts on the terminal observation.
    `resets`: before which steps an episode is broken off.
    """

    def first():
        frame, _ = env.reset(seed=seed)
        counts = {"initial_state": True, "last_action": 0, "episode_return": 0, "episode_length": 0}
        return {"frame": frame, **FLAGS, **counts}

    now, seed = first(), None
    for t, action in enumerate(tape):
        if t in resets:
            now = first()
        if late and now["done"]:
            after = first()
        else:
            frame, reward, terminated, truncated, _ = env.step(action)
            after = {
                "frame": frame,
                "reward": reward,
                "terminated": terminated,
                "truncated": truncated,
                "done": terminated or truncated,
                "initial_state": False,
                "last_action": action,
                "episode_return": now["episode_return"] + reward,
                "episode_length": now["episode_length"] + 1,
            }
        yield now, after
        now = first() if after["done"] and not late else after


def assert_rows_equal(found, rows):
    """Asserts that an observation consists of exactly these rows."""
    assert list(found) == list(DTYPES)
    for key, dtype in DTYPES.items():
        expected = torch.from_numpy(np.stack([np.asarray(row[key]) for row in rows])).to(dtype)
        assert found[key].dtype == dtype, key
        assert torch.equal(found[key], expected), key


def random_tape(n_steps, n_envs):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(2, (n_steps, n_envs), generator=generator)


@pytest.mark.parametrize("backend", BACKENDS)
def test_auto_resetting_trajectories_equal_those_of_environments_stepped_by_hand(backend):
    tape, late = random_tape(120, 3), backend.endswith("NEXT_STEP")
    by_hand = [
        play_by_hand(make_cartpole(), tape[:, b].tolist(), seed, late)
        for b, seed in enumerate(SEEDS)
    ]
    n_terminated = n_truncated = 0
    with closing(GymEnvInf(gym_env(backend, [make_cartpole] * 3), seed=SEEDS)) as env:
        now, running = env.reset()
        for action, pairs in zip(tape, zip(*by_hand, strict=True), strict=True):
            assert_rows_equal(now, [before for before, _ in pairs])
            (after, ran), (now, running) = env.step(DictTensor({"action": action}))
            assert_rows_equal(after, [led_to for _, led_to in pairs])
            assert ran.tolist() == running.tolist() == [0, 1, 2]
            n_terminated += int(after["terminated"].sum())
            n_truncated += int(after["truncated"].sum())
    assert n_terminated >= 5
    assert n_truncated >= 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_some_environments_begin_anew_and_the_others_go_on(backend):
    tape, late = random_tape(400, 3), backend.endswith("NEXT_STEP")
    chosen = torch.rand(400, 3, generator=torch.Generator().manual_seed(1)) < 0.1
    by_hand = [
        play_by_hand(make_cartpole(), tape[:, b].tolist(), seed, late, chosen[:, b].nonzero())
        for b, seed in enumerate(SEEDS)
    ]
    n_after_an_end = 0
    with closing(GymEnvInf(gym_env(backend, [make_cartpole] * 3), seed=SEEDS)) as env:
        now, _ = env.reset()
        for mask, action, pairs in zip(chosen, tape, zip(*by_hand, strict=True), strict=True):
            n_after_an_end += int((mask & now["done"]).sum())
            env.reset_where(mask)
            now, running = env.reset_where(torch.zeros(3, dtype=torch.bool))  # Nobody.
            assert running.tolist() == [0, 1, 2]
            assert_rows_equal(now, [before for before, _ in pairs])
            (after, _), (now, _) = env.step(DictTensor({"action": action}))
            assert_rows_equal(after, [led_to for _, led_to in pairs])
    assert (n_after_an_end > 0) == late


@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        ([True, False], TypeError),
        (torch.ones(2), DtypeMismatchError),
        (torch.ones(3, dtype=torch.bool), ShapeError),
        (torch.ones(2, dtype=torch.bool, device="meta"), DeviceMismatchError),
    ],
)
def test_a_mask_that_is_none_is_refused(chosen, error):
    env = GymEnvInf([CountingGym(), CountingGym()])
    env.reset()
    with pytest.raises(error, match=r"^(env.reset_where: )?chosen: expected .*, got "):
        env.reset_where(chosen)


def test_some_environments_begin_anew_only_after_a_reset_or_a_step():
    env, everyone = GymEnvInf([CountingGym()], seed=0), torch.ones(1, dtype=torch.bool)
    with pytest.raises(CallOrderError, match="^reset_where: expected a reset or a step before"):
        env.reset_where(everyone)
    now, _ = env.reset()
    arrays = {key: tensor.numpy() for key, tensor in now.items()}
    env.step_into(actions(1), arrays, arrays)
    with pytest.raises(CallOrderError, match="^reset_where: expected a reset or a step before"):
        env.reset_where(everyone)
    env.step(actions(1))
    assert env.reset_where(everyone)[0]["frame"].tolist() == [[0, 1, 0]]


def test_a_vector_environment_that_may_reset_all_is_refused():
    one = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    env = GymEnvInf(one, seed=0)
    env.reset()
    with pytest.raises(NotImplementedError, match="^reset_where: .*, got CartPoleVectorEnv in the"):
        env.reset_where(torch.tensor([True, False]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_environment_runs_one_episode_per_reset_and_equals_one_stepped_by_hand(backend):
    tape = random_tape(20, 3)
    by_hand = [
        play_by_hand(make_cartpole(), tape[:, b].tolist(), seed) for b, seed in enumerate(SEEDS)
    ]
    counts = []
    with closing(GymEnv(gym_env(backend, [make_cartpole] * 3), seed=SEEDS)) as env:
        now, running = env.reset()
        for action, pairs in zip(tape, zip(*by_hand, strict=True), strict=True):
            numbers = running.tolist()
            if not numbers:
                break
            counts.append(len(numbers))
            assert_rows_equal(now, [pairs[number][0] for number in numbers])
            pair, (now, running) = env.step(DictTensor({"action": action[running]}))
            assert_rows_equal(pair[0], [pairs[number][1] for number in numbers])
            assert pair[1].tolist() == numbers
            assert running.tolist() == [n for n in numbers if not pairs[n][1]["done"]]
        assert not len(running)
    assert sorted(set(counts)) == [1, 2, 3]


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_else_plays_changes_no_episode(backend):
    make = partial(gymnasium.make, "CartPole-v1")

    def lengths(seeds):
        with closing(GymEnv(gym_env(backend, [make] * len(seeds)), seeds)) as env:
            return episode_lengths(env, 4, lambda frame: (frame[:, 2] > 0).long())

    together = lengths([5, 6, 7])
    assert torch.equal(together, torch.cat([lengths([5]), lengths([6, 7])]))
    assert len(together.unique()) > 4


def test_a_second_reset_continues_the_random_streams():
    raw, env = make_cartpole(), GymEnv([make_cartpole()], seed=[7])
    frames = [raw.reset(seed=7)[0], raw.reset()[0], raw.reset()[0]]
    for frame in frames:
        observation, _ = env.reset()
        assert observation["frame"].tolist() == [frame.tolist()]
    assert not np.array_equal(frames[0], frames[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reset_in_the_middle_of_episodes_starts_new_ones_everywhere(backend):
    makers = [partial(CountingGym, number, length=number + 2) for number in range(2)]
    for make_env in (GymEnv, GymEnvInf):
        with closing(make_env(gym_env(backend, makers))) as env:
            env.reset()
            env.step(actions(0, 0))
            env.step(actions(0, 0))  # Ends the episode of environment 0 alone.
            observation, running = env.reset()
            assert running.tolist() == [0, 1]
            assert observation["frame"][:, [0, 2]].tolist() == [[0, 0], [1, 0]]
            assert observation["initial_state"].tolist() == [True, True]
            (after, _), _ = env.step(actions(0, 0))
            assert after["frame"][:, [0, 2]].tolist() == [[0, 1], [1, 1]]
            assert torch.equal(
                after["frame"][:, 1], observation["frame"][:, 1]
            )  # The same episode.
            assert after["episode_length"].tolist() == [1, 1]
            assert after["episode_return"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("backend", ["list", "sync-SAME_STEP"])
def test_the_return_of_each_environment_is_its_own(backend):
    class Pays(CountingGym):
        def step(self, action):
            frame, _, *rest = super().step(action)
            return frame, self.number, *rest

    env = GymEnv(gym_env(backend, [partial(Pays, 5, 1), partial(Pays, 7, 3), partial(Pays, 9, 2)]))
    _, running = env.reset()
    returns = []
    while len(running):
        (after, _), (_, running) = env.step(actions(*[0] * len(running)))
        returns.append(after["episode_return"].tolist())
    assert returns == [[5, 7, 9], [14, 18], [21]]


def test_auto_resets_agree_with_a_vector_environment_in_the_same_step_mode():
    vector = SyncVectorEnv([make_cartpole] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    env = GymEnvInf([make_cartpole() for _ in range(3)], seed=SEEDS)
    frames, _ = vector.reset(seed=SEEDS)
    now, _ = env.reset()
    n_done = 0
    for action in random_tape(60, 3):
        assert torch.equal(now["frame"], torch.from_numpy(frames))
        frames, reward, terminated, truncated, info = vector.step(action.numpy())
        (after, _), (now, _) = env.step(DictTensor({"action": action}))
        last = frames.copy()
        for b in np.flatnonzero(terminated | truncated):
            last[b] = info["final_obs"][b]
            n_done += 1
        assert torch.equal(after["frame"], torch.from_numpy(last))
        assert after["reward"].tolist() == reward.tolist()
        assert after["terminated"].tolist() == terminated.tolist()
        assert after["truncated"].tolist() == truncated.tolist()
    assert n_done >= 6


@pytest.mark.parametrize("make_env", [GymEnv, GymEnvInf])
def test_a_vector_environment_that_is_none_of_gymnasiums_two_is_stepped_as_it_is(make_env):
    make = partial(
        gymnasium.make_vec,
        "CartPole-v1",
        num_envs=3,
        vectorization_mode="vector_entry_point",
        max_episode_steps=14,
    )
    vector = make()
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    frames, _ = vector.reset(seed=5)
    env = make_env(make(), seed=[5, 6, 7])  # It takes one seed, the first.
    now, running = env.reset()
    done = np.zeros(3, bool)
    n_ends = n_resets = 0
    for action in random_tape(40, 3):
        assert torch.equal(now["frame"], torch.from_numpy(frames)[running])
        if not env.autoreset:  # Ended environments play on with the first action.
            action = action.where(torch.isin(torch.arange(3), running), action[running[0]])
        resetting = done
        frames, _, terminated, truncated, _ = vector.step(action.numpy())
        done = terminated | truncated
        (after, ran), (now, running) = env.step(DictTensor({"action": action[running]}))
        assert torch.equal(after["frame"], torch.from_numpy(frames)[ran])
        assert after["done"].tolist() == done[ran].tolist()
        if env.autoreset:
            assert after["initial_state"].tolist() == resetting.tolist()
            n_resets += resetting.sum()
        n_ends += int(after["done"].sum())
        if not len(running):
            break
    assert (n_ends >= 6 and n_resets >= 6) if env.autoreset else n_ends == 3


@pytest.mark.parametrize("make_env", [GymEnv, GymEnvInf])
def test_a_step_before_the_first_reset_is_refused(make_env):
    with pytest.raises(CallOrderError, match="step: expected a reset before the first step"):
        make_env([CountingGym()]).step(actions(0))


@pytest.mark.parametrize("action", [torch.zeros(1), {"action": torch.zeros(1)}, 0])
def test_an_action_that_is_no_dicttensor_is_refused(action):
    env = GymEnv([CountingGym()])
    env.reset()
    with pytest.raises(TypeError, match="^action: expected a DictTensor, got a "):
        env.step(action)


def test_a_step_after_all_episodes_ended_is_refused_until_the_next_reset():
    env = GymEnv([CountingGym(length=1)])
    env.reset()
    _, (following, running) = env.step(actions(0))
    assert running.tolist() == []
    assert list(following["frame"].shape) == [0, 3]
    with pytest.raises(CallOrderError, match="step: expected a running environment"):
        env.step(actions(0))
    env.reset()
    env.step(actions(0))


@pytest.mark.parametrize("make_env", [GymEnv, GymEnvInf])
@pytest.mark.parametrize("backend", ["list", "sync-SAME_STEP", "sync-DISABLED", "no-copy"])
def test_what_was_returned_is_never_written_again(make_env, backend):
    makers = [partial(CountingGym, number, length=number + 2) for number in range(3)]
    envs = SyncVectorEnv(makers, copy=False) if backend == "no-copy" else gym_env(backend, makers)
    env = make_env(envs)
    observation, running = env.reset()
    returned, copies = [(observation, running)], [(observation.clone(), running.clone())]
    for step in range(12):
        if not len(running):
            observation, running = env.reset()
        pairs = env.step(DictTensor({"action": torch.full((len(running),), step % 2)}))
        returned += pairs
        copies += [(o.clone(), r.clone()) for o, r in pairs]
        _, running = pairs[1]
    for (observation, running), (copy, running_copy) in zip(returned, copies, strict=True):
        assert torch.equal(running, running_copy)
        assert all(torch.equal(observation[key], copy[key]) for key in copy)


@pytest.mark.parametrize("backend", ["list", "sync-SAME_STEP", "sync-NEXT_STEP"])
def test_no_two_tensors_of_an_observation_share_memory(backend):
    makers = [partial(CountingGym, number, length=number + 1) for number in range(3)]
    for make_env in (GymEnv, GymEnvInf):
        env = make_env(gym_env(backend, makers))
        observations = [env.reset()[0]]
        (after, _), (following, running) = env.step(actions(0, 0, 0))
        observations += [after, following]
        observations.append(env.step(actions(*[0] * len(running)))[0][0])
        for observation in observations:
            places = [tensor.data_ptr() for tensor in observation.values()]
            assert len(set(places)) == len(places) == 9


def test_steps_that_only_reset_bring_a_hint_once(caplog):
    gym._hint_at_late_resets.cache_clear()
    make = partial(CountingGym, length=2)
    GymEnv(gym_env("sync-NEXT_STEP", [make]))
    GymEnvInf(gym_env("sync-SAME_STEP", [make]))
    GymEnvInf([make()])
    assert not caplog.messages
    for _ in range(2):
        GymEnvInf(gym_env("sync-NEXT_STEP", [make]))
    assert len(caplog.messages) == 1
    assert "~steps['observation/done']" in caplog.messages[0]


def test_a_reset_in_the_place_of_a_late_one_starts_a_count_of_its_own():
    env = GymEnvInf(gym_env("sync-NEXT_STEP", [partial(CountingGym, length=2)]), seed=0)
    env.reset()
    env.step(actions(1))
    env.step(actions(1))  # The end, and nobody steps on.
    env.reset()
    (after, _), _ = env.step(actions(1))
    assert not after["initial_state"].any()
    assert after["episode_length"].tolist() == [1]
    assert after["reward"].tolist() == [1.0]


def test_a_reward_that_a_wrapper_gives_to_a_reset_is_left_out():
    vector = gym_env("sync-NEXT_STEP", [partial(CountingGym, length=2)])
    env = GymEnvInf(TransformReward(vector, lambda reward: reward - 0.5), seed=0)
    env.reset()
    rewards = [env.step(actions(1))[0][0]["reward"].item() for _ in range(4)]
    assert rewards == [0.5, 1.5, 0, 0.5]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_seed_waits_for_the_next_reset(backend):
    def starts(seeds):
        with closing(GymEnvInf(gym_env(backend, [make_cartpole]), seed=0)) as env:
            firsts = [env.reset()[0]["frame"]]
            if seeds:
                env.seed(7)
            for action in random_tape(60, 1):
                (after, _), (following, _) = env.step(DictTensor({"action": action}))
                for observation in (after, following):
                    if observation["initial_state"]:
                        firsts.append(observation["frame"])
            firsts.append(env.reset_where(torch.tensor([True]))[0]["frame"])
            return torch.cat(firsts), env.reset()[0]["frame"]

    (before, first), (expected, other) = starts(seeds=True), starts(seeds=False)
    assert len(expected) > 3
    assert torch.equal(before, expected)
    assert not torch.equal(first, other)
    assert torch.equal(first, GymEnvInf([make_cartpole()], seed=7).reset()[0]["frame"])


def test_what_a_step_has_returned_is_the_callers():
    env = GymEnvInf(gym_env("sync-NEXT_STEP", [partial(CountingGym, length=1)]), seed=0)
    env.reset()
    (after, _), _ = env.step(actions(1))
    after["done"].fill_(False)
    (after, _), _ = env.step(actions(1))
    assert after["initial_state"].tolist() == [True]


class Route(CountingGym):
    """Takes one of the places that it is told out of the list in every step."""

    def reset(self, *, seed=None, options=None):
        self.places = options["places"]
        return super().reset(seed=seed)

    def step(self, action):
        frame, reward, *_ = super().step(action)
        self.places.pop()
        return frame, reward, not self.places, False, {}


def test_options_that_an_environment_uses_up_are_whole_in_the_next_episode():
    with closing(GymEnvInf([Route(length=9)], 0)) as env:
        env.reset(DictTensor({"places": torch.tensor([[3, 1, 2]])}))
        ends = []
        for _ in range(6):
            (after, _), _ = env.step(DictTensor({"action": torch.tensor([0])}))
            ends.append(bool(after["terminated"]))
    assert ends == [False, False, True] * 2


class Random(gymnasium.ActionWrapper):
    def action(self, action):
        return self.action_space.sample()


def test_action_spaces_are_seeded_as_well():
    def frames(seed):
        env = GymEnvInf([gymnasium.wrappers.RecordEpisodeStatistics(Random(make_cartpole()))], seed)
        env.reset()
        action = DictTensor({"action": torch.zeros(1, dtype=torch.int64)})
        return torch.stack([env.step(action)[0][0]["frame"] for _ in range(20)])

    assert torch.equal(frames(1), frames(1))
    assert not torch.equal(frames(1), frames(2))


def test_the_action_space_below_a_wrapper_with_its_own_is_seeded():
    class Other(gymnasium.ActionWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.action_space = gymnasium.spaces.Discrete(3)

        def action(self, action):
            return self.env.action_space.sample()

    def drawn():
        inner = CountingGym(length=30)
        env = GymEnv([Other(inner)], seed=5)
        env.reset()
        for _ in range(20):
            env.step(actions(0))
        return inner.actions

    assert drawn() == drawn()
