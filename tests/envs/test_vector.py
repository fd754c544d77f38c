"""`to_gymnasium` against Gymnasium's vector environments, ale-py's interface and a GPU."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import ClipReward, RecordEpisodeStatistics

from rlbatch import DictTensor, VecEnv
from rlbatch.envs import DeviceEnv, GymEnv, GymEnvInf, to_gymnasium
from rlbatch.envs.atari import AtariEnv, AtariVectorEnv
from rlbatch.errors import DeviceMismatchError, EnvContractError
from tests.helpers import NESTED_SPACE, CountingEnv, CountingGym, NestedGym, check_value, draw

SEEDS = [5, 6, 7]
# Some of a random agent's episodes end before this, others are cut by it.
make_cartpole = partial(gymnasium.make, "CartPole-v1", max_episode_steps=20)


def cartpoles():
    return [make_cartpole() for _ in SEEDS]


def tapes():
    return np.random.default_rng(0).integers(0, 2, (100, len(SEEDS)))


def equal(left, right) -> bool:
    """Whether two trees of arrays or tensors hold the same, in the same dtypes."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return all(equal(*pair) for pair in zip(left, right, strict=True))
    left, right = np.asarray(left), np.asarray(right)
    return left.dtype == right.dtype and np.array_equal(left, right)


@pytest.mark.parametrize("as_numpy", [False, True])
def test_it_does_what_gymnasiums_own_does(as_numpy) -> None:
    own = SyncVectorEnv([make_cartpole] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    env = to_gymnasium(GymEnvInf(cartpoles()), as_numpy)
    for space in ("observation_space", "action_space"):
        assert getattr(env, space) == getattr(own, space)
        assert getattr(env, f"single_{space}") == getattr(own, f"single_{space}")
    assert env.num_envs == 3
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert equal(env.reset(seed=SEEDS)[0], own.reset(seed=SEEDS)[0])
    ends = np.zeros(2, int)
    for actions in tapes():
        *found, infos = env.step(actions)
        observations, rewards, *flags, own_infos = own.step(actions)
        expected = [observations, rewards.astype(np.float32), *flags]
        assert {type(part) for part in found} == {np.ndarray if as_numpy else torch.Tensor}
        assert all(equal(*pair) for pair in zip(found, expected, strict=True))
        done = np.logical_or(*flags)
        assert equal(infos["_final_obs"], done)
        for row in np.flatnonzero(done):
            assert equal(infos["final_obs"][row], own_infos["final_obs"][row])
        assert equal(infos["final_obs"][~done], observations[~done])
        ends += [flag.sum() for flag in flags]
    assert ends.min() > 0
    env.close()


def test_there_and_back_is_the_same() -> None:
    direct = GymEnvInf(cartpoles(), SEEDS)
    around = GymEnvInf(to_gymnasium(GymEnvInf(cartpoles())), SEEDS)
    assert equal(dict(direct.reset()[0]), dict(around.reset()[0]))
    n_done = 0
    for actions in tapes():
        action = DictTensor({"action": torch.from_numpy(actions)})
        for (one, _), (other, _) in zip(direct.step(action), around.step(action), strict=True):
            assert equal(dict(one), dict(other))
            n_done += int(one["done"].sum())
    assert n_done > 0


def test_episodes_that_begin_a_step_later() -> None:
    own, wrapped = SyncVectorEnv([make_cartpole] * 3), SyncVectorEnv([make_cartpole] * 3)
    env = to_gymnasium(GymEnvInf(wrapped))
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert equal(env.reset(seed=SEEDS)[0], own.reset(seed=SEEDS)[0])
    n_done = 0
    for actions in tapes():
        observations, rewards, *flags, infos = env.step(actions)
        expected, own_rewards, *own_flags, _ = own.step(actions)
        assert equal(observations, expected)
        assert equal(rewards, own_rewards.astype(np.float32))
        assert equal(tuple(flags), tuple(own_flags))
        assert set(infos) == {"episode_return", "episode_length"}
        n_done += int(flags[0].sum())
    assert n_done > 0


def test_a_seed_begins_anew_and_none_goes_on() -> None:
    env = to_gymnasium(GymEnvInf(cartpoles(), seed=0))
    first, second = env.reset()[0], env.reset()[0]
    assert not equal(first, second)
    assert equal(env.reset(seed=0)[0], first)
    assert equal(env.reset()[0], second)


def test_nested_spaces() -> None:
    env = to_gymnasium(GymEnvInf([NestedGym(), NestedGym()], seed=0))
    env.action_space.seed(0)
    check_value(env.observation_space, env.reset()[0])
    for _ in range(2):
        actions = env.action_space.sample()
        observations, *_ = env.step(actions)  # It observes its action.
        assert equal(observations, actions)
    *_, infos = env.step(actions := env.action_space.sample())
    assert equal(infos["final_obs"], actions)
    one = draw(NESTED_SPACE, np.random.default_rng(0))
    assert sorted(one) == sorted(infos["final_obs"])


def test_gymnasiums_wrappers_take_it() -> None:
    statistics = RecordEpisodeStatistics(to_gymnasium(GymEnvInf(cartpoles()), as_numpy=True))
    env = ClipReward(statistics, 0, 0.5)
    env.reset(seed=0)
    returns, lengths = [], []
    for actions in tapes():
        _, rewards, *_, infos = env.step(actions)
        assert rewards.tolist() == [0.5] * 3
        done = infos["_final_obs"]
        if done.any():
            assert equal(
                infos["episode"]["r"][done].astype(np.float32), infos["episode_return"][done]
            )
            returns += list(infos["episode_return"][done])
            lengths += list(infos["episode_length"][done])
    assert len(returns) > 3
    assert list(statistics.return_queue) == returns
    assert list(statistics.length_queue) == lengths
    env.close()


def test_it_closes_the_environments() -> None:
    counting = [CountingGym(), CountingGym()]
    env = to_gymnasium(GymEnvInf(counting))
    env.close()
    env.close()
    assert all(one.closed for one in counting)


def test_atari_does_what_alepys_interface_does() -> None:
    options = {"max_num_frames_per_episode": 100, "frameskip": 3}
    own = AtariVectorEnv("breakout", 3, autoreset_mode="SameStep", num_threads=1, **options)
    env = to_gymnasium(AtariEnv("breakout", 3, num_threads=1, **options))
    # A single int is spread differently there: over environments that follow each other.
    seeds = np.array([3, 1, 2])
    assert equal(env.reset(seed=seeds)[0], own.reset(seed=seeds)[0])
    n_done, mask = 0, np.array([False, True, False])
    for step, actions in enumerate(tapes()):
        observations, rewards, *flags, infos = env.step(torch.from_numpy(actions))
        expected, own_rewards, *own_flags, own_infos = own.step(actions)
        assert equal(observations, expected)
        assert equal(rewards, own_rewards.astype(np.float32))
        assert equal(tuple(flags), tuple(own_flags))
        done = infos["_final_obs"]
        if done.any():
            assert equal(infos["final_obs"][done], own_infos["final_obs"][done.numpy()])
        assert equal(infos["lives"][~done], own_infos["lives"][~done.numpy()].astype(np.int64))
        n_done += int(done.sum())
        if step == 10:
            options = {"reset_mask": mask}
            assert equal(env.reset(options=options)[0], own.reset(options=options)[0])
    assert n_done > 3
    env.close()
    own.close()


def test_on_a_gpu_nothing_is_copied_and_nothing_waits(gpu, leave_alone) -> None:
    env = to_gymnasium(CountingEnv([2, 3], autoreset=True, device=gpu))
    env.reset()
    actions = torch.zeros(2, dtype=torch.int64, device=gpu)
    with leave_alone():
        for _ in range(5):
            observations, rewards, *flags, infos = env.step(actions)
    for tensor in (observations, rewards, *flags, *infos.values()):
        assert tensor.device == gpu
    assert observations[:, 1].tolist() == [2, 1]
    assert infos["final_obs"][:, 2].tolist() == [1, 2]
    assert env.step(np.zeros(2, np.int64))[0].device == gpu


def test_atari_on_a_gpu(played_gpu) -> None:
    env = to_gymnasium(AtariEnv("pong", 2, device="cuda", seed=0))
    same = to_gymnasium(AtariEnv("pong", 2, seed=0))
    assert equal(env.reset()[0].cpu(), same.reset()[0])
    actions = torch.tensor([2, 3])
    assert equal(env.step(actions.to("cuda"))[0].cpu(), same.step(actions)[0])
    with pytest.raises(DeviceMismatchError, match="action"):
        env.step(actions)
    with pytest.raises(ValueError, match="as_numpy: expected an environment on the CPU, got"):
        to_gymnasium(env.env, as_numpy=True)


class Blind(CountingEnv):
    """Has no spaces."""

    def __init__(self):
        super().__init__([1], autoreset=True)
        self.observation_space = None


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (cartpoles, TypeError, "env: expected a VecEnv, got"),
        (lambda: GymEnv(cartpoles()), EnvContractError, "that resets itself, got GymEnv"),
        (Blind, EnvContractError, "env.observation_space: expected a space"),
        (VecEnv, EnvContractError, "that resets itself, got VecEnv"),
    ],
)
def test_what_can_not_be_one(make, error, message) -> None:
    with pytest.raises(error, match=message):
        to_gymnasium(make())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"seed": 1}, TypeError, "seed: expected an environment with the method seed, got Count"),
        ({"options": {"mode": 1}}, ValueError, r"expected reset_mask alone, got \['mode'\]"),
        ({"options": {"reset_mask": [True]}}, TypeError, "reset_mask: expected an environment"),
    ],
)
def test_what_reset_can_not_do(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        to_gymnasium(CountingEnv([2], autoreset=True)).reset(**arguments)


def test_a_seed_for_some_is_refused() -> None:
    env = to_gymnasium(AtariEnv("pong", 2))
    env.reset()
    with pytest.raises(ValueError, match="seed: expected None with a reset_mask, got both"):
        env.reset(seed=1, options={"reset_mask": np.array([True, False])})


def test_another_devices_environment_can_be_seeded() -> None:
    env = to_gymnasium(DeviceEnv(GymEnvInf(cartpoles()), "cpu", "meta"))
    assert env.reset(seed=3)[0].device.type == "meta"
