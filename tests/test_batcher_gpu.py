"""The batcher with everything on a GPU; without one in this process, on one that is played."""

import gc
import time

import pytest
import torch

from rlbatch import DictTensor, RL_Agent, RL_Agent_CheckDevice, RL_Batcher
from rlbatch._messages import TorchSettings
from rlbatch.envs import DeviceEnv
from tests.batchers import CountingAgent, assert_equal
from tests.helpers import CountingEnv

LENGTHS = [3, 5, 2, 7]
DEVICE = torch.device("cuda:0")


class OnDevice(CountingAgent):
    """A CountingAgent whose state is on a device."""

    def __init__(self, device):
        self.device = device

    def initial_state(self, agent_info, B):
        return super().initial_state(agent_info, B).to(self.device)


def create_agent(device):
    return RL_Agent_CheckDevice(OnDevice(device), device)


def native(device, autoreset, seed):
    return CountingEnv(LENGTHS, autoreset, device=device)


def wrapped(device, autoreset, seed):
    return DeviceEnv(CountingEnv(LENGTHS, autoreset), "cpu", device)


def acquire(n_processes, device, create_env, autoreset, n_cycles=0):
    batcher = RL_Batcher(
        n_timesteps=4,
        create_agent=create_agent,
        agent_args={"device": device},
        create_env=create_env,
        env_args={"device": device, "autoreset": autoreset},
        n_processes=n_processes,
        seeds=0,
        device=device,
    )
    with batcher:
        batcher.reset()
        batches = []
        for _ in range(2):
            batcher.execute()
            if n_cycles:  # For which the GPU is kept from what comes next.
                torch.cuda._sleep(n_cycles)
            batches.append(batcher.get()[0])
        return batches


@pytest.mark.parametrize("autoreset", [False, True])
@pytest.mark.parametrize("create_env", [native, wrapped])
@pytest.mark.parametrize("n_processes", [0, pytest.param(1, marks=pytest.mark.gpu)])
def test_a_gpu_acquires_what_a_cpu_does(gpu, n_processes, create_env, autoreset):
    expected = acquire(0, "cpu", native, autoreset)
    found = acquire(n_processes, gpu, create_env, autoreset)
    for on_cpu, on_gpu in zip(expected, found, strict=True):
        assert on_gpu.device() == DEVICE
        assert on_gpu.info.device() == DEVICE
        assert_equal(on_cpu, on_gpu.to("cpu"))


@pytest.mark.parametrize("create_env", [native, wrapped])
def test_another_gpu_than_the_current_one_is_the_only_one_in_use(two_played_gpus, create_env):
    other = torch.device("cuda:1")
    expected = acquire(0, "cpu", native, True)
    for on_cpu, on_gpu in zip(expected, acquire(0, other, create_env, True), strict=True):
        assert on_gpu.device() == on_gpu.info.device() == other
        assert_equal(on_cpu, on_gpu.to("cpu"))
    assert two_played_gpus.used == {other}


@pytest.mark.gpu
def test_what_get_returns_outlives_the_next_execute():
    """Copies are made when the GPU comes to it, here late; the worker is in another process."""
    expected = acquire(0, "cpu", native, True)
    found = acquire(1, "cuda", native, True, n_cycles=1_000_000_000)
    for on_cpu, on_gpu in zip(expected, found, strict=True):
        assert_equal(on_cpu, on_gpu.to("cpu"))


def test_the_step_loop_does_not_wait_for_the_gpu(gpu, leave_alone):
    """With everything on the GPU, nothing between two `execute` calls depends on its data."""

    class Frozen(CountingEnv):
        """Steps without looking at data: the environments never end."""

        def step(self, action):
            self.count = self.count + 1
            observation = self._now()
            return (observation, self.running), (observation, self.running)

        def reset(self, env_info=None):
            super().reset(env_info)
            return self._now(), self.running

        def _now(self):
            n = self.n_envs()
            no = torch.zeros(n, dtype=torch.bool, device=self.device)
            frame = torch.stack([self.numbers, self.episode, self.count], dim=1)
            return DictTensor({"frame": frame, "reward": self.count.float(), "done": no})

    batcher = RL_Batcher(
        n_timesteps=4,
        create_agent=OnDevice,
        agent_args={"device": gpu},
        create_env=lambda seed: Frozen([9] * 8, autoreset=True, device=gpu),
        env_args={},
        n_processes=0,
        seeds=0,
        device=gpu,
    )
    with batcher:
        batcher.reset()
        batcher.execute()
        batcher.get()
        with leave_alone():
            batcher.execute()
            trajectories, _ = batcher.get()
        assert (
            trajectories.trajectories["observation/frame"][:, :, 2].tolist() == [[4, 5, 6, 7]] * 8
        )


def test_an_agent_info_for_one_execute_goes_to_the_gpu_and_nothing_comes_back(played_gpu):
    env_args = {"device": DEVICE, "autoreset": True}
    devices = {"device": DEVICE, "info_device": DEVICE}
    with RL_Batcher(
        3, OnDevice, {"device": DEVICE}, native, env_args, 0, seeds=0, **devices
    ) as batcher:
        batcher.reset(DictTensor({"epsilon": torch.zeros(len(LENGTHS))}))
        batcher.execute()
        batcher.get()
        played_gpu.crossings.clear()
        batcher.execute(DictTensor({"epsilon": torch.ones(len(LENGTHS))}))
        found, _ = batcher.get()
        copies = [line for line in played_gpu.crossings if line != "synchronize"]
        assert {line.split(", ")[1] for line in copies} == {"to the GPU"}
        assert found.info["agent_info/epsilon"].tolist() == [1.0] * len(LENGTHS)


def test_a_row_that_is_not_there_is_refused_before_the_gpu_looks_for_it(gpu):
    rows = DictTensor({"a": torch.arange(3, device=gpu)})
    for index in ([0, 3], torch.tensor([-4])):
        with pytest.raises(IndexError, match="^index: expected one of 3 rows, got -?[34]$"):
            rows.index(index)
    assert rows.index([0, -1])["a"].tolist() == [0, 2]


@pytest.mark.gpu
def test_weights_on_the_gpu_reach_a_process_on_the_cpu_and_open_no_context_there():
    class Weighted(RL_Agent):
        def __init__(self, model):
            self.model = model

        def update(self, state_dict):
            self.model.load_state_dict(state_dict)

        def __call__(self, state, observation, agent_info, history=None):
            n = observation.n_elems()
            weight = self.model(torch.ones(n, 1)).squeeze(1)
            context = torch.full((n,), torch.cuda.is_initialized())
            action = torch.zeros(n, dtype=torch.int64)
            return DictTensor({"action": action, "w": weight, "context": context}), DictTensor()

    model = torch.nn.Linear(1, 1, bias=False, device="cuda")
    torch.nn.init.constant_(model.weight, 3.0)
    batcher = RL_Batcher(
        2, Weighted, {"model": model}, lambda seed: CountingEnv([9], True), {}, 1, seeds=0
    )
    with batcher:
        batcher.reset()
        for weight in (3.0, 4.0):
            batcher.execute()
            steps = batcher.get()[0].trajectories
            assert (steps["action/w"] == weight).all()
            assert not steps["action/context"].any()
            torch.nn.init.constant_(model.weight, 4.0)
            batcher.update(model.state_dict())


@pytest.mark.gpu
def test_memory_on_the_gpu_is_given_back():
    acquire(0, "cuda", native, True)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    acquire(0, "cuda", native, True)
    acquire(1, "cuda", native, True)
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.gpu
def test_memory_on_the_gpu_is_given_back_where_a_worker_is_busy():
    """PyTorch keeps a block for ever that a process has when it is killed."""

    class Slow(CountingEnv):
        def step(self, action):
            time.sleep(0.5 if self.is_asked_again else 0)
            self.is_asked_again = True
            return super().step(action)

        is_asked_again = False

    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated()
    batcher = RL_Batcher(
        n_timesteps=100,
        create_agent=create_agent,
        agent_args={"device": "cuda"},
        create_env=lambda seed: Slow(LENGTHS, True, device="cuda"),
        env_args={},
        n_processes=1,
        seeds=0,
        device="cuda",
    )
    with batcher:
        batcher.reset()
        batcher.execute()
        assert torch.cuda.memory_allocated() > before
    gc.collect()
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="with two GPUs")
def test_a_worker_takes_over_the_current_gpu():
    with torch.cuda.device(1):
        batches = acquire(1, "cuda", native, True)
    assert batches[0].device() == torch.device("cuda:1")


def test_a_worker_is_told_of_the_current_gpu(monkeypatch):
    """And goes to it with its first use of one, not before: that would take memory there."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    settings = TorchSettings.of_the_caller(torch.get_num_threads())
    monkeypatch.undo()
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    waiting = []
    monkeypatch.setattr(torch.cuda, "_lazy_call", waiting.append)
    settings.apply()
    assert not chosen
    for call in waiting:
        call()
    assert chosen == [3]
    settings._replace(gpu=None).apply()
    assert len(waiting) == 1
