"""`check_env` passes what keeps the contract, and names the clause that is broken."""

import logging
import math
from contextlib import closing
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlbatch.dicttensor import DictTensor
from rlbatch.envs import GymEnv, GymEnvInf, VecEnv, check_env
from rlbatch.envs.atari import AtariEnv
from rlbatch.errors import EnvContractError, ShapeError
from tests.helpers import BACKENDS, CountingEnv, CountingGym, FailingGym, NestedGym, gym_env

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.mark.parametrize("autoreset", [False, True])
def test_an_environment_that_keeps_the_contract_passes(autoreset, device):
    report = check_env(CountingEnv([1, 2, 5], autoreset=autoreset, device=device), n_steps=30)
    assert report.n_steps == 30
    # Environments 0 and 2 terminate, 1 is truncated. Together they run 5 steps, then all reset;
    # or each goes on by itself, and an episode of n steps ends 30 / n times.
    expected = (30 // 5 * 2, 30 // 5) if not autoreset else (30 + 30 // 5, 30 // 2)
    assert (report.n_terminated, report.n_truncated) == expected


@pytest.mark.parametrize("make_env", [GymEnv, GymEnvInf])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gymnasium_environments_keep_the_contract(make_env, backend):
    makers = [partial(CountingGym, n, length=n + 1, truncates=n == 1) for n in range(3)]
    with closing(make_env(gym_env(backend, makers), seed=0)) as env:
        report = check_env(env, n_steps=24)
    assert report.n_terminated >= 8
    assert report.n_truncated >= 4


@pytest.mark.parametrize("make_env", [GymEnv, GymEnvInf])
@pytest.mark.parametrize("backend", ["list", "sync-NEXT_STEP", "sync-SAME_STEP", "sync-DISABLED"])
def test_nested_environments_keep_the_contract(make_env, backend):
    report = check_env(make_env(gym_env(backend, [NestedGym] * 2), seed=0), n_steps=12)
    assert report.n_terminated >= 4


def test_an_episode_that_ends_in_both_ways_counts_as_terminated():
    class Both(GymEnv):
        def step(self, action):
            (after, ran), (following, running) = super().step(action)
            after["truncated"].copy_(after["terminated"])
            return (after, ran), (following, running)

    assert check_env(Both([CountingGym(length=2)]), n_steps=8)[:3] == (8, 4, 0)


class ForgetsItsEnds(CountingEnv):
    """Observes, after the last step of an episode, what the next one begins with."""

    def step(self, action):
        (after, ran), (following, running) = super().step(action)
        after.set("frame", following["frame"].clone())
        after.set("option", following["option"].clone())
        return (after, ran), (following, running)


def test_five_ends_are_enough_to_suspect_something():
    assert len(check_env(ForgetsItsEnds([6], autoreset=True), n_steps=30).warnings) == 1


@pytest.mark.parametrize("autoreset", [False, True])
def test_nan_is_equal_to_itself(autoreset):
    class Blind(CountingEnv):
        def _observe(self, last_action):
            observation = super()._observe(last_action)
            observation.set("frame", observation["frame"] * float("nan"))
            return observation

    env = Blind([3], autoreset=autoreset)
    env.observation_space = None
    assert check_env(env, 20).n_terminated > 0


def test_a_terminal_observation_that_is_that_of_the_next_episode_is_suspected(caplog):
    message = "check_env: each of 6 episodes began with the observation that the one before ended"
    with caplog.at_level(logging.WARNING, logger="rlbatch.envs.check"):
        check_env(CountingEnv([5], autoreset=True), n_steps=30)
        check_env(ForgetsItsEnds([8], autoreset=True), n_steps=30)
        assert caplog.messages == []
        report = check_env(ForgetsItsEnds([5], autoreset=True), n_steps=30)
    assert [one[: len(message)] for one in caplog.messages] == [message]
    assert [f"check_env: {warning}" for warning in report.warnings] == caplog.messages


@pytest.mark.parametrize("autoreset", [False, True])
def test_environments_that_differ_are_named(autoreset):
    class Counts(CountingEnv):
        def step(self, action):
            pairs = super().step(action)
            for observation, running in pairs:
                observation["episode_length"][running == 3] = 7
            return pairs

    expected = r", of environments \[3\]: expected tensor\(\[1\]\), got tensor\(\[7\]\)"
    with pytest.raises(EnvContractError, match=expected):
        check_env(Counts([2, 2, 9, 9], autoreset=autoreset), n_steps=1)

    class Differs(CountingEnv):
        def step(self, action):
            after, (following, running) = super().step(action)
            following["frame"][running >= 3] += 1
            return after, (following, running)

    with pytest.raises(EnvContractError, match=r"same frame, .*, of environments \[3, 4\]: "):
        check_env(Differs([1, 1, 9, 9, 9], autoreset=autoreset), n_steps=1)


def test_a_return_that_is_no_sum_is_told_from_the_one_that_is():
    class Forgets(CountingEnv):
        def step(self, action):
            pairs = super().step(action)
            for observation, _ in pairs:
                observation["episode_return"][:] = observation["reward"]
            return pairs

    expected = r", of environments \[0\]: expected tensor\(\[3\..*\), got tensor\(\[2\."
    with pytest.raises(EnvContractError, match=expected):
        check_env(Forgets([2]), n_steps=2)


def test_a_key_that_comes_later_is_told_apart():
    class Adds(CountingEnv):
        def step(self, action):
            after, (following, running) = super().step(action)
            return after, (with_key(following, "late", following["done"]), running)

    with pytest.raises(EnvContractError, match=r"\(missing \[\], unexpected \['late'\]\)"):
        check_env(Adds([2]), n_steps=1)


def test_ten_environments_that_differ_are_named():
    class Counts(CountingEnv):
        def step(self, action):
            pairs = super().step(action)
            for observation, _ in pairs:
                observation["episode_length"][:] = 7
            return pairs

    with pytest.raises(EnvContractError, match=r"environments \[0, 1, 2, 3, 4, 5, 6, 7, 8, 9\]: "):
        check_env(Counts([9] * 12), n_steps=1)


def test_an_environment_of_a_list_that_fails_is_named():
    with pytest.raises(EnvContractError, match=r"step: takes actions: .* \(in environment 1 of"):
        check_env(GymEnv([CountingGym(), FailingGym(at_step=0)]))


def test_a_mark_that_is_missing_is_named():
    class Marks(CountingEnv):
        def step(self, action):
            after, (following, running) = super().step(action)
            following["initial_state"][1] = False
            return after, (following, running)

    with pytest.raises(
        EnvContractError, match=r", of environments \[1\]: expected tensor\(\[True\]\), got .*F"
    ):
        check_env(Marks([2, 2, 2], autoreset=True), n_steps=9)


def test_a_check_that_saw_no_episode_end_says_so(caplog):
    with caplog.at_level(logging.WARNING, logger="rlbatch.envs.check"):
        report = check_env(CountingEnv([10]), n_steps=9)
    assert report == (9, 0, 0, ("no episode ended in 9 steps; take more",))
    assert caplog.messages == ["check_env: no episode ended in 9 steps; take more"]
    caplog.clear()
    check_env(CountingEnv([9]), n_steps=9)
    assert caplog.messages == []


def test_an_episode_that_is_cut_has_ended():
    assert check_env(GymEnv([CountingGym(truncates=True)]), n_steps=3)[:3] == (3, 0, 1)


def test_the_same_actions_are_drawn_in_every_check():
    def drawn():
        env = CountingGym(length=5)
        check_env(GymEnv([env]), n_steps=20)
        return env.actions

    assert drawn() == drawn()
    assert set(drawn()) == {0, 1}


def test_parts_of_an_action_are_drawn_apart():
    class Pairs(CountingGym):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Dict({"x": spaces.Discrete(2), "y": spaces.Discrete(2)})

        def step(self, action):
            seen.add((int(action["x"]), int(action["y"])))
            return super().step(action)

    seen = set()
    check_env(GymEnv([Pairs()]), n_steps=100)
    assert len(seen) == 4


def test_actions_may_be_given_by_a_function():
    env = CountingEnv([3, 4], autoreset=True)
    env.action_space = None
    seen = []

    def sample(n):
        seen.append(n)
        return DictTensor({"action": torch.ones(n, dtype=torch.int64)})

    check_env(env, n_steps=5, sample_action=sample)
    assert seen == [2] * 5
    with pytest.raises(ValueError, match="sample_action: expected a function"):
        check_env(env)


def test_the_random_stream_of_the_action_space_stays_as_it_was():
    env = CountingEnv([3])
    env.action_space.seed(3)
    expected = [env.action_space.sample() for _ in range(20)]
    env.action_space.seed(3)
    check_env(env)
    assert [env.action_space.sample() for _ in range(20)] == expected


def test_actions_have_one_row_per_running_environment_even_if_none_runs():
    class Counts(CountingEnv):
        def step(self, action):
            rows.append((action.n_elems(), len(self.running)))
            return super().step(action)

    rows = []
    check_env(Counts([1, 2]), n_steps=4)
    assert rows == [(2, 2), (1, 1), (0, 0), (2, 2), (1, 1)]


def test_an_environment_without_spaces_is_checked_without_them():
    env = CountingEnv([2])
    env.observation_space = None
    assert check_env(env, n_steps=4).n_terminated == 2


KINDS = {
    "ends": lambda: CountingEnv([2, 3, 5]),
    "resets": lambda: CountingEnv([2, 3, 5], autoreset=True),
    "resets late": lambda: GymEnvInf(
        SyncVectorEnv(
            [
                partial(CountingGym, number, length, truncates=number == 1)
                for number, length in enumerate([2, 3, 5])
            ],
            autoreset_mode=AutoresetMode.NEXT_STEP,
        )
    ),
}


class Saboteur(VecEnv):
    """A right environment with one fault.

    Args:
        env: The right one.
        sabotage: Takes this environment, what is returned (`reset`, or `after` and `following` of
            a step), an observation and `running`; may write into both; returns them.
    """

    def __init__(self, env, sabotage):
        self.env, self.sabotage = env, sabotage
        self.autoreset, self.action_space = env.autoreset, env.action_space
        self.resets_late, self.observation_space = env.resets_late, env.observation_space

    def n_envs(self):
        return self.env.n_envs()

    def reset(self, env_info=None):
        observation, running = self.env.reset(env_info)
        return self.sabotage(self, "reset", observation.clone(), running.clone())

    def step(self, action):
        after, following = ((o.clone(), r.clone()) for o, r in self.env.step(action))
        return self.sabotage(self, "after", *after), self.sabotage(self, "following", *following)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saboteur_without_a_fault_passes(kind):
    env = Saboteur(KINDS[kind](), lambda env, when, observation, running: (observation, running))
    report = check_env(env, n_steps=30)
    assert report.n_terminated >= 8
    assert report.n_truncated >= 5


FAULTS = []


def breaks(clause, kinds=tuple(KINDS)):
    """Registers a fault, and the clause that has to be named, for some kinds of environments."""

    def register(sabotage):
        for kind in kinds:
            FAULTS.append(pytest.param(sabotage, kind, clause, id=f"{sabotage.__name__}-{kind}"))
        return sabotage

    return register


def with_key(observation, key, tensor):
    return DictTensor({**dict(observation.items()), key: tensor})


# --- Forms ---


@breaks("reset: returns pairs of a DictTensor and a tensor")
def observations_are_dicts(env, when, observation, running):
    return dict(observation.items()), running


@breaks("reset: returns pairs of a DictTensor and a tensor")
def running_is_a_list(env, when, observation, running):
    return observation, running.tolist()


@breaks("step: returns pairs of a DictTensor and a tensor")
def the_second_pair_is_an_observation_alone(env, when, observation, running):
    return observation if when == "following" else (observation, running)


@breaks(r"reset: running is int64 \[B\]")
def running_is_int32(env, when, observation, running):
    return observation, running.int()


@breaks(r"step: running is int64 \[B\]")
def running_has_two_dimensions(env, when, observation, running):
    return observation, running[:, None] if when == "following" else running


@breaks("step: running is on env.device")
def running_is_elsewhere(env, when, observation, running):
    return observation, running.to("meta") if when == "after" else running


@breaks("step: running ascends")
def running_descends(env, when, observation, running):
    return observation, running.flip(0) if when == "after" else running


@breaks("reset: observations are on env.device: frame")
def observations_are_elsewhere(env, when, observation, running):
    return observation.to("meta"), running


@breaks(r"step: observations have one row per running environment \(3\): frame")
def a_row_is_missing(env, when, observation, running):
    return observation.index([0, 1]) if when == "after" else observation, running


@breaks("reset: observations hold reward")
def a_key_is_missing(env, when, observation, running):
    return observation.get(key for key in observation if key != "reward"), running


@breaks("reset: observations hold last_action")
def last_action_is_missing(env, when, observation, running):
    return observation.get(key for key in observation if key != "last_action"), running


@breaks("observations hold frame of the space")
def frame_is_missing(env, when, observation, running):
    return observation.get(key for key in observation if key != "frame"), running


@breaks(r"frame is \(\(3,\), torch.int64\), as in observation_space: .* torch.float32\)")
def frame_has_another_dtype_than_its_space(env, when, observation, running):
    return with_key(observation, "frame", observation["frame"].float()), running


@breaks(r"frame is \(\(3,\), torch.int64\), as in observation_space: .* got \(\(2,\), ")
def frame_has_another_shape_than_its_space(env, when, observation, running):
    return with_key(observation, "frame", observation["frame"][:, :2]), running


@breaks(r"reset: reward is torch.float32 \[B\]: .* got \(torch.float64")
def reward_is_float64(env, when, observation, running):
    return with_key(observation, "reward", observation["reward"].double()), running


@breaks(r"reset: done is torch.bool \[B\]: .* got \(torch.bool, \(3, 1\)\)")
def done_has_two_dimensions(env, when, observation, running):
    return with_key(observation, "done", observation["done"][:, None]), running


@breaks("step: keys stay as in the first reset")
def a_key_comes_later(env, when, observation, running):
    extra = DictTensor({"extra": observation["reward"]} if when == "after" else {})
    return observation + extra, running


@breaks("step: frame stays as in the first reset, .*int64.* got .*int32")
def a_dtype_changes_later(env, when, observation, running):
    if when == "following":
        observation = with_key(observation, "frame", observation["frame"].int())
    return observation, running


# --- Memory ---


@breaks("step: does not write into the observation of before: frame", ["resets", "resets late"])
def observations_are_one_memory(env, when, observation, running):
    if when != "after":
        return observation, running
    if not hasattr(env, "memory"):
        env.memory = observation["frame"]
    env.memory.copy_(observation["frame"])
    return with_key(observation, "frame", env.memory), running


@breaks("step: does not write into the running of before", ["ends"])
def running_is_one_memory(env, when, observation, running):
    if when == "reset":
        env.memory = running
    elif when == "following":
        env.memory[: len(running)] = running
        return observation, env.memory[: len(running)]
    return observation, running


# --- Flags and counts ---


def writes(when, clause, **values):
    """Registers the fault of values that are written over those of the first row."""

    def sabotage(env, now, observation, running):
        for key, value in values.items():
            if now == when or (when == "step" and now != "reset"):
                observation[key][:1] = value
        return observation, running

    sabotage.__name__ = f"{when}_{'_'.join(values)}"
    breaks(clause)(sabotage)


writes("reset", "reset: initial_state is True", initial_state=False)
writes("reset", "reset: reward of a first observation is 0", reward=1)
writes("reset", "reset: done of a first observation is 0", done=True, terminated=True)
writes("reset", "reset: done of a first observation is 0", done=True, truncated=True)
writes("reset", "reset: episode_return of a first observation is 0", episode_return=1)
writes("reset", "reset: episode_length of a first observation is 0", episode_length=1)
writes("reset", "reset: last_action of a first observation is 0", last_action=1)
writes("reset", "reset: done is terminated or truncated", terminated=True)
writes("after", "step: done is terminated or truncated", done=True)
writes("after", "step: done is terminated or truncated", truncated=True)
writes("step", "step: initial_state is False", initial_state=True)
writes("step", "step: episode_length counts the steps of the episode", episode_length=4)
writes("step", "step: episode_return sums the rewards of the episode", episode_return=4)
writes("step", "step: episode_return sums the rewards of the episode", reward=4)
writes("following", "step: both pairs have the same frame, except for a first obs", frame=77)
writes("following", "step: both pairs have the same initial_state", initial_state=True)


@breaks("step: last_action is the action that led to the observation")
def last_action_is_another(env, when, observation, running):
    if when != "reset":
        observation["last_action"].bitwise_xor_(1)
    return observation, running


# --- Who runs on, and what follows an end ---


@breaks("reset: all environments run, in order")
def a_reset_leaves_one_out(env, when, observation, running):
    return (observation.index([0, 1]), running[:2]) if when == "reset" else (observation, running)


@breaks("step: the first pair has all that ran")
def the_first_pair_leaves_one_out(env, when, observation, running):
    return (observation.index([0]), running[:1]) if when == "after" else (observation, running)


@breaks("step: with autoreset all environments run on", ["resets", "resets late"])
def an_ended_one_is_left_out(env, when, observation, running):
    if when == "following":
        rows = torch.nonzero(~observation["initial_state"] & ~observation["done"])[:, 0]
        return observation.index(rows), running[rows]
    return observation, running


@breaks("step: with autoreset False those that are not done run on, no others", ["ends"])
def an_ended_one_runs_on(env, when, observation, running):
    if when == "after":
        env.after = observation, running
    return env.after if when == "following" else (observation, running)


@breaks("step: with autoreset False those that are not done run on, no others", ["ends"])
def one_stops_before_its_end(env, when, observation, running):
    if when == "following" and len(running) == 3:
        return observation.index([0, 1]), running[:2]
    return observation, running


@breaks("step: initial_state is False", ["resets"])
def a_terminal_observation_is_that_of_the_next_episode(env, when, observation, running):
    if when == "after":
        env.after = observation
    elif when == "following":
        env.after.copy_(observation, *2 * [torch.nonzero(observation["initial_state"])[:, 0]])
    return observation, running


@breaks("step: where an episode has ended, initial_state", ["resets"])
def a_first_observation_is_not_marked(env, when, observation, running):
    if when == "following":
        observation["initial_state"][:] = False
    return observation, running


def goes_on(key):
    def sabotage(env, when, observation, running):
        if when == "following":
            observation[key][observation["initial_state"]] = 1
        return observation, running

    sabotage.__name__ = f"{key}_goes_on_after_a_reset"
    breaks(f"step that resets: {key} of a first observation is 0", ["resets"])(sabotage)


for _key in ("reward", "episode_return", "episode_length", "last_action"):
    goes_on(_key)


@breaks("step: where an episode has ended, initial_state", ["resets", "resets late"])
def it_says_the_wrong_thing_of_its_resets(env, when, observation, running):
    env.resets_late = not env.env.resets_late
    return observation, running


@breaks("step after a last one that did not reset: initial_state is True", ["resets late"])
def a_late_reset_is_not_marked(env, when, observation, running):
    observation["initial_state"][:] &= when == "reset"
    return observation, running


@breaks("step after a last one that did not reset: reward of a first obs.* is 0", ["resets late"])
def a_late_reset_has_a_reward(env, when, observation, running):
    if when != "reset":
        observation["reward"][observation["initial_state"]] = 1
    return observation, running


@pytest.mark.parametrize(("sabotage", "kind", "clause"), FAULTS)
def test_a_broken_clause_is_named(sabotage, kind, clause):
    with pytest.raises(EnvContractError, match=f"^{clause}"):
        check_env(Saboteur(KINDS[kind](), sabotage), n_steps=30)


# --- Faults in how calls are taken ---


def test_an_environment_that_takes_no_other_keys_is_named():
    class Strict(CountingEnv):
        def step(self, action):
            if list(action) != ["action"]:
                raise KeyError("unknown")
            return super().step(action)

    with pytest.raises(EnvContractError, match="step: ignores other keys") as e:
        check_env(Strict([2]))
    assert isinstance(e.value.__cause__, KeyError)


@pytest.mark.parametrize("error", [None, IndexError])
def test_an_environment_that_takes_a_step_when_none_runs_is_named(error):
    class Lenient(CountingEnv):
        def step(self, action):
            if not len(self.running):
                if error is not None:
                    raise error
                return (DictTensor(), self.running), (DictTensor(), self.running)
            return super().step(action)

    clause = "step: raises CallOrderError when no environment runs"
    with pytest.raises(EnvContractError, match=clause):
        check_env(Lenient([2]))


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("n_envs", lambda env: env.n_envs()),
        ("reset", lambda env: env.reset()),
        ("step", lambda env: env.step(DictTensor())),
    ],
)
def test_a_method_that_is_not_defined_is_named(method, call):
    class Nothing(VecEnv):
        pass

    with pytest.raises(NotImplementedError, match=f"^{method}: expected Nothing to define it"):
        call(Nothing())


def test_an_environment_that_returns_one_pair_is_named():
    class OnePair(CountingEnv):
        def step(self, action):
            return (super().step(action)[0],)

    with pytest.raises(EnvContractError, match="step: returns two pairs: expected that, got 1"):
        check_env(OnePair([2]))


def test_an_environment_that_returns_nothing_is_named():
    class Nothing(CountingEnv):
        def step(self, action):
            return None

    with pytest.raises(EnvContractError, match="step: returns two pairs: expected that, got None"):
        check_env(Nothing([2]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"env": CountingGym()}, TypeError, "env: expected a VecEnv, got <"),
        ({"n_steps": 0}, ValueError, "n_steps: expected at least 1, got 0"),
        ({"sample_action": torch.zeros}, TypeError, "sample_action: expected a DictTensor, got t"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        check_env(**{"env": CountingEnv([2]), **arguments})


def test_a_later_reset_that_does_not_start_new_episodes_is_named():
    class Resets(CountingEnv):
        def reset(self, env_info=None):
            if not len(self.running):
                return super().reset(env_info)
            return self._observe(torch.zeros_like(self.numbers)), self.running

    with pytest.raises(EnvContractError, match="reset: initial_state is True"):
        check_env(Resets([4, 5], autoreset=True), n_steps=6)


def test_a_part_of_last_action_that_is_missing_is_named():
    def lacking(observation):
        return observation.get(key for key in observation.keys() if key != "last_action/choice")

    class Lacks(GymEnv):
        def reset(self, env_info=None):
            observation, running = super().reset(env_info)
            return lacking(observation), running

        def step(self, action):
            (after, ran), (following, running) = super().step(action)
            return (lacking(after), ran), (lacking(following), running)

    with pytest.raises(EnvContractError, match="step: observations hold last_action/choice"):
        check_env(Lacks([NestedGym()]))


def test_no_environments_at_all_are_named():
    with pytest.raises(EnvContractError, match="n_envs is at least 1: expected that, got 0"):
        check_env(CountingEnv([]))


def test_a_default_device_is_not_that_of_the_check():
    torch.set_default_device("meta")
    try:
        assert check_env(GymEnv([CountingGym(length=2)], seed=0)).n_steps == 200
    finally:
        torch.set_default_device(None)


class WritesInto(GymEnvInf):
    """Has a `step_into` of its own that may be wrong, beside a `step` that is right."""

    def __init__(self, fault):
        super().__init__([CountingGym(length=3), CountingGym(length=4)], seed=0)
        self.fault = fault

    def step(self, action):
        return super().step(action)

    def step_into(self, action, after, following):
        for arrays, (observation, _) in zip((after, following), self.step(action), strict=True):
            for key, tensor in observation.items():
                if key != self.fault:
                    arrays[key][...] = tensor.numpy()
        if self.fault == "follows":
            following["frame"][...] = after["frame"]
            following["initial_state"][...] = after["initial_state"]
        if self.fault == "total":
            after["episode_return"][...] = 7


@pytest.mark.parametrize(
    ("fault", "clause"),
    [
        ("follows", "where an episode has ended, initial_state"),
        ("total", "episode_return sums"),
        ("frame", "both pairs have the same frame"),
    ],
)
def test_what_is_written_into_arrays_is_looked_at_too(fault, clause):
    check_env(WritesInto(None), n_steps=20)
    with pytest.raises(EnvContractError, match=f"with step_into: step: {clause}"):
        check_env(WritesInto(fault), n_steps=20)


def test_what_a_step_into_raises_is_the_cause():
    class Fails(GymEnvInf):
        def step_into(self, action, after, following):
            raise KeyError("no such array")

    with pytest.raises(EnvContractError, match="with step_into: step: takes actions") as caught:
        check_env(Fails([CountingGym()]), n_steps=3)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_step_into_is_for_what_resets_itself_on_the_cpu(played_gpu):
    class Elsewhere(CountingEnv):
        def step_into(self, action, after, following):
            raise AssertionError

    assert check_env(Elsewhere([2], autoreset=True, device="cuda"), n_steps=4).n_terminated == 2
    assert check_env(Elsewhere([2]), n_steps=4).n_terminated == 2  # Which does not reset itself.


class ResetsSome(GymEnvInf):
    """Has a `reset_where` of its own that may be wrong."""

    def __init__(self, fault):
        super().__init__([CountingGym(k, 8) for k in range(3)], seed=0)
        self.fault = fault

    def reset_where(self, chosen):
        if self.fault == "nobody":
            return super().reset_where(chosen & False)
        if self.fault == "everybody":
            return super().reset_where(chosen | True)
        now, everyone = super().reset_where(chosen)
        if self.fault == "few":
            return now.index(chosen), everyone[chosen]
        if self.fault == "count":
            self._length[:] = 5
        return now, everyone


@pytest.mark.parametrize(
    ("fault", "clause"),
    [
        ("nobody", "reset_where: initial_state is True"),
        ("everybody", "reset_where: leaves frame of the others as it was, of environments"),
        ("few", "reset_where: returns all environments"),
        ("count", "step: episode_length counts"),
    ],
)
def test_a_reset_of_some_is_looked_at_too(fault, clause):
    check_env(ResetsSome(None), n_steps=20)
    with pytest.raises(EnvContractError, match=clause):
        check_env(ResetsSome(fault), n_steps=20)


def test_a_reset_of_some_that_is_not_offered_is_left_alone():
    one = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    assert check_env(GymEnvInf(one, seed=0)).n_terminated > 0


def test_a_wrapper_that_resets_all_or_none_offers_no_reset_of_some():
    inner = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    wrapped = gymnasium.wrappers.vector.NormalizeObservation(inner)
    env = GymEnvInf(gymnasium.wrappers.vector.RecordEpisodeStatistics(wrapped), seed=0)
    assert check_env(env).n_terminated > 0
    with pytest.raises(NotImplementedError, match="got NormalizeObservation, which resets all or"):
        env.reset_where(torch.tensor([True, False]))


def test_rewards_of_both_signs_may_be_large():
    class Trade(CountingGym):
        def step(self, action):
            frame, _, *ends = super().step(action)
            return frame, 1e6 * self.np_random.normal(), *ends

    for seed in range(5):
        check_env(GymEnvInf([Trade(length=500)], seed), n_steps=500)


@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan])
def test_a_reward_without_end_counts_as_it_is(reward):
    class Wins(CountingGym):
        def step(self, action):
            frame, _, *ends = super().step(action)
            return frame, reward, *ends

    assert check_env(GymEnvInf([Wins()], seed=0), n_steps=9).n_terminated == 3


def test_large_rewards_of_an_episode_hide_nothing_in_the_next():
    class Trade(CountingEnv):
        def step(self, action):
            (after, ran), following = super().step(action)
            first = after["frame"][:, 1] == 0
            after["reward"].masked_fill_(first, 1e6)
            after["episode_return"].masked_fill_(first, 1e6)
            after["episode_return"][~first] += 1
            return (after, ran), following

    with pytest.raises(EnvContractError, match="step: episode_return sums the rewards"):
        check_env(Trade([1], autoreset=True), n_steps=2)


class Drawn(CountingGym):
    """Begins with a number that is drawn; from the seed, if it is told to."""

    def __init__(self, is_seeded):
        super().__init__()
        self.observation_space = spaces.Box(0, 1, (1,), np.float64)
        self.is_seeded = is_seeded

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed if self.is_seeded else None)
        return self.np_random.random(1), {}

    def step(self, action):
        _, *rest = super().step(action)
        return np.zeros(1), *rest


@pytest.mark.parametrize("make_env", [GymEnv, GymEnvInf])
def test_an_environment_that_draws_from_elsewhere_than_its_seed_is_suspected(make_env):
    assert check_env(make_env([Drawn(True), Drawn(True)]), 20).warnings == ()
    (warning,) = check_env(make_env([Drawn(True), Drawn(False)]), 20).warnings
    assert warning.startswith("frame of first observations differed with one seed (")


def test_an_environment_without_seeds_is_not_asked_for_them():
    assert not hasattr(CountingEnv, "seed")
    assert check_env(CountingEnv([3], autoreset=True), 20).warnings == ()


@pytest.mark.parametrize("number", [-1, 101])
def test_values_outside_the_bounds_of_the_space_are_suspected(number):
    expected = "frame was outside the bounds of observation_space, 0 to 100"
    env = GymEnvInf([CountingGym(length=3)])
    assert expected not in check_env(env, 20).warnings
    env = GymEnvInf([CountingGym(number=number, length=3)])
    assert expected in check_env(env, 20).warnings


def test_every_part_outside_its_bounds_is_suspected():
    class Wide(NestedGym):
        observation_space = spaces.Dict({key: spaces.Box(0, 1, (2,)) for key in "abc"})

        def reset(self, **options):
            super().reset(**options)
            return self.observe(), {}

        def step(self, action):
            return self.observe(), *super().step(action)[1:]

        def observe(self):
            return {
                key: np.full(2, value, np.float32)
                for key, value in zip("abc", (2, 0, 2), strict=True)
            }

    names = [warning.split()[0] for warning in check_env(GymEnvInf([Wide()]), 20).warnings[-2:]]
    assert names == ["a", "c"]


def test_an_environment_that_changes_its_actions_is_named():
    class Clips(CountingEnv):
        def step(self, action):
            action["action"].clamp_(max=0)
            return super().step(action)

    with pytest.raises(EnvContractError, match="step: leaves the actions as they are: action"):
        check_env(Clips([3, 4]), n_steps=20, sample_action=ones)


def ones(n):
    return DictTensor({"action": torch.ones(n, dtype=torch.int64)})


@pytest.mark.parametrize("n_steps_later", [1, 2, 3])
def test_memory_that_is_used_again_later_is_named(n_steps_later):
    class Reuses(CountingEnv):
        buffers, n_taken = {}, 0

        def step(self, action):
            (after, ran), following = super().step(action)
            self.n_taken += 1
            buffer = self.buffers.setdefault(self.n_taken % n_steps_later, after["frame"].clone())
            after.set("frame", buffer.copy_(after["frame"]))
            return (after, ran), following

    with pytest.raises(EnvContractError, match="step: does not write into the observation of befo"):
        check_env(Reuses([50, 50], autoreset=True), n_steps=20)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "clause"),
    [
        (lambda action: action["no_action"].add_(1), "no_action"),
        (lambda action: action.set("mine", action["action"]), r"\['action', 'no_action'\]"),
        (lambda action: action.variables.pop("no_action"), r"\['action', 'no_action'\]"),
    ],
)
def test_an_environment_that_changes_other_parts_of_its_actions_is_named(kind, change, clause):
    class Changes(Saboteur):
        def step(self, action):
            pairs = super().step(action)
            change(action)
            return pairs

    env = Changes(KINDS[kind](), lambda env, when, observation, running: (observation, running))
    with pytest.raises(EnvContractError, match=f"step: leaves the actions as they are: {clause}"):
        check_env(env, n_steps=4)


class TakesSeeds(CountingEnv):
    """Begins with a number that is drawn, from seeds that are taken in some ways."""

    def __init__(self, ways, refuses=False):
        super().__init__([3, 4], autoreset=True)
        self.ways, self.refuses = ways, refuses
        self.generator = torch.Generator().manual_seed(0)

    def seed(self, seed):
        self.take(seed, "integer" if isinstance(seed, int) else "several")

    def take(self, seed, way):
        if way in self.ways:
            self.generator.manual_seed(seed if isinstance(seed, int) else sum(seed))
        elif self.refuses:
            raise ValueError(f"no {way}")

    def reset(self, env_info=None):
        if env_info is not None and "seed" in env_info:
            self.take(env_info["seed"].tolist(), "info")
        observation, running = super().reset()
        self.drawn = torch.rand(2, generator=self.generator)
        return self.with_drawn(observation), running

    def step(self, action):
        (after, ran), (following, running) = super().step(action)
        return (self.with_drawn(after), ran), (self.with_drawn(following), running)

    def with_drawn(self, observation):
        frame = observation["frame"] * torch.tensor([1, 0, 1])  # Which episode it is, left out.
        return with_key(with_key(observation, "frame", frame), "drawn", self.drawn)


WAYS = {
    "integer": "seed: takes an integer",
    "several": "seed: takes one integer per environment",
    "info": "reset: takes one seed per environment in env_info",
}


@pytest.mark.parametrize("missing", WAYS)
def test_each_way_to_give_seeds_is_tried(missing):
    assert check_env(TakesSeeds(set(WAYS)), 20).warnings == ()
    (warning,) = check_env(TakesSeeds(WAYS.keys() - {missing}), 20).warnings
    expected = f"drawn of first observations differed with one seed ({WAYS[missing]}); does all "
    assert warning.startswith(expected)
    with pytest.raises(EnvContractError, match=f"^{WAYS[missing]}: .*no {missing}"):
        check_env(TakesSeeds(WAYS.keys() - {missing}, refuses=True), 20)


class Needs(CountingEnv):
    """Is told in every reset what to do, and notes it."""

    def reset(self, env_info=None):
        self.told = [*getattr(self, "told", []), sorted(env_info)]
        assert env_info["option"].tolist() == [3, 4]
        return super().reset(env_info)

    def reset_where(self, mask):
        raise NotImplementedError

    def seed(self, seed):
        pass


@pytest.mark.parametrize("autoreset", [False, True])
def test_an_environment_that_needs_an_info_is_given_it_in_every_reset(autoreset):
    env = Needs([2, 3], autoreset=autoreset)
    with pytest.raises(TypeError, match="NoneType"):
        check_env(env, 9)
    env = Needs([2, 3], autoreset=autoreset)
    check_env(env, 9, env_info=DictTensor({"option": torch.tensor([3, 4])}))
    assert env.told.count(["option", "seed"]) == 2
    assert len(env.told) > 5
    assert set(map(tuple, env.told)) == {("option",), ("option", "seed")}


@pytest.mark.parametrize(
    ("env_info", "error", "message"),
    [
        ({"option": 1}, TypeError, "env_info: expected a DictTensor or None, got {'option': 1}"),
        (DictTensor({"option": torch.tensor([3])}), ShapeError, "env_info: expected 2 rows, got 1"),
        (DictTensor({"seed": torch.tensor([3, 4])}), ValueError, "env_info: .* without a seed"),
    ],
)
def test_a_wrong_info_is_refused_before_the_walk(env_info, error, message):
    with pytest.raises(error, match=f"^{message}"):
        check_env(CountingEnv([2, 3]), env_info=env_info)


def test_an_environment_may_write_into_its_info():
    class Writes(Needs):
        def reset(self, env_info=None):
            pair = super().reset(env_info)
            env_info["option"].zero_()
            return pair

    env_info = DictTensor({"option": torch.tensor([3, 4])})
    check_env(Writes([2, 3]), 9, env_info=env_info)
    assert env_info["option"].tolist() == [3, 4]


class Glides(GymEnvInf):
    """Writes into arrays something else than what its `step` returns, but in the same way."""

    def __init__(self, env, number):
        super().__init__([env], seed=0)
        self.number = number

    def step_into(self, action, after, following):
        super().step_into(action, after, following)
        for arrays in (after, following):
            arrays["frame"][...] = self.number


def test_what_is_written_into_arrays_is_what_a_step_returns():
    with pytest.raises(EnvContractError, match="^with step_into: writes what step returns: frame"):
        check_env(Glides(gymnasium.make("CartPole-v1"), 0.1), n_steps=20)


def test_what_is_written_into_arrays_is_suspected_as_well():
    class Unseeded(Glides):
        seed = None

    (bounds,) = check_env(Unseeded(CountingGym(length=3), -3), n_steps=5).warnings
    assert bounds == "frame was outside the bounds of observation_space, 0 to 100"


@pytest.mark.parametrize(
    ("space", "value", "bounds"),
    [
        (spaces.Discrete(3, start=-1), -2, "-1 to 1"),
        (spaces.MultiDiscrete([3, 2]), (0, 2), "0 to 2"),
        (spaces.MultiBinary(2), (0, 2), "0 to 1"),
        (spaces.Box(0, 1, (1,), np.float32), (math.nan,), "0.0 to 1.0"),
    ],
    ids=str,
)
def test_values_outside_every_kind_of_space_are_suspected(space, value, bounds):
    class Observes(CountingGym):
        observation_space = space

        def __init__(self, value):
            super().__init__(length=4)
            self.observation_space, self.value = space, np.asarray(value, space.dtype)

        def reset(self, **options):
            super().reset(**options)
            return self.value, {}

        def step(self, action):
            return self.value, *super().step(action)[1:]

    expected = f"frame was outside the bounds of observation_space, {bounds}"
    assert expected in check_env(GymEnvInf([Observes(value)]), 6).warnings
    inside = space.sample()
    assert not any("outside" in one for one in check_env(GymEnvInf([Observes(inside)]), 6).warnings)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_that_starts_nothing_is_suspected_of_every_kind(kind):
    def stays(env, when, observation, running):
        return with_key(observation, "frame", torch.zeros_like(observation["frame"])), running

    warnings = check_env(Saboteur(KINDS[kind](), stays), n_steps=60).warnings
    assert "the one before ended with" in warnings[0]
    env = Saboteur(KINDS[kind](), lambda env, when, observation, running: (observation, running))
    assert not any("ended with" in one for one in check_env(env, n_steps=60).warnings)


def test_a_game_that_goes_on_after_a_lost_life_is_not_suspected():
    env = AtariEnv("breakout", 4, seed=0, num_threads=1, life_loss_info=True)
    report = check_env(env, 100)
    assert report.n_terminated >= 5
    assert report.warnings == ()


@pytest.mark.parametrize("refused", ["everybody", "nobody"])
def test_a_reset_of_all_or_of_none_is_tried(refused):
    class Refuses(GymEnvInf):
        def reset_where(self, chosen):
            if bool(chosen.all()) if refused == "everybody" else not chosen.any():
                raise ZeroDivisionError(refused)
            return super().reset_where(chosen)

    with pytest.raises(ZeroDivisionError, match=refused):
        check_env(Refuses([CountingGym(length=4), CountingGym(length=5)], seed=0), 8)


class DrawsTogether(TakesSeeds):
    """Begins with numbers of which all environments draw the same, with some kinds of seeds."""

    def __init__(self, together):
        super().__init__(set(WAYS))
        self.together = together

    def take(self, seed, way):
        self.way = way
        super().take(seed, way)

    def reset(self, env_info=None):
        observation, running = super().reset(env_info)
        if getattr(self, "way", None) in self.together:
            self.drawn[:] = self.drawn[0]
        return self.with_drawn(observation), running


@pytest.mark.parametrize(
    ("together", "ways"),
    [
        ({"integer"}, "with an integer"),
        ({"several"}, "with one seed per environment"),
        ({"integer", "several"}, "with one seed per environment and with an integer"),
    ],
    ids=["integer", "several", "both"],
)
def test_environments_that_draw_the_same_are_suspected(together, ways):
    env = DrawsTogether(together)
    (warning,) = check_env(env, 20).warnings
    expected = "drawn of first observations depended on the seed, but was the same in all "
    assert warning.startswith(f"{expected}environments ({ways});")
    fresh = DrawsTogether(together)
    fresh.seed(0)
    fresh.reset()
    assert torch.equal(env.reset()[0]["drawn"], fresh.reset()[0]["drawn"])


def test_what_counts_on_from_reset_to_reset_does_not_depend_on_the_seed():
    class Counts(TakesSeeds):
        n_resets = 0

        def reset(self, env_info=None):
            self.n_resets += 1
            observation, running = super().reset(env_info)
            self.drawn[:] = self.n_resets
            return self.with_drawn(observation), running

    (warning,) = check_env(Counts(set(WAYS)), 20).warnings
    assert warning.startswith("drawn of first observations differed with one seed (")


def no_actions(n):
    return DictTensor({"action": torch.zeros(n, dtype=torch.int64)})


def test_a_key_that_is_gone_after_the_reset_is_named():
    class Forgets(CountingEnv):
        observation_space = None

        def step(self, action):
            pairs = super().step(action)
            return [(after.get(key for key in after if key != "frame"), n) for after, n in pairs]

    with pytest.raises(EnvContractError, match="missing .'frame'"):
        check_env(Forgets([3, 4]), 3, no_actions)


def test_what_is_sampled_beside_actions_is_not_observed():
    def sample(n):
        return no_actions(n) + DictTensor({"logits": torch.zeros(n)})

    assert check_env(CountingEnv([3, 4]), 8, sample).n_terminated > 0


def test_some_environments_are_reset_only_where_all_reset_themselves():
    class Resets(CountingEnv):
        def reset_where(self, chosen):
            asked.append(chosen)
            raise NotImplementedError

    for autoreset, n_asked in ((False, 0), (True, 1)):
        asked = []
        check_env(Resets([3, 4], autoreset=autoreset), 8, no_actions)
        assert len(asked) == n_asked


def test_environments_are_reset_in_turn():
    class Resets(GymEnvInf):
        def reset_where(self, chosen):
            asked.append(chosen.tolist())
            return super().reset_where(chosen)

    asked = []
    check_env(Resets([CountingGym() for _ in range(3)], seed=0), 8)
    assert asked[:4] == [[True] * 3, [False] * 3, [True, False, True], [False, True, False]]
