"""What a batcher refuses: calls, arguments, and what agents and environments return."""

import pytest
import torch
from gymnasium import spaces

from rlbatch import (
    CallOrderError,
    DeviceMismatchError,
    DictTensor,
    DtypeMismatchError,
    EnvContractError,
    KeyMismatchError,
    RL_Agent,
    ShapeError,
    SharedMemoryError,
    WorkerError,
)
from rlbatch._memory import _cgroup_available, free_memory
from tests.batchers import LENGTHS, CountingAgent, acquire, make_batcher
from tests.helpers import CountingEnv, CountingGym


def test_calls_out_of_order_say_so():
    batcher = make_batcher(0)
    with pytest.raises(CallOrderError, match="execute: expected .* call reset"):
        batcher.execute()
    batcher.reset()
    with pytest.raises(CallOrderError, match="get: expected .* idle: call execute"):
        batcher.get()
    batcher.execute()
    with pytest.raises(CallOrderError, match="execute: expected .* call get"):
        batcher.execute()
    with pytest.raises(CallOrderError, match="reset: expected .* call get"):
        batcher.reset()
    batcher.get()
    while batcher._n_running:
        batcher.execute()
        batcher.get()
    with pytest.raises(CallOrderError, match="execute: expected a running environment"):
        batcher.execute()
    batcher.close()
    with pytest.raises(CallOrderError, match="reset: .* closed"):
        batcher.reset()


def test_bad_arguments_of_a_call_leave_the_batcher_as_it_was():
    with make_batcher(0) as batcher:
        batcher.reset()
        with pytest.raises(TypeError, match="agent_info: expected a DictTensor or None, got 3"):
            batcher.execute(3)
        batcher.execute()
        with pytest.raises(ValueError, match="timeout: expected .*, got -1"):
            batcher.get(timeout=-1)
        with pytest.raises(TypeError, match="timeout: expected .*, got '5'"):
            batcher.get(timeout="5")
        assert batcher.get()[0].n_elems() == batcher.n_elems()


def test_bad_arguments_say_where_what_was_expected_and_what_was_found():
    for changes, error, match in (
        ({"n_timesteps": 0}, ValueError, "n_timesteps: expected at least 1, got 0"),
        ({"n_timesteps": 1e1}, TypeError, "n_timesteps: expected an integer, got 10.0"),
        ({"n_processes": 1.0}, TypeError, "n_processes: expected an integer, got 1.0"),
        ({"n_processes": -1}, ValueError, "n_processes: expected at least 0, got -1"),
        ({"n_processes": 2, "seeds": [1, 2, 3]}, ValueError, "seeds: expected .* got 3"),
        ({"agent_args": None}, TypeError, "agent_args: expected a dict of keyword arg.*, got None"),
        ({"env_args": [1]}, TypeError, r"env_args: expected a dict of keyword .*, got \[1\]"),
        ({"seeds": -1}, ValueError, "seeds: expected an integer >= 0, got -1"),
        ({"agent_seeds": [1, 2]}, ValueError, "agent_seeds: expected 1 seeds, got 2"),
        ({"agent_seeds": -1}, ValueError, "agent_seeds: expected an integer >= 0, got -1"),
        ({"agent_seeds": 1.5}, TypeError, "agent_seeds: expected an integer, got 1.5"),
        ({"timeout": "5"}, TypeError, "timeout: expected seconds or None, got '5'"),
        ({"timeout": -1}, ValueError, "timeout: expected at least 0 s, got -1"),
        ({"timeout": float("nan")}, ValueError, "timeout: expected at least 0 s, got nan"),
        ({"num_threads": 0}, ValueError, "num_threads: expected at least 1, got 0"),
        ({"num_threads": "2"}, TypeError, "num_threads: expected an integer, got '2'"),
        ({"device": "foo"}, ValueError, "^device: expected a device such .* got 'foo'"),
        ({"info_device": None}, ValueError, "^info_device: expected a device such .* got None"),
        ({"env_args": {"seed": 9}}, ValueError, "env_args: expected none named seed, .* got 9"),
        ({"create_agent": RL_Agent()}, TypeError, "create_agent: expected a function or a class"),
        ({"create_env": None}, TypeError, "create_env: expected a function .* got None"),
        (
            {"agent_info": DictTensor({"a": torch.zeros(2)})},
            ShapeError,
            "agent_info: expected one row as an example, tensors .*, got [a-z]+ \\(2,\\)",
        ),
        (
            {"env_info": DictTensor({"a": torch.zeros(1, device="meta")})},
            DeviceMismatchError,
            "env_info: expected a tensor on cpu, got one on meta",
        ),
    ):
        with pytest.raises(error, match=match):
            make_batcher(**{"n_processes": 0, **changes})

    with make_batcher(0, agent_info=DictTensor({"a": torch.zeros(1)})) as batcher:
        for info, error, match in (
            ({"a": torch.zeros(3)}, ShapeError, "agent_info: expected 8 rows, got 3"),
            (
                {"b": torch.zeros(8)},
                KeyMismatchError,
                r"agent_info, as in the constructor: expected the keys \['a'\]",
            ),
            (
                {"a": torch.zeros(8).long()},
                DtypeMismatchError,
                "agent_info/a, as in the constructor: expected torch.fl",
            ),
            ({"a": torch.zeros(8, 2)}, ShapeError, "agent_info/a, .*: expected rows of shape"),
            ({"a": torch.zeros(8, device="meta")}, DeviceMismatchError, "agent_info: .* on meta"),
        ):
            with pytest.raises(error, match=match):
                batcher.reset(DictTensor(info))


@pytest.mark.parametrize("n_processes", [0, 1])
def test_infos_keep_the_form_that_the_first_trajectories_have(n_processes):
    def acquire(batcher, **infos):
        batcher.reset(**infos)
        batcher.execute()
        return batcher.get()[0].info

    task, none = DictTensor({"task": torch.arange(8)}), DictTensor()
    with make_batcher(n_processes) as batcher:
        batcher.reset(agent_info=DictTensor({"task": torch.zeros(8, 2)}))  # Not stored yet.
        assert torch.equal(acquire(batcher, env_info=task)["env_info/task"], task["task"])
        where = "as in the first trajectories: expected"
        for infos, error, match in (
            ({"agent_info": task, "env_info": task}, KeyMismatchError, rf"agent_info, {where}"),
            ({}, KeyMismatchError, rf"env_info, {where} the keys \['task'\], got \[\]"),
            ({"env_info": none}, KeyMismatchError, rf"env_info, {where}"),
            (
                {"env_info": DictTensor({"task": torch.zeros(8)})},
                DtypeMismatchError,
                rf"env_info/task, {where} torch.int64, got torch.float32",
            ),
        ):
            with pytest.raises(error, match=match):
                batcher.reset(**infos)
        with pytest.raises(KeyMismatchError, match=f"agent_info, {where}"):
            batcher.execute(agent_info=task)
        assert torch.equal(acquire(batcher, env_info=task)["env_info/task"], task["task"])


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (
            lambda a: a.set("extra", a["action"]),
            KeyMismatchError,
            "action, as in the first step: expected the keys",
        ),
        (
            lambda a: a.set("count", a["count"].float()),
            DtypeMismatchError,
            "action/count: expected torch.int64, got torch.float32",
        ),
        (
            lambda a: a.set("seen", a["seen"][:, :1]),
            ShapeError,
            r"action/seen: expected rows of shape \(3,\), got \(1,\)",
        ),
        (
            lambda a: a.variables.update(count=a["count"].to("meta")),
            DeviceMismatchError,
            "storage: action/count: expected a tensor on cpu, got one on meta",
        ),
    ],
)
@pytest.mark.parametrize("lengths", [[9, 9], [9, 1]])
def test_an_output_that_changes_its_form_is_refused(change, error, match, lengths):
    """In the third step; whether all environments run or some."""

    class Fickle(CountingAgent):
        def __call__(self, state, observation, agent_info, history=None):
            action, state = super().__call__(state, observation, agent_info)
            if (state["count"] == 3).all():
                change(action)
            return action, state

    with make_batcher(0, lengths, create_agent=Fickle) as batcher:
        batcher.reset()
        with pytest.raises(error, match=match) as caught:
            batcher.execute()
    if error is DeviceMismatchError:
        assert (caught.value.stage, caught.value.where) == ("storage", "action/count")


@pytest.mark.parametrize("n_processes", [0, 1])
def test_an_output_that_is_not_dense_is_refused(n_processes):
    class Sparse(CountingAgent):
        def __call__(self, state, observation, agent_info, history=None):
            action, state = super().__call__(state, observation, agent_info)
            action.set("seen", action["seen"].to_sparse())
            return action, state

    with make_batcher(n_processes, create_agent=Sparse) as batcher:
        batcher.reset()
        match = "storage: action/seen: expected a dense tensor, got torch.sparse_coo"
        with pytest.raises((TypeError, WorkerError), match=match):
            batcher.execute()


@pytest.mark.parametrize(
    ("part", "match"),
    [
        ("reset", "env.reset: running: .*cpu.*meta"),
        ("after", "env.step: _observation/frame: .*cpu.*meta"),
        ("following", "env.step: observation/frame: .*cpu.*meta"),
        ("running", "env.step: running: .*cpu.*meta"),
    ],
)
def test_each_part_of_what_an_environment_returns_is_looked_at(part, match):
    class Astray(CountingEnv):
        def reset(self, env_info=None):
            observation, running = super().reset(env_info)
            return observation, running.to("meta") if part == "reset" else running

        def step(self, action):
            (after, ran), (following, running) = super().step(action)
            after = after.to("meta") if part == "after" else after
            following = following.to("meta") if part == "following" else following
            return (after, ran), (following, running.to("meta") if part == "running" else running)

    def create_env(seed):
        return Astray(LENGTHS, True)

    def use(batcher):
        batcher.reset()
        batcher.execute()

    with make_batcher(0, create_env=create_env, env_args={}) as batcher:
        with pytest.raises(DeviceMismatchError, match=match):
            use(batcher)


def test_trajectories_that_do_not_fit_in_memory_are_refused_with_both_figures():
    free = free_memory()
    assert free is not None
    for n_processes in (0, 1):
        n_timesteps = free // 16  # The frame alone takes 24 bytes per step, twice.
        with make_batcher(n_processes, [9], n_timesteps=n_timesteps) as batcher:
            batcher.reset()
            with pytest.raises(
                SharedMemoryError, match=r"expected at most [\d,]+ bytes .* got [\d,]+"
            ):
                batcher.execute()


def test_a_containers_limit_leaves_what_files_take(tmp_path):
    for name, content in {"max": "9000", "current": "8000", "stat": "anon 1\n"}.items():
        (tmp_path / f"memory.{name}").write_text(content)
    assert _cgroup_available(tmp_path) == 1000
    (tmp_path / "memory.stat").write_text("anon 1\nactive_file 20\ninactive_file 3\n")
    assert _cgroup_available(tmp_path) == 1023
    (tmp_path / "memory.max").write_text("max\n")
    assert _cgroup_available(tmp_path) is None


def test_first_mistakes_are_named():
    class Plain(CountingAgent):
        def __call__(self, state, observation, agent_info, history=None):
            return {"action": observation["frame"][:, 0]}, DictTensor()

    class Alone(CountingAgent):
        def __call__(self, state, observation, agent_info, history=None):
            return DictTensor({"action": observation["frame"][:, 0]})

    for changes, match in (
        ({"create_env": lambda seed: CountingGym(), "env_args": {}}, "create_env: expected a VecE"),
        ({"create_agent": lambda: abs}, "create_agent: expected an RL_Agent, got <built-in"),
        ({"create_agent": lambda: CountingAgent}, "create_agent: .* got a class: <class"),
        ({"agent_info": {"epsilon": 1.0}}, "agent_info: expected a DictTensor or None, got {"),
        ({"seeds": 2.0}, "seeds: expected an int or a list of them, got 2.0"),
        ({"seeds": [1.5]}, "seeds: expected an integer, got 1.5"),
    ):
        with pytest.raises(TypeError, match=match):
            make_batcher(0, **changes)

    class Stateless(CountingAgent):
        def initial_state(self, agent_info, B):
            return None

    for create_agent, match in (
        (Stateless, "agent.initial_state: state: expected a DictTensor, got None"),
        (Plain, "agent.__call__: output: expected a DictTensor, got {"),
        (Alone, r"agent.__call__: expected a pair \(output, new state\), got DictTensor"),
    ):
        with make_batcher(0, create_agent=create_agent) as batcher:
            batcher.reset()
            with pytest.raises(TypeError, match=match):
                batcher.execute()


def test_a_first_state_of_another_number_of_rows_is_named():
    class Single(CountingAgent):
        def initial_state(self, agent_info, B):
            return super().initial_state(agent_info, 1)

    with make_batcher(0, create_agent=Single) as batcher:
        batcher.reset()
        with pytest.raises(ShapeError, match="^agent.initial_state: state: expected 8 rows, got 1"):
            batcher.execute()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"other": torch.zeros(8)}, KeyMismatchError, r"the keys \['count'\], got \['other'\]"),
        ({"count": torch.zeros(8)}, DtypeMismatchError, "expected torch.int64, got torch.float32"),
        ({"count": torch.zeros(8, 2).long()}, ShapeError, r"rows of shape \(\), got \(2,\)"),
        ({}, KeyMismatchError, r"the keys \['count'\], got \[\]"),
    ],
)
def test_a_new_state_is_like_the_first_one_from_the_first_step_on(change, error, match):
    class Other(CountingAgent):
        def __call__(self, state, observation, agent_info, history=None):
            return super().__call__(state, observation, agent_info)[0], DictTensor(change)

    with make_batcher(0, create_agent=Other) as batcher:
        batcher.reset()
        where = "^agent.__call__: new state.*, as of initial_state: .*"
        with pytest.raises(error, match=where + match):
            batcher.execute()


def test_an_answer_is_looked_at_in_every_step():
    class Tired(CountingAgent):
        def __call__(self, state, observation, agent_info, history=None):
            answer = super().__call__(state, observation, agent_info)
            return answer if (state["count"] < 5).all() else None

    with make_batcher(0, [9], create_agent=Tired) as batcher:
        batcher.reset()
        batcher.execute()
        batcher.get()
        with pytest.raises(TypeError, match=r"expected a pair \(output, new state\), got None"):
            batcher.execute()


def test_processes_of_unequal_size_are_refused():
    """Their environments would be given seeds that repeat."""
    with pytest.raises(
        EnvContractError, match=r"expected as many .* in every process, got \[4, 2\]"
    ):
        make_batcher(
            2, create_env=lambda seed: CountingEnv([3] * (4 - 2 * seed.process)), env_args={}
        )


def test_processes_of_both_kinds_of_environments_are_refused():
    with pytest.raises(
        EnvContractError, match=r"expected autoreset .* in every process, got \[False, True\]$"
    ):
        make_batcher(
            2,
            create_env=lambda seed: CountingEnv([3], autoreset=bool(seed.process)),
            env_args={},
        )


def test_processes_with_other_actions_bring_a_warning(caplog):
    """Not an error: an agent may know which of its actions an environment has."""
    seen = []
    for n_processes, first in ((0, 2), (2, 3), (2, 2)):
        caplog.clear()
        n_actions = [first, 3]

        def create_env(seed, n_actions=n_actions):
            env = CountingEnv([3])
            env.action_space = spaces.Discrete(n_actions[seed.process])
            return env

        make_batcher(n_processes, create_env=create_env, env_args={}).close()
        seen.append(caplog.messages)
    assert seen[:2] == [[], []]
    (message,) = seen[2]
    assert "expected one action space in every process, got Discrete(2), Discrete(3)" in message


def test_spaces_of_others_are_not_compared(caplog):
    def create_env(seed):
        env = CountingEnv([3])
        env.action_space = object()
        return env

    make_batcher(2, create_env=create_env, env_args={}).close()
    assert not caplog.messages


def test_a_batch_of_no_environments_is_refused():
    with pytest.raises(EnvContractError, match="^create_env: expected at least one environment"):
        make_batcher(0, create_env=lambda seed: CountingEnv([]), env_args={})


@pytest.mark.parametrize("name", ["n_timesteps", "n_processes", "num_threads"])
def test_a_bool_is_no_count(name):
    with pytest.raises(TypeError, match=f"^{name}: expected an integer, got True$"):
        make_batcher(**{"n_processes": 0, name: True})


def test_an_environment_without_a_dict_of_attributes_steps():
    class Slotted:
        __slots__ = ("env",)
        autoreset = True

        def __init__(self, seed):
            self.env = CountingEnv([2], autoreset=True)

        def n_envs(self):
            return 1

        def reset(self, env_info=None):
            return self.env.reset(env_info)

        def step(self, action):
            return self.env.step(action)

        def close(self):
            self.env.close()

    with make_batcher(0, create_env=Slotted, env_args={}) as batcher:
        batcher.reset()
        batcher.execute()
        assert batcher.get()[1] == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_cuda_device_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="^device: expected one that is there, got cuda:0"):
        make_batcher(0, device="cuda")
    with pytest.raises(ValueError, match="info_device: expected one that is there, got cuda:0"):
        make_batcher(0, info_device="cuda")


def test_a_gpu_that_is_one_too_many_is_named(played_gpu):
    with pytest.raises(ValueError, match="^device: .*, got cuda:1 of 1 CUDA devices"):
        make_batcher(0, device="cuda:1")


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda frame: frame.int(), DtypeMismatchError, "expected torch.int64, got torch.int32"),
        (lambda frame: frame[:, :2], ShapeError, r"expected rows of shape \(3,\), got \(2,\)"),
    ],
)
def test_processes_that_store_other_things_are_refused(change, error, match):
    class Other(CountingEnv):
        def _observe(self, last_action):
            observation = super()._observe(last_action)
            observation.set("frame", change(observation["frame"]))
            return observation

    def create_env(seed):
        return (CountingEnv, Other)[seed.process]([4])

    with make_batcher(2, create_env=create_env, env_args={}) as batcher:
        batcher.reset()
        with pytest.raises(error, match=f"worker 1: observation/frame: {match}"):
            batcher.execute()


def test_a_key_that_comes_only_after_a_step_is_refused():
    class More(CountingEnv):
        def step(self, action):
            (after, ran), following = super().step(action)
            return (after + DictTensor({"more": torch.zeros(len(ran))}), ran), following

    with make_batcher(0, create_env=lambda seed: More([4, 5]), env_args={}) as batcher:
        batcher.reset()
        with pytest.raises(KeyMismatchError, match="_observation.*more"):
            batcher.execute()


class RowsForever(CountingAgent):
    """Returns a state of all environments, also of those whose episode has ended."""

    def __call__(self, state, observation, agent_info, history=None):
        action, _ = super().__call__(state, observation, agent_info)
        return action, DictTensor({"count": torch.arange(len(LENGTHS))})


@pytest.mark.parametrize("n_processes", [0, 1])
def test_a_state_with_rows_of_environments_that_have_ended_is_refused(n_processes):
    """Which rows are whose could not be told; some would get another's memory."""
    with make_batcher(n_processes, n_timesteps=9, create_agent=RowsForever) as batcher:
        error = ShapeError if n_processes == 0 else WorkerError
        with pytest.raises(error, match="agent.__call__: new state: expected 7 rows, got 8"):
            acquire(batcher)


class ChangesItsReward(CountingEnv):
    """Returns float64 from the third step on."""

    def step(self, action):
        (after, ran), (following, running) = super().step(action)
        if self.count[0] == 3:
            after = after.clone()
            after.set("reward", after["reward"].double())
        return (after, ran), (following, running)


@pytest.mark.parametrize("autoreset", [False, True])
def test_an_environment_that_changes_a_dtype_is_refused(autoreset):
    with make_batcher(
        create_env=lambda seed: ChangesItsReward([8, 9], autoreset), env_args={}
    ) as b:
        b.reset()
        with pytest.raises(DtypeMismatchError, match="_observation/reward: expected torch.float32"):
            b.execute()


class RowTooMany(CountingEnv):
    """Observes two environments when one runs."""

    def step(self, action):
        (after, ran), (following, running) = super().step(action)
        return (after if len(ran) > 1 else after.index([0, 0]), ran), (following, running)


def test_an_environment_that_returns_a_row_too_many_is_refused():
    with make_batcher(create_env=lambda seed: RowTooMany([1, 3]), env_args={}) as batcher:
        batcher.reset()
        with pytest.raises(ShapeError, match="storage: _observation/.*: expected .* got"):
            batcher.execute()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda count: count.to("meta"), DeviceMismatchError),
        (lambda count: count.float(), DtypeMismatchError),
        (lambda count: count.unsqueeze(1), ShapeError),
    ],
    ids=["device", "dtype", "shape"],
)
def test_a_state_that_changes_its_form_later_is_refused_where_it_does(change, error):
    class Later(CountingAgent):
        def __call__(self, state, observation, agent_info, history=None):
            output, following = super().__call__(state, observation, agent_info)
            if output["count"][0] == 2:
                following.set("count", change(following["count"]))
            return output, following

    with make_batcher(create_agent=Later, lengths=[9, 9]) as batcher:
        batcher.reset()
        with pytest.raises(error, match="agent.__call__: new state/count, as of initial_state: "):
            batcher.execute()


class Renumbering(CountingEnv):
    """Numbers what still runs from 0 on."""

    def step(self, action):
        pair, (following, running) = super().step(action)
        return pair, (following, torch.arange(len(running)))


class Forgetful(CountingEnv):
    """Lets the first environment go as soon as any is done."""

    def step(self, action):
        (after, ran), (following, running) = super().step(action)
        if len(running) < len(ran):
            return (after, ran), (after.index([1, 2]), ran[1:])
        return (after, ran), (following, running)


class Swapping(CountingEnv):
    """Changes the order of two environments."""

    def step(self, action):
        (after, ran), (following, running) = super().step(action)
        if len(running) == 2:
            return (after, ran), (following.index([1, 0]), running.flip(0))
        return (after, ran), (following, running)


class Unending(CountingEnv):
    """Goes on with those that are done."""

    def step(self, action):
        (after, ran), (following, running) = super().step(action)
        if len(running) < len(ran):
            return (after, ran), (after, ran)
        return (after, ran), (following, running)


@pytest.mark.parametrize(
    ("env", "found"),
    [
        (Renumbering, r"\[0, 1\]"),
        (Forgetful, r"\[1, 2\]"),
        (Swapping, r"\[2, 0\]"),
        (Unending, r"\[0, 1, 2\]"),
    ],
)
def test_an_environment_that_says_others_run_on_than_do_is_refused(env, found):
    """Rows would be stored as those of another environment, with the memory of another."""
    with make_batcher(create_env=lambda seed: env([6, 2, 6]), env_args={}) as batcher:
        batcher.reset()
        message = rf"env.step: running: expected .*\[0, 2\], got {found}"
        with pytest.raises(EnvContractError, match=message):
            batcher.execute()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda done: done.long(), r"\(8,\) torch.int64"),
        (lambda done: done[:, None], r"\(8, 1\) torch.bool"),
        (lambda done: None, "none"),
    ],
)
def test_who_is_done_is_told_in_bools(change, found):
    class Told(CountingEnv):
        def step(self, action):
            (after, ran), rest = super().step(action)
            told = {**after, "done": change(after["done"])}
            kept = {key: tensor for key, tensor in told.items() if tensor is not None}
            return (DictTensor(kept), ran), rest

    with make_batcher(create_env=lambda seed: Told(LENGTHS), env_args={}) as batcher:
        batcher.reset()
        message = rf"env.step: _observation/done: expected \(8,\) bool, got {found}"
        with pytest.raises(EnvContractError, match=message):
            batcher.execute()


@pytest.mark.parametrize("name", ["create", "seed"])
def test_an_agent_that_can_not_be_made_closes_the_environment(name):
    made = []

    def create_env(seed):
        made.append(CountingEnv([3]))
        return made[0]

    def create_agent():
        agent = CountingAgent()
        if name == "create":
            raise ValueError("no agent")
        agent.seed = None
        return agent

    with pytest.raises((ValueError, TypeError)):
        make_batcher(create_env=create_env, env_args={}, create_agent=create_agent, agent_seeds=0)
    assert made[0].closed


def test_why_an_agent_can_not_be_made_is_told_where_the_environment_fails_to_close():
    class Stuck(CountingEnv):
        def close(self):
            raise RuntimeError("window is gone")

    def create_agent():
        raise ValueError("no agent")

    with pytest.raises(ValueError, match="no agent"):
        make_batcher(create_env=lambda seed: Stuck([3]), env_args={}, create_agent=create_agent)


class StepsOnce(CountingEnv):
    def step(self, action):
        return super().step(action)[0]


class StepsLikeGymnasium(CountingEnv):
    def step(self, action):
        (after, _), _ = super().step(action)
        return after, after["reward"], after["terminated"], after["truncated"], {}


class ResetsAlone(CountingEnv):
    def reset(self, env_info=None):
        return super().reset(env_info)[0]


class ResetsToAList(CountingEnv):
    def reset(self, env_info=None):
        observation, running = super().reset(env_info)
        return observation, running.tolist()


class ResetsToADict(CountingEnv):
    def reset(self, env_info=None):
        observation, running = super().reset(env_info)
        return dict(observation), running


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (ResetsToAList, r"env.reset: running: expected a tensor, got \[0, 1\]"),
        (ResetsToADict, r"env.reset: observation: expected a DictTensor, got \{"),
        (StepsOnce, r"env.step: expected \(\(observation, running\), .*, got"),
        (StepsLikeGymnasium, r"env.step: expected \(\(observation, running\), .*, got"),
        (ResetsAlone, r"env.reset: expected \(observation, running\), got"),
    ],
)
def test_an_environment_that_returns_another_form_is_named(env, message):
    with make_batcher(create_env=lambda seed: env([3, 4]), env_args={}) as batcher:
        with pytest.raises((EnvContractError, TypeError), match=message):
            acquire(batcher)


class ChangesLater(CountingAgent):
    """Changes its observation in place, from the second slot on."""

    n_calls = 0

    def __call__(self, state, observation, agent_info, history=None):
        self.n_calls += 1
        if self.n_calls > 4:
            observation["frame"].add_(1)
        return super().__call__(state, observation, agent_info)


def test_an_agent_that_changes_its_observation_later_is_noticed():
    with make_batcher(create_agent=ChangesLater, lengths=[20, 20]) as batcher:
        acquire(batcher)
        with pytest.raises(ValueError, match="observation/frame: expected it to be left as it is"):
            batcher.execute()
