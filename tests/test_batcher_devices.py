"""What a batcher says of a tensor that is on the wrong device."""

import pytest
import torch

from rlbatch import (
    DeviceMismatchError,
    DictTensor,
    RL_Agent,
    RL_Agent_CheckDevice,
    WorkerError,
    replay_agent,
)
from rlbatch.envs import DeviceEnv
from tests.batchers import LENGTHS, CountingAgent, acquire, make_batcher
from tests.helpers import CountingEnv


def test_an_environment_or_agent_on_the_wrong_device_is_named():
    class OnMeta(CountingAgent):
        def initial_state(self, agent_info, B):
            return DictTensor({"count": torch.zeros(B, dtype=torch.int64, device="meta")})

    def on_meta(seed):
        return DeviceEnv(CountingEnv(LENGTHS), "cpu", "meta")

    with (
        make_batcher(0, create_env=on_meta, env_args={}) as batcher,
        pytest.raises(DeviceMismatchError, match="env.reset: observation/frame: .*cpu.*meta"),
    ):
        batcher.reset()
    with make_batcher(0, create_agent=OnMeta) as batcher:
        batcher.reset()
        with pytest.raises(DeviceMismatchError, match="agent.initial_state: state/count: .*meta"):
            batcher.execute()


class OnAnotherDevice(CountingAgent):
    def __init__(self):
        self.model = torch.nn.Linear(3, 2, device="meta")

    def __call__(self, state, observation, agent_info, history=None):
        return DictTensor({"action": self.model(observation["frame"].float())}), state


@pytest.mark.parametrize("n_processes", [0, 1])
def test_an_error_of_pytorch_about_devices_tells_where_everything_is(n_processes):
    note = "(observation on cpu; state on cpu; parameters on meta; RL_Agent_CheckDevice names"
    with make_batcher(n_processes, create_agent=OnAnotherDevice) as batcher:
        batcher.reset()
        with pytest.raises((RuntimeError, WorkerError), match="meta") as caught:
            batcher.execute()
    said = str(caught.value) if n_processes else "".join(caught.value.__notes__)
    assert note in said


@pytest.mark.parametrize(
    "model",
    [
        lambda: torch.nn.Linear(3, 2, device="meta"),
        lambda: torch.nn.LSTM(3, 2, device="meta"),
        lambda: torch.nn.BatchNorm1d(3, device="meta"),
    ],
)
def test_the_errors_of_many_layers_are_known(model):
    class Layer(CountingAgent):
        def __init__(self):
            self.model = model()

        def __call__(self, state, observation, agent_info, history=None):
            self.model(observation["frame"].float())
            raise AssertionError("it has worked")

    with make_batcher(create_agent=Layer) as batcher:
        batcher.reset()
        with pytest.raises(RuntimeError) as caught:
            batcher.execute()
    assert "parameters on meta" in "".join(caught.value.__notes__)


def test_tensors_that_are_attributes_of_the_agent_are_named():
    class Scales(CountingAgent):
        def __init__(self):
            self.scale = torch.ones(3, device="meta")
            self.memories = [DictTensor({"mean": torch.ones(3)})]

        def __call__(self, state, observation, agent_info, history=None):
            torch.lerp(observation["frame"].float(), self.scale, 0.5)
            raise AssertionError("it has worked")

    said = "state on cpu; agent.scale on meta; agent.memories.0.mean on cpu"
    for create_agent, advice in (
        (Scales, "; RL_Agent_CheckDevice names the tensor)"),
        (lambda: RL_Agent_CheckDevice(Scales(), "cpu"), ")"),
    ):
        with make_batcher(create_agent=create_agent) as batcher:
            batcher.reset()
            with pytest.raises(RuntimeError) as caught:
                batcher.execute()
        assert "".join(caught.value.__notes__).endswith(said + advice)


@pytest.mark.parametrize(
    ("said", "is_about_devices"),
    [  # Of CUDA, which is not here.
        ("Expected all tensors to be on the same device, but got mat1 is on cuda:0", True),
        ("Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor)", True),
        ("Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor)", True),
        ("Input type (torch.cuda.ByteTensor) and weight type (torch.cuda.FloatTensor)", False),
        ("Input type (unsigned char) and bias type (float) should be the same", False),
        ("indices should be either on cpu or on the same device as the indexed tensor", True),
        ("mat1 and mat2 must have the same dtype, but got Float and Double", False),
        ("CUDA error: device-side assert triggered", False),
    ],
)
def test_only_errors_about_devices_get_a_note(said, is_about_devices):
    class Says(CountingAgent):
        def __call__(self, state, observation, agent_info, history=None):
            raise RuntimeError(said)

    with make_batcher(create_agent=Says) as batcher:
        batcher.reset()
        with pytest.raises(RuntimeError) as caught:
            batcher.execute()
    assert hasattr(caught.value, "__notes__") == is_about_devices


class Wanders(CountingAgent):
    """Has its state on another device after the first step."""

    def __call__(self, state, observation, agent_info, history=None):
        sum_ = state["count"] + observation["frame"][:, 0]
        return DictTensor({"sum": sum_}), DictTensor({"count": sum_.to("meta")})


@pytest.mark.parametrize(
    ("create_agent", "note"),
    [
        (OnAnotherDevice, "trajectories on cpu; parameters on meta"),
        (Wanders, "(trajectories on cpu; state on meta; "),
    ],
)
def test_a_replay_tells_where_everything_is_as_well(create_agent, note):
    with make_batcher() as batcher:
        trajectories, _ = acquire(batcher)
    with pytest.raises(RuntimeError, match="device") as caught:
        replay_agent(create_agent(), trajectories)
    assert note in "".join(caught.value.__notes__)


def test_a_module_has_parameters_and_no_registries():
    class Module(RL_Agent, torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.model = torch.nn.Linear(3, 2, device="meta")

        def __call__(self, state, observation, agent_info, history=None):
            return self.model(observation["frame"] - self.mean)

    with make_batcher(create_agent=Module) as batcher:
        batcher.reset()
        with pytest.raises(RuntimeError) as caught:
            batcher.execute()
    (note,) = caught.value.__notes__
    assert note.startswith("(observation on cpu; parameters on meta; buffers on cpu; RL_Agent_")


def test_an_error_that_takes_no_note_is_raised_as_it_is():
    class Frozen(RuntimeError):
        def __setattr__(self, name, value):  # As of a frozen dataclass.
            raise AttributeError(f"frozen: {name}")

    class Raises(CountingAgent):
        def __call__(self, state, observation, agent_info, history=None):
            raise Frozen("expected all tensors to be on the same device")

    with make_batcher(create_agent=Raises) as batcher:
        batcher.reset()
        with pytest.raises(Frozen, match="same device"):
            batcher.execute()
