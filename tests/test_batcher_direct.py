"""An environment that writes its steps into the slots itself gives the same trajectories."""

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlbatch import DictTensor, DtypeMismatchError, RL_Agent, RL_Batcher
from rlbatch.envs import DeviceEnv, GymEnvInf
from tests.batchers import assert_equal, make_batcher
from tests.helpers import CountingEnv, NestedGym


class Remembering(RL_Agent):
    """Keeps the last two observations in its state, without a copy, and answers with them."""

    def initial_state(self, agent_info, B):
        return DictTensor({"before": torch.zeros(B, 4), "long_before": torch.zeros(B, 4)})

    def __call__(self, state, observation, agent_info, history=None):
        frame = observation["frame"]
        action = (frame[:, 2] > 0).long()
        output = {"action": action, "before": state["before"], "long_before": state["long_before"]}
        return DictTensor(output), DictTensor({"before": frame, "long_before": state["before"]})


class Mirror(RL_Agent):
    def __call__(self, state, observation, agent_info, history=None):
        keys = [key for key in observation if key.startswith(("choice", "image", "inner"))]
        return observation.get(keys).prepend_key("action/"), DictTensor()


def cartpoles():
    return [gymnasium.make("CartPole-v1", max_episode_steps=20) for _ in range(3)]


def vector(mode):
    return SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1", max_episode_steps=20)] * 3, autoreset_mode=mode
    )


def acquire(make, create_agent, direct, n_timesteps, n_processes=0):
    def create_env(seed):
        env = GymEnvInf(make(), seed)
        return env if direct else DeviceEnv(env, "cpu", "cpu")

    batcher = RL_Batcher(n_timesteps, create_agent, {}, create_env, {}, n_processes, seeds=3)
    with batcher:
        batcher.reset()
        for index in range(60 // n_timesteps):
            if index == 2:
                batcher.reset()
            batcher.execute()
            if not n_processes:
                assert batcher._crew.workers[0]._worker._is_direct == direct
            yield batcher.get()[0]


@pytest.mark.parametrize("n_timesteps", [1, 2, 15])
@pytest.mark.parametrize(
    ("make", "create_agent"),
    [
        (cartpoles, Remembering),
        (lambda: vector(AutoresetMode.NEXT_STEP), Remembering),
        (lambda: vector(AutoresetMode.SAME_STEP), Remembering),
        (lambda: [NestedGym(), NestedGym(5)], Mirror),
    ],
    ids=["list", "next step", "same step", "nested"],
)
def test_direct_trajectories_are_equal_bit_for_bit(make, create_agent, n_timesteps):
    expected = list(acquire(make, create_agent, False, n_timesteps))
    found = list(acquire(make, create_agent, True, n_timesteps))
    assert any(batch.trajectories["_observation/done"].any() for batch in expected)
    for one, other in zip(expected, found, strict=True):
        assert_equal(one, other)
        assert other.trajectories["observation/reward"].is_contiguous()


def test_direct_trajectories_are_equal_in_a_process():
    expected = acquire(cartpoles, Remembering, False, 15)
    for one, other in zip(expected, acquire(cartpoles, Remembering, True, 15, 1), strict=True):
        assert_equal(one, other)


def test_a_reset_that_changes_its_form_is_refused():
    class Fickle(GymEnvInf):
        n_resets = 0

        def reset(self, env_info=None):
            observation, running = super().reset(env_info)
            self.n_resets += 1
            if self.n_resets == 2:
                observation.set("reward", observation["reward"].double())
            return observation, running

    batcher = RL_Batcher(4, Remembering, {}, lambda seed: Fickle(cartpoles(), seed), {}, 0, seeds=0)
    with batcher:
        batcher.reset()
        batcher.execute()
        batcher.get()
        batcher.reset()
        with pytest.raises(DtypeMismatchError, match="observation/reward: expected torch.float32"):
            batcher.execute()


def test_an_environment_that_does_not_reset_itself_is_stepped():
    class Both(CountingEnv):
        def step_into(self, action, after, following):
            raise AssertionError

    with make_batcher(0, create_env=lambda seed: Both([3]), env_args={}) as batcher:
        batcher.reset()
        batcher.execute()
        assert batcher.get()[0].trajectories.lengths.tolist() == [3]


def test_a_step_of_ones_own_is_called():
    class Louder(GymEnvInf):
        def step(self, action):
            (after, ran), following = super().step(action)
            after["reward"].mul_(10)
            return (after, ran), following

    batcher = RL_Batcher(4, Remembering, {}, lambda seed: Louder(cartpoles(), seed), {}, 0, seeds=0)
    with batcher:
        batcher.reset()
        batcher.execute()
        assert (batcher.get()[0].trajectories["_observation/reward"] == 10).all()
