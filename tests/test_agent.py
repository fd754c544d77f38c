"""Replaying equals acting, and the device checker is invisible until a device is wrong."""

import pickle

import pytest
import torch

from rlbatch import (
    DeviceMismatchError,
    DictTensor,
    DtypeMismatchError,
    KeyMismatchError,
    RL_Agent,
    RL_Agent_CheckDevice,
    RL_Batcher,
    ShapeError,
    TemporalDictTensor,
    Trajectories,
    masked_dicttensor,
    replay_agent,
    replay_agent_stateless,
)
from rlbatch.envs import DeviceEnv
from tests.batchers import LENGTHS, CountingAgent, make_batcher
from tests.helpers import CountingEnv

CPU, META = torch.device("cpu"), torch.device("meta")


def sample(logits, generator=None):
    action = torch.distributions.Categorical(logits=logits).sample()
    return action, torch.log_softmax(logits, 1).gather(1, action[:, None]).squeeze(1)


class FeedForward(RL_Agent):
    """Samples actions; when replayed, gives the log-probability of the stored one."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
        )

    def update(self, state_dict):
        self.model.load_state_dict(state_dict)

    def features(self, state, observation, history):
        return observation["frame"].float() / 10, state

    def __call__(self, state, observation, agent_info, history=None):
        features, state = self.features(state, observation, history)
        logits = self.model(features)
        action, log_prob = sample(logits)
        return DictTensor({"action": action, "log_prob": log_prob, "logits": logits}), state


class Recurrent(FeedForward):
    """A GRU cell in front, whose state starts anew with each episode."""

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(3, 3)

    def initial_state(self, agent_info, B):
        return DictTensor({"h": torch.zeros(B, 3)})

    def features(self, state, observation, history):
        fresh = self.initial_state(None, observation.n_elems())
        state = masked_dicttensor(state, fresh, observation["initial_state"])
        h = self.cell(observation["frame"].float() / 10, state["h"])
        return h, DictTensor({"h": h})


class Historian(FeedForward):
    """Averages the frames of the slot so far, and the actions."""

    def require_history(self):
        return True

    def features(self, state, observation, history):
        frames = torch.cat([history["observation/frame"], observation["frame"][:, None]], 1)
        features = frames.float().mean(1) / 10
        if "action/action" in history:
            features = features + history["action/action"].float().mean(1, keepdim=True)
        return features, state


class Attentive(FeedForward):
    """Looks with a transformer at the frames of the slot so far."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        layer = torch.nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.embed, self.encoder = torch.nn.Linear(3, 6), torch.nn.TransformerEncoder(layer, 2)
        self.out = torch.nn.Linear(6, 3)

    def require_history(self):
        return True

    def features(self, state, observation, history):
        frames = torch.cat([history["observation/frame"], observation["frame"][:, None]], 1)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(frames.shape[1])
        return self.out(self.encoder(self.embed(frames.float() / 10), mask)[:, -1]), state


def acquire(create_agent, autoreset, n_slots=2):
    """Returns successive trajectories; episodes end inside, and at the edge of, slots."""
    lengths = [3, 5, 2, 8, 13]
    batcher = RL_Batcher(
        5, create_agent, {}, lambda seed: CountingEnv(lengths, autoreset), {}, 0, seeds=0
    )
    with batcher:
        batcher.reset()
        for _ in range(n_slots):
            batcher.execute()
            yield batcher.get()[0]


@pytest.mark.parametrize("autoreset", [False, True])
@pytest.mark.parametrize("create_agent", [FeedForward, Recurrent, Historian, Attentive])
def test_a_replay_gives_the_log_probabilities_and_states_of_the_acquisition(
    create_agent, autoreset
):
    agent = create_agent()
    seen_padding = False
    for trajectories in acquire(create_agent, autoreset):
        steps = trajectories.trajectories
        replayed = replay_agent(agent, trajectories)
        assert torch.equal(replayed.lengths, steps.lengths)
        mask = steps.mask(torch.bool)
        seen_padding |= not mask.all()
        log_prob = torch.log_softmax(replayed["logits"], 2)
        log_prob = log_prob.gather(2, steps["action/action"][..., None]).squeeze(2)
        stored = steps["action/log_prob"]
        torch.testing.assert_close(log_prob[mask], stored[mask], rtol=0, atol=1e-6)
        torch.testing.assert_close(
            replayed["logits"][mask], steps["action/logits"][mask], rtol=0, atol=1e-6
        )
    assert seen_padding != autoreset


def test_a_replayed_state_is_the_state_that_the_next_slot_starts_from():
    first, second = acquire(Recurrent, autoreset=True)
    agent, state = Recurrent(), None
    for t in range(5):
        _, state = agent.call_replay(first, t, state)
    stored = second.info["agent_state/h"]
    torch.testing.assert_close(state["h"], stored, rtol=0, atol=1e-6)
    assert stored.abs().min() > 0


@pytest.mark.parametrize("create_agent", [FeedForward, Recurrent])
def test_a_replay_may_be_transformed(create_agent):
    agent = create_agent()
    (trajectories,) = acquire(create_agent, True, n_slots=1)
    model = agent.model

    def loss(bias):
        agent.model = lambda x: torch.func.functional_call(model, {"0.bias": bias}, (x,))
        return replay_agent(agent, trajectories)["logits"].square().sum()

    ensemble = torch.stack([model[0].bias.detach(), torch.ones(16)])
    expected = [torch.autograd.functional.jacobian(loss, one) for one in ensemble]
    gradient = torch.func.grad(loss)
    torch.testing.assert_close(gradient(ensemble[0]), expected[0])
    found = torch.func.vmap(gradient, randomness="different")(ensemble)
    torch.testing.assert_close(found, torch.stack(expected))


def test_gradients_flow_through_a_replay():
    agent = Recurrent()
    (trajectories,) = acquire(Recurrent, True, n_slots=1)
    replay_agent(agent, trajectories)["logits"].square().sum().backward()
    for parameter in (*agent.model.parameters(), *agent.cell.parameters()):
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("replay", [replay_agent, replay_agent_stateless])
def test_what_is_no_trajectories_is_not_replayed(replay):
    steps = trajectories_on("cpu").trajectories
    with pytest.raises(
        TypeError, match="^trajectories: expected Trajectories, as of `get`, got a "
    ):
        replay(FeedForward(), steps, "call_replay")


def test_a_replay_runs_to_the_longest_trajectory_and_fits_beside_the_steps():
    class Counting(FeedForward):
        n_calls = 0

        def call_replay(self, trajectories, t, state):
            self.n_calls += 1
            return super().call_replay(trajectories, t, state)

    agent, frames = Counting(), torch.arange(54).reshape(2, 9, 3)
    steps = TemporalDictTensor({"observation/frame": frames}, torch.tensor([2, 4]))
    logits = replay_agent(agent, Trajectories(DictTensor(), steps))["logits"]
    assert (agent.n_calls, logits.shape) == (4, (2, 9, 2))
    assert torch.equal(logits[:, 4:], logits[:, 3:4].expand(2, 5, 2))


@pytest.mark.parametrize("n_rows", [0, 2])
def test_nothing_to_replay_is_refused(n_rows):
    steps = TemporalDictTensor({"observation/frame": torch.zeros(n_rows, 0, 3)})
    with pytest.raises(ValueError, match="trajectories: expected at least one step to replay"):
        replay_agent(FeedForward(), Trajectories(DictTensor(), steps))


@pytest.mark.parametrize(
    ("late", "error", "match"),
    [
        (None, TypeError, r"call_replay, step 1: expected a pair \(DictTensor, state\), got None"),
        ({"v": torch.zeros(2), "w": torch.zeros(2)}, KeyMismatchError, r"step 1: .*\['w'\]"),
        (
            {"v": torch.zeros(2).long()},
            DtypeMismatchError,
            "step 1: v, as in step 0: expected torch.float32",
        ),
        ({"v": torch.zeros(1)}, ShapeError, r"v, as in step 0: expected shape \(2,\), got \(1,\)"),
        (
            {"v": torch.zeros(2, 3)},
            ShapeError,
            r"v, as in step 0: expected shape \(2,\), got \(2, 3",
        ),
        (
            {"v": torch.zeros(2, device="meta")},
            DeviceMismatchError,
            "v, as in step 0: expected .* cpu",
        ),
    ],
)
def test_a_replay_whose_output_changes_its_form_is_refused(late, error, match):
    class Fickle(RL_Agent):
        def call_replay(self, trajectories, t, state):
            if t == 0:
                return DictTensor({"v": torch.zeros(2)}), None
            return late and (DictTensor(late), None)

    steps = TemporalDictTensor({"x": torch.zeros(2, 3)}, torch.tensor([3, 2]))
    trajectories = Trajectories(DictTensor({"id": torch.arange(2)}), steps)
    with pytest.raises(error, match=match):
        replay_agent(Fickle(), trajectories)


def test_a_stateless_replay_calls_the_method_once_with_everything():
    class AllAtOnce(FeedForward):
        def replay(self, trajectories):
            steps = trajectories.trajectories
            logits = self.model(steps["observation/frame"].float() / 10)
            return TemporalDictTensor({"logits": logits}, steps.lengths)

    (trajectories,) = acquire(AllAtOnce, False, n_slots=1)
    whole = replay_agent_stateless(AllAtOnce(), trajectories, "replay")
    by_step = replay_agent(AllAtOnce(), trajectories)
    torch.testing.assert_close(whole["logits"], by_step["logits"])


def test_the_replay_of_agent_info_is_where_the_agent_says():
    class Reader(FeedForward):
        def __call__(self, state, observation, agent_info, history=None):
            assert agent_info["epsilon"].device == torch.device(self.info_device)
            return super().__call__(state, observation, agent_info, history)

    info = DictTensor({"agent_info/epsilon": torch.zeros(2)})
    frames = {"observation/frame": torch.zeros(2, 3, 3)}
    trajectories = Trajectories(info, TemporalDictTensor(frames))
    agent = Reader()
    agent.call_replay(trajectories, 0, None)
    agent.info_device = "meta"
    agent.call_replay(trajectories, 0, None)


# --- The checker. `meta` is a second device on a machine that has only a CPU. ---


class Chatty(FeedForward):
    """An agent with everything a checker has to forward."""

    threshold = 3

    def __init__(self):
        super().__init__()
        self.calls = []

    def seed(self, seed):
        self.calls.append(("seed", seed))

    def close(self):
        self.calls.append(("close",))

    def update(self, info):
        self.calls.append(("update", info))

    def own_replay(self, trajectories, t, state):
        self.calls.append(("own_replay", t))
        return self.call_replay(trajectories, t, state)

    def helper(self, x, y=2):
        """Adds."""
        return x + y


def test_the_checker_forwards_everything():
    agent = Chatty()
    checked = RL_Agent_CheckDevice(agent, "cpu")
    assert isinstance(checked, RL_Agent)
    checked.seed(7)
    checked.update({"a": 1})
    checked.close()
    assert agent.calls == [("seed", 7), ("update", {"a": 1}), ("close",)]
    assert checked.calls is agent.calls
    assert checked.model is agent.model
    assert checked.threshold == 3
    assert checked.helper(1, y=5) == 6
    assert checked.helper.__doc__ == "Adds."
    checked.threshold = 4
    assert agent.threshold == 4
    agent._device = "the agent's own"
    assert checked._device == "the agent's own"
    agent.info_device = "meta"
    assert checked.info_device == "meta"
    with pytest.raises(AttributeError, match="nothing"):
        checked.nothing  # noqa: B018
    assert pickle.loads(pickle.dumps(checked)).threshold == 4


@pytest.mark.parametrize("name", ["device", "info_device"])
def test_the_checker_takes_only_devices_that_are_there(name):
    missing = f"cuda:{torch.cuda.device_count()}"
    devices = {"device": "cpu", "info_device": "cpu", name: missing}
    with pytest.raises(ValueError, match=f"^{name}: expected one that is there, got {missing}"):
        RL_Agent_CheckDevice(Chatty(), **devices)


def test_the_checker_leaves_a_method_alone_that_takes_no_trajectories():
    class Exporting(Chatty):
        def exported(self):
            return DictTensor({"weights": torch.zeros(1, device="meta")})

    assert RL_Agent_CheckDevice(Exporting(), "cpu").exported()["weights"].device.type == "meta"


@pytest.mark.parametrize("create_agent", [FeedForward, Recurrent, Historian])
def test_a_checked_agent_acquires_and_replays_what_the_bare_one_does(create_agent):
    bare = list(acquire(create_agent, True))
    checked = list(acquire(lambda: RL_Agent_CheckDevice(create_agent(), "cpu"), True))
    for a, b in zip(bare, checked, strict=True):
        for key in a.trajectories:
            assert torch.equal(a.trajectories[key], b.trajectories[key]), key
        first = replay_agent(create_agent(), a)
        second = replay_agent(RL_Agent_CheckDevice(create_agent(), "cpu"), a)
        assert torch.equal(first["logits"], second["logits"])


def observation(device=CPU, n=2):
    return DictTensor({"frame": torch.zeros(n, 3, device=device)})


class Teacher(RL_Agent, torch.nn.Module):
    """An agent that is a module, and knows whose it is."""

    def __init__(self, pupil, device, device_of_list):
        super().__init__()
        self.pupil = pupil
        self.model = torch.nn.BatchNorm1d(1, affine=False, device=device)
        self.unregistered = [torch.nn.Parameter(torch.zeros(1, device=device_of_list))]


class OnMeta(RL_Agent):
    """Right on meta but for one thing."""

    def __init__(self, wrong):
        self.wrong = wrong
        self.model = torch.nn.Linear(1, 1, device=self.on("parameters"))
        self.parts = [{"head": torch.nn.Linear(1, 1, device=self.on("listed"))}]
        self.scale = torch.nn.Parameter(torch.zeros(1, device=self.on("parameter")))
        self.teachers = [Teacher(self, self.on("teacher"), self.on("list of a module"))]

    def on(self, name):
        return "cpu" if self.wrong == name else "meta"

    def initial_state(self, agent_info, B):
        return DictTensor({"memory": torch.zeros(B, device=self.on("initial_state"))})

    def __call__(self, state, observation, agent_info, history=None):
        action = DictTensor({"logits": torch.zeros(2, 2, device=self.on("action"))})
        return action, DictTensor({"memory": torch.zeros(2, device=self.on("state"))})

    def update(self, info):
        if self.wrong == "update":
            self.model = torch.nn.Linear(1, 1, device="cpu")

    def call_replay(self, trajectories, t, state):
        return DictTensor({"logits": torch.zeros(2, 2, device=self.on("replay"))}), DictTensor()

    def all_at_once(self, trajectories):
        logits = torch.zeros(2, 2, 2, device=self.on("own_replay"))
        return TemporalDictTensor({"logits": logits})


def trajectories_on(device):
    frames = {"observation/frame": torch.zeros(2, 2, 3, device=device)}
    return Trajectories(DictTensor(), TemporalDictTensor(frames))


def walk(agent):
    """Calls every entry point of an agent."""
    agent.initial_state(DictTensor(), 2)
    memory = DictTensor({"memory": torch.zeros(2, device="meta")})
    agent(memory, observation(META), DictTensor())
    agent.update(None)
    agent.call_replay(trajectories_on(META), 0, None)
    agent.all_at_once(trajectories_on(META))


def test_an_agent_without_a_call_says_so():
    class Module(RL_Agent, torch.nn.Module):
        def forward(self, *arguments):
            return arguments

    with pytest.raises(NotImplementedError, match="^__call__: expected Module to define it"):
        Module()(DictTensor(), observation("cpu"), DictTensor())


@pytest.mark.parametrize(
    ("wrong", "stage", "where"),
    [
        ("parameters", "initial_state", "parameters/model.weight"),
        ("listed", "initial_state", "parameters/parts.0.head.weight"),
        ("parameter", "initial_state", "parameters/scale"),
        ("teacher", "initial_state", "buffers/teachers.0.model.running_mean"),
        ("list of a module", "initial_state", "parameters/teachers.0.unregistered.0"),
        ("initial_state", "initial_state", "state/memory"),
        ("action", "call", "action/logits"),
        ("state", "call", "new_state/memory"),
        ("update", "update", "parameters/model.weight"),
        ("replay", "call_replay", "output/logits"),
        ("own_replay", "all_at_once", "output/logits"),
    ],
)
def test_the_checker_names_stage_key_expected_and_found(wrong, stage, where):
    walk(RL_Agent_CheckDevice(OnMeta(wrong=None), "meta"))
    with pytest.raises(DeviceMismatchError) as caught:
        walk(RL_Agent_CheckDevice(OnMeta(wrong), "meta"))
    error = caught.value
    assert (error.stage, error.where) == (stage, where)
    assert (error.expected, error.found) == (META, CPU)
    assert str(error) == f"{stage}: {where}: expected a tensor on meta, got one on cpu"


def test_the_checker_looks_at_what_goes_in():
    agent = RL_Agent_CheckDevice(FeedForward(), "cpu")
    infos = {"agent_info": DictTensor({"epsilon": torch.zeros(2, device="meta")})}
    with pytest.raises(DeviceMismatchError, match="initial_state: agent_info/epsilon"):
        agent.initial_state(infos["agent_info"], 2)
    for name, arguments in {
        "observation/frame": (DictTensor(), observation(META), DictTensor()),
        "agent_info/epsilon": (DictTensor(), observation(), infos["agent_info"]),
        "state/frame": (observation(META), observation(), DictTensor()),
    }.items():
        with pytest.raises(DeviceMismatchError, match=f"call: {name}: .*cpu.*meta"):
            agent(*arguments)
    history = TemporalDictTensor({"observation/frame": torch.zeros(2, 1, 3, device="meta")})
    with pytest.raises(DeviceMismatchError, match="call: history/observation/frame"):
        agent(DictTensor(), observation(), DictTensor(), history)
    with pytest.raises(DeviceMismatchError, match="call_replay: trajectories/observation/frame"):
        agent.call_replay(trajectories_on(META), 0, None)
    on_meta = RL_Agent_CheckDevice(OnMeta(None), "meta", info_device="meta")
    with pytest.raises(DeviceMismatchError, match="agent_info/epsilon: .*meta.*cpu"):
        on_meta.initial_state(DictTensor({"epsilon": torch.zeros(2)}), 2)


@pytest.mark.parametrize("stage", ["call", "call_replay"])
def test_the_checker_looks_at_parameters_before_it_acts(stage):
    agent = RL_Agent_CheckDevice(OnMeta("parameters"), "meta")
    memory = DictTensor({"memory": torch.zeros(2, device="meta")})
    calls = {
        "call": lambda: agent(memory, observation(META), DictTensor()),
        "call_replay": lambda: agent.call_replay(trajectories_on(META), 0, None),
    }
    with pytest.raises(DeviceMismatchError, match=f"{stage}: parameters/model.weight: .*meta.*cpu"):
        calls[stage]()


def test_the_checker_looks_at_parameters_in_every_call():
    agent = RL_Agent_CheckDevice(OnMeta(None), "meta")
    memory = DictTensor({"memory": torch.zeros(2, device="meta")})
    agent(memory, observation(META), DictTensor())
    agent.model.to_empty(device="cpu")
    with pytest.raises(DeviceMismatchError, match="call: parameters/model.weight: .*meta.*cpu"):
        agent(memory, observation(META), DictTensor())


def test_the_checker_looks_at_where_a_replay_takes_its_infos():
    agent = RL_Agent_CheckDevice(OnMeta(None), "meta", info_device="meta")
    agent.call_replay(trajectories_on(META), 0, None)
    replayed = trajectories_on(META)
    replayed.info.set("agent_info/epsilon", torch.zeros(2, device="meta"))
    with pytest.raises(DeviceMismatchError, match="call_replay: agent.info_device: .*meta.*cpu"):
        agent.call_replay(replayed, 0, None)


@pytest.mark.gpu
def test_on_a_gpu_the_checker_passes_what_is_right_and_names_what_is_wrong():
    class OnGpu(FeedForward):
        def __init__(self, device):
            super().__init__()
            self.model.to(device)

        def features(self, state, observation, history):
            return observation["frame"].float().to(next(self.model.parameters()).device), state

    def create_env(seed):
        return DeviceEnv(CountingEnv([3, 5]), "cpu", "cuda")

    def run(create_agent):
        batcher = RL_Batcher(4, create_agent, {}, create_env, {}, 0, seeds=0, device="cuda")
        with batcher:
            batcher.reset()
            batcher.execute()
            return batcher.get()[0]

    right = run(lambda: RL_Agent_CheckDevice(OnGpu("cuda"), "cuda"))
    assert right.device() == torch.device("cuda:0")
    with pytest.raises(DeviceMismatchError, match="parameters/model.0.weight: .*cuda:0.*cpu"):
        run(lambda: RL_Agent_CheckDevice(OnGpu("cpu"), "cuda"))


class InPlace(RL_Agent):
    """An agent that changes its state in place."""

    def initial_state(self, agent_info, B):
        return DictTensor({"n": torch.zeros(B)})

    def __call__(self, state, observation, agent_info, history=None):
        state["n"].add_(1)
        return DictTensor({"action": state["n"].long()}), state


def two_by_three():
    info = DictTensor({"agent_state/n": torch.zeros(2)})
    return Trajectories(info, TemporalDictTensor({"observation/a": torch.zeros(2, 3)}))


def test_a_replay_leaves_its_trajectories_as_they_are():
    batch = two_by_three()
    first, second = (replay_agent(InPlace(), batch) for _ in range(2))
    assert first["action"].tolist() == second["action"].tolist() == [[1, 2, 3]] * 2
    assert batch.info["agent_state/n"].tolist() == [0, 0]
    first.lengths.zero_()
    assert batch.trajectories.lengths.tolist() == [3, 3]


def test_a_replay_of_other_rows_is_refused():
    class TooMany(RL_Agent):
        def call_replay(self, trajectories, t, state):
            return DictTensor({"action": torch.zeros(5)}), DictTensor()

    with pytest.raises(ShapeError, match="step 0: action: expected 2 rows, got 5"):
        replay_agent(TooMany(), two_by_three())


class WithBuffer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, device="meta")
        self.register_buffer("mean", torch.zeros(1))


class Whole(RL_Agent):
    """An agent with a replay of its own, and a model maybe."""

    def __init__(self, model=None):
        self.model = model

    def replay(self, trajectories):
        return trajectories.trajectories


def test_the_checker_looks_at_buffers():
    checked = RL_Agent_CheckDevice(Whole(WithBuffer()), "meta")
    with pytest.raises(DeviceMismatchError, match="initial_state: buffers/model.mean"):
        checked.initial_state(DictTensor(), 2)


def test_the_checker_looks_at_all_of_the_trajectories_however_they_are_given():
    checked = RL_Agent_CheckDevice(Whole(), "cpu")
    batch = two_by_three()
    batch.info.variables["agent_state/n"] = torch.zeros(2, device="meta")  # Past its own check.
    with pytest.raises(DeviceMismatchError, match="replay: info/agent_state/n"):
        checked.replay(batch)
    there = TemporalDictTensor({"a": torch.zeros(2, 3, device="meta")})
    with pytest.raises(DeviceMismatchError, match="replay: trajectories/a"):
        checked.replay(trajectories=Trajectories(DictTensor(), there))


class Replays(RL_Agent):
    """Has replays that return all kinds of things, with one tensor on meta."""

    def third(self, trajectories):
        return DictTensor(), DictTensor(), torch.zeros(2, device="meta")

    def some(self, trajectories):
        return [DictTensor({"a": torch.zeros(2, device="meta")})]

    def whole(self, trajectories):
        return trajectories.to("meta")

    @staticmethod
    def of_class(trajectories):
        return DictTensor({"a": torch.zeros(2, device="meta")})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("third", "third: result 2: expected .* on cpu"),
        ("some", "some: output/a: expected"),
        ("whole", "whole: output/info/agent_state/n: expected"),
        ("of_class", "of_class: output/a: expected"),
    ],
)
def test_the_checker_looks_at_all_that_a_replay_returns(name, expected):
    replay = getattr(RL_Agent_CheckDevice(Replays(), "cpu"), name)
    batch = two_by_three()
    with pytest.raises(DeviceMismatchError, match=f"^{expected}"):
        replay(batch)
    with pytest.raises(DeviceMismatchError, match=f"^{name}: info/agent_state/n"):
        replay(batch.to("meta"))


def test_the_checker_looks_at_the_state_that_a_replay_is_given():
    checked = RL_Agent_CheckDevice(Whole(), "cpu")
    state = DictTensor({"n": torch.zeros(2, device="meta")})
    with pytest.raises(DeviceMismatchError, match="^call_replay: state/n: expected"):
        checked.call_replay(two_by_three(), 1, state)


def test_stored_infos_are_where_the_trajectories_are():
    batch = two_by_three()
    batch.info.set("agent_info/e", torch.zeros(2))
    found = RL_Agent_CheckDevice(Whole(), "cpu", info_device="meta").replay(batch)
    assert found is batch.trajectories


class KeepsItsOutput(CountingAgent):
    """Has containers of this library among its attributes."""

    def __call__(self, state, observation, agent_info, history=None):
        self.last = super().__call__(state, observation, agent_info)
        return self.last

    def update(self, info):
        pass


def test_an_agent_that_keeps_a_container_can_be_checked():
    with make_batcher(
        create_agent=lambda: RL_Agent_CheckDevice(KeepsItsOutput(), "cpu")
    ) as batcher:
        batcher.reset()
        batcher.execute()
        batcher.update({})
        assert batcher.get()[0].n_elems() == len(LENGTHS)


class ReturnsOne(CountingAgent):
    """Returns its action, of two keys, alone."""

    def __call__(self, state, observation, agent_info, history=None):
        action, _ = super().__call__(state, observation, agent_info)
        return action.get(["action", "count"])


@pytest.mark.parametrize("wrap", [lambda agent: agent, lambda a: RL_Agent_CheckDevice(a, "cpu")])
def test_what_is_no_pair_is_named_whether_checked_or_not(wrap):
    with make_batcher(create_agent=lambda: wrap(ReturnsOne())) as batcher:
        batcher.reset()
        with pytest.raises(TypeError, match=r"expected a pair .*, got DictTensor"):
            batcher.execute()


def test_a_replay_that_returns_numbers_is_refused():
    class ReturnsNumbers(CountingAgent):
        def call_replay(self, trajectories, t, state):
            return DictTensor({"value": torch.tensor(1.0)}), DictTensor()

    with make_batcher() as batcher:
        batcher.reset()
        batcher.execute()
        trajectories, _ = batcher.get()
    with pytest.raises(ShapeError, match="value: expected 8 rows, got a number"):
        replay_agent(ReturnsNumbers(), trajectories)
