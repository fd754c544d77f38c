"""Faults, with real processes: a named error soon, and nothing is left behind.

That no test leaves a process behind is seen to by `nothing_left`.
"""

import contextlib
import ctypes
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from rlbatch import CallOrderError, RL_Batcher, WorkerError, WorkerTimeoutError
from rlbatch._remote import RemoteWorker
from rlbatch._slots import SlotStore
from rlbatch.envs import GymEnv
from tests.batchers import CountingAgent, make_batcher, nothing_stays_in_shared_memory
from tests.helpers import CountingEnv, CountingGym, FailingGym

ROOT = Path(__file__).parents[1]
SOON_S = 5.0
STARTED_S = 60.0  # With what the processes import, on a busy machine.


def children(pid="self"):
    """Returns the processes whose parent is `pid` (Linux)."""
    parent = os.getpid() if pid == "self" else pid
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            state, ppid = stat.rsplit(")", 1)[1].split()[:2]
            if int(ppid) == parent and state != "Z":
                found.append(int(entry))
    return found


def alive(pid):
    """Returns whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pids, within_s=SOON_S):
    """Asserts that processes end soon."""
    deadline = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


@pytest.fixture(autouse=True)
def nothing_left():
    """No child process and no name in shared memory outlives a test."""
    before = children()
    with nothing_stays_in_shared_memory():
        yield
        assert children() == before


class Timer:
    """Measures a block, and fails it when it takes too long."""

    def __init__(self, within_s=SOON_S):
        self.within_s = within_s

    def __enter__(self):
        self.started = time.monotonic()
        return self

    def __exit__(self, *_):
        self.took = time.monotonic() - self.started
        assert self.took < self.within_s, f"took {self.took:.1f} s"


def failing_env(seed, **faults):
    """Three environments over two processes each; number 1 of process 1 fails."""
    fails = seed.process == 1
    envs = [CountingGym(), FailingGym(**faults) if fails else CountingGym(), CountingGym()]
    return GymEnv(envs, seed)


def acquire(batcher):
    batcher.reset()
    batcher.execute()
    return batcher.get()


def assert_unusable(batcher):
    with pytest.raises(CallOrderError, match="failed: a worker raised or died"):
        batcher.reset()
    batcher.close()
    batcher.close()


def test_create_env_raises():
    def create_env(seed):
        raise OSError("no such game")

    with pytest.raises(WorkerError, match=r"worker \d, start: OSError.'no such game'") as caught:
        make_batcher(2, create_env=create_env, env_args={})
    assert "in create_env" in caught.value.child_traceback
    assert caught.value.command == "start"


def test_create_agent_raises():
    def create_agent():
        raise ValueError("no such network")

    with pytest.raises(WorkerError, match="no such network") as caught:
        make_batcher(2, create_agent=create_agent)
    assert "in create_agent" in caught.value.child_traceback


@pytest.mark.parametrize(
    ("faults", "command"), [({"at_reset": 0}, "reset"), ({"at_step": 1}, "execute")]
)
def test_an_environment_raises_and_is_named_by_its_number_among_all(faults, command):
    batcher = make_batcher(2, create_env=failing_env, env_args=faults)
    with pytest.raises(WorkerError, match="worker 1, .*environment 4") as caught, Timer():
        acquire(batcher)
    error = caught.value
    assert (error.worker, error.command, error.environment) == (1, command, 4)
    assert "RuntimeError: failed on purpose" in error.child_traceback
    assert f"in {'reset' if command == 'reset' else 'step'}" in error.child_traceback
    assert_unusable(batcher)


def test_update_raises():
    class Stubborn(CountingAgent):
        def update(self, info):
            raise KeyError("layer.weight")

    batcher = make_batcher(2, create_agent=Stubborn)
    with pytest.raises(WorkerError, match=r"worker \d, update: KeyError.'layer.weight'"), Timer():
        batcher.update({})
    assert_unusable(batcher)


def test_without_processes_the_exception_itself_is_raised():
    def create_env(seed):
        return GymEnv([CountingGym(), FailingGym(at_step=2)], seed)

    batcher = make_batcher(0, create_env=create_env, env_args={})
    batcher.reset()
    with pytest.raises(RuntimeError, match="failed on purpose") as caught:
        batcher.execute()
    assert "(in environment 1 of this batch)" in caught.value.__notes__
    assert not isinstance(caught.value, WorkerError)
    assert_unusable(batcher)


class Sleeper(CountingEnv):
    """Sleeps in its second step, until it is killed."""

    def step(self, action):
        if self.count[0] == 1:
            while True:
                time.sleep(1)
        return super().step(action)


class Heavy(CountingAgent):
    def __init__(self, weights):
        self.weights = weights


def hang(seed):
    time.sleep(1000)


def sleeping(seed):
    return Sleeper([9, 9], seed=seed)


def worker_pids(batcher):
    return [worker._process.pid for worker in batcher._workers]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_is_killed_while_it_works(number):
    batcher = make_batcher(2, create_env=sleeping, env_args={})
    batcher.reset()
    batcher.execute()
    os.kill(worker_pids(batcher)[1], number)
    with pytest.raises(WorkerError, match=f"worker 1 .*execute.*killed by {number.name}"), Timer():
        batcher.get()
    assert_unusable(batcher)


class ImportsForEver:
    """Is unpickled at once by the first process, never by others."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return arrive, (self.path,)


def arrive(path):
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        return path
    return time.sleep(1000)


@pytest.mark.parametrize("timeout", [600.0, None])
def test_a_failure_is_reported_while_others_import(tmp_path, timeout):
    def create_env(slow, seed):
        raise OSError("no such game")

    slow = ImportsForEver(tmp_path / "arrived")
    with pytest.raises(WorkerError, match="start: OSError.'no such game'"), Timer(STARTED_S):
        make_batcher(2, create_env=create_env, env_args={"slow": slow}, timeout=timeout)


def test_a_crash_in_native_code_is_reported_with_its_stack():
    class Crashing(CountingEnv):
        def step(self, action):
            ctypes.string_at(0)

    batcher = make_batcher(1, create_env=lambda seed: Crashing([9]), env_args={})
    with (
        pytest.raises(WorkerError, match=r"killed by SIGSEGV\n\nFatal .* fault") as caught,
        Timer(),
    ):
        acquire(batcher)
    assert "test_batcher_failures.py" in caught.value.child_traceback
    assert " in step\n" in str(caught.value)
    assert "Extension modules" not in str(caught.value)
    assert_unusable(batcher)


def test_a_kill_shows_no_stacks_of_before():
    batcher = make_batcher(1, create_env=sleeping, env_args={})
    batcher.reset()
    batcher.execute()
    with pytest.raises(WorkerTimeoutError):
        batcher.get(timeout=0.1)
    os.kill(worker_pids(batcher)[0], signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"runs out\)$") as caught:
        batcher.get()
    assert caught.value.child_traceback == ""


def test_a_crash_of_a_forked_child_is_not_the_workers():
    class Forking(Sleeper):
        def reset(self, env_info=None):
            child = os.fork()
            if child == 0:
                ctypes.string_at(0)
            assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV
            return super().reset(env_info)

    batcher = make_batcher(1, create_env=lambda seed: Forking([9]), env_args={})
    batcher.reset()
    batcher.execute()
    os.kill(worker_pids(batcher)[0], signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"runs out\)$"):
        batcher.get()


@pytest.mark.parametrize(
    "call", [lambda b: b.reset(), lambda b: b.execute(), lambda b: b.update({"x": 1})]
)
def test_a_worker_is_killed_while_it_waits(call):
    batcher = make_batcher(2)
    batcher.reset()
    os.kill(worker_pids(batcher)[0], signal.SIGKILL)
    time.sleep(0.2)
    with pytest.raises(WorkerError, match="worker 0 .*killed by SIGKILL"), Timer():
        call(batcher)
    assert_unusable(batcher)


def test_a_worker_is_killed_though_a_grandchild_holds_its_pipe():
    class Forking(Sleeper):
        def reset(self, env_info=None):
            if os.fork() == 0:
                time.sleep(100)
                os._exit(0)
            return super().reset(env_info)

    batcher = make_batcher(1, create_env=lambda seed: Forking([9]), env_args={})
    batcher.reset()
    (pid,) = worker_pids(batcher)
    (grandchild,) = children(pid)
    batcher.execute()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="killed by SIGKILL"), Timer():
        batcher.get()
    wait_for_end([grandchild])
    batcher.close()


def test_a_worker_exits_by_itself():
    class Exiting(CountingEnv):
        def step(self, action):
            os._exit(7)

    batcher = make_batcher(1, create_env=lambda seed: Exiting([9]), env_args={})
    with pytest.raises(WorkerError, match="exited with 7"), Timer():
        acquire(batcher)
    assert_unusable(batcher)


def test_a_hanging_worker_is_reported_with_its_stack_and_closed():
    batcher = make_batcher(2, create_env=sleeping, env_args={})
    batcher.reset()
    batcher.execute()
    with Timer():
        for _ in range(2):  # Nothing is lost: it may be asked again.
            with pytest.raises(WorkerTimeoutError, match="within 0.5 s, got none") as caught:
                batcher.get(timeout=0.5)
            assert "test_batcher_failures.py" in caught.value.child_traceback
            assert caught.value.child_traceback.count(" in step\n") == 2  # One of each process.
            assert "\0" not in caught.value.child_traceback
    assert batcher.get(blocking=False) == (None, None)
    with Timer():
        batcher.close()


def test_no_time_at_all_is_a_timeout():
    batcher = make_batcher(1, create_env=sleeping, env_args={})
    batcher.reset()
    batcher.execute()
    with pytest.raises(WorkerTimeoutError, match="within 0 s"), Timer():
        batcher.get(timeout=0)
    batcher.close()


def test_close_does_not_raise_what_nobody_asked_for():
    batcher = make_batcher(
        1, create_env=lambda seed: GymEnv([FailingGym(at_step=1)], seed), env_args={}
    )
    batcher.reset()
    batcher.execute()
    assert batcher._workers[0].connection.poll(SOON_S)  # It has raised.
    batcher.close()


def test_a_worker_that_hangs_in_reset_is_given_up():
    class Hanging(CountingEnv):
        def reset(self, env_info=None):
            time.sleep(1000)

    # A worker takes longer than this to import what it needs, which is none of its answers.
    batcher = make_batcher(1, create_env=lambda seed: Hanging([1]), env_args={}, timeout=0.5)
    with pytest.raises(WorkerTimeoutError, match="workers 0 .reset."), Timer():
        batcher.reset()
    assert_unusable(batcher)


def test_an_environment_that_hangs_while_it_is_made_is_given_up():
    with (
        pytest.raises(WorkerTimeoutError, match=r"workers 0 .start.*within 0\.3 s(.|\n)*in hang\n"),
        Timer(STARTED_S),
    ):
        make_batcher(1, create_env=hang, env_args={}, timeout=0.3)


def test_a_worker_that_imports_for_ever_is_given_up(monkeypatch):
    monkeypatch.setattr("rlbatch.batcher._IMPORT_TIMEOUT_S", 0.01)
    with (
        pytest.raises(WorkerTimeoutError, match=r"workers 0 .start.: .* within 0\.01 s"),
        Timer(STARTED_S),
    ):
        make_batcher(1, timeout=0.0)


def test_a_stopped_worker_does_not_keep_close_waiting():
    batcher = make_batcher(1, create_env=sleeping, env_args={}, timeout=1.0)
    (pid,) = worker_pids(batcher)
    os.kill(pid, signal.SIGSTOP)
    stopped = (
        rf"workers 0 .close.(.|\n)*worker 0 .process {pid}.:\nno stacks within .* it is stopped"
    )
    with pytest.raises(WorkerTimeoutError, match=stopped), Timer():
        batcher.close()
    batcher.close()


@pytest.mark.parametrize("timeout", [600.0, None])
def test_an_environment_that_hangs_in_close_is_given_up(timeout, monkeypatch):
    class Hanging(CountingEnv):
        def close(self):
            time.sleep(1000)

    monkeypatch.setattr("rlbatch.batcher._CLOSE_TIMEOUT_S", 0.5)
    batcher = make_batcher(1, create_env=lambda seed: Hanging([1]), env_args={}, timeout=timeout)
    with pytest.raises(WorkerTimeoutError, match="workers 0 .close.") as caught, Timer():
        batcher.close()
    assert "in close" in caught.value.child_traceback
    batcher.close()


def test_close_waits_for_environments_though_nobody_asked_for_the_last_slot(tmp_path):
    class Slow(CountingEnv):
        def close(self):
            time.sleep(3)  # Longer than what is killed has.
            (tmp_path / "closed").touch()

    with make_batcher(1, create_env=lambda seed: Slow([9]), env_args={}) as batcher:
        batcher.reset()
        batcher.execute()
        time.sleep(0.5)
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_is_busy_is_interrupted_before_it_is_killed(tmp_path, fails):
    """So that it closes what it has, and lets go of memory on a GPU."""

    class Busy(CountingEnv):
        def step(self, action):
            try:
                time.sleep(1000)
            except Exception:  # Not for an environment to catch.
                (tmp_path / "caught").touch()

        def close(self):
            (tmp_path / "closed").touch()

    def create_env(seed):
        return GymEnv([FailingGym(at_step=0)], seed) if seed.process == 1 else Busy([9])

    batcher = make_batcher(1 + fails, create_env=create_env, env_args={})
    with Timer():
        batcher.reset()
        if fails:
            with pytest.raises(WorkerError, match="failed on purpose"):
                batcher.execute()
        else:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                batcher.execute()  # The first one waits for a step.
        batcher.close()
    assert [path.name for path in tmp_path.iterdir()] == ["closed"]


def test_close_closes_environments_and_agents_once(tmp_path):
    class Noting(CountingEnv):
        def close(self):
            with open(tmp_path / f"env-{os.getpid()}", "a") as file:
                file.write("closed\n")

    class NotingAgent(CountingAgent):
        def close(self):
            with open(tmp_path / f"agent-{os.getpid()}", "a") as file:
                file.write("closed\n")

    for n_processes in (2, 0):
        batcher = make_batcher(
            n_processes, create_env=lambda seed: Noting([2]), env_args={}, create_agent=NotingAgent
        )
        with batcher:
            batcher.reset()
        batcher.close()
    notes = sorted(path.read_text() for path in tmp_path.iterdir())
    assert notes == ["closed\n"] * 6


def test_a_failure_closes_what_it_leaves_behind():
    env = GymEnv([CountingGym(), FailingGym(at_step=0)], seed=0)
    batcher = make_batcher(0, create_env=lambda seed: env, env_args={})
    batcher.reset()
    with pytest.raises(RuntimeError, match="failed on purpose"):
        batcher.execute()
    assert all(one.closed for one in env._backend.envs)
    batcher.close()


def test_close_raising_is_reported_and_the_processes_end():
    class Stuck(CountingEnv):
        def close(self):
            raise RuntimeError("window is gone")

    batcher = make_batcher(2, create_env=lambda seed: Stuck([2]), env_args={})
    with pytest.raises(WorkerError, match="close: RuntimeError.'window is gone'"), Timer():
        batcher.close()
    batcher.close()


def test_an_exception_in_a_with_block_ends_the_workers():
    def script():
        with make_batcher(2, create_env=sleeping, env_args={}) as batcher:
            batcher.reset()
            batcher.execute()
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        script()


@pytest.mark.parametrize("n_processes", [0, 1])
def test_an_exception_in_a_with_block_is_not_lost_where_closing_fails(n_processes):
    class Stuck(CountingGym):
        def close(self):
            raise OSError("simulator is gone")

    envs = {"create_env": lambda seed: GymEnv([Stuck(), Stuck()], seed), "env_args": {}}

    def script(fails):
        with make_batcher(n_processes, **envs):
            if fails:
                raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        script(fails=True)
    assert "simulator is gone" in caught.value.__notes__[0]
    with pytest.raises((OSError, WorkerError), match="simulator is gone"):
        script(fails=False)


def test_ctrl_c_in_close_ends_the_workers_at_once():
    class Stuck(CountingEnv):
        has_stepped = False

        def step(self, action):
            if self.has_stepped:
                re.match("(a+)+$", "a" * 60 + "b")  # Which no signal interrupts.
            self.has_stepped = True
            return super().step(action)

    batcher = make_batcher(1, create_env=lambda seed: Stuck([9]), env_args={})
    processes = worker_pids(batcher)
    batcher.reset()
    batcher.execute()
    for call in (batcher.get, batcher.close):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt), Timer():
            call()
    assert not any(map(alive, processes))
    batcher.close()


def test_a_batcher_that_is_forgotten_ends_its_workers():
    batcher = make_batcher(1)
    (pid,) = worker_pids(batcher)
    del batcher
    wait_for_end([pid])


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_that_the_caller_forks_leaves_the_workers_alone():
    with make_batcher(1) as batcher:
        pid = os.fork()
        if pid == 0:
            refused = 0
            for call in (batcher.reset, batcher.execute, batcher.get, lambda: batcher.update(1)):
                try:
                    call()
                except CallOrderError as error:
                    refused += "the process that has made the batcher" in str(error)
            batcher.close()
            batcher._stop()  # What ends in order does this, at the latest.
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
        assert acquire(batcher)[0].n_elems() == 8


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"agent_args": {"a": 1, "lock": threading.Lock()}}, r"agent_args\['lock'\]"),
        ({"env_args": {"lock": threading.Lock()}}, r"env_args\['lock'\]"),
        ({"create_env": threading.Lock().acquire}, "create_env"),
        ({"create_agent": threading.Lock().acquire}, "create_agent"),
    ],
)
def test_what_can_not_be_pickled_is_named_before_a_process_waits(arguments, name):
    with pytest.raises(TypeError, match=f"^{name}: expected something that can be pickled, got <"):
        make_batcher(1, **arguments)


def test_what_can_not_be_copied_is_named():
    expected = r"^agent_args\['lock'\]: expected something that can be copied, got <"
    with pytest.raises(TypeError, match=expected):
        make_batcher(0, agent_args={"a": 1, "lock": threading.Lock()})


# --- Whole scripts, as a user runs them. ---

SCRIPT = """
import sys, time
import gymnasium, torch
from rlbatch import RL_Agent, RL_Batcher, DictTensor
from rlbatch.envs import GymEnvInf

print("main", flush=True)  # Once: a worker does not run the script again.

class Zero(RL_Agent):
    def __call__(self, state, observation, agent_info, history=None):
        action = torch.zeros(observation.n_elems(), dtype=torch.int64)
        return DictTensor({"action": action}), DictTensor()

create_env = lambda seed: GymEnvInf([gymnasium.make("CartPole-v1")], seed)
batcher = RL_Batcher(5, Zero, {}, create_env, {}, n_processes=2, seeds=0)
print(*(worker._process.pid for worker in batcher._workers), flush=True)
batcher.reset()
"""


def run_script(tmp_path, ending, stop=None):
    """Runs SCRIPT and an ending; returns exit code, output, and the pids of the workers."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + textwrap.dedent(ending))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    lines = [process.stdout.readline() for _ in range(2)]
    if stop is not None:
        assert process.stdout.readline() == "ready\n"
        stop(process)
    started = time.monotonic()
    out, err = process.communicate(timeout=30)
    took = time.monotonic() - started
    pids = [int(word) for word in lines[1].split()]
    assert lines[0] == "main\n"
    assert "main" not in out
    assert len(pids) == 2
    wait_for_end(pids)
    assert took < SOON_S
    return process.returncode, out, err


def test_a_script_needs_no_guard_and_no_close(tmp_path):
    code, out, err = run_script(tmp_path, "batcher.execute(); print(batcher.get()[1])")
    assert (code, out, err) == (0, "2\n", "")


def test_an_exception_in_the_script_prints_one_traceback(tmp_path):
    code, _, err = run_script(tmp_path, "batcher.execute(); raise ZeroDivisionError('mine')")
    assert code == 1
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("ZeroDivisionError: mine")


LONG = """
def wait_for_ever():
    print("ready", flush=True)
    while True:
        batcher.execute()
        batcher.get()
wait_for_ever()
"""


@pytest.mark.parametrize("to_all", [True, False])
def test_ctrl_c_prints_one_traceback_and_ends_everything(tmp_path, to_all):
    """Ctrl-C in a terminal reaches the whole foreground group; `kill -INT` one process."""

    def interrupt(process):
        time.sleep(0.3)
        if to_all:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)

    code, _, err = run_script(tmp_path, LONG, interrupt)
    assert code in (-signal.SIGINT, 130)
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_workers_end_when_the_script_is_killed(tmp_path):
    code, _, err = run_script(tmp_path, LONG, lambda process: process.kill())
    assert code == -signal.SIGKILL
    assert err == ""


def test_workers_end_when_the_script_is_killed_while_they_start(tmp_path):
    script = tmp_path / "script.py"
    ending = """
    def create_env(seed):
        time.sleep(1000)
    import os, threading
    from rlbatch._remote import RemoteWorker
    made = RemoteWorker.__init__
    def noted(self, *arguments):
        made(self, *arguments)
        print(self._process.pid, flush=True)
        os.kill(os.getpid(), 9)
    RemoteWorker.__init__ = noted
    batcher.close()
    RL_Batcher(5, Zero, {}, create_env, {}, 1, 0)
    """
    script.write_text(SCRIPT + textwrap.dedent(ending))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.wait(60) == -signal.SIGKILL
    pid = int([process.stdout.readline() for _ in range(3)][-1])
    process.stdout.close()
    # It imports first what it needs, for seconds, and then sees that it is alone.
    wait_for_end([pid], within_s=4 * SOON_S)


@pytest.mark.parametrize("step", ["time.sleep(1000)", "re.match('(a+)+$', 'a' * 60 + 'b')"])
def test_workers_end_when_the_script_is_killed_in_a_step_that_never_returns(tmp_path, step):
    """The second one does not let other threads run."""
    ending = """
    import re
    class Stuck(GymEnvInf):
        def step(self, action):
            STEP

    batcher.close()
    batcher = RL_Batcher(
        5, Zero, {}, lambda seed: Stuck([gymnasium.make("CartPole-v1")], seed), {}, 2, 0
    )
    batcher.reset()
    for worker in batcher._workers:
        command = __import__("rlbatch._worker")._worker.Command.EXECUTE
        worker.send(command, worker.pack(command, None))
    print("ready", *(worker._process.pid for worker in batcher._workers), flush=True)
    time.sleep(1000)
    """
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + textwrap.dedent(ending).replace("STEP", step))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    )
    lines = [process.stdout.readline() for _ in range(3)]
    pids = [int(word) for word in lines[2].split()[1:]]
    time.sleep(0.3)
    assert all(map(alive, pids))
    process.kill()
    process.wait()
    process.stdout.close()
    wait_for_end(pids)
    assert torch.tensor(pids).unique().numel() == 2


def test_a_worker_error_in_a_script_holds_one_chain_of_tracebacks(tmp_path):
    ending = """
    class Broken(GymEnvInf):
        def step(self, action):
            raise ValueError("broken step")

    batcher.close()
    batcher = RL_Batcher(
        5, Zero, {}, lambda seed: Broken([gymnasium.make("CartPole-v1")], seed), {}, 2, 0
    )
    batcher.reset()
    print("ready", flush=True)
    batcher.execute()
    batcher.get()
    """
    code, _, err = run_script(tmp_path, ending, stop=lambda process: None)
    assert code == 1
    # The parent's own, and the child's inside its message.
    assert err.count("Traceback") == 2
    assert "The worker's traceback:" in err
    assert err.rstrip().endswith("ValueError: broken step")
    assert "During handling" not in err


def test_a_module_that_makes_a_batcher_when_it_is_imported_is_refused(tmp_path):
    """Its functions are found by name, so every worker imports it, and would start workers."""
    (tmp_path / "module.py").write_text(
        SCRIPT.replace("create_env = lambda seed:", "def create_env(seed): return")
    )
    run = subprocess.run(
        [sys.executable, "-c", "import module"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 1
    assert not run.stdout.replace("main", "").strip()  # Of several at a time.
    assert 2 <= run.stdout.count("main") <= 3  # The caller and at most both workers.
    assert "WorkerError: worker " in run.stderr
    assert "CallOrderError" in run.stderr.rstrip().splitlines()[-1]


def test_batchers_are_independent():
    with make_batcher(1) as first, make_batcher(1) as second:
        assert isinstance(second, RL_Batcher)
        first.reset()
        second.reset()
        os.kill(worker_pids(first)[0], signal.SIGKILL)
        with pytest.raises(WorkerError):
            first.execute()
        second.execute()
        assert second.get()[0].n_elems() == 8


def test_calls_of_two_threads_are_refused_and_close_is_not():
    batcher = make_batcher(1, create_env=sleeping, env_args={})
    batcher.reset()
    batcher.execute()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(batcher.get)
        time.sleep(0.3)
        with pytest.raises(CallOrderError, match="update: expected one call at a time"):
            batcher.update(1.0)
        with Timer():
            batcher.close()
        with pytest.raises(CallOrderError, match="get: .* that another thread has closed"):
            waiting.result(SOON_S)
    batcher.close()


def close_during(batcher, call, after_s):
    """Closes a batcher while another thread is in a call, which has to say so."""
    said = f"{call.__name__}: .* that another thread has closed"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call)
        time.sleep(after_s)
        batcher.close()
        with pytest.raises(CallOrderError, match=said):
            running.result(SOON_S)


class Slow(CountingEnv):
    """Steps and closes slowly, and notes what is done to it."""

    def __init__(self, notes):
        super().__init__([9, 9], autoreset=True)
        self.notes = notes

    def step(self, action):
        time.sleep(0.2)
        self.notes.append("step")
        return super().step(action)

    def close(self):
        time.sleep(0.6)
        self.notes.append("close")


def test_a_batcher_without_processes_closes_after_the_call_of_another_thread():
    notes = []
    batcher = make_batcher(0, create_env=lambda seed: Slow(notes), env_args={})
    batcher.reset()
    close_during(batcher, batcher.execute, after_s=0.3)
    assert notes == ["step"] * 4 + ["close"]
    with pytest.raises(CallOrderError, match="reset: .* closed"):
        batcher.reset()


def test_a_batcher_that_is_closed_while_it_reads_stays_closed(monkeypatch):
    read = SlotStore.read

    def slowly(*arguments):
        time.sleep(0.3)
        return read(*arguments)

    batcher = make_batcher(1)
    batcher.reset()
    batcher.execute()
    monkeypatch.setattr(SlotStore, "read", slowly)
    close_during(batcher, batcher.get, after_s=0.1)
    with pytest.raises(CallOrderError, match="execute: .* closed"):
        batcher.execute()


def test_an_environment_closes_to_its_end_though_another_thread_waits(tmp_path):
    class Noting(Slow):
        def close(self):
            super().close()
            (tmp_path / "closed").touch()

    batcher = make_batcher(1, create_env=lambda seed: Noting([]), env_args={})
    batcher.reset()
    batcher.execute()
    close_during(batcher, batcher.get, after_s=0.1)
    assert (tmp_path / "closed").exists()


STARTING = """
import torch
from rlbatch import RL_Batcher
from tests.test_batcher_failures import Heavy
from tests.helpers import CountingEnv
print("ready", flush=True)
args = {"weights": torch.zeros(10**6)}
RL_Batcher(2, Heavy, args, lambda seed: CountingEnv([9]), {}, 3, seeds=0)
"""


@pytest.mark.parametrize("delay_s", [0.3, 0.8])
def test_ctrl_c_while_workers_start_prints_one_traceback(delay_s):
    with subprocess.Popen(
        [sys.executable, "-c", STARTING],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        assert script.stdout.readline() == "ready\n"
        time.sleep(delay_s)
        script.send_signal(signal.SIGINT)
        _, err = script.communicate(timeout=30)
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_all_processes_start_before_one_is_waited_for(monkeypatch):
    """What a worker is made from may be more than a pipe holds before the worker reads."""
    start, n_before, others = RemoteWorker.start, [], set(children())

    def counted(worker):
        n_before.append(len(set(children()) - others))
        start(worker)

    monkeypatch.setattr(RemoteWorker, "start", counted)
    with make_batcher(3, agent_args={"weights": torch.zeros(10**6)}, create_agent=Heavy):
        assert n_before == [3, 3, 3]


def test_a_worker_that_does_not_read_is_reported(monkeypatch):
    with make_batcher(1) as batcher:
        worker = batcher._workers[0]
        # From here on: a worker may take longer than this to start and read.
        monkeypatch.setattr("rlbatch._remote._SEND_TIMEOUT_S", 1)
        with socket.socket(fileno=os.dup(worker.connection.fileno())) as pipe:
            pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))
        os.kill(worker._process.pid, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(WorkerError, match="worker 0: expected it to read update within 1 s"):
            batcher.update(torch.zeros(10**7))
        assert time.monotonic() - started < 10


def test_no_process_is_left_where_ctrl_c_comes_while_a_worker_is_started():
    # Far more than the pipe holds, so that sending it takes until the worker reads.
    arguments = {"weights": torch.zeros(4 * 10**6)}
    processes, descriptors = children(), set(os.listdir("/proc/self/fd"))
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt) as kept:  # With its frames.
            make_batcher(1, agent_args=arguments)
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert children() == processes
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    del kept


def test_no_process_is_left_of_a_batcher_that_is_never_made():
    def create_env(seed):
        if seed.process:
            raise OSError("on purpose")
        return CountingEnv([4])

    def children():
        return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())

    before = children()
    with pytest.raises(WorkerError, match="on purpose") as kept:  # With its frames.
        make_batcher(2, create_env=create_env, env_args={})
    assert children() <= before
    del kept
