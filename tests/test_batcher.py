"""What a batcher returns, and when. Faults are in test_batcher_failures.py, mistakes of
the caller, an agent or an environment in test_batcher_mistakes.py.
"""

import os
import random
import re
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from rlbatch import DictTensor, RL_Agent
from rlbatch.envs import GymEnv, GymEnvInf
from tests.batchers import LENGTHS, CountingAgent, Napper, acquire, assert_equal, make_batcher
from tests.helpers import CountingEnv, CountingGym, NestedGym
from tests.processes import nothing_stays_in_shared_memory, worker_pids


class RandomAgent(RL_Agent):
    """An agent that draws from all three global generators."""

    def __call__(self, state, observation, agent_info, history=None):
        n = observation.n_elems()
        noise = torch.rand(n) + torch.from_numpy(np.random.rand(n)) + random.random()
        return DictTensor({"action": torch.randint(2, (n,)), "noise": noise}), DictTensor()


class LinearAgent(RL_Agent):
    """An agent with one weight, which it answers with."""

    def __init__(self, weight=1.0):
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(self.model.weight, weight)

    def update(self, state_dict):
        self.model.load_state_dict(state_dict)

    def __call__(self, state, observation, agent_info, history=None):
        n = observation.n_elems()
        weight = self.model(torch.ones(n, 1)).squeeze(1)
        return DictTensor({"action": torch.zeros(n, dtype=torch.int64), "w": weight}), DictTensor()


@pytest.mark.parametrize("n_processes", [0, 2])
def test_rows_are_never_mixed_and_episodes_run_on_over_slots(n_processes):
    """Environment, episode and step are written in each frame, and must agree with the slot."""
    lengths = LENGTHS if not n_processes else LENGTHS[:4]
    total = LENGTHS if not n_processes else LENGTHS[:4] * 2
    with make_batcher(n_processes, lengths) as batcher:
        for episode in range(2):
            batcher.reset()
            running = dict(enumerate(total))  # Steps left, by environment.
            start = 0
            while running:
                batcher.execute()
                trajectories, n_running = batcher.get()
                steps, info = trajectories.trajectories, trajectories.info
                assert info["env_id"].tolist() == list(running)
                expected = [min(4, left) for left in running.values()]
                assert steps.lengths.tolist() == expected
                assert steps.n_timesteps() == max(expected)
                for row, (number, left) in enumerate(running.items()):
                    n = min(4, left)
                    for t in range(n):
                        where = [number, episode, start + t]
                        assert steps["observation/frame"][row, t].tolist() == where
                        assert steps["action/seen"][row, t].tolist() == where
                        assert steps["action/count"][row, t] == start + t
                        after = [number, episode, start + t + 1]
                        assert steps["_observation/frame"][row, t].tolist() == after
                    assert info["agent_state/count"][row] == start
                    assert steps["_observation/done"][row, n - 1] == (left <= 4)
                    for key in steps:
                        assert not steps[key][row, n:].any(), f"padding of {key} is not zero"
                running = {k: left - 4 for k, left in running.items() if left > 4}
                start += 4
                assert n_running == len(running)


@pytest.mark.parametrize("n_processes", [0, 1])
def test_with_autoreset_the_terminal_observation_is_kept_and_the_next_episode_follows(n_processes):
    with make_batcher(n_processes, [2, 3], autoreset=True, n_timesteps=5) as batcher:
        batcher.reset()
        for slot in range(2):
            batcher.execute()
            trajectories, n_running = batcher.get()
            assert n_running == 2
            steps = trajectories.trajectories
            assert steps.lengths.tolist() == [5, 5]
            for row, length in enumerate([2, 3]):
                for t in range(5):
                    now = slot * 5 + t
                    episode, step = divmod(now, length)
                    assert steps["observation/frame"][row, t].tolist() == [row, episode, step]
                    assert steps["_observation/frame"][row, t].tolist() == [row, episode, step + 1]
                    assert steps["observation/initial_state"][row, t] == (step == 0)
                    assert steps["_observation/done"][row, t] == (step + 1 == length)


def test_trajectories_are_equal_however_the_environments_are_split():
    """0, 1, 2 and 4 processes over 8 real environments, through episode ends and resets."""

    class Balance(RL_Agent):
        def __call__(self, state, observation, agent_info, history=None):
            frame = observation["frame"]
            lean = 2 * frame[:, 2] + 0.01
            return DictTensor({"action": (lean > 0).long(), "lean": lean}), DictTensor()

    def cartpoles(n_envs, kind, seed):
        return kind([gymnasium.make("CartPole-v1") for _ in range(n_envs)], seed)

    def acquire(n_processes, kind):
        env_args = {"n_envs": 8 // max(n_processes, 1), "kind": kind}
        batcher = make_batcher(
            n_processes, create_env=cartpoles, env_args=env_args, create_agent=Balance, seeds=7,
            n_timesteps=40,
        )  # fmt: skip
        with batcher:
            batches = []
            for _ in range(2):
                batcher.reset()
                n_running = 8
                while n_running and len(batches) % 4 < 3:
                    batcher.execute()
                    trajectories, n_running = batcher.get()
                    batches.append(trajectories)
            return batches

    for kind, splits in ((GymEnv, (0, 1, 4)), (GymEnvInf, (0, 2))):
        reference = acquire(0, kind)
        assert any(batch.trajectories["_observation/done"].any() for batch in reference)
        first = reference[0].trajectories["observation/frame"][:, 0]
        assert len(first.unique(dim=0)) == 8, "two environments start alike"
        for n_processes in splits:
            for expected, found in zip(reference, acquire(n_processes, kind), strict=True):
                assert_equal(expected, found)


def test_a_random_agent_draws_the_same_in_a_process_and_in_the_callers():
    """And the caller's own draws are not disturbed."""

    def acquire(n_processes, seeds):
        with make_batcher(n_processes, create_agent=RandomAgent, seeds=seeds) as batcher:
            batcher.reset()
            batcher.execute()
            return batcher.get()[0]

    torch.manual_seed(1)
    expected_draw = torch.rand(3)
    torch.manual_seed(1)
    here = acquire(0, seeds=5)
    assert torch.equal(torch.rand(3), expected_draw)
    assert_equal(here, acquire(0, seeds=5))
    assert_equal(here, acquire(1, seeds=5))
    other = acquire(0, seeds=6)
    assert not torch.equal(here.trajectories["action/noise"], other.trajectories["action/noise"])


def test_processes_draw_different_numbers():
    with make_batcher(2, lengths=[4], create_agent=RandomAgent) as batcher:
        noise = acquire(batcher)[0].trajectories["action/noise"]
    assert not torch.equal(noise[0], noise[1])


def test_agent_seeds_reach_the_agents_of_their_process():
    class Seeded(CountingAgent):
        def seed(self, seed):
            self.given = seed

        def __call__(self, state, observation, agent_info, history=None):
            action, state = super().__call__(state, observation, agent_info)
            action.set("seed", torch.full((observation.n_elems(),), self.given))
            return action, state

    for n_processes, seeds in ((2, [11, 22]), (0, [33])):
        batcher = make_batcher(n_processes, lengths=[4], create_agent=Seeded, agent_seeds=seeds)
        with batcher:
            assert acquire(batcher)[0].trajectories["action/seed"][:, 0].tolist() == seeds


def test_environment_seeds_are_dealt_out_as_documented():
    def recorded(n_envs, seed):
        return SeedRecorder([CountingGym(length=2) for _ in range(n_envs)], seed)

    def seeds_of(n_processes, n_envs, seeds):
        batcher = make_batcher(
            n_processes, create_env=recorded, env_args={"n_envs": n_envs}, seeds=seeds,
            create_agent=LinearAgent,
        )  # fmt: skip
        with batcher:
            return acquire(batcher)[0].trajectories["observation/seed"][:, 0].tolist()

    from_int = seeds_of(0, 4, 3)
    assert from_int == seeds_of(2, 2, 3)
    assert len(set(from_int)) == 4
    assert from_int != seeds_of(0, 4, 4)
    assert seeds_of(2, 2, [9, 8, 7, 6]) == [9, 8, 7, 6]
    per_process = seeds_of(2, 2, [0, 10])
    assert len(set(per_process)) == 4


class SeedRecorder(GymEnv):
    """A GymEnv that observes the seed of each environment."""

    def __init__(self, envs, seed):
        super().__init__(envs, seed)
        self.envs = envs

    def reset(self, env_info=None):
        observation, running = super().reset(env_info)
        self._add(observation, running)
        return observation, running

    def step(self, action):
        (after, ran), (following, running) = super().step(action)
        self._add(after, ran)
        if following is not after:
            self._add(following, running)
        return (after, ran), (following, running)

    def _add(self, observation, running):
        seeds = torch.tensor([self.envs[number].seeds[0] for number in running.tolist()])
        observation.set("seed", seeds.to(torch.int64))


@pytest.mark.parametrize("n_processes", [0, 2])
def test_agent_info_and_env_info_reach_their_environment(n_processes):
    lengths = [6, 2, 6, 2]
    total = len(lengths) * max(n_processes, 1)
    with make_batcher(n_processes, lengths, n_timesteps=3) as batcher:
        epsilon, option = torch.rand(total), torch.arange(total) + 10
        batcher.reset(DictTensor({"epsilon": epsilon}), DictTensor({"option": option}))
        batcher.execute()
        first = batcher.get()[0]
        assert torch.equal(first.info["agent_info/epsilon"], epsilon)
        assert torch.equal(first.info["env_info/option"], option)
        assert torch.equal(first.trajectories["observation/option"][:, 0], option)
        assert torch.equal(first.trajectories["action/epsilon"][:, 1], epsilon)
        # Half of the environments have ended; the rows of the others are found among all.
        changed = torch.rand(total)
        batcher.execute(DictTensor({"epsilon": changed}))
        second = batcher.get()[0]
        ids = second.info["env_id"]
        assert ids.tolist() == [k for k in range(total) if k % 2 == 0]
        assert torch.equal(second.info["agent_info/epsilon"], changed[ids])
        assert torch.equal(second.trajectories["action/epsilon"][:, 0], changed[ids])
        assert torch.equal(second.info["env_info/option"], option[ids])


class Told(CountingEnv):
    """Takes its task from the agent's output."""

    def step(self, action):
        self.option = action["epsilon"].long()
        return super().step(action)


@pytest.mark.parametrize("n_processes", [0, 1])
def test_an_environment_gets_all_that_the_agent_has_returned(n_processes):
    def task(number):
        return DictTensor({"epsilon": torch.full((2,), float(number))})

    changes = {"create_env": lambda seed: Told([9, 9], True), "env_args": {}}
    with make_batcher(n_processes, agent_info=task(0).slice(0), **changes) as batcher:
        batcher.reset()
        for number in (3, 7):
            batcher.execute(task(number))
            option = batcher.get()[0].trajectories["_observation/option"]
            assert option.tolist() == [[number] * 4] * 2


def test_the_constructors_info_stands_in_for_one_that_is_left_out():
    with make_batcher(0, agent_info=DictTensor({"epsilon": torch.tensor([0.25])})) as batcher:
        assert acquire(batcher)[0].info["agent_info/epsilon"].tolist() == [0.25] * len(LENGTHS)


def test_get_returns_memory_of_the_callers_own_unless_told_otherwise():
    with make_batcher(1, [50], autoreset=True) as batcher:
        owned = acquire(batcher)[0]
        before = owned.clone()
        for _ in range(100):
            batcher.execute()
            shared = batcher.get(copy=False)[0]
        assert_equal(owned, before)
        seen = shared.trajectories["observation/frame"].clone()
        shared.info.set("mine", torch.zeros(1))  # The dicts are the caller's own.
        shared.trajectories.set("mine", torch.zeros(1, 4))
        batcher.execute()
        again = batcher.get(copy=False)[0]
        assert "mine" not in again.info
        assert "mine" not in again.trajectories
        assert not torch.equal(shared.trajectories["observation/frame"], seen)


def test_lengths_are_the_callers_own_where_episodes_end():
    with make_batcher(0, [6, 6]) as batcher:
        first = acquire(batcher)[0]
        batcher.execute()
        batcher.get()
        assert first.trajectories.lengths.tolist() == [4, 4]


def test_what_an_agent_draws_goes_on_from_slot_to_slot():
    def two_slots(n_processes):
        settings = {"create_agent": RandomAgent, "n_timesteps": 2}
        with make_batcher(n_processes, [9], **settings) as batcher:
            batcher.reset()
            for _ in range(2):
                batcher.execute()
                yield batcher.get()[0]

    first, second = two_slots(0)
    assert not torch.equal(first.trajectories["action/noise"], second.trajectories["action/noise"])
    for one, other in zip((first, second), two_slots(1), strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("n_processes", [0, 2])
def test_update_reaches_every_agent_and_is_counted(n_processes):
    source = torch.nn.Linear(1, 1, bias=False)
    with make_batcher(n_processes, [50], autoreset=True, create_agent=LinearAgent) as batcher:
        batcher.reset()
        for version in range(3):
            batcher.execute()
            batch = batcher.get()[0]
            weight = 1.0 if version == 0 else float(version) * 10
            assert (batch.trajectories["action/w"] == weight).all()
            assert (batch.info["policy_version"] == version).all()
            torch.nn.init.constant_(source.weight, (version + 1) * 10.0)
            batcher.update(source.state_dict())


def test_update_during_an_acquisition_waits_for_it_and_loses_nothing():
    with make_batcher(2, [50], autoreset=True, create_agent=LinearAgent) as batcher:
        batcher.reset()
        batcher.execute()
        batcher.update({"weight": torch.tensor([[5.0]])})
        old = batcher.get()[0]
        batcher.execute()
        new = batcher.get()[0]
    assert (old.trajectories["action/w"] == 1).all()
    assert (old.info["policy_version"] == 0).all()
    assert (new.trajectories["action/w"] == 5).all()
    assert (new.info["policy_version"] == 1).all()


def test_agent_arguments_are_copied_into_the_callers_process_too():
    """Otherwise the agent would see weights before `update`."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 1.0)

    def create_agent(model):
        agent = LinearAgent()
        agent.model = model
        return agent

    with make_batcher(0, create_agent=create_agent, agent_args={"model": model}) as batcher:
        torch.nn.init.constant_(model.weight, 2.0)
        assert (acquire(batcher)[0].trajectories["action/w"][:, 0] == 1).all()


LONG = pytest.param(10_000, marks=pytest.mark.slow)


@pytest.mark.parametrize("n_rounds", [300, LONG])
def test_get_without_blocking_never_loses_repeats_or_reorders(n_rounds):
    polls_in_vain = 0
    with make_batcher(2, [3 * n_rounds], autoreset=True, n_timesteps=2) as batcher:
        batcher.reset()
        for index in range(n_rounds):
            batcher.execute()
            while True:
                trajectories, n_running = batcher.get(blocking=False)
                if trajectories is not None:
                    break
                assert n_running is None
                polls_in_vain += 1
            assert n_running == 2
            now = trajectories.trajectories["observation/frame"][:, 0, 2]
            assert now.tolist() == [2 * index] * 2
    assert polls_in_vain, "every poll found a result: nothing was tested"


def test_a_batcher_on_the_cpu_leaves_the_seed_of_cuda_to_its_caller(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with make_batcher(0, create_agent=RandomAgent, seeds=5) as batcher:
        batcher.reset()
        batcher.execute()
    assert not seeds
    torch.manual_seed(7)
    assert seeds == [7]


def test_history_holds_the_slot_so_far_for_those_that_run():
    class Historian(CountingAgent):
        def require_history(self):
            return True

        def __call__(self, state, observation, agent_info, history=None):
            action, state = super().__call__(state, observation, agent_info)
            frames = history["observation/frame"]
            assert history.lengths.tolist() == [frames.shape[1]] * observation.n_elems()
            assert ("action/seen" in history) == (frames.shape[1] > 0)
            # All of the past is of the same environment and episode as the present.
            assert (frames[:, :, :2] == observation["frame"][:, None, :2]).all()
            action.set("n_past", history.lengths)
            return action, state

    for autoreset in (False, True):
        with make_batcher(0, [7, 5], autoreset, create_agent=Historian, n_timesteps=4) as batcher:
            steps = acquire(batcher)[0].trajectories
            assert steps["action/n_past"].tolist() == [[0, 1, 2, 3]] * 2
    with make_batcher(0, [2, 5], create_agent=Historian, n_timesteps=4) as batcher:
        steps = acquire(batcher)[0].trajectories
        assert steps["action/n_past"].tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]  # With padding.


def test_nested_observations_and_uint8_arrive_as_they_are():
    class Mirror(RL_Agent):
        def __call__(self, state, observation, agent_info, history=None):
            keys = [key for key in observation if key.startswith(("choice", "image", "inner"))]
            return observation.get(keys).prepend_key("action/"), DictTensor()

    def nested(seed):
        return GymEnvInf([NestedGym(), NestedGym()], seed)

    batcher = make_batcher(1, create_env=nested, env_args={}, create_agent=Mirror)
    with batcher:
        steps = acquire(batcher)[0].trajectories
    assert steps["observation/image"].dtype == torch.uint8
    assert steps["_observation/inner/1/position"].dtype == torch.float64
    assert steps["action/action/inner/1/flags"].shape == (2, 4, 4)
    # The environment observes the action it was given.
    assert torch.equal(steps["_observation/image"], steps["action/action/image"])


def test_workers_run_one_torch_thread_and_the_callers_count_stays():
    class Threads(CountingAgent):
        def __call__(self, state, observation, agent_info, history=None):
            action, state = super().__call__(state, observation, agent_info)
            n_threads = torch.full((observation.n_elems(),), torch.get_num_threads())
            action.set("n_threads", n_threads)
            return action, state

    before = torch.get_num_threads()
    for expected in (1, 2):
        batcher = make_batcher(1, create_agent=Threads, num_threads=expected)
        with batcher:
            found = acquire(batcher)[0].trajectories["action/n_threads"]
            assert found[0, 0] == expected
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("n_processes", [0, 1])
def test_stats_tell_where_the_time_goes(n_processes):
    class SlowEnv(CountingEnv):
        def step(self, action):
            time.sleep(0.01)
            return super().step(action)

    class SlowAgent(CountingAgent):
        def __call__(self, state, observation, agent_info, history=None):
            time.sleep(0.05)
            return super().__call__(state, observation, agent_info)

    batcher = make_batcher(
        n_processes, create_env=lambda seed: SlowEnv([100]), env_args={}, create_agent=SlowAgent
    )
    with batcher:
        acquire(batcher)
        (stats,) = batcher.stats()
    assert stats["n_steps"] == 4
    assert 0.04 <= stats["env_s"] < 0.2 <= stats["agent_s"]
    assert 0 < stats["storage_s"]
    assert (stats["wait_s"] > 0) == (n_processes == 1)


def resident_kib(pid):
    """Returns the memory that a process has now."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


@pytest.mark.parametrize("n_rounds", [1000, LONG])
def test_memory_does_not_grow(n_rounds):
    with make_batcher(1, [50, 3], autoreset=True, n_timesteps=2) as batcher:
        batcher.reset()
        processes = [os.getpid(), *worker_pids(batcher)]
        for index in range(200 + n_rounds):
            batcher.execute()
            batcher.get()
            if index == 200:
                before = [resident_kib(process) for process in processes]
        after = [resident_kib(process) for process in processes]
    grown = [now - then for now, then in zip(after, before, strict=True)]
    assert max(grown) < 4096, f"{grown} KiB in {n_rounds} acquisitions"


def test_nothing_is_left_in_shared_memory_and_no_descriptor_is_left_open():
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    with nothing_stays_in_shared_memory():
        for attempt in range(2):
            if attempt == 1:  # The first may open files for good: /dev/urandom and the like.
                opened = descriptors()
            with make_batcher(2, [3]) as batcher:
                acquire(batcher)
        assert descriptors() == opened


def test_weights_that_an_agent_keeps_are_not_the_callers():
    class Keeper(LinearAgent):
        def update(self, state_dict):
            self.kept = state_dict

        def __call__(self, state, observation, agent_info, history=None):
            n = observation.n_elems()
            weight = self.kept["weight"].expand(n, 1)[:, 0]
            action = torch.zeros(n, dtype=torch.int64)
            return DictTensor({"action": action, "w": weight}), DictTensor()

    for n_processes in (0, 1):
        weight = torch.ones(1, 1)
        with make_batcher(n_processes, [9], create_agent=Keeper) as batcher:
            batcher.update({"weight": weight})
            weight.fill_(2)
            assert (acquire(batcher)[0].trajectories["action/w"] == 1).all()


def test_lengths_are_the_callers():
    with make_batcher(0, [4, 5], n_timesteps=3) as batcher:
        first, _ = acquire(batcher)
        batcher.execute()
        batcher.get()
        assert first.trajectories.lengths.tolist() == [3, 3]


def test_the_seed_of_an_agent_may_be_0():
    seeds = []

    class Seeded(CountingAgent):
        def seed(self, seed):
            seeds.append(seed)

    with make_batcher(0, create_agent=Seeded, agent_seeds=[0]):
        assert seeds == [0]


@pytest.mark.parametrize(
    ("seed", "draw"),
    [
        (np.random.seed, np.random.rand),
        (random.seed, random.random),
        (torch.manual_seed, lambda: float(torch.rand(()))),
    ],
    ids=["numpy", "random", "torch"],
)
def test_draws_of_environments_are_not_the_callers_nor_the_other_way_round(seed, draw):
    class Draws(CountingEnv):
        def step(self, action):
            drawn.append(draw())
            return super().step(action)

    runs = []
    for callers in (1, 2):
        drawn = []
        with make_batcher(0, create_env=lambda seed: Draws([4]), env_args={}) as batcher:
            batcher.reset()
            seed(callers)
            batcher.execute()
            found = draw()
        seed(callers)
        assert draw() == found
        runs.append(drawn)
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1


def test_normal_numbers_come_in_pairs_of_one_stream():
    """NumPy draws two at a time, and keeps the second one beside its generator."""

    class Draws(CountingEnv):
        def step(self, action):
            drawn.append(np.random.randn())
            return super().step(action)

    np.random.seed(1)
    ours = np.random.randn(4).tolist()
    runs, found = [], []
    for length in (4, 1):  # In one execute, or in one each.
        drawn = []
        with make_batcher(
            0, create_env=lambda seed: Draws([9]), env_args={}, n_timesteps=length
        ) as batcher:
            batcher.reset()
            np.random.seed(1)
            found.append([])
            for _ in range(4 // length):
                found[-1].append(np.random.randn())
                batcher.execute()
                batcher.get()
        runs.append(drawn)
    assert runs[0] == runs[1]
    assert found == [ours[:1], ours]


def test_draws_of_a_close_after_a_failure_are_not_the_callers():
    class Draws(CountingAgent):
        def update(self, info):
            raise ValueError("on purpose")

        def close(self):
            torch.rand(1)

    torch.manual_seed(1)
    expected = torch.rand(1)
    with make_batcher(0, create_agent=Draws) as batcher:
        torch.manual_seed(1)
        with pytest.raises(ValueError, match="on purpose"):
            batcher.update({})
        assert torch.rand(1) == expected


def test_an_agent_info_belongs_to_the_caller():
    class Changes(CountingAgent):
        def __call__(self, state, observation, agent_info, history=None):
            assert list(agent_info) == ["epsilon"]
            agent_info.set("mine", torch.zeros(observation.n_elems()))
            if agent_info["epsilon"][0] == 2:
                agent_info["epsilon"].add_(1)
            return super().__call__(state, observation, agent_info)

    example, info = (DictTensor({"epsilon": torch.ones(n)}) for n in (1, 2))
    with make_batcher(0, [9, 9], create_agent=Changes, agent_info=example) as batcher:
        batcher.reset()
        batcher.execute(info)
        batcher.get()
        info["epsilon"].add_(1)
        with pytest.raises(ValueError, match="agent_info/epsilon: expected it to be left as it is"):
            batcher.execute(info)
        assert info["epsilon"].tolist() == [2, 2]


def test_a_later_change_of_an_agent_info_does_not_count():
    example, info = (DictTensor({"epsilon": torch.ones(n)}) for n in (1, 2))
    with make_batcher(0, [9, 9], agent_info=example) as batcher:
        batcher.reset(agent_info=info)
        info["epsilon"].zero_()
        batcher.execute()
        assert batcher.get()[0].info["agent_info/epsilon"].tolist() == [1, 1]


def test_stats_are_the_callers():
    with make_batcher(0) as batcher:
        batcher.reset()
        batcher.stats()[0]["n_steps"] = 7
        assert batcher.stats()[0]["n_steps"] == 0


def test_a_reset_takes_time_of_the_environment():
    class Slow(CountingEnv):
        def reset(self, env_info=None):
            time.sleep(0.05)
            return super().reset(env_info)

    with make_batcher(0, create_env=lambda seed: Slow([9]), env_args={}) as batcher:
        batcher.reset()
        assert batcher.stats()[0]["env_s"] >= 0.05


def test_waiting_for_the_first_step_of_another_process_is_no_storage():
    def create_env(seed):
        return Napper([9, 9], nap_at=0 if seed.process == 1 else None)

    with make_batcher(2, create_env=create_env, env_args={}) as batcher:
        acquire(batcher)
        first, second = batcher.stats()
    assert second["env_s"] > 0.9 > second["storage_s"]
    assert first["wait_s"] > 0.9 > first["storage_s"]


def test_stats_of_a_new_batcher_are_zero():
    keys = {"env_s", "agent_s", "storage_s", "wait_s", "n_steps"}
    for n_processes in (0, 2):
        with make_batcher(n_processes) as batcher:
            assert batcher.stats() == [dict.fromkeys(keys, 0)] * max(n_processes, 1)


def test_stats_never_go_back():
    class Updated(CountingAgent):
        def update(self, info):
            pass

    with make_batcher(1, create_agent=Updated) as batcher:
        batcher.reset()
        batcher.execute()
        time.sleep(0.3)  # In which the worker waits.
        batcher.update({})
        waited = batcher.stats()[0]["wait_s"]
        batcher.get()
        assert batcher.stats()[0]["wait_s"] >= waited > 0.1


def test_stats_are_those_of_each_process():
    def create_env(seed):
        return CountingEnv([2] if seed.process == 0 else [7])

    with make_batcher(2, create_env=create_env, env_args={}, n_timesteps=9) as batcher:
        batcher.reset()
        batcher.execute()
        batcher.get()
        assert [stats["n_steps"] for stats in batcher.stats()] == [2, 7]


def test_time_in_an_environment_that_writes_its_steps_itself_is_told():
    class Slow(CountingGym):
        def step(self, action):
            time.sleep(0.01)
            return super().step(action)

    class First(RL_Agent):
        def __call__(self, state, observation, agent_info, history=None):
            action = torch.zeros(observation.n_elems(), dtype=torch.int64)
            return DictTensor({"action": action}), DictTensor()

    with make_batcher(
        0,
        create_agent=First,
        create_env=lambda seed: GymEnvInf([Slow(length=3)], seed),
        env_args={},
        n_timesteps=10,
    ) as batcher:
        batcher.reset()
        for n in (10, 20):
            batcher.execute()
            batcher.get()
            assert batcher.stats()[0]["env_s"] > n * 0.01
