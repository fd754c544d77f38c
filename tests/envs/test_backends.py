"""Seeds, options, failures and refusals of the environments behind `GymEnv`."""

import sys
from contextlib import closing
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rlbatch.dicttensor import DictTensor
from rlbatch.envs import GymEnv, GymEnvInf
from rlbatch.errors import DtypeMismatchError, EnvContractError, KeyMismatchError, ShapeError
from rlbatch.seeding import env_seeds, process_seeds
from tests.helpers import BACKENDS, CountingEnv, CountingGym, FailingGym, actions, gym_env

pytestmark = [
    # Python 3.12 warns of every fork beside a thread; the children here run NumPy alone.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    # Gymnasium warns of each error in a child before it raises it.
    pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning"),
]


def run(env, n_steps):
    """Steps all environments with action 0, after a reset where none runs."""
    _, running = env.reset()
    for _ in range(n_steps):
        if not len(running):
            _, running = env.reset()
        _, (_, running) = env.step(DictTensor({"action": torch.zeros_like(running)}))


# --- Seeds ---


@pytest.mark.parametrize("make_env", [GymEnv, GymEnvInf])
def test_seeds_are_used_verbatim_in_the_first_reset_only(make_env):
    envs = [CountingGym(length=2) for _ in range(2)]
    env = make_env(envs, seed=[7, 0])
    run(env, 5)
    env.reset()
    for own, first in zip(envs, [7, 0], strict=True):
        assert own.seeds[0] == first
        assert own.seeds[1:] == [None] * (len(own.seeds) - 1)
        assert len(own.seeds) >= 4


def test_an_int_seeds_every_environment_differently_and_zero_is_a_seed():
    envs = [CountingGym() for _ in range(4)]
    GymEnv(envs, seed=0).reset()
    assert [env.seeds for env in envs] == [[seed] for seed in env_seeds(0, 4)]
    assert len(set(env_seeds(0, 4))) == 4


def test_without_a_seed_nothing_is_seeded():
    envs = [CountingGym() for _ in range(2)]
    GymEnv(envs).reset()
    assert [env.seeds for env in envs] == [[None], [None]]


def test_environments_have_the_same_seeds_however_they_are_split_over_processes():
    together = [CountingGym() for _ in range(4)]
    GymEnv(together, seed=process_seeds(3, 1)[0]).reset()
    apart = [CountingGym() for _ in range(4)]
    for process, seed in enumerate(process_seeds(3, 2)):
        GymEnv(apart[2 * process : 2 * process + 2], seed=seed).reset()
    assert [env.seeds for env in apart] == [env.seeds for env in together]


def test_a_vector_environment_gets_the_seeds_that_a_list_gets():
    vector = SyncVectorEnv([CountingGym] * 3)
    env = GymEnvInf(vector, seed=3)
    env.reset()
    env.reset()
    assert [own.seeds for own in vector.envs] == [[seed, None] for seed in env_seeds(3, 3)]


def test_where_some_play_on_unseen_every_reset_has_seeds_if_one_was_given():
    vector = SyncVectorEnv([CountingGym] * 3)
    env = GymEnv(vector)
    env.reset()
    for seed in (3, 4):
        env.seed(seed)
        for _ in range(3):
            env.reset()
    seeds = [own.seeds for own in vector.envs]
    assert [row[0] for row in seeds] == [None] * 3
    assert [row[1] for row in seeds] == env_seeds(3, 3)
    assert [row[4] for row in seeds] == env_seeds(4, 3)
    assert len({seed for row in seeds for seed in row}) == 3 * 6 + 1


def test_a_wrong_number_of_seeds_is_refused():
    with pytest.raises(ValueError, match="expected 2 seeds, one per environment, got 3"):
        GymEnv([CountingGym(), CountingGym()], seed=[1, 2, 3])


def test_a_first_reset_that_failed_leaves_the_seeds_to_the_next():
    env = FailingGym(at_reset=0)
    vec_env = GymEnv([env], seed=[7])
    with pytest.raises(RuntimeError):
        vec_env.reset()
    env.at_reset = None
    vec_env.reset()
    assert env.seeds == [7]


@pytest.mark.parametrize("is_vector", [False, True])
def test_seeds_in_env_info_are_for_one_reset_and_take_the_place_of_others(is_vector):
    envs = [CountingGym(length=1) for _ in range(2)]
    makers = [lambda one=one: one for one in envs]
    vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    env = GymEnvInf(vector if is_vector else envs, seed=[1, 2])
    for _ in range(2):
        env.reset(DictTensor({"seed": torch.tensor([7, 0], dtype=torch.int32)}))
        env.step(actions(0, 0))  # Which ends the episodes.
    env.reset()
    assert [own.seeds for own in envs] == [[7, None, 7, None, None], [0, None, 0, None, None]]
    assert envs[0].options == [None] * 5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_a_seed_in_env_info_may_be_of_any_integer_dtype(dtype):
    env = CountingGym()
    GymEnv([env]).reset(DictTensor({"seed": torch.tensor([7], dtype=dtype)}))
    assert env.seeds == [7]


def test_a_seed_in_env_info_is_no_option():
    env = CountingGym()
    GymEnv([env]).reset(DictTensor({"seed": torch.tensor([2**40]), "level": torch.tensor([3])}))
    assert (env.seeds, env.options) == ([2**40], [{"level": 3}])


@pytest.mark.parametrize(
    ("seeds", "error", "message"),
    [
        (torch.tensor([0.5]), DtypeMismatchError, "seed: expected integers, got torch.float32"),
        (torch.tensor([True]), DtypeMismatchError, "seed: expected integers, got torch.bool"),
        (torch.tensor([-1]), ValueError, r"seed: expected integers of at least 0, got \[-1\]"),
        (torch.tensor([[1]]), ShapeError, r"seed: expected one per row, got \[1, 1\]"),
    ],
)
def test_wrong_seeds_in_env_info_are_refused(seeds, error, message):
    for made in ([CountingGym()], SyncVectorEnv([CountingGym])):
        with pytest.raises(error, match=f"^env_info: {message}$"):
            GymEnv(made).reset(DictTensor({"seed": seeds}))


# --- Options ---


def test_each_environment_gets_its_row_of_env_info_at_every_reset():
    envs = [CountingGym(length=1), CountingGym(length=2)]
    env = GymEnvInf(envs)
    env.reset(DictTensor({"level": torch.tensor([3, 4]), "wind": torch.tensor([[0.5], [1.5]])}))
    for _ in range(2):
        env.step(actions(0, 0))
    assert envs[0].options == [{"level": 3, "wind": [0.5]}] * 3
    assert envs[1].options == [{"level": 4, "wind": [1.5]}] * 2
    env.reset(DictTensor({"level": torch.tensor([5, 6])}))
    env.step(actions(0, 0))
    assert envs[0].options[3:] == [{"level": 5}] * 2
    env.reset()
    env.step(actions(0, 0))
    assert envs[0].options[5:] == [None] * 2


def test_an_environment_that_takes_its_options_out_finds_them_again_after_an_auto_reset():
    class Takes(CountingGym):
        def reset(self, *, seed=None, options=None):
            self.levels.append(options.pop("level"))
            return super().reset(seed=seed)

    env = Takes(length=1)
    env.levels = []
    vec_env = GymEnvInf([env])
    vec_env.reset(DictTensor({"level": torch.tensor([3])}))
    vec_env.step(actions(0))
    assert env.levels == [3, 3]


def test_env_info_needs_one_row_per_environment():
    with pytest.raises(ShapeError, match="env_info: expected 1 rows, got 2"):
        GymEnv([CountingGym()]).reset(DictTensor({"level": torch.tensor([3, 4])}))


def test_env_info_for_a_vector_environment_is_refused():
    vector = SyncVectorEnv([CountingGym])
    env = GymEnv(vector)
    with pytest.raises(ValueError, match=r"env_info: expected seed alone .* got \['level'\]"):
        env.reset(DictTensor({"seed": torch.tensor([5]), "level": torch.tensor([3])}))
    env.reset(DictTensor())
    assert vector.envs[0].seeds == [None]


# --- Failures ---


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("failure", [{"at_reset": 0}, {"at_reset": 1}, {"at_step": 1}], ids=str)
def test_an_exception_carries_the_number_of_the_environment(backend, failure):
    # Environment 1 fails: in the first reset, in the reset after its episode, or in a step.
    makers = [CountingGym, partial(FailingGym, **failure, length=2), CountingGym]
    with closing(GymEnvInf(gym_env(backend, makers))) as env:
        with pytest.raises(RuntimeError, match="failed on purpose") as caught:
            run(env, 3)
    assert caught.value.environment == 1
    assert caught.value.__notes__ == ["(in environment 1 of this batch)"]


class Quits(CountingGym):
    """Ends its process in a step."""

    def step(self, action):
        sys.exit("enough")


class Nameless(CountingGym):
    """Fails in a method whose first parameter has another name, while it looks at another one."""

    other = None

    def step(this, action):  # noqa: N805
        opponent = Nameless.other
        raise RuntimeError(f"failed on purpose beside {opponent}")


@pytest.mark.parametrize(
    ("make", "kind"), [(list, Quits), (SyncVectorEnv, Quits), (SyncVectorEnv, Nameless)]
)
def test_the_number_is_known_whatever_the_environment_does(make, kind):
    inner = [CountingGym(), kind()]
    Nameless.other = inner[0]
    env = GymEnvInf(inner if make is list else make([lambda one=one: one for one in inner]))
    env.reset()
    with pytest.raises((SystemExit, RuntimeError)) as caught:
        env.step(actions(0, 0))
    assert caught.value.environment == 1


def test_the_number_of_a_failing_environment_counts_those_that_have_ended():
    env = GymEnv([CountingGym(length=1), CountingGym(), FailingGym(at_step=1)])
    with pytest.raises(RuntimeError) as caught:
        run(env, 2)
    assert caught.value.environment == 2


def test_an_exception_of_the_vector_environment_itself_carries_no_number():
    vector = SyncVectorEnv([CountingGym] * 2)
    env = GymEnv(vector)
    vector.reset = lambda **_: 1 / 0
    with pytest.raises(ZeroDivisionError) as caught:
        env.reset()
    assert not hasattr(caught.value, "environment")


def test_close_closes_every_environment_even_if_one_raises():
    class Raises(CountingGym):
        def close(self):
            super().close()
            raise RuntimeError("failed on purpose")

    envs = [CountingGym(), Raises(), CountingGym()]
    with pytest.raises(RuntimeError, match="failed on purpose") as caught:
        GymEnv(envs).close()
    assert caught.value.environment == 1
    assert [env.closed for env in envs] == [True, True, True]


def test_close_closes_a_vector_environment():
    vector = SyncVectorEnv([CountingGym] * 2)
    GymEnv(vector).close()
    assert vector.closed


# --- What is refused ---


def test_what_is_no_environment_is_refused():
    with pytest.raises(TypeError, match=r"gym_env: expected a list .* got <.*CountingGym.*>$"):
        GymEnv(CountingGym())
    with pytest.raises(TypeError, match="^gym_env: .* got <.*; a VecEnv needs no wrapper$"):
        GymEnv(CountingEnv([3]))
    with pytest.raises(TypeError, match=r"gym_env\[1\]: expected a gymnasium.Env, got 3"):
        GymEnv([CountingGym(), 3])
    bare = gymnasium.Env()
    with pytest.raises(TypeError, match=r"gym_env\[0\]: .* with observation_space, got <"):
        GymEnv([bare])
    bare.observation_space = CountingGym().observation_space
    with pytest.raises(TypeError, match=r"gym_env\[1\]: expected an .* with action_space, got <"):
        GymEnv([CountingGym(), bare])
    with pytest.raises(ValueError, match="gym_env: expected at least one environment"):
        GymEnv([])


def test_one_environment_twice_in_the_list_is_refused():
    env = CountingGym()
    with pytest.raises(ValueError, match=r"gym_env\[2\]: expected another object than gym_env\[0"):
        GymEnv([env, CountingGym(), env])


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_spaces_that_differ_are_named(name):
    envs = [CountingGym() for _ in range(3)]
    setattr(envs[2], name, spaces.Discrete(9))
    with pytest.raises(ValueError, match=rf"gym_env\[2\].{name}: .*gym_env\[0\], got Discrete\(9"):
        GymEnv(envs)


def test_an_observation_with_a_reserved_name_is_refused():
    env = CountingGym()
    env.observation_space = spaces.Dict({"reward": spaces.Discrete(2)})
    with pytest.raises(KeyMismatchError, match="observation_space: .* got reward"):
        GymEnv([env])


class Returns(CountingGym):
    """Returns something else than its space has, from some call on (0: the first)."""

    def __init__(self, value, first):
        super().__init__()
        self.value, self.first, self.t = value, first, 0

    def _observe(self):
        self.t += 1
        return super()._observe() if self.t <= self.first else self.value


def test_observations_that_are_too_long_and_too_short_are_refused():
    longer, shorter = (Returns(np.zeros(n, np.int64), first=1) for n in (4, 2))
    env = GymEnv([CountingGym(), longer, shorter])
    env.reset()
    with pytest.raises(ShapeError, match=r"frame: expected shape \(3,\), got \(4,\)") as caught:
        env.step(actions(0, 0, 0))
    assert caught.value.environment == 1


class OldGym(CountingGym):
    """Answers as environments did before Gymnasium."""

    def __init__(self, method, value):
        super().__init__()
        self.method, self.value = method, value

    def reset(self, **arguments):
        answer = super().reset(**arguments)
        return self.value if self.method == "reset" else answer

    def step(self, action):
        answer = super().step(action)
        return self.value if self.method == "step" else answer


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("reset", np.zeros(2, np.int64), r"reset: expected \(observation, info\), .* got array"),
        ("step", (np.zeros(3), 0.0, False, {}), "step: expected .* got 4 values"),
        ("step", None, "step: expected .* got None"),
    ],
)
def test_an_answer_that_is_not_gymnasiums_is_refused(method, value, message):
    env = GymEnv([CountingGym(), OldGym(method, value)])
    if method == "step":
        env.reset()
    with pytest.raises(EnvContractError, match=message) as caught:
        env.reset() if method == "reset" else env.step(actions(0, 0))
    assert caught.value.environment == 1


def test_a_part_of_an_observation_that_is_missing_is_named():
    class Partial(gymnasium.Env):
        observation_space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Discrete(3)})
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return {"a": 1}, {}

    with pytest.raises(KeyMismatchError, match=r"b: expected it in an observation, got \['a'\]"):
        GymEnv([Partial()]).reset()


@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("value", [300, -1])
@pytest.mark.parametrize("is_vector", [False, True])
def test_an_integer_that_its_space_does_not_hold_is_refused(value, shape, is_vector):
    class Overflows(gymnasium.Env):
        observation_space = spaces.Box(0, 255, shape, np.uint8)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.full(shape, value, np.int64), {}

    class OverflowsVector(VectorEnv):
        single_observation_space, single_action_space = (
            Overflows.observation_space,
            Overflows.action_space,
        )
        num_envs, metadata = 1, {"autoreset_mode": AutoresetMode.SAME_STEP}

        def reset(self, *, seed=None, options=None):
            return np.full((1, *shape), value, np.int64), {}

    env = GymEnv(OverflowsVector() if is_vector else [Overflows()])
    message = f"frame: expected uint8, from 0 to 255, got int64 from {value} to {value}"
    with pytest.raises(DtypeMismatchError, match=message):
        env.reset()


class Answers(CountingGym):
    """Returns something odd beside its observations."""

    def __init__(self, position, value):
        super().__init__()
        self.position, self.value = position, value

    def step(self, action):
        answer = list(super().step(action))
        answer[self.position] = self.value
        return tuple(answer)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (np.zeros(1, np.int64), ShapeError, r"frame: expected shape \(3,\), got \(1,\)"),
        (np.zeros((1, 3), np.int64), ShapeError, r"frame: expected shape \(3,\), got \(1, 3\)"),
        (np.int64(1), ShapeError, r"frame: expected shape \(3,\), got \(\)"),
        (np.zeros(3), DtypeMismatchError, "frame: expected int64, got float64"),
        (np.zeros(3, complex), DtypeMismatchError, "frame: expected int64, got complex128"),
        (
            [None] * 3,
            DtypeMismatchError,
            r"frame: expected int64 of shape \(3,\), got \[None, None, None\]",
        ),
        ([1, [2], 3], DtypeMismatchError, r"frame: .* got \[1, \[2\], 3\]: .*inhomogeneous"),
        (
            torch.zeros(3, requires_grad=True),
            DtypeMismatchError,
            "frame: .* got tensor.*: Can't call numpy",
        ),
    ],
)
def test_an_observation_that_numpy_would_broadcast_or_round_is_refused(
    value, error, message, first
):
    env = GymEnv([CountingGym(), Returns(value, first)])
    for _ in range(first):
        env.reset()
    with pytest.raises(error, match=message) as caught:
        env.step(actions(0, 0)) if first else env.reset()
    assert caught.value.environment == 1


@pytest.mark.parametrize(
    ("position", "value", "error", "message"),
    [
        (1, np.zeros(1), ShapeError, r"reward: expected shape \(\), got \(1,\)"),
        (1, None, DtypeMismatchError, r"reward: expected float64 of shape \(\), got None"),
        (1, 1j, DtypeMismatchError, "reward: expected float64, got complex128"),
        (1, torch.ones((), dtype=torch.bfloat16), DtypeMismatchError, r"reward: .*BFloat16"),
        (2, np.zeros(1, np.bool_), ShapeError, r"terminated: expected shape \(\), got \(1,\)"),
        (3, None, DtypeMismatchError, r"truncated: expected bool of shape \(\), got None"),
    ],
)
@pytest.mark.parametrize("n_others", [0, 1])
def test_what_is_no_number_beside_an_observation_is_refused(
    position, value, error, message, n_others
):
    env = GymEnv([*(CountingGym() for _ in range(n_others)), Answers(position, value)])
    env.reset()
    with pytest.raises(error, match=message) as caught:
        env.step(actions(*[0] * (n_others + 1)))
    assert caught.value.environment == n_others


@pytest.mark.parametrize("value", [np.float32(2), 2, True, torch.tensor(2.0), np.array(2)])
def test_a_reward_may_be_any_number(value):
    env = GymEnv([CountingGym(), Answers(1, value)])
    env.reset()
    (after, _), _ = env.step(actions(0, 0))
    assert after["reward"][1] == float(value)


def test_an_asynchronous_environment_that_loses_steps_is_refused():
    # Gymnasium's worker keeps the flag of a pending reset there, and swallows the step after it.
    for mode in AutoresetMode:
        vector = AsyncVectorEnv(
            [CountingGym] * 2, shared_memory=False, autoreset_mode=mode, context="fork"
        )
        if mode is AutoresetMode.NEXT_STEP:
            with pytest.raises(ValueError, match="got shared_memory=False"):
                GymEnv(vector)
            vector.close()
            continue
        with closing(GymEnv(vector)) as env:
            run(env, 3)
            env.reset()
            (after, _), _ = env.step(actions(0, 0))
            assert after["frame"][:, 2].tolist() == [1, 1]


# --- Vector environments of one's own ---


class OwnVector(VectorEnv):
    """Counts in NumPy; returns terminal observations in one array, or nowhere."""

    def __init__(self, nested, tells=True, low=5):
        self.num_envs, self.nested, self.tells = 2, nested, tells
        space = spaces.Box(0, 100, (), np.float32)
        self.single_observation_space = spaces.Dict({"n": space}) if nested else space
        self.single_action_space = spaces.Box(low, low + 1, (1,), np.float64)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.lengths = np.array([2, 3])

    def reset(self, *, seed=None, options=None):
        self.count = np.zeros(2)
        return self.observe(), {}

    def step(self, batch):
        assert batch.dtype == np.float64
        assert np.all((batch >= self.single_action_space.low) & (batch.shape == (2, 1)))
        self.count += 1
        done = self.count == self.lengths
        info = {"final_obs": self.observe()} if done.any() and self.tells else {}
        self.count[done] = 0
        reward = np.array([1, 2], np.int64)
        return self.observe(), reward, done, np.zeros(2, bool), info

    def observe(self):
        return {"n": self.count.copy()} if self.nested else self.count.copy()


@pytest.mark.parametrize("nested", [False, True])
def test_terminal_observations_in_one_array_are_understood(nested):
    key = "n" if nested else "frame"
    env = GymEnvInf(OwnVector(nested))
    env.reset()
    seen, acted_on = [], []
    for _ in range(6):
        (after, _), (following, _) = env.step(actions([5], [6]))
        seen.append(after[key].tolist())
        acted_on.append(following[key].tolist())
        assert after["reward"].tolist() == [1, 2]
    assert after[key].dtype == torch.float32  # As the space has it; the array is float64.
    assert seen == [[1, 1], [2, 2], [1, 3], [2, 1], [1, 2], [2, 3]]
    assert acted_on == [[1, 1], [0, 2], [1, 0], [0, 1], [1, 2], [0, 0]]


def test_environments_that_have_ended_act_within_the_action_space():
    # OwnVector asserts it: 0 is not in its action space.
    env = GymEnv(OwnVector(nested=False))
    env.reset()
    env.step(actions([5], [5]))
    env.step(actions([5], [5]))
    (after, ran), (_, running) = env.step(actions([6]))
    assert ran.tolist() == [1]
    assert after["done"].tolist() == [True]
    assert running.tolist() == []


def test_a_terminal_observation_that_is_not_told_is_an_error():
    env = GymEnvInf(OwnVector(nested=False, tells=False))
    env.reset()
    env.step(actions([5], [5]))
    with pytest.raises(KeyMismatchError, match=r"final_obs: expected in the info of a step"):
        env.step(actions([5], [5]))


@pytest.mark.parametrize("kind", [GymEnv, GymEnvInf])
def test_a_mode_that_is_not_told_is_an_error(kind):
    inner = OwnVector(nested=False)
    inner.metadata = {}  # Which is taken for NEXT_STEP.
    env = kind(inner)
    env.reset()
    env.step(actions([5], [5]))
    with pytest.raises(EnvContractError, match=r"^final_obs: .* in the mode NEXT_STEP, got one"):
        env.step(actions([5], [5]))


def test_a_wrapped_vector_environment_is_seeded_as_the_one_inside():
    inner = SyncVectorEnv([CountingGym] * 2)
    GymEnv(gymnasium.wrappers.vector.RecordEpisodeStatistics(inner), seed=[8, 9]).reset()
    assert [env.seeds for env in inner.envs] == [[8], [9]]


class TwoAtOnce(VectorEnv):
    """A vector environment that is none of Gymnasium's two."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    num_envs = 2
    single_observation_space = spaces.Box(0, 9, (1,), np.float32)
    single_action_space = spaces.Discrete(2)
    truncated = np.zeros(2, np.bool_)

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions):
        return np.zeros((2, 1), np.float32), np.zeros(2), np.zeros(2, np.bool_), self.truncated, {}


def test_another_vector_environment_gets_every_seed_as_a_signed_integer():
    own = TwoAtOnce()
    env = GymEnvInf(own, seed=[2**31 + 3, 2**70 + 5])
    env.reset()
    assert (own.seed.tolist(), own.seed.dtype) == ([3, 5], np.int64)
    env.reset()
    assert own.seed is None


@pytest.mark.parametrize("refusal", [TypeError, ValueError, AssertionError])
def test_a_vector_environment_that_takes_one_seed_gets_the_first_in_31_bits(refusal):
    class OneSeed(TwoAtOnce):
        def reset(self, *, seed=None, options=None):
            if not isinstance(seed, int):
                raise refusal("seed: expected an integer")
            return super().reset(seed=seed)

    own = OneSeed()
    GymEnvInf(own, seed=[2**31 - 1, 5]).reset()
    assert own.seed + own.num_envs <= 2**31
    GymEnvInf(own, seed=[7, 5]).reset()
    assert own.seed == 7


def test_what_fails_in_the_first_reset_of_a_vector_environment_is_told():
    class Broken(TwoAtOnce):
        def reset(self, *, seed=None, options=None):
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom") as caught:
        GymEnvInf(Broken(), seed=0).reset()
    assert caught.value.__context__ is None


def test_where_two_fail_none_of_them_is_named():
    env = GymEnv(AsyncVectorEnv([partial(FailingGym, at_step=0)] * 2, context="fork"))
    env.reset()
    with pytest.raises(RuntimeError) as caught:
        env.step(actions(0, 0))
    assert not hasattr(caught.value, "environment")
    env._backend.env.close(terminate=True)


@pytest.mark.parametrize("flags", [np.zeros(2), np.full(2, 2)])
def test_flags_that_are_floats_or_other_numbers_than_0_and_1_are_refused(flags):
    own = TwoAtOnce()
    own.truncated = flags
    env = GymEnvInf(own)
    env.reset()
    with pytest.raises(DtypeMismatchError, match="truncated"):
        env.step(DictTensor({"action": torch.zeros(2, dtype=torch.int64)}))


def test_a_vector_environment_that_loses_steps_is_seen_through_its_wrappers():
    inner = AsyncVectorEnv(
        [CountingGym] * 2, shared_memory=False, autoreset_mode=AutoresetMode.NEXT_STEP
    )
    with closing(inner):
        wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(inner)
        with pytest.raises(ValueError, match="shared_memory=False"):
            GymEnvInf(wrapped)


@pytest.mark.parametrize(
    ("final", "error", "message"),
    [
        (np.full((2, 3), 7.9), DtypeMismatchError, "expected uint8, got float64"),
        (
            np.full((2, 3), 300),
            DtypeMismatchError,
            "expected uint8, from 0 to 255, got int64 from 300",
        ),
        (np.full((2, 1), 7, np.uint8), ShapeError, r"expected shape \(3,\), got \(1,\)"),
        (np.array([7, 8], np.uint8), ShapeError, r"expected shape \(3,\), got \(\)"),
        (np.array([None, None]), DtypeMismatchError, r"expected uint8 of shape .*, got None"),
    ],
)
def test_a_terminal_observation_that_does_not_fit_is_refused(final, error, message):
    class Pixels(OwnVector):
        def __init__(self):
            super().__init__(nested=False)
            self.single_observation_space = spaces.Box(0, 255, (3,), np.uint8)

        def observe(self):
            return np.zeros((2, 3), np.uint8)

        def step(self, batch):
            frame, reward, done, truncated, info = super().step(batch)
            return frame, reward, done, truncated, {key: final for key in info}

    env = GymEnvInf(Pixels())
    env.reset()
    env.step(actions([5], [5]))
    with pytest.raises(error, match=f"^final_obs: frame: {message}") as caught:
        env.step(actions([5], [5]))
    assert caught.value.environment == 0


def test_integers_of_two_dtypes_together_are_no_floats():
    class Counts(gymnasium.Env):
        observation_space, action_space = spaces.Box(0, 2**63, (2,), np.uint64), spaces.Discrete(2)

        def __init__(self, dtype):
            self.dtype = dtype

        def reset(self, *, seed=None, options=None):
            return np.array([1, 2**53 + 1], self.dtype), {}

    observation, _ = GymEnv([Counts(np.int64), Counts(np.uint64)]).reset()
    assert observation["frame"].dtype == torch.uint64
    assert observation["frame"].tolist() == [[1, 2**53 + 1]] * 2


@pytest.mark.parametrize("space", [spaces.Dict({}), spaces.Tuple([])])
def test_an_action_space_without_parts_is_refused(space):
    env = CountingGym()
    env.action_space = space
    with pytest.raises(TypeError, match=r"^action_space: expected at least one part, got "):
        GymEnv([env])


def test_a_number_that_the_space_can_not_hold_is_refused():
    class Overflows(gymnasium.Env):
        observation_space = spaces.Box(-5, 5, (2,), np.int8)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.array([300, 0]), {}

    with pytest.raises(DtypeMismatchError, match="from -128 to 127"):
        GymEnv([Overflows()]).reset()


class FlagsOfNumbers(OwnVector):
    """Ends episodes with 0 and 1, as vector environments of others may."""

    def __init__(self, dtype):
        super().__init__(nested=False)
        self.dtype, self.metadata = dtype, {"autoreset_mode": AutoresetMode.DISABLED}

    def step(self, batch):
        frame, reward, done, truncated, _ = super().step(batch)
        return frame, reward, done.astype(self.dtype), truncated.astype(self.dtype), {}


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_numbers_that_say_that_an_episode_has_ended_are_flags(dtype):
    env = GymEnv(FlagsOfNumbers(dtype))
    env.reset()
    action = DictTensor({"action": torch.full((2, 1), 5.0, dtype=torch.float64)})
    env.step(action)
    (after, _), (following, running) = env.step(action)
    assert after["terminated"].tolist() == after["done"].tolist() == [True, False]
    assert running.tolist() == [1]
    assert following.n_elems() == 1


def test_flags_of_a_wrong_shape_that_fit_together_are_refused():
    class Arrays(CountingGym):
        def step(self, action):
            frame, reward, *flags, info = super().step(action)
            return frame, reward, *(np.array([flag]) for flag in flags), info

    env = GymEnv([Arrays(), Arrays()])
    env.reset()
    with pytest.raises(ShapeError, match=r"terminated: expected shape \(\), got \(1,\)"):
        env.step(actions(0, 0))


def test_rewards_of_a_wrong_shape_are_refused():
    class Column(SyncVectorEnv):
        def step(self, actions):
            frame, reward, *rest = super().step(actions)
            return frame, reward[:, None], *rest

    env = GymEnvInf(Column([CountingGym] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    env.reset()
    with pytest.raises(ShapeError, match=r"reward: expected shape \(2,\), got \(2, 1\)"):
        env.step(actions(0, 0))
