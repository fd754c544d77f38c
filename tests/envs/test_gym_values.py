"""What crosses the border of `GymEnv`: keys, shapes, dtypes and values, in both directions."""

from contextlib import closing
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlbatch.dicttensor import DictTensor
from rlbatch.envs import GymEnv, GymEnvInf
from rlbatch.errors import DeviceMismatchError, DtypeMismatchError, ShapeError
from tests.helpers import (
    BACKENDS,
    NESTED_KEYS,
    NESTED_SPACE,
    CountingGym,
    NestedGym,
    actions,
    gym_env,
)

# Python 3.12 warns of every fork beside a thread; the children here run NumPy alone.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.mark.parametrize("backend", BACKENDS)
def test_nested_actions_arrive_and_nested_observations_come_back_value_by_value(backend):
    makers = [partial(NestedGym, length=length) for length in (2, 3)]
    by_hand = [NestedGym(), NestedGym()]
    firsts = [env.reset(seed=seed)[0] for env, seed in zip(by_hand, [3, 4], strict=True)]
    NESTED_SPACE.seed(0)
    with closing(GymEnvInf(gym_env(backend, makers), seed=[3, 4])) as env:
        observation, _ = env.reset()
        assert_nested_equal(observation, firsts, prefix="")
        for _ in range(4):
            values = [NESTED_SPACE.sample() for _ in range(2)]
            columns = {f"action/{key}": nested_column(values, key) for key in NESTED_KEYS}
            late = observation["done"]
            (after, _), (observation, _) = env.step(DictTensor(columns))
            for b in range(2):
                if not late[b]:  # The environment observes the action it was given.
                    assert_nested_equal(after.index([b]), values[b : b + 1], prefix="")
                    assert_nested_equal(after.index([b]), values[b : b + 1], "last_action/")


def nested_column(values, key):
    """The batch of one leaf, found by its literal path."""
    paths = {
        "choice": lambda value: value["choice"],
        "image": lambda value: value["image"],
        "inner/0": lambda value: value["inner"][0],
        "inner/1/flags": lambda value: value["inner"][1]["flags"],
        "inner/1/position": lambda value: value["inner"][1]["position"],
    }
    return torch.from_numpy(np.stack([paths[key](value) for value in values]))


def assert_nested_equal(found, values, prefix):
    dtypes = [torch.int64, torch.uint8, torch.int64, torch.int8, torch.float64]
    for key, dtype in zip(NESTED_KEYS, dtypes, strict=True):
        tensor, expected = found[prefix + key], nested_column(values, key)
        assert tensor.dtype == expected.dtype == dtype, key
        assert torch.equal(tensor, expected), key


@pytest.mark.parametrize("backend", ["list", "sync-NEXT_STEP", "sync-SAME_STEP", "sync-DISABLED"])
@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64", "float16", "float64"])
def test_observations_keep_the_dtype_of_their_space(backend, name):
    makers = [partial(CountingGym, number, 2, dtype=np.dtype(name)) for number in (7, 9)]
    with closing(GymEnvInf(gym_env(backend, makers))) as env:
        now, _ = env.reset()
        frames = [now["frame"]]
        for _ in range(3):
            (after, _), (now, _) = env.step(actions(0, 0))
            frames += [after["frame"], now["frame"]]
    assert {frame.dtype for frame in frames} == {getattr(torch, name)}
    assert frames[1].tolist() == [[7, 0, 1], [9, 0, 1]]


class Observes(gymnasium.Env):
    """Observes a constant."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, value):
        self.observation_space, self.value = space, value

    def reset(self, *, seed=None, options=None):
        return self.value, {}

    def step(self, action):
        return self.value, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (spaces.Discrete(5, start=-2), np.int64(-2), torch.tensor([-2])),
        (spaces.Discrete(5), 4, torch.tensor([4])),
        (spaces.Box(-1, 1, (), np.float32), np.float32(0.5), torch.tensor([0.5])),
        (spaces.Box(0, 1, (2,), np.bool_), np.array([True, False]), torch.tensor([[True, False]])),
        (spaces.MultiBinary(2), np.int8([1, 0]), torch.tensor([[1, 0]], dtype=torch.int8)),
        (spaces.MultiDiscrete([3, 4]), np.array([2, 3]), torch.tensor([[2, 3]])),
        (spaces.Tuple([spaces.Discrete(5)]), (3,), torch.tensor([3])),
    ],
    ids=str,
)
def test_every_kind_of_space_is_observed(space, value, expected):
    key = "0" if isinstance(space, spaces.Tuple) else "frame"
    for backend in ("list", "sync-SAME_STEP"):
        env = GymEnv(gym_env(backend, [partial(Observes, space, value)]))
        observation, _ = env.reset()
        (after, _), _ = env.step(actions(0))
        for found in (observation[key], after[key]):
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)


def acting(space, tensor, n=1):
    """Steps an environment of that action space; returns what arrived, and `last_action`."""
    envs = [CountingGym() for _ in range(n)]
    for env in envs:
        env.action_space = space
    vec_env = GymEnv(envs)
    vec_env.reset()
    (after, _), _ = vec_env.step(DictTensor({"action": tensor}))
    return [env.actions[0] for env in envs], after["last_action"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_a_discrete_action_of_any_integer_dtype_arrives_as_an_integer_of_the_space(dtype):
    arrived, last = acting(spaces.Discrete(2), torch.tensor([1, 0], dtype=dtype), n=2)
    assert arrived == [1, 0]
    assert [type(action) for action in arrived] == [np.int64, np.int64]
    assert last.dtype == torch.int64
    assert last.tolist() == [1, 0]


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn],
)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_continuous_action_of_any_float_dtype_arrives_as_an_array_of_the_space(dtype, shape):
    space = spaces.Box(-1, 1, shape, np.float32)
    sent = torch.full((1, *shape), 0.3, dtype=dtype)
    (arrived,), last = acting(space, sent)
    assert isinstance(arrived, np.ndarray)
    assert space.contains(arrived)
    expected = float(sent.flatten()[0].float())
    assert arrived.dtype == np.float32
    assert last.dtype == torch.float32
    assert np.all(arrived == np.float32(expected))
    assert bool((last == expected).all())


def test_a_complex_action_is_refused():
    with pytest.raises(
        DtypeMismatchError, match="^action: expected a real number for Box.*complex"
    ):
        acting(spaces.Box(-1, 1, (1,), np.float32), torch.tensor([[0.5 + 2j]]))


@pytest.mark.parametrize("backend", ["list", "sync-SAME_STEP"])
def test_an_environment_that_writes_into_its_action_does_not_change_last_action(backend):
    class Clips(CountingGym):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Box(-1, 1, (2,))

        def step(self, action):
            action *= 0
            return super().step(action)

    clips = Clips()
    vec_env, sent = GymEnv(gym_env(backend, [lambda: clips])), torch.ones(1, 2)
    vec_env.reset()
    (after, _), _ = vec_env.step(DictTensor({"action": sent}))
    assert clips.actions[0].tolist() == [0, 0]
    assert after["last_action"].tolist() == sent.tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("space", "tensor", "error", "message"),
    [
        (spaces.Discrete(2), torch.zeros(1, 1).long(), ShapeError, r"\(1,\), got \(1, 1\)"),
        (spaces.Discrete(2), torch.zeros(2).long(), ShapeError, r"\(1,\), got \(2,\)"),
        (spaces.Box(-1, 1, (3,)), torch.zeros(1), ShapeError, r"\(1, 3\), got \(1,\)"),
        (spaces.Discrete(2), torch.zeros(1), DtypeMismatchError, r"Discrete\(2\), got .*float32"),
        (spaces.MultiBinary(1), torch.zeros(1, 1), DtypeMismatchError, "got torch.float32"),
        (
            spaces.MultiBinary(1),
            torch.tensor([[256]]),
            DtypeMismatchError,
            "to 127, got int64 from 256",
        ),
        (
            spaces.Box(0, 255, (1,), np.uint8),
            torch.tensor([[-1]]),
            DtypeMismatchError,
            "uint8, from 0 to 255, got int64 from -1",
        ),
        (
            spaces.Box(0, 1, (1,), np.bool_),
            torch.tensor([[2]]),
            DtypeMismatchError,
            "bool, from 0 to 1, got int64 from 2 to 2",
        ),
        (
            spaces.Discrete(2),
            torch.zeros(1, dtype=torch.int64, device="meta"),
            DeviceMismatchError,
            "a tensor on cpu, got one on meta",
        ),
    ],
)
def test_an_action_that_does_not_fit_is_refused_before_any_environment_steps(
    space, tensor, error, message
):
    env = CountingGym()
    env.action_space = space
    vec_env = GymEnv([env])
    vec_env.reset()
    with pytest.raises(error, match=f"action: expected .*{message}"):
        vec_env.step(DictTensor({"action": tensor}))
    assert env.actions == []


def test_an_action_of_which_a_part_is_missing_is_refused():
    env = GymEnvInf([NestedGym()])
    env.reset()
    action = DictTensor({"action/inner/0": torch.zeros(1, dtype=torch.int64)})
    with pytest.raises(KeyError, match=r"^action: expected the keys \['action/choice', "):
        env.step(action)


def test_an_action_without_its_key_is_refused_and_other_keys_are_ignored():
    env = GymEnv([CountingGym()])
    env.reset()
    with pytest.raises(KeyError, match=r"^action: expected the keys \['action'\], got \['val"):
        env.step(DictTensor({"value": torch.zeros(1)}))
    (after, _), _ = env.step(actions(1) + DictTensor({"value": torch.zeros(1)}))
    assert "value" not in after


class Pays(CountingGym):
    """An environment with a Box of actions, which pays what it is told to."""

    def __init__(self, dtype=np.float32, rewards=(1.0,) * 4):
        super().__init__(length=4)
        self.action_space = spaces.Box(0, 10, (1,), dtype)
        self.rewards = iter(rewards)

    def step(self, action):
        frame, _, *rest = super().step(action)
        return frame, next(self.rewards), *rest


def test_the_last_action_is_a_copy_without_gradients():
    env = GymEnvInf([CountingGym()], seed=0)
    env.reset()
    action = torch.tensor([1])
    (after, _), _ = env.step(DictTensor({"action": action}))
    action.zero_()
    assert after["last_action"].tolist() == [1]
    env = GymEnv([Pays()], seed=0)
    env.reset()
    (after, _), _ = env.step(DictTensor({"action": torch.ones(1, 1, requires_grad=True)}))
    assert after["last_action"].tolist() == [[1.0]]
    assert not after["last_action"].requires_grad


def arrays_of(env):
    """Resets an environment; returns arrays for `step_into`."""
    first, _ = env.reset()
    return [{key: one.numpy().copy() for key, one in first.items()} for _ in range(2)]


def test_the_last_action_is_the_one_given_though_an_environment_changes_that_tensor():
    given = torch.tensor([1])

    class Shares(CountingGym):
        def step(self, action):
            given.zero_()  # An agent and an environment may share an object.
            return super().step(action)

    env = GymEnvInf([Shares()], seed=0)
    after, following = arrays_of(env)
    env.step_into(DictTensor({"action": given}), after, following)
    assert after["last_action"].tolist() == [1]
    (after, _), _ = env.step(DictTensor({"action": given.fill_(1)}))
    assert after["last_action"].tolist() == [1]


def test_the_last_action_may_lie_where_the_step_writes_to():
    env = GymEnvInf([Pays()], seed=0)
    after, following = arrays_of(env)
    given = torch.from_numpy(after["reward"]).unsqueeze(1).fill_(5.0)
    env.step_into(DictTensor({"action": given}), after, following)
    assert (after["last_action"].item(), after["reward"].item()) == (5.0, 1.0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [(torch.tensor([[2 - 3j]]).conj().imag, 3.0), (torch._efficientzerotensor((1, 1)), 0.0)],
    ids=["negated", "zeros"],
)
def test_an_action_that_pytorch_has_yet_to_write_down_arrives(given, expected):
    (arrived,), last = acting(spaces.Box(-9, 9, (1,), np.float32), given)
    assert arrived.tolist() == last[0].tolist() == [expected]


def test_returns_are_summed_more_finely_than_they_are_given():
    env = GymEnv([Pays(rewards=[2.0**24, 1.0, 1.0])], seed=0)
    env.reset()
    for _ in range(3):
        (after, _), _ = env.step(DictTensor({"action": torch.ones(1, 1)}))
    assert after["episode_return"].item() == 2.0**24 + 2


def test_a_float_is_no_action_for_a_box_of_integers():
    env = GymEnv([Pays(np.uint8)], seed=0)
    env.reset()
    with pytest.raises(DtypeMismatchError, match="action: expected an integer"):
        env.step(DictTensor({"action": torch.full((1, 1), 0.9)}))
