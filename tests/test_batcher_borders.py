"""Agents that change what they are given, odd exceptions, and what scripts do."""

from __future__ import annotations

import dataclasses
import gc
import math
import sys
import types
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from rlbatch import DictTensor, RL_Agent, RL_Batcher, ShapeError, WorkerError, replay_agent
from rlbatch._slots import SlotStore
from rlbatch.envs import GymEnv
from tests.batchers import CountingAgent, Rewriter, acquire, cart_poles, make_batcher
from tests.containers import DTYPES, RARE_DTYPES
from tests.helpers import CountingEnv


@pytest.mark.parametrize("n_processes", [0, 1])
def test_arguments_are_copies_in_which_nobody_sees_what_another_does(n_processes):
    class Noisy(gymnasium.Wrapper):
        def __init__(self, env, generator, kept):
            super().__init__(env)
            self.generator = generator
            kept.append(self)

        def reset(self, **options):
            frame, info = super().reset(**options)
            return (frame + self.generator.normal(size=4)).astype("float32"), info

    def create_env(generator, kept, seed):
        return GymEnv([Noisy(gymnasium.make("CartPole-v1"), generator, kept)], seed)

    found, args = [], {"generator": np.random.default_rng(0), "kept": []}
    for _ in range(2):
        with RL_Batcher(2, Rewriter, {}, create_env, args, n_processes, seeds=0) as batcher:
            found.append(acquire(batcher)[0].trajectories["observation/frame"])
    assert torch.equal(*found)
    assert not args["kept"]


@pytest.mark.parametrize("n_processes", [0, 1])
def test_arguments_may_hold_what_was_computed_with_gradients(n_processes):
    class Holder:
        def __init__(self):
            self.parts = {"mean": [torch.ones(2, requires_grad=True) * 3]}

    class Given(Rewriter):
        def __init__(self, holder):
            assert holder.parts["mean"][0].tolist() == [3, 3]

        def update(self, info):
            assert info.parts["mean"][0].tolist() == [3, 3]

    args = {"holder": Holder()}
    with RL_Batcher(
        1, Given, args, lambda seed: CountingEnv([9]), {}, n_processes, seeds=0
    ) as batcher:
        batcher.update(Holder())


@pytest.mark.parametrize("n_processes", [0, 1])
def test_what_a_script_has_set_on_a_tensor_is_there(n_processes):
    class Named(Rewriter):
        def __init__(self, weights):
            assert weights.names_of_rows == ["a", "b"]

    weights = torch.ones(2)
    weights.names_of_rows = ["a", "b"]
    args = {"weights": weights}
    with RL_Batcher(1, Named, args, lambda seed: CountingEnv([9]), {}, n_processes, seeds=0):
        pass


def test_an_environment_may_choose_among_the_keys_of_the_actions():
    class Chooses(CountingEnv):
        def step(self, action):
            action.variables.pop("seen")
            action.set("action", action["action"].clamp(0, 1))
            return super().step(action)

    class Five(Rewriter):
        def __call__(self, state, observation, agent_info, history=None):
            output, state = super().__call__(state, observation, agent_info, history)
            output["action"].fill_(5)
            return output, state

    with RL_Batcher(3, Five, {}, lambda seed: Chooses([9]), {}, 0, seeds=0) as batcher:
        batcher.reset()
        for _ in range(2):
            batcher.execute()
            steps = batcher.get()[0].trajectories
            assert (steps["action/action"] == 5).all()
            assert torch.equal(steps["action/seen"], steps["observation/frame"] / 10)


@pytest.mark.parametrize("n_processes", [0, 1])
def test_arguments_may_be_what_only_a_process_can_be_given(n_processes, tmp_path):
    """Where nothing is copied deeply, such as modules, it goes the way of a process."""
    (tmp_path / "notes").write_text("all there")

    class Reads(Rewriter):
        def __init__(self, module, file):
            assert module.sqrt(4.0) == 2
            assert file.read() == "all there"

    with (tmp_path / "notes").open() as file:
        args = types.MappingProxyType({"module": math, "file": file})
        with RL_Batcher(1, Reads, args, lambda seed: CountingEnv([9]), {}, n_processes, seeds=0):
            pass


class Silent(RL_Agent):
    def __call__(self, state, observation, agent_info, history=None):
        return DictTensor(), DictTensor()


class ActsAlone(CountingEnv):
    """Takes no actions."""

    def step(self, action):
        assert action.empty()
        return super().step(DictTensor({"action": torch.zeros_like(self.running)}))


def test_an_agent_may_have_nothing_to_say():
    with RL_Batcher(3, Silent, {}, lambda seed: ActsAlone([9]), {}, 0, seeds=0) as batcher:
        steps = acquire(batcher)[0].trajectories
        assert steps["observation/frame"][0, :, 2].tolist() == [0, 1, 2]


class TurnsGradientsOn(CountingAgent):
    def __call__(self, *arguments):
        torch.set_grad_enabled(True)
        return super().__call__(*arguments)


@pytest.mark.parametrize("n_processes", [0, 1])
def test_an_agent_may_turn_gradients_on(n_processes):
    def create_env(seed):
        return CountingEnv([9, 9])

    with RL_Batcher(3, TurnsGradientsOn, {}, create_env, {}, n_processes, seeds=0) as batcher:
        batcher.reset()
        for _ in range(2):
            batcher.execute()
            assert batcher.get()[0].trajectories.n_timesteps() == 3


def test_what_was_computed_with_gradients_turned_on_is_stored_without():
    class WithGradients(RL_Agent):
        def __init__(self):
            self.weight = torch.ones((), requires_grad=True)

        def __call__(self, state, observation, agent_info, history=None):
            torch.set_grad_enabled(True)
            value = self.weight * observation["frame"][:, 0].float()
            return DictTensor({"action": observation["option"], "value": value}), DictTensor()

    with RL_Batcher(4, WithGradients, {}, lambda seed: CountingEnv([9]), {}, 0, seeds=0) as batcher:
        assert not acquire(batcher)[0].trajectories["action/value"].requires_grad


class Recalling(torch.nn.Module):
    """Keeps what it has computed."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, frame):
        self.features = self.layer(frame)
        return self.features


class OfModule(RL_Agent):
    def __init__(self, model):
        self.model = model

    def update(self, info):
        self.model = info

    def __call__(self, state, observation, agent_info, history=None):
        logits = self.model(observation["frame"])
        return DictTensor({"action": logits.argmax(1), "logits": logits}), DictTensor()


@pytest.mark.parametrize("n_processes", [0, 1])
def test_a_module_that_keeps_what_it_has_computed_is_copied(n_processes):
    model = Recalling()
    model(torch.zeros(1, 4)).sum().backward()
    agent_args, env_args = {"model": model}, {"n_envs": 1}
    with RL_Batcher(2, OfModule, agent_args, cart_poles, env_args, n_processes, seeds=0) as batcher:
        acquire(batcher)
        batcher.update(model)
        batcher.execute()
        assert batcher.get()[0].n_elems() == 1


def test_the_callers_autocast_is_not_the_workers():
    agent_args, env_args = {"model": torch.nn.Linear(4, 2)}, {"n_envs": 1}
    with (
        torch.autocast("cpu", torch.bfloat16),
        RL_Batcher(2, OfModule, agent_args, cart_poles, env_args, 0, seeds=0) as batcher,
    ):
        assert acquire(batcher)[0].trajectories["action/logits"].dtype == torch.float32


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_unsigned_observations_where_episodes_end_in_turn(dtype):
    class Unsigned(gymnasium.Env):
        def __init__(self, length):
            self.observation_space = gymnasium.spaces.Box(0, 9, (2,), dtype)
            self.action_space = gymnasium.spaces.Discrete(2)
            self.length = length

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t = 0
            return np.zeros(2, dtype), {}

        def step(self, action):
            self.t += 1
            return np.full(2, self.t, dtype), 1.0, self.t == self.length, False, {}

    class Zero(RL_Agent):
        def initial_state(self, agent_info, B):
            return DictTensor({"n": torch.zeros(B, dtype=getattr(torch, dtype))})

        def __call__(self, state, observation, agent_info, history=None):
            return DictTensor(
                {"action": torch.zeros(observation.n_elems(), dtype=torch.int64)}
            ), state

    def create_env(seed):
        return GymEnv([Unsigned(2), Unsigned(5)], seed)

    with RL_Batcher(3, Zero, {}, create_env, {}, 0, seeds=0) as batcher:
        batcher.reset()
        found = []
        for _ in range(2):
            batcher.execute()
            found.append(batcher.get()[0].trajectories["_observation/frame"][..., 0].tolist())
    assert found == [[[1, 2, 0], [1, 2, 3]], [[4, 5]]]


def test_what_is_answered_is_stored_in_any_dtype_where_episodes_end_in_turn():
    class Answers(RL_Agent):
        def __call__(self, state, observation, agent_info, history=None):
            number = observation["frame"][:, :1] + 10 * observation["frame"][:, 2:]
            tall = number.float().unsqueeze(1).expand(-1, 3, 2).requires_grad_()
            output = {str(dtype): tall.detach().to(dtype) for dtype in DTYPES + RARE_DTYPES}
            flipped = {"conj": torch.complex(tall, tall).conj(), "strided": tall.mT}
            return DictTensor({"action": observation["option"], **output, **flipped}), state

    def create_env(seed):
        return CountingEnv([1, 3, 2])

    with RL_Batcher(3, Answers, {}, create_env, {}, 0, seeds=0) as batcher:
        steps = acquire(batcher)[0].trajectories
    expected = torch.tensor([[0, 0, 0], [1, 11, 21], [2, 12, 0]])[..., None, None].float()
    expected = expected.expand(3, 3, 3, 2)
    for dtype in DTYPES + RARE_DTYPES:
        found = steps[f"action/{dtype}"]
        assert found.dtype == dtype
        assert torch.equal(found.cfloat(), expected.to(dtype).cfloat()), dtype
    assert torch.equal(steps["action/conj"], torch.complex(expected, -expected))
    assert torch.equal(steps["action/strided"], expected.mT)


def test_an_answer_for_those_that_ran_before_is_refused():
    class AnswersForTwo(RL_Agent):
        def __call__(self, state, observation, agent_info, history=None):
            return DictTensor({"action": torch.zeros(2, dtype=torch.int64)}), state

    def create_env(seed):
        return CountingEnv([2, 3])

    with RL_Batcher(3, AnswersForTwo, {}, create_env, {}, 0, seeds=0) as batcher:
        batcher.reset()
        with pytest.raises(ShapeError, match=r"action/action: expected shape \(1,\), got \(2,\)"):
            batcher.execute()


class Holder(RL_Agent):
    """Acts with a weight that it was given in an object."""

    def update(self, info):
        self.given = info

    def __call__(self, state, observation, agent_info, history=None):
        n = observation.n_elems()
        weight = torch.full((n,), float(self.given.weight))
        return DictTensor({"action": torch.zeros(n, dtype=torch.int64), "weight": weight}), state


@pytest.mark.parametrize("n_processes", [0, 1])
def test_an_update_is_a_copy(n_processes):
    given = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(given.weight, 1.0)
    with RL_Batcher(
        2, Holder, {}, lambda seed: CountingEnv([9]), {}, n_processes, seeds=0
    ) as batcher:
        batcher.update(given)
        torch.nn.init.constant_(given.weight, 2.0)
        assert (acquire(batcher)[0].trajectories["action/weight"] == 1).all()


def test_an_agent_info_with_fewer_keys_drops_the_others():
    infos = [DictTensor({key: torch.ones(1) for key in keys}) for keys in ("ab", "a")]
    with RL_Batcher(2, Rewriter, {}, lambda seed: CountingEnv([9]), {}, 0, seeds=0) as batcher:
        batcher.reset(agent_info=infos[0])
        batcher.execute(agent_info=infos[1])
        info = batcher.get()[0].info
    assert [key for key in info.keys() if key.startswith("agent_info/")] == ["agent_info/a"]


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """An exception that takes no notes."""


class Odd(Exception):
    """An exception whose attributes are not what they seem."""

    environment = "production"

    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize("error", [EOFError, BrokenPipeError, ConnectionResetError, Frozen, Odd])
def test_every_exception_of_an_environment_is_reported(error):
    class Raising(CountingEnv):
        def step(self, action):
            raise error()

    with RL_Batcher(2, Rewriter, {}, lambda seed: Raising([9]), {}, 1, seeds=0) as batcher:
        batcher.reset()
        with pytest.raises(WorkerError, match="raise error") as caught:
            batcher.execute()
        assert error.__name__ in caught.value.child_traceback


def test_closing_in_the_middle_closes_the_environments_of_processes(tmp_path):
    class Closing(CountingEnv):
        def close(self):
            (tmp_path / "closed").touch()

    with RL_Batcher(2, Rewriter, {}, lambda seed: Closing([9]), {}, 1, seeds=0) as batcher:
        batcher.reset()
        batcher.execute()
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize("n_processes", [0, 1])
def test_the_default_dtype_is_the_callers(n_processes):
    try:
        torch.set_default_dtype(torch.float64)
        with RL_Batcher(
            1, Rewriter, {}, lambda seed: CountingEnv([9]), {}, n_processes, seeds=0
        ) as batcher:
            assert acquire(batcher)[0].trajectories["action/n"].dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


class Settings(RL_Agent):
    """Tells what is set in its process."""

    def __call__(self, state, observation, agent_info, history=None):
        flags = [
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            not torch.utils.deterministic.fill_uninitialized_memory,
            torch.get_float32_matmul_precision() == "medium",
        ]
        output = {"action": torch.zeros(1, dtype=torch.int64), "flags": torch.tensor([flags])}
        return DictTensor(output), DictTensor()


@pytest.mark.parametrize("n_processes", [0, 1])
def test_what_decides_on_bits_is_as_the_caller_has_set_it(n_processes):
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.set_float32_matmul_precision("medium")
        with RL_Batcher(
            1, Settings, {}, lambda seed: CountingEnv([9]), {}, n_processes, seeds=0
        ) as batcher:
            assert acquire(batcher)[0].trajectories["action/flags"].all()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("n_processes", [0, 1])
def test_a_default_device_of_the_callers_is_not_that_of_the_environments(n_processes):
    class Left(RL_Agent):
        def __call__(self, state, observation, agent_info, history=None):
            action = torch.zeros(observation.n_elems(), dtype=torch.int64, device="cpu")
            return DictTensor({"action": action}), DictTensor()

    try:
        torch.set_default_device("meta")
        with RL_Batcher(30, Left, {}, cart_poles, {"n_envs": 2}, n_processes, seeds=0) as batcher:
            found, _ = acquire(batcher)
            assert found.device() == found.info.device() == torch.device("cpu")
    finally:
        torch.set_default_device(None)


class Versioned(torch.nn.Linear):
    """A model whose weights say which version of it they are of."""

    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *others):
        assert local_metadata["version"] == 2
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)


class Loader(Settings):
    def __init__(self, weights):
        self.weights = weights  # Not a leaf.

    def update(self, info):
        Versioned(2, 2).load_state_dict(info["model"])
        assert isinstance(info["bias"], torch.nn.Parameter)


@pytest.mark.parametrize("n_processes", [0, 1])
def test_weights_arrive_as_what_they_are(n_processes):
    model = Versioned(2, 2)
    args = {"weights": model.weight * 2}
    with RL_Batcher(
        1, Loader, args, lambda seed: CountingEnv([9]), {}, n_processes, seeds=0
    ) as batcher:
        batcher.update({"model": model.state_dict(), "bias": model.bias})


@pytest.mark.parametrize("create_env", [cart_poles, lambda n_envs, seed: CountingEnv([9] * n_envs)])
@pytest.mark.parametrize("is_named", [True, False])
def test_steps_have_names_in_traces_where_asked_for(create_env, is_named, monkeypatch):
    monkeypatch.setenv("RLBATCH_PROFILE", "1" if is_named else "")
    with RL_Batcher(4, Rewriter, {}, create_env, {"n_envs": 2}, 0, seeds=0) as batcher:
        batcher.reset()
        with torch.profiler.profile() as trace:
            batcher.execute()
    named = {one.key: one.count for one in trace.key_averages() if one.key.startswith("rlbatch")}
    assert named == ({"rlbatch/agent": 4, "rlbatch/env": 4} if is_named else {})


def test_a_get_that_is_interrupted_may_be_called_again(monkeypatch):
    with RL_Batcher(2, Rewriter, {}, lambda seed: CountingEnv([9]), {}, 1, seeds=0) as batcher:
        batcher.reset()
        batcher.execute()
        with monkeypatch.context() as patched:
            patched.setattr(SlotStore, "read", raises(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                batcher.get()
        assert batcher.get()[0].trajectories["action/n"].tolist() == [[1, 2]]


def raises(error):
    def interrupted(*_):
        raise error

    return interrupted


@pytest.mark.parametrize("n_processes", [0, 1])
@pytest.mark.parametrize("create_env", [cart_poles, lambda n_envs, seed: CountingEnv([9] * n_envs)])
def test_the_first_slot_may_be_acquired_in_inference_mode(n_processes, create_env):
    with RL_Batcher(2, Rewriter, {}, create_env, {"n_envs": 1}, n_processes, seeds=0) as batcher:
        with torch.inference_mode():
            acquire(batcher)
        for copy in (True, False):
            batcher.execute()
            found = batcher.get(copy=copy)[0].trajectories
            assert not found["action/n"].is_inference()
        assert found["action/n"].tolist() == [[5, 6]]


@pytest.mark.parametrize("n_processes", [0, 1])
def test_an_update_that_can_not_be_copied_changes_nothing(n_processes):
    with RL_Batcher(
        2, Rewriter, {}, lambda seed: CountingEnv([9]), {}, n_processes, seeds=0
    ) as batcher:
        with pytest.raises(TypeError, match="generator"):
            batcher.update(weight for weight in range(3))
        assert batcher.policy_version == 0
        assert acquire(batcher)[0].info["policy_version"].tolist() == [0]


def test_an_empty_agent_info_keeps_the_one_before():
    info = DictTensor({"epsilon": torch.zeros(1)})
    with RL_Batcher(
        2, Rewriter, {}, lambda seed: CountingEnv([9]), {}, 0, seeds=0, agent_info=info
    ) as batcher:
        batcher.reset(agent_info=DictTensor({"epsilon": torch.ones(1)}))
        batcher.execute(agent_info=DictTensor())
        assert batcher.get()[0].info["agent_info/epsilon"].tolist() == [1]


def test_views_are_kept_for_some_steps_only(monkeypatch):
    monkeypatch.setattr("rlbatch._slots._MOST_KEPT", 3)
    for create_env in (cart_poles, lambda n_envs, seed: CountingEnv([9] * n_envs)):
        with RL_Batcher(5, Rewriter, {}, create_env, {"n_envs": 1}, 0, seeds=0) as batcher:
            assert acquire(batcher)[0].trajectories["action/n"].tolist() == [[1, 2, 3, 4, 5]]
            slots = batcher._crew.workers[0]._worker._slots
            assert len(slots._rows_at) == 3
            assert len(slots._direct_at) in (0, 2)  # The first step came before the slots.


def test_steps_whose_views_are_not_kept_are_stored_where_episodes_end_in_turn(monkeypatch):
    monkeypatch.setattr("rlbatch._slots._MOST_KEPT", 2)

    def create_env(seed):
        return CountingEnv([1, 5])

    with RL_Batcher(5, CountingAgent, {}, create_env, {}, 0, seeds=0) as batcher:
        assert acquire(batcher)[0].trajectories["observation/frame"][1, :, 2].tolist() == [
            *range(5)
        ]
        slots = batcher._crew.workers[0]._worker._slots
        assert (len(slots._rows_at), len(slots._arrays_at)) == (2, 1)


def test_an_agent_is_closed_though_its_environments_fail_to():
    closed = []

    class Closing(CountingAgent):
        def close(self):
            closed.append(True)

    class Raises(CountingEnv):
        def close(self):
            raise OSError("on purpose")

    batcher = RL_Batcher(3, Closing, {}, lambda seed: Raises([4]), {}, 0, seeds=0)
    with pytest.raises(OSError, match="on purpose"):
        batcher.close()
    assert closed == [True]


def test_what_an_environment_prints_is_seen(capfd, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    class Prints(CountingEnv):
        def reset(self, env_info=None):
            sys.stdout.write("from the environment\n")
            return super().reset(env_info)

    with RL_Batcher(3, CountingAgent, {}, lambda seed: Prints([4]), {}, 1, seeds=0) as batcher:
        batcher.reset()
    assert "from the environment" in capfd.readouterr().out


def test_an_environment_may_use_a_batcher():
    def create_env(seed):
        with RL_Batcher(
            3, CountingAgent, {}, lambda seed: CountingEnv([4]), {}, 1, seeds=0
        ) as inner:
            inner.reset()
        return CountingEnv([4])

    with RL_Batcher(3, CountingAgent, {}, create_env, {}, 1, seeds=0) as batcher:
        batcher.reset()


def test_a_file_in_the_current_folder_is_not_taken_for_a_module(tmp_path, monkeypatch):
    (tmp_path / "selectors.py").write_text("raise ImportError('found in the current folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # Not the folder of "".
    with RL_Batcher(3, CountingAgent, {}, lambda seed: CountingEnv([4]), {}, 1, seeds=0) as batcher:
        batcher.reset()


def test_a_batcher_that_is_forgotten_closes_its_environments():
    envs = []

    def create_env(seed):
        envs.append(CountingEnv([4]))
        return envs[-1]

    batcher = RL_Batcher(3, CountingAgent, {}, create_env, {}, 0, seeds=0)
    acquire(batcher)
    del batcher
    gc.collect()
    assert envs[0].closed


class Learns(CountingAgent):
    """Is told of a weight, which is to be as it was."""

    def __init__(self, weight):
        self.update({"weight": weight})

    def update(self, info):
        assert info["weight"].requires_grad
        assert info["weight"].is_leaf


@pytest.mark.parametrize("n_processes", [0, 1])
def test_what_an_agent_is_given_requires_gradients_as_before(n_processes):
    weight = torch.zeros(3, requires_grad=True)
    create_env = lambda seed: CountingEnv([9])  # noqa: E731
    with RL_Batcher(2, Learns, {"weight": weight}, create_env, {}, n_processes, seeds=0) as batcher:
        batcher.update({"weight": weight})


class Sees(RL_Agent):
    @torch.inference_mode()
    def __call__(self, state, observation, agent_info, history=None):
        return DictTensor({"action": observation["frame"][:, 0] * 0}), DictTensor()


class InferringEnv(CountingEnv):
    @torch.inference_mode()
    def reset(self, env_info=None):
        return super().reset(env_info)

    @torch.inference_mode()
    def step(self, action):
        return super().step(action)


@pytest.mark.parametrize("n_processes", [0, 1])
def test_agents_and_environments_may_run_in_inference_mode(n_processes):
    create_env = lambda seed: InferringEnv([5, 9])  # noqa: E731
    with RL_Batcher(3, Sees, {}, create_env, {}, n_processes, seeds=0) as batcher:
        batcher.reset()
        for lengths in ([3, 3], [2, 3]):
            batcher.execute()
            found = batcher.get()[0]
            assert found.trajectories.lengths.tolist() == lengths
            replay_agent(Sees(), found)


class Counter(CountingAgent):
    """Counts in what it was given."""

    def update(self, count):
        self.count = count

    def __call__(self, state, observation, agent_info, history=None):
        output, state = super().__call__(state, observation, agent_info)
        output["calls"] = self.count.add_(1).expand(observation.n_elems())
        return output, state


@pytest.mark.parametrize("n_processes", [0, 1])
def test_what_an_agent_is_given_in_inference_mode_is_its_own(n_processes):
    with make_batcher(n_processes, [9, 9], create_agent=Counter) as batcher:
        with torch.inference_mode():
            batcher.update(torch.zeros(()))
        assert acquire(batcher)[0].trajectories["action/calls"].tolist() == [[1, 2, 3, 4]] * 2
