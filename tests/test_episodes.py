"""What `acquire_episodes` returns is the first episodes of each environment, whole."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlbatch import (
    CallOrderError,
    DictTensor,
    KeyMismatchError,
    RL_Agent,
    RL_Batcher,
    SharedMemoryError,
    WorkerTimeoutError,
    acquire_episodes,
    masked_dicttensor,
    replay_agent,
)
from rlbatch import episodes as episodes_module
from rlbatch.envs import GymEnv, GymEnvInf
from tests.batchers import LENGTHS, Napper, assert_equal, make_batcher
from tests.helpers import CountingEnv, CountingGym, gym_env
from tests.processes import SOON_S


class Remembering(RL_Agent):
    """An agent that adds up the steps of its episode, weighted, and answers with the sum."""

    def __init__(self, device="cpu"):
        self.weight = torch.ones((), device=device)

    def initial_state(self, agent_info, B):
        return DictTensor({"sum": self.weight.new_zeros(B)})

    def update(self, weight):
        self.weight = weight

    def __call__(self, state, observation, agent_info, history=None):
        fresh = self.initial_state(agent_info, observation.n_elems())
        state = masked_dicttensor(state, fresh, observation["initial_state"])
        total = state["sum"] + self.weight * (observation["frame"].float()[:, 2] + 1)
        return DictTensor({"action": total.long() % 2, "sum": total}), DictTensor({"sum": total})


def make(create_env, n_timesteps=4, device="cpu", n_processes=0, **changes):
    agent_args = {"device": device}
    return RL_Batcher(
        n_timesteps,
        Remembering,
        agent_args,
        create_env,
        {},
        n_processes,
        seeds=0,
        device=device,
        **changes,
    )


def of_each(n_episodes, lengths):
    """Returns environment, number and length of the episodes that are expected, row by row."""
    share, more = divmod(n_episodes, len(lengths))
    return [
        (env, episode, length)
        for env, length in enumerate(lengths)
        for episode in range(share + (env < more))
    ]


def assert_counted(episodes, expected):
    """Asserts that the rows hold these episodes of environments that count, and zeros."""
    steps = episodes.trajectories
    assert steps.lengths.tolist() == [length for *_, length in expected]
    assert steps.n_timesteps() == max(length for *_, length in expected)
    assert episodes.info["env_id"].tolist() == [env for env, *_ in expected]
    for row, (env, episode, length) in enumerate(expected):
        of_row = {key: tensor[row, :length].tolist() for key, tensor in steps.items()}
        counts = range(length)
        assert of_row["observation/frame"] == [[env, episode, count] for count in counts]
        assert of_row["_observation/frame"] == [[env, episode, count + 1] for count in counts]
        assert of_row["_observation/reward"] == [count + 1 for count in counts]
        assert of_row["_observation/done"] == [count + 1 == length for count in counts]
        assert of_row["observation/initial_state"] == [count == 0 for count in counts]
        assert not any(tensor[row, length:].any() for tensor in steps.values())


@pytest.mark.parametrize("n_episodes", [1, 5, 8, 27])
@pytest.mark.parametrize("n_timesteps", [1, 4, 20])
@pytest.mark.parametrize("autoreset", [False, True])
def test_they_are_the_first_ones_of_each_environment(autoreset, n_timesteps, n_episodes, device):
    create_env = partial(CountingEnv, LENGTHS, autoreset, device)
    with make(create_env, n_timesteps, device) as batcher:
        episodes = acquire_episodes(batcher, n_episodes)
    assert episodes.device().type == device.type
    assert_counted(episodes, of_each(n_episodes, LENGTHS))


@pytest.mark.parametrize("autoreset", [False, True])
def test_they_stay_on_a_gpu(gpu, autoreset):
    found = []
    for device in ("cpu", gpu):
        with make(partial(CountingEnv, LENGTHS, autoreset, device), device=device) as batcher:
            found.append(acquire_episodes(batcher, 12))
    assert found[1].device() == torch.device("cuda:0")
    assert_equal(found[0], found[1].to("cpu"))


@pytest.mark.parametrize("autoreset", [False, True])
def test_processes_give_the_same_ones(autoreset):
    with make_batcher(0, [*LENGTHS, *LENGTHS], autoreset) as batcher:
        expected = acquire_episodes(batcher, 24)
    with make_batcher(2, LENGTHS, autoreset) as batcher:
        assert_equal(acquire_episodes(batcher, 24), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float64])
@pytest.mark.parametrize("backend", ["list", "sync-SAME_STEP", "sync-NEXT_STEP"])
def test_a_step_in_which_an_environment_resets_itself_is_none(backend, dtype):
    lengths = [2, 1, 5]
    makers = [partial(CountingGym, k, length, dtype=dtype) for k, length in enumerate(lengths)]
    with make(lambda seed: GymEnvInf(gym_env(backend, makers), seed)) as batcher:
        episodes = acquire_episodes(batcher, 8)
    frames = episodes.trajectories["observation/frame"].numpy()
    assert frames.dtype == dtype
    for row, (env, episode, length) in enumerate(of_each(8, lengths)):
        assert frames[row, :length].tolist() == [[env, episode, count] for count in range(length)]
        assert episodes.trajectories.lengths[row] == length


class ShortOrLong(gymnasium.Env):
    """Episodes of one step, or of nine, with the same probability."""

    observation_space, action_space = spaces.Box(0, 9, (3,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.choice([1, 9]))
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(3, np.float32), 0.0, self.left == 0, False, {}


@pytest.mark.parametrize("kind", [GymEnv, GymEnvInf])
def test_short_episodes_are_not_favoured(kind):
    with make(lambda seed: kind([ShortOrLong() for _ in range(50)], seed)) as batcher:
        lengths = acquire_episodes(batcher, 1000).trajectories.lengths
    assert set(lengths.tolist()) == {1, 9}
    # The deviation of a mean of 1,000 is 0.016. Of the first 1,000 to end, 0.65 would be short.
    assert 0.44 < (lengths == 1).float().mean() < 0.56


@pytest.mark.parametrize("autoreset", [False, True])
def test_a_replay_remembers_what_the_agent_did(autoreset):
    with make(lambda seed: CountingEnv(LENGTHS, autoreset)) as batcher:
        episodes = acquire_episodes(batcher, 27)
    replayed = replay_agent(Remembering(), episodes)
    mask = episodes.trajectories.mask(torch.bool)
    assert torch.equal(replayed["sum"][mask], episodes.trajectories["action/sum"][mask])


@pytest.mark.parametrize("n_processes", [0, 2])
@pytest.mark.parametrize("autoreset", [False, True])
def test_infos_are_those_of_each_environment(autoreset, n_processes):
    numbers = torch.arange(len(LENGTHS))
    infos = DictTensor({"epsilon": numbers / 10}), DictTensor({"option": numbers + 3})
    lengths = LENGTHS[: len(LENGTHS) // max(n_processes, 1)]
    with make_batcher(n_processes, lengths, autoreset) as batcher:
        episodes = acquire_episodes(batcher, 20, *infos)
    env_id, mask = episodes.info["env_id"], episodes.trajectories.mask(torch.bool)
    assert torch.equal(episodes.info["agent_info/epsilon"], env_id / 10)
    assert torch.equal(episodes.info["env_info/option"], env_id + 3)
    for key, row in (("action/epsilon", env_id / 10), ("observation/option", env_id + 3)):
        expected = row.unsqueeze(1).expand_as(mask)
        assert torch.equal(episodes.trajectories[key][mask], expected[mask])


def test_only_some_keys_are_kept():
    keys = ["action/seen", "_observation/reward"]
    with make_batcher(0, LENGTHS, True) as batcher:
        whole, some = acquire_episodes(batcher, 12), acquire_episodes(batcher, 12, keys=keys)
        assert list(some.trajectories) == keys
        assert torch.equal(some.trajectories.lengths, whole.trajectories.lengths)
        assert torch.equal(some.info["env_id"], whole.info["env_id"])
        reward = whole.trajectories["_observation/reward"]
        assert torch.equal(some.trajectories["_observation/reward"], reward)
        assert list(acquire_episodes(batcher, 12, keys=[]).trajectories) == []
        with pytest.raises(TypeError, match="keys: expected an iterable of strings, got the stri"):
            acquire_episodes(batcher, 12, keys=keys[0])
        with pytest.raises(KeyMismatchError, match="expected one of .*, got 'reward'"):
            acquire_episodes(batcher, 12, keys=["reward"])


def test_the_batcher_goes_on_after_a_reset_alone():
    """Else training would go on with the infos of an evaluation."""
    with make_batcher(0, LENGTHS, True) as batcher:
        acquire_episodes(batcher, 3)
        with pytest.raises(CallOrderError, match="execute: .* new: call reset"):
            batcher.execute()
        with pytest.raises(ValueError, match="max_length"):
            acquire_episodes(batcher, 8, max_length=3)
        with pytest.raises(CallOrderError, match="execute: .* new: call reset"):
            batcher.execute()
        batcher.reset()
        batcher.execute()
        assert batcher.get()[1] == len(LENGTHS)


def test_after_a_timeout_as_well_the_batcher_goes_on_after_a_reset_alone():
    with make_batcher(
        1, create_env=lambda seed: Napper([9, 9], nap_at=1, nap_s=3), env_args={}, timeout=1.5
    ) as batcher:
        with pytest.raises(WorkerTimeoutError):
            acquire_episodes(batcher, 1)
        batcher.get(timeout=SOON_S)
        with pytest.raises(CallOrderError, match="execute: .* new: call reset"):
            batcher.execute()
        for _ in range(2):  # After a reset all is as ever.
            batcher.reset()
            batcher.execute()
            batcher.get(timeout=SOON_S)
            batcher.execute()
            batcher.get(timeout=SOON_S)


def test_what_does_not_fit_into_memory_is_an_error(monkeypatch):
    with make_batcher(0, LENGTHS, True) as batcher:
        n_bytes = sum(
            one.numel() * one.element_size()
            for one in acquire_episodes(batcher, 8).trajectories.values()
        )
        monkeypatch.setattr("rlbatch._memory.free_memory", lambda: n_bytes)
        acquire_episodes(batcher, 8)
        monkeypatch.setattr("rlbatch._memory.free_memory", lambda: n_bytes - 1)
        with pytest.raises(SharedMemoryError, match=f"got {n_bytes:,}; take fewer episodes"):
            acquire_episodes(batcher, 8)


@pytest.mark.parametrize("autoreset", [False, True])
def test_one_policy_plays_an_episode(autoreset):
    with make(lambda seed: CountingEnv(LENGTHS, autoreset)) as batcher:
        before = acquire_episodes(batcher, 12)
        batcher.update(torch.tensor(2.0))
        after = acquire_episodes(batcher, 12)
    assert before.info["policy_version"].tolist() == [0] * 12
    assert after.info["policy_version"].tolist() == [1] * 12
    sums = [episodes.trajectories["action/sum"] for episodes in (before, after)]
    assert torch.equal(2 * sums[0], sums[1])


def test_the_caller_owns_them():
    with make_batcher(0, LENGTHS, True) as batcher:
        first = acquire_episodes(batcher, 8)
        kept = first.clone()
        acquire_episodes(batcher, 8)
    assert_equal(first, kept)


@pytest.mark.parametrize("autoreset", [False, True])
def test_an_episode_that_does_not_end_is_an_error(autoreset):
    with make_batcher(0, [2, 30, 3], autoreset) as batcher:
        message = (
            "max_length: expected episodes of at most 29 steps, got one of 30 .* environment 1"
        )
        with pytest.raises(ValueError, match=message):
            acquire_episodes(batcher, 6, max_length=29)
        episodes = acquire_episodes(batcher, 3, max_length=30)
    assert episodes.trajectories.lengths.tolist() == [2, 30, 3]


def test_an_episode_that_is_too_long_is_not_waited_for():
    class Endless(CountingEnv):
        def step(self, action):
            assert self.count[0] < 20
            return super().step(action)

    with make_batcher(0, create_env=lambda seed: Endless([100]), env_args={}) as batcher:
        with pytest.raises(ValueError, match="episodes of at most 9 steps, got one of 12 or more"):
            acquire_episodes(batcher, 1, max_length=9)


def test_an_episode_that_may_have_no_end_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(episodes_module, "_LONG", 20)
    with make_batcher(0, [2, 30, 3], autoreset=True) as batcher:
        acquire_episodes(batcher, 3, max_length=30)
        assert not caplog.messages
        acquire_episodes(batcher, 3)
    (message,) = caplog.messages
    assert "environment 1 has played" in message
    assert "steps of one episode" in message


def test_mistakes_are_named():
    with make_batcher(0) as batcher:
        with pytest.raises(ValueError, match="n_episodes: expected at least 1, got 0"):
            acquire_episodes(batcher, 0)
        with pytest.raises(TypeError, match="n_episodes: expected an integer, got 2.5"):
            acquire_episodes(batcher, 2.5)
        with pytest.raises(ValueError, match="max_length: expected at least 1, got 0"):
            acquire_episodes(batcher, 1, max_length=0)
        batcher.reset()
        batcher.execute()
        with pytest.raises(CallOrderError, match="reset: .* executing"):
            acquire_episodes(batcher, 1)
        batcher.get()
        batcher.execute()  # These episodes are the caller's own.


def test_keys_may_be_an_iterator():
    with make_batcher(0, [5], n_timesteps=2) as batcher:
        found = acquire_episodes(batcher, 2, keys=iter(["observation/frame"]))
    assert list(found.trajectories) == ["observation/frame"]


def test_an_environment_of_which_nothing_is_wanted_may_go_on():
    with make_batcher(0, [5, 10**9], autoreset=True, n_timesteps=2) as batcher:
        assert acquire_episodes(batcher, 1, max_length=100).trajectories.lengths.tolist() == [5]
        assert batcher.stats()[0]["n_steps"] == 6
