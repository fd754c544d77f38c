"""Faults, with real processes: a named error soon, and nothing is left behind.

That no test leaves a process behind is seen to by `nothing_left`.
"""

import contextlib
import ctypes
import os
import re
import signal
import threading
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest
import torch

from rlbatch import CallOrderError, WorkerError, WorkerTimeoutError
from rlbatch._remote import RemoteWorker
from rlbatch.envs import GymEnv
from tests.alarms import AlarmAfter
from tests.batchers import (
    CountingAgent,
    Heavy,
    Napper,
    Sleeper,
    acquire,
    counting,
    make_batcher,
    sleeping,
)
from tests.helpers import CountingEnv, CountingGym, FailingGym
from tests.processes import SOON_S, STARTED_S, Timer, alive, children, wait_for_end, worker_pids

pytestmark = pytest.mark.usefixtures("nothing_left")


def failing_env(seed, **faults):
    """Three environments over two processes each; number 1 of process 1 fails."""
    fails = seed.process == 1
    envs = [CountingGym(), FailingGym(**faults) if fails else CountingGym(), CountingGym()]
    return GymEnv(envs, seed)


def interrupted(call, seconds):
    """Calls it, and sends a real Ctrl-C after so many seconds."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
    call()


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


def test_the_first_environment_of_all_is_named_too():
    def create_env(seed):
        return GymEnv([FailingGym(at_step=0)], seed)

    batcher = make_batcher(1, create_env=create_env, env_args={})
    with pytest.raises(WorkerError, match="worker 0, execute, environment 0: ") as caught:
        acquire(batcher)
    assert caught.value.environment == 0


def test_update_raises():
    class Stubborn(CountingAgent):
        def update(self, info):
            raise KeyError("layer.weight")

    batcher = make_batcher(2, create_agent=Stubborn)
    with pytest.raises(WorkerError, match=r"worker \d, update: KeyError.'layer.weight'"), Timer():
        batcher.update({})
    assert_unusable(batcher)


def test_an_error_that_says_too_much_is_cut_in_its_middle():
    class Talkative(CountingAgent):
        def update(self, info):
            raise ValueError("begin" + "x" * 10**7 + "end")

    batcher = make_batcher(1, create_agent=Talkative)
    with pytest.raises(WorkerError, match=r"ValueError.'begin") as caught, Timer():
        batcher.update({})
    assert len(str(caught.value)) < 50_000
    assert str(caught.value).count("characters left out") == 2
    assert caught.value.child_traceback.endswith("xend\n")


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


def hang(seed):
    time.sleep(1000)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGKILL, "SIGKILL"),
        (signal.SIGSEGV, "SIGSEGV"),
        (signal.SIGBUS, r"SIGBUS .shared memory has run out.\n"),
        (signal.SIGRTMIN + 5, r"signal \d+"),
    ],
)
def test_a_worker_is_killed_while_it_works(number, name):
    batcher = make_batcher(2, create_env=sleeping, env_args={})
    batcher.reset()
    batcher.execute()
    os.kill(worker_pids(batcher)[1], number)
    with pytest.raises(WorkerError, match=f"worker 1 .*execute.*killed by {name}"), Timer():
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
    class Updated(CountingAgent):  # So that the other worker has no error of its own.
        def update(self, info):
            pass

    batcher = make_batcher(2, create_agent=Updated)
    batcher.reset()
    killed = worker_pids(batcher)[:1]
    os.kill(killed[0], signal.SIGKILL)
    wait_for_end(killed)
    with pytest.raises(WorkerError, match="worker 0 .*killed by SIGKILL"), Timer():
        call(batcher)
    assert_unusable(batcher)


def test_a_worker_whose_exit_code_somebody_else_was_told():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        batcher = make_batcher(1)
        batcher.reset()
        os.kill(worker_pids(batcher)[0], signal.SIGKILL)
        with pytest.raises(WorkerError, match="it has ended; its exit code went to somebody else"):
            batcher.execute()
    finally:
        signal.signal(signal.SIGCHLD, before)
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


@pytest.mark.parametrize("is_killed", [True, False])
def test_shared_memory_of_environments_goes_with_their_worker(is_killed):
    class Sharing(CountingEnv):
        def __init__(self, name):
            super().__init__([9])
            self.memory = SharedMemory(name, create=True, size=100)  # Which nobody unlinks.

    name = f"rlbatch-{os.getpid()}-{is_killed}"
    batcher = make_batcher(1, create_env=lambda seed: Sharing(name), env_args={})
    batcher.reset()
    assert Path("/dev/shm", name).exists()
    if is_killed:
        os.kill(worker_pids(batcher)[0], signal.SIGKILL)
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            acquire(batcher)
    batcher.close()
    assert not Path("/dev/shm", name).exists()


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
            assert "batchers.py" in caught.value.child_traceback
            assert caught.value.child_traceback.count(" in step\n") == 2  # One of each process.
            assert "\0" not in caught.value.child_traceback
            assert caught.value.worker == 0
    assert batcher.get(blocking=False) == (None, None)
    with Timer():
        batcher.close()


def test_who_only_looks_now_and_then_is_told_of_a_hanging_worker():
    batcher = make_batcher(1, create_env=sleeping, env_args={}, timeout=2)
    batcher.reset()
    batcher.execute()
    executed = time.monotonic()

    def look() -> None:
        while time.monotonic() - executed < SOON_S:
            batcher.get(blocking=False)
            time.sleep(0.05)

    with pytest.raises(WorkerTimeoutError, match="within 2 s, got none") as caught:
        look()
    assert time.monotonic() - executed > 2
    assert " in step\n" in caught.value.child_traceback
    with pytest.raises(WorkerTimeoutError):  # Nothing is lost: it may be asked again.
        batcher.get(timeout=0)
    batcher.close()


def test_who_looks_late_is_not_told_of_a_worker_that_has_answered():
    with make_batcher(1, timeout=2) as batcher:
        for _ in range(2):
            batcher.reset()
            batcher.execute()
            assert batcher._crew.workers[0].connection.poll(SOON_S)
            time.sleep(2.1)
            trajectories, _ = batcher.get(blocking=False)
            assert trajectories is not None


def test_an_update_that_waits_too_long_for_an_acquisition_loses_nothing():
    class Updated(CountingAgent):
        def update(self, info):
            pass

    def create_env(seed):
        return Napper([9, 9], nap_at=1, nap_s=4)

    with make_batcher(
        1, create_env=create_env, env_args={}, create_agent=Updated, timeout=2
    ) as batcher:
        batcher.reset()
        batcher.execute()
        with pytest.raises(WorkerTimeoutError, match="workers 0 .execute.: .* within 2 s"):
            batcher.update({})
        assert batcher.policy_version == 0
        trajectories, _ = batcher.get(timeout=60)
        assert trajectories.trajectories.lengths.tolist() == [4, 4]
        batcher.update({})
        assert batcher.policy_version == 1


def test_no_time_at_all_is_a_timeout():
    batcher = make_batcher(1, create_env=sleeping, env_args={})
    batcher.reset()
    batcher.execute()
    with pytest.raises(WorkerTimeoutError, match="within 0 s, got none$") as caught, Timer():
        batcher.get(timeout=0)
    assert caught.value.child_traceback == ""  # Which would take time.
    batcher.close()


def test_those_that_have_answered_are_not_among_those_that_hang():
    def create_env(seed):
        return Sleeper([9], seed=seed) if seed.process else CountingEnv([9], seed=seed)

    batcher = make_batcher(2, create_env=create_env, env_args={})
    batcher.reset()
    batcher.execute()
    with pytest.raises(WorkerTimeoutError, match=r"workers 1 \(execute\): ") as caught:
        batcher.get(timeout=1.0)
    assert caught.value.worker == 1
    assert "worker 0" not in caught.value.child_traceback
    batcher.close()


def test_close_does_not_raise_what_nobody_asked_for():
    batcher = make_batcher(
        1, create_env=lambda seed: GymEnv([FailingGym(at_step=1)], seed), env_args={}
    )
    batcher.reset()
    batcher.execute()
    assert batcher._crew.workers[0].connection.poll(SOON_S)  # It has raised.
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


def test_an_agent_that_hangs_in_update_is_given_up():
    class Hanging(CountingAgent):
        def update(self, info):
            time.sleep(1000)

    batcher = make_batcher(1, create_agent=Hanging, timeout=0.5)
    with pytest.raises(WorkerTimeoutError, match=r"update.*within 0\.5 s") as caught, Timer():
        batcher.update({})
    assert "in update" in caught.value.child_traceback
    with pytest.raises(CallOrderError):
        batcher.reset()


def test_one_get_may_wait_longer_than_the_batcher():
    class Slow(CountingEnv):
        def step(self, action):
            time.sleep(0.25)
            return super().step(action)

    with make_batcher(
        1, create_env=lambda seed: Slow([20]), env_args={}, n_timesteps=12, timeout=1
    ) as batcher:
        batcher.reset()
        batcher.execute()
        with pytest.raises(WorkerTimeoutError, match=r"within 1 s"):
            batcher.get()
        assert batcher.get(timeout=60.0)[0].trajectories.n_timesteps() == 12


def test_an_environment_that_hangs_while_it_is_made_is_given_up():
    with (
        pytest.raises(WorkerTimeoutError, match=r"workers 0 .start.*within 0\.3 s(.|\n)*in hang\n"),
        Timer(STARTED_S),
    ):
        make_batcher(1, create_env=hang, env_args={}, timeout=0.3)


def test_a_worker_that_imports_for_ever_is_given_up(monkeypatch):
    monkeypatch.setattr("rlbatch._crew.IMPORT_TIMEOUT_S", 0.01)
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
            with pytest.raises(KeyboardInterrupt):
                interrupted(batcher.execute, 0.5)  # The first one waits for a step.
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
        with pytest.raises(KeyboardInterrupt), Timer():
            interrupted(call, 0.3)
    assert not any(map(alive, processes))
    batcher.close()


def test_a_batcher_that_is_forgotten_ends_its_workers():
    batcher = make_batcher(1)
    (pid,) = worker_pids(batcher)
    del batcher
    wait_for_end([pid])


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("n_processes", [0, 1])
def test_a_child_that_the_caller_forks_leaves_workers_and_trajectories_alone(n_processes):
    with make_batcher(n_processes) as batcher:
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
    expected = f"^{name}: expected something that can be pickled, got <"
    with pytest.raises(TypeError, match=expected) as caught:
        make_batcher(1, **arguments)
    assert "take a function" not in str(caught.value)  # Which is about methods of Python's.


class Trainer:
    def __init__(self):
        self.lock = threading.Lock()

    def create_env(self, **env_args):
        return counting(**env_args)


def test_that_the_object_of_a_method_is_sent_along_is_told():
    with pytest.raises(TypeError, match="with a method its object is sent, so take a function$"):
        make_batcher(1, create_env=Trainer().create_env)


def test_what_a_function_uses_that_can_not_be_pickled_is_named():
    lock = threading.Lock()

    def helper():
        return lock

    class Logs(CountingAgent):
        def log(self):
            return helper(), Logs

    with pytest.raises(TypeError, match=r"lock' object; .*Logs.log uses helper; .* uses lock$"):
        make_batcher(1, create_agent=Logs)


def test_what_can_not_be_copied_is_named():
    expected = r"^agent_args\['lock'\]: expected something that can be copied, got <"
    with pytest.raises(TypeError, match=expected):
        make_batcher(0, agent_args={"a": 1, "lock": threading.Lock()})


def test_all_processes_start_before_one_is_waited_for(monkeypatch):
    """What a worker is made from may be more than a pipe holds before the worker reads."""
    start, n_before, others = RemoteWorker.start, [], set(children())

    def counted(worker):
        n_before.append(len(set(children()) - others))
        start(worker)

    monkeypatch.setattr(RemoteWorker, "start", counted)
    with make_batcher(3, agent_args={"weights": torch.zeros(10**6)}, create_agent=Heavy):
        assert n_before == [3, 3, 3]


def test_a_worker_that_does_not_read_is_reported():
    with make_batcher(1, timeout=2) as batcher:
        os.kill(batcher._crew.workers[0]._process.pid, signal.SIGSTOP)
        with (
            Timer(),
            pytest.raises(WorkerTimeoutError, match=r"workers 0 \(update\): expected an answer"),
        ):
            batcher.update(torch.zeros(10**7))


def test_no_process_is_left_where_ctrl_c_comes_while_a_worker_is_started(alarms):
    # Far more than the pipe holds, so that sending it takes until the worker reads.
    arguments = {"weights": torch.zeros(4 * 10**6)}
    processes, descriptors = children(), set(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt) as kept, AlarmAfter(0.5, KeyboardInterrupt()):
        make_batcher(1, agent_args=arguments)  # What is kept has its frames.
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
