"""`to_gymnasium` against Gymnasium's vector environments, ale-py's interface and a GPU."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import ClipReward, RecordEpisodeStatistics
from packaging.version import Version

from rlbatch import DictTensor, VecEnv
from rlbatch.envs import DeviceEnv, GymEnv, GymEnvInf, to_gymnasium
from rlbatch.envs.atari import AtariEnv, AtariVectorEnv
from rlbatch.envs.vector import ToGymnasium
from rlbatch.errors import (
    DeviceMismatchError,
    DtypeMismatchError,
    EnvContractError,
    KeyMismatchError,
    ShapeError,
)
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
    kind = np.ndarray if as_numpy else torch.Tensor
    observations, infos = env.reset(seed=SEEDS)
    assert equal(observations, own.reset(seed=SEEDS)[0])
    assert {key: value.tolist() for key, value in infos.items()} == {
        "episode_return": [0, 0, 0],
        "episode_length": [0, 0, 0],
    }
    ends = np.zeros(2, int)
    for actions in tapes():
        *found, infos = env.step(actions)
        assert {type(part) for part in [*found, *infos.values()]} == {kind}
        observations, rewards, *flags, own_infos = own.step(actions)
        expected = [observations, rewards.astype(np.float32), *flags]
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


class Watched(GymEnvInf):
    """Keeps what it has returned."""

    def step(self, action):
        self.returned = super().step(action)
        return self.returned


@pytest.mark.parametrize("as_numpy", [False, True])
def test_nothing_that_it_returns_is_copied(as_numpy) -> None:
    env = to_gymnasium(inner := Watched(cartpoles(), SEEDS), as_numpy)
    env.reset()
    observations, rewards, *flags, infos = env.step([0, 1, 0])
    (after, _), (following, _) = inner.returned
    found = [observations, rewards, *flags, infos["episode_return"], infos["final_obs"]]
    expected = [following["frame"], *(after[key] for key in ("reward", "terminated", "truncated"))]
    expected += [after["episode_return"], after["frame"]]
    for one, other in zip(found, expected, strict=True):
        assert torch.as_tensor(one).data_ptr() == other.data_ptr()


def test_the_actions_stay_the_callers() -> None:
    env = to_gymnasium(CountingEnv([3, 3], autoreset=True))
    env.reset()
    kept = []
    env.env._observe = lambda last: kept.append(last) or CountingEnv._observe(env.env, last)
    actions = np.array([0, 1])
    env.step(actions[::-1])
    actions[:] = 0
    actions.flags.writeable = False
    env.step(actions)
    gradient = torch.zeros(2, requires_grad=True)
    env.step(gradient * 1)
    assert kept[0].tolist() == [1, 0]
    assert not any(one.requires_grad for one in kept)


def test_nested_spaces() -> None:
    env = to_gymnasium(GymEnvInf([NestedGym(), NestedGym()], seed=0))
    env.action_space.seed(0)
    first = env.action_space.sample()
    env.action_space.seed(0)
    assert equal(env.action_space.sample(), first)
    assert env.observation_space is env.observation_space
    check_value(env.observation_space, env.reset()[0])
    for _ in range(2):
        actions = env.action_space.sample()
        observations, *_ = env.step(actions)  # It observes its action.
        assert equal(observations, actions)
    *_, infos = env.step(actions := env.action_space.sample())
    assert equal(infos["final_obs"], actions)
    assert set(infos) == {"final_obs", "_final_obs", "episode_return", "episode_length"}
    one = draw(NESTED_SPACE, np.random.default_rng(0))
    assert sorted(one) == sorted(infos["final_obs"])


@pytest.mark.skipif(
    Version(gymnasium.__version__) < Version("1.4"), reason="its statistics miss a step"
)
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


def test_the_pictures_are_those_of_the_environment() -> None:
    inner = AtariEnv("pong", 3, seed=0, num_threads=1)
    env = to_gymnasium(inner)
    assert env.render_mode == "rgb_array"
    assert env.metadata["render_modes"] == ["rgb_array"]
    assert env.metadata["render_fps"] == pytest.approx(15, rel=0.01)  # Of four frames each.
    env.reset()
    for _ in range(20):
        env.step(np.array([2, 3, 0]))
    pictures = env.render()
    assert isinstance(pictures, tuple)
    assert [(one.shape, one.dtype) for one in pictures] == [((210, 160, 3), np.uint8)] * 3
    assert np.array_equal(np.stack(pictures), inner.render())
    assert not np.array_equal(pictures[0], pictures[1])
    env.close()
    without = to_gymnasium(GymEnvInf([CountingGym()]))
    assert without.render_mode is None
    with pytest.raises(TypeError, match="render: expected an environment with the method render"):
        without.render()


def test_one_that_was_refused_has_nothing_to_close() -> None:
    ToGymnasium.__new__(ToGymnasium).close()  # As Gymnasium 1.2 does with what is deleted.


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


class Lacking(CountingEnv):
    """Lacks a space."""

    seed = 3  # Not a method.

    def __init__(self, name):
        super().__init__([1], autoreset=True)
        setattr(self, name, None)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (cartpoles, TypeError, "env: expected a VecEnv, got"),
        (lambda: GymEnv(cartpoles()), EnvContractError, "that resets itself, got GymEnv"),
        (partial(Lacking, "action_space"), EnvContractError, "env.action_space: expected a space"),
        (
            partial(Lacking, "observation_space"),
            EnvContractError,
            "env.observation_space: expected a space",
        ),
        (VecEnv, EnvContractError, "that resets itself, got VecEnv"),
    ],
)
def test_what_can_not_be_one(make, error, message) -> None:
    with pytest.raises(error, match=message):
        to_gymnasium(make())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"seed": 1}, TypeError, "seed: expected an environment with the method seed, got"),
        ({"options": {"mode": 1}}, ValueError, r"expected reset_mask alone, got \['mode'\]"),
        ({"options": {"reset_mask": [True]}}, TypeError, "reset_mask: expected an environment"),
    ],
)
def test_what_reset_can_not_do(arguments, error, message) -> None:
    for env in (CountingEnv([2], autoreset=True), Lacking("option")):
        env.device = str(env.device)
        with pytest.raises(error, match=message):
            to_gymnasium(env, as_numpy=True).reset(**arguments)


def test_a_seed_for_some_is_refused_and_changes_nothing() -> None:
    env, same = (to_gymnasium(AtariEnv("pong", 2, seed=0)) for _ in range(2))
    env.reset(), same.reset()
    mask = np.array([True, False])
    for seed in (0, 1):
        with pytest.raises(ValueError, match="seed: expected None with a reset_mask, got both"):
            env.reset(seed=seed, options={"reset_mask": mask})
    for bad, error in (
        (mask[:1], ShapeError),
        (mask[:, None], ShapeError),
        ([1, 0], DtypeMismatchError),
    ):
        with pytest.raises(error, match=r"reset_mask: expected .*, got"):
            env.reset(options={"reset_mask": bad})
    assert equal(env.reset()[0], same.reset()[0])


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        (None, DtypeMismatchError, "action: expected numbers, got None"),
        (["left", "right"], DtypeMismatchError, r"action: expected numbers, got \['left'"),
        ([1j, 0], DtypeMismatchError, r"action: expected numbers, got \[1j, 0\]"),
        ([0, 1, 0], ShapeError, "action: expected shape"),
    ],
)
def test_what_are_no_actions(actions, error, message) -> None:
    env = to_gymnasium(GymEnvInf([CountingGym(), CountingGym()]))
    env.reset()
    with pytest.raises(error, match=message):
        env.step(actions)


def test_a_part_of_the_actions_that_is_not_there() -> None:
    env = to_gymnasium(GymEnvInf([NestedGym(), NestedGym()]))
    env.reset()
    actions = env.action_space.sample()
    with pytest.raises(KeyMismatchError, match="actions: expected action/choice, as in Dict"):
        env.step({key: value for key, value in actions.items() if key != "choice"})
    with pytest.raises(KeyMismatchError, match="actions: expected action/inner/1/flags"):
        env.step({**actions, "inner": actions["inner"][:1]})
    with pytest.raises(KeyMismatchError, match="actions: expected action/choice"):
        env.step([actions, actions])


def test_an_environment_that_looks_as_if_it_were_elsewhere(played_gpu) -> None:
    env = to_gymnasium(DeviceEnv(AtariEnv("breakout", 2), "cpu", "cuda"))
    same = to_gymnasium(AtariEnv("breakout", 2))
    assert equal(env.reset(seed=3)[0].cpu(), same.reset(seed=3)[0])
    for one in (env, same):
        one.step([1, 1])
    options = {"reset_mask": np.array([True, False])}
    (observations, infos), (expected, _) = env.reset(options=options), same.reset(options=options)
    assert observations.device == infos["episode_length"].device == torch.device("cuda:0")
    assert equal(observations.cpu(), expected)
    assert infos["episode_length"].tolist() == [0, 1]
    late = GymEnvInf(SyncVectorEnv([make_cartpole]))
    assert DeviceEnv(late, "cpu", "cuda").resets_late
    plain = to_gymnasium(DeviceEnv(CountingEnv([3], autoreset=True), "cpu", "cuda"))
    with pytest.raises(TypeError, match="reset_mask: expected an environment with the method"):
        plain.reset(options={"reset_mask": [True]})


def test_a_lost_life_is_told_where_it_ends_nothing() -> None:
    env = to_gymnasium(AtariEnv("breakout", 4, seed=0, life_loss_info=True))
    env.reset()
    for _ in range(60):
        observations, *_, infos = env.step(torch.ones(4, dtype=torch.int64))
        if infos["_final_obs"].any():
            break
    (row, *_) = infos["_final_obs"].nonzero()[:, 0].tolist()
    assert equal(infos["final_obs"][row], observations[row])


def test_pictures_that_are_no_tensor_are_refused() -> None:
    class Draws(CountingEnv):
        def render(self):
            return [np.zeros((2, 2, 3), np.uint8)]

    with pytest.raises(TypeError, match="render: expected a tensor of pictures"):
        to_gymnasium(Draws([3], autoreset=True)).render()
