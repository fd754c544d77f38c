"""`DeviceEnv`: everything crosses, nothing else changes."""

import copy
import pickle

import pytest
import torch

from rlbatch.devices import as_device
from rlbatch.dicttensor import DictTensor
from rlbatch.envs import DeviceEnv, VecEnv, check_env
from rlbatch.errors import DeviceMismatchError
from tests.helpers import CountingEnv

META = torch.device("meta")


class Recorder(CountingEnv):
    """Keeps what it was given and what it returned."""

    def reset(self, env_info=None):
        self.env_info = env_info
        self.returned = super().reset(env_info)
        return self.returned

    def step(self, action):
        self.action = action
        self.returned = super().step(action)
        return self.returned


def actions(n, device="cpu"):
    return DictTensor({"action": torch.zeros(n, dtype=torch.int64, device=device)})


def test_nothing_is_copied_where_the_devices_are_one(device):
    inner = Recorder([1, 2], device=device)
    env = DeviceEnv(inner, device, str(device))
    observation, running = env.reset()
    assert observation is inner.returned[0]
    assert running is inner.returned[1]
    action = actions(2, device)
    pairs = env.step(action)
    assert inner.action is action
    for pair, returned in zip(pairs, inner.returned, strict=True):
        assert pair[0] is returned[0]
        assert pair[1] is returned[1]


def test_everything_that_comes_out_is_on_the_other_device(device):
    other = torch.device("cpu") if device.type == "cuda" else META
    env = DeviceEnv(CountingEnv([1, 2], device=device), device, other)
    observation, running = env.reset()
    (after, ran), (following, still) = env.step(actions(2))
    for tensors in (observation, after, following):
        assert {tensor.device for tensor in tensors.values()} == {other}
    assert running.device == ran.device == still.device == other
    assert list(after["frame"].shape) == [2, 3]
    assert list(following["frame"].shape) == [1, 3]
    assert env.device == other


@pytest.mark.gpu
def test_values_are_the_same_on_the_other_device():
    plain = CountingEnv([1, 2, 3])
    moved = DeviceEnv(CountingEnv([1, 2, 3]), "cpu", "cuda")
    found = [moved.reset()]
    expected = [plain.reset()]
    for n in (3, 2, 1):
        found += moved.step(actions(n, "cuda"))
        expected += plain.step(actions(n))
    for (observation, running), (same, numbers) in zip(found, expected, strict=True):
        assert running.device == as_device("cuda")
        assert torch.equal(running.cpu(), numbers)
        for key, tensor in same.items():
            assert observation[key].device == as_device("cuda")
            assert torch.equal(observation[key].cpu(), tensor)


def test_actions_arrive_on_the_device_of_the_environment():
    class OnMeta(Recorder):
        def step(self, action):
            self.action = action
            return self.returned, self.returned

    inner = OnMeta([1, 2])
    env = DeviceEnv(inner, "meta", "cpu")
    env.reset()
    env.step(actions(2))
    assert inner.action.device() == META


def test_an_observation_that_is_returned_twice_is_moved_once():
    class Twice(Recorder):
        def step(self, action):
            after, _ = super().step(action)
            return after, after

    env = DeviceEnv(Twice([5, 5]), "cpu", "meta")
    env.reset()
    after, following = env.step(actions(2))
    assert after[0] is following[0]


def test_an_environment_behaves_as_it_does_alone(device):
    for autoreset in (False, True):
        inner = CountingEnv([2, 3], autoreset=autoreset)
        report = check_env(DeviceEnv(inner, "cpu", device), n_steps=20)
        assert report.n_terminated >= 4
        assert report.n_truncated >= 4


def test_attributes_and_spaces_pass_through():
    inner = CountingEnv([2, 3], autoreset=True)
    inner.level = 7
    env = DeviceEnv(inner, "cpu", "meta")
    assert env.level == 7
    assert env.lengths is inner.lengths
    assert env.observation_space is inner.observation_space
    assert env.action_space is inner.action_space
    assert env.autoreset is True
    assert env.n_envs() == 2
    with pytest.raises(AttributeError, match="colour"):
        _ = env.colour


def test_an_object_that_is_not_built_yet_has_no_attributes():
    with pytest.raises(AttributeError, match="DeviceEnv has no attribute env"):
        _ = DeviceEnv.__new__(DeviceEnv).level


@pytest.mark.gpu
def test_devices_may_be_names_and_are_compared_with_their_index():
    env = DeviceEnv(CountingEnv([1]), "cpu", "cuda")
    assert env.to_device == env.device == as_device("cuda")
    assert env.to_device.index is not None
    assert env.from_device == torch.device("cpu")


@pytest.mark.parametrize("name", ["from_device", "to_device"])
def test_a_device_that_is_not_there_is_refused(name):
    devices = {"from_device": "cpu", "to_device": "cpu"} | {name: "cuda:99"}
    with pytest.raises(ValueError, match=f"{name}: expected one that is there, got cuda:99"):
        DeviceEnv(CountingEnv([1]), **devices)


def test_closing_closes_the_environment():
    inner = CountingEnv([1])
    DeviceEnv(inner, "cpu", "cpu").close()
    assert inner.closed


def test_env_info_goes_in_untouched_and_only_from_the_cpu():
    inner = Recorder([1, 1])
    env = DeviceEnv(inner, "cpu", "cpu")
    env_info = DictTensor({"option": torch.tensor([3, 4])})
    observation, _ = env.reset(env_info)
    assert inner.env_info is env_info
    assert observation["option"].tolist() == [3, 4]
    env.reset()
    assert inner.env_info is None
    with pytest.raises(DeviceMismatchError, match="env_info: .* on cpu, got one on meta"):
        env.reset(env_info.to("meta"))


@pytest.mark.parametrize(
    "again", [copy.deepcopy, copy.copy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_a_copy_is_a_device_environment_that_goes_on_from_there(again):
    class Answers(CountingEnv):
        def __deepcopy__(self, memo):  # Asked of the wrapper, it would leave the wrapper behind.
            return CountingEnv(self.lengths.tolist())

    env = DeviceEnv(CountingEnv([2, 3]), "cpu", "meta")
    env.reset()
    twin = again(env)
    assert type(twin) is DeviceEnv
    assert twin.device == META
    (after, _), _ = twin.step(actions(2))
    assert list(after["frame"].shape) == [2, 3]
    assert type(copy.deepcopy(DeviceEnv(Answers([1]), "cpu", "meta"))) is DeviceEnv


def test_env_info_is_on_the_cpu():
    class Anything(VecEnv):
        def reset(self, env_info=None):
            raise AssertionError("is not reached")

    env = DeviceEnv(Anything(), "meta", "cpu")
    with pytest.raises(DeviceMismatchError, match="env_info"):
        env.reset(DictTensor({"a": torch.zeros(1, device="meta")}))
