"""Batchers beside other processes, which agents and callers share tensors and pipes with."""

from __future__ import annotations

import subprocess
import sys
import threading
from multiprocessing import Manager, Pipe
from multiprocessing.connection import Client, Listener

import pytest
import torch

from rlbatch import DictTensor, RL_Agent, RL_Batcher, WorkerError
from tests.batchers import CountingAgent, assert_equal, cart_poles, make_batcher
from tests.processes import ROOT


class Leans(RL_Agent):
    """Moves to where the pole leans."""

    def __call__(self, state, observation, agent_info, history=None):
        return DictTensor({"action": leaning(observation["frame"])}), DictTensor()


def leaning(frame: torch.Tensor) -> torch.Tensor:
    return (frame[:, 2] > 0).long()


class Asks(Leans):
    """Has somebody else decide, in another process or thread, who is sent the tensor itself."""

    def __init__(self, address):
        self.connection = Client(address)

    def __call__(self, state, observation, agent_info, history=None):
        self.connection.send(observation["frame"])
        return DictTensor({"action": self.connection.recv()}), DictTensor()


def answer(listener: Listener) -> None:
    with listener.accept() as connection:
        while True:
            try:
                frame = connection.recv()
            except EOFError:
                return
            connection.send(leaning(frame))


def slots_of(create_agent, agent_args, n_processes, n_slots=3):
    """Returns what an agent acquires in some slots, in the caller's memory."""
    arguments = (cart_poles, {"n_envs": 2}, n_processes)
    with RL_Batcher(8, create_agent, agent_args, *arguments, seeds=0, timeout=30) as batcher:
        batcher.reset()
        slots = []
        for _ in range(n_slots):
            batcher.execute()
            slots.append(batcher.get()[0])
        return slots


@pytest.mark.parametrize("n_processes", [0, 1])
def test_an_agent_may_send_what_it_sees_to_others(n_processes, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # Of the workers.
    with Listener() as listener:
        server = threading.Thread(target=answer, args=(listener,), daemon=True)
        server.start()
        found = slots_of(Asks, {"address": listener.address}, n_processes)
        server.join(10)
    assert not server.is_alive()
    assert not list(tmp_path.iterdir())
    for one, other in zip(found, slots_of(Leans, {}, 0), strict=True):
        assert_equal(one, other)


class Shares(Leans):
    def require_history(self):
        return True

    def __call__(self, state, observation, agent_info, history=None):
        observation.share_memory_()
        history.share_memory_()
        return super().__call__(state, observation, agent_info)


@pytest.mark.parametrize("n_processes", [0, 1])
def test_an_agent_may_share_what_it_sees(n_processes):
    found = slots_of(Shares, {}, n_processes)
    for one, other in zip(found, slots_of(Leans, {}, 0), strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("n_processes", [0, 1])
def test_views_stay_views_where_the_caller_shares_them(n_processes):
    arguments = (8, Leans, {}, cart_poles, {"n_envs": 2}, n_processes)
    with RL_Batcher(*arguments, seeds=0) as batcher:
        batcher.reset()
        for expected in slots_of(Leans, {}, 0):
            batcher.execute()
            found = batcher.get(copy=False)[0]
            found.trajectories.share_memory_()
            assert found.trajectories["observation/frame"].is_shared()
            assert_equal(found, expected)


def test_memory_that_pytorch_has_moved_is_not_taken_for_that_of_the_trajectories():
    # In a process of its own, which the strategy is for.
    script = """
import torch
from tests.batchers import make_batcher

torch.multiprocessing.set_sharing_strategy("file_system")
with make_batcher(1, [9, 9]) as batcher:
    batcher.reset()
    batcher.execute()
    batcher.get(copy=False)[0].trajectories.share_memory_()
    batcher.execute()
    try:
        batcher.get()
    except RuntimeError as error:
        print(error)
"""
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert "storage: expected the trajectories where" in result.stdout, result.stderr


@pytest.mark.parametrize("n_processes", [0, 1])
def test_the_memory_of_trajectories_is_no_standard_stream_and_not_inherited(n_processes):
    script = f"""
import os, sys
from tests.batchers import acquire, make_batcher

with make_batcher({n_processes}, [9, 9]) as batcher:
    acquire(batcher)
    links = {{fd: os.path.realpath("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd")}}
    blocks = [int(fd) for fd, link in links.items() if "memfd:rlbatch" in link]
    print(min(blocks) > 2, any(map(os.get_inheritable, blocks)), file=sys.stderr)
"""
    # Its output is closed, so that what is opened next would be taken for that.
    command = ["sh", "-c", '"$0" -c "$1" >&-', sys.executable, script]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert result.stderr == "True False\n"


class MovesMemory(CountingAgent):
    def __init__(self):
        torch.multiprocessing.set_sharing_strategy("file_system")

    def require_history(self):
        return True

    def __call__(self, state, observation, agent_info, history=None):
        history.share_memory_()
        return super().__call__(state, observation, agent_info)


def test_an_agent_that_has_memory_moved_is_told():
    with make_batcher(1, [9, 9], create_agent=MovesMemory) as batcher:
        batcher.reset()
        with pytest.raises(WorkerError, match="storage: expected the trajectories where"):
            play_two_slots(batcher)


def play_two_slots(batcher):
    for _ in range(2):
        batcher.execute()
        batcher.get()


class Counts(CountingAgent):
    def __init__(self, queue):
        self.queue = queue

    def __call__(self, state, observation, agent_info, history=None):
        self.queue.put(observation.n_elems())
        return super().__call__(state, observation, agent_info)


@pytest.mark.parametrize("n_processes", [0, 2])
def test_an_agent_may_use_a_queue_of_a_manager(n_processes):
    with Manager() as manager:
        queue = manager.Queue()
        arguments = {"create_agent": Counts, "agent_args": {"queue": queue}}
        with make_batcher(n_processes, [9, 9], **arguments) as batcher:
            batcher.reset()
            batcher.execute()
            batcher.get()
        assert queue.qsize() == 4 * max(n_processes, 1)


def test_an_end_of_a_pipe_is_not_sent():
    ours, theirs = Pipe()
    arguments = {"create_agent": Counts, "agent_args": {"queue": theirs}}
    with pytest.raises(TypeError, match=r"agent_args\['queue'\].*its pipe is open here only"):
        make_batcher(1, [9], **arguments)
    ours.close()
    theirs.close()
