"""What a batcher says of a tensor that is on the wrong device."""

import pytest
import torch

from rlbatch import DeviceMismatchError, DictTensor, WorkerError, replay_agent
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


def test_a_replay_tells_where_everything_is_as_well():
    with make_batcher() as batcher:
        trajectories, _ = acquire(batcher)
    with pytest.raises(RuntimeError, match="device") as caught:
        replay_agent(OnAnotherDevice(), trajectories)
    assert "trajectories on cpu; parameters on meta" in "".join(caught.value.__notes__)
