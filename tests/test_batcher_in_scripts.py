"""Whole scripts, as a user runs them."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from tests.processes import ROOT, SOON_S, alive, wait_for_end

pytestmark = pytest.mark.usefixtures("nothing_left")

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
print(*(worker._process.pid for worker in batcher._crew.workers), flush=True)
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
        bufsize=0,  # What is read ahead of a line would be lost to `communicate`.
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    lines = [process.stdout.readline().decode() for _ in range(2)]
    if stop is not None:
        assert process.stdout.readline() == b"ready\n"
        stop(process)
    started = time.monotonic()
    out, err = (part.decode() for part in process.communicate(timeout=30))
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
    for worker in batcher._crew.workers:
        command = __import__("rlbatch._messages")._messages.Command.EXECUTE
        worker.send(command, worker.pack(command, None, 0))
    print("ready", *(worker._process.pid for worker in batcher._crew.workers), flush=True)
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


STARTING = """
import torch
from rlbatch import RL_Batcher
from tests.batchers import Heavy
from tests.helpers import CountingEnv
from tests.processes import ROOT, SOON_S, alive, wait_for_end
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


PROGRAMS = """
import os, subprocess
from pathlib import Path
from rlbatch import RL_Batcher
from tests.helpers import CountingEnv
from tests.batchers import Rewriter
class Starter(CountingEnv):
    def reset(self, env_info=None):
        self.program = subprocess.Popen(["sleep", "600"])
        Path({path!r}).write_text(str(self.program.pid))
        return super().reset(env_info)
batcher = RL_Batcher(2, Rewriter, {{}}, lambda seed: Starter([9]), {{}}, 1, seeds=0)
batcher.reset()
os.kill(os.getpid(), 9)
"""


REGISTERING = """
import threading
import ale_py, gymnasium, torch
from gymnasium.envs.classic_control import CartPoleEnv
from rlbatch import RL_Batcher
from rlbatch.envs import GymEnv
from tests.batchers import Rewriter
class Mine(CartPoleEnv):
    pass
gymnasium.register("Mine-v0", Mine, max_episode_steps=3)
gymnasium.register("Named-v0", "__main__:Mine", max_episode_steps=3)
gymnasium.register("CartPole-v1", Mine, max_episode_steps=3)
class Cut(gymnasium.wrappers.TimeLimit):
    pass
gymnasium.register("Wrapped-v0", Mine, additional_wrappers=(Cut.wrapper_spec(max_episode_steps=3),))
def create_vector(num_envs, **_):
    return gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("Mine-v0")] * num_envs)
gymnasium.register("Vector-v0", vector_entry_point="__main__:create_vector")
gymnasium.register("Unpicklable-v0", lambda lock=threading.Lock(): None)
def create_env(env_ids, seed):
    import ale_py  # Registers its games again.
    if env_ids == ["Vector-v0"]:
        return GymEnv(gymnasium.make_vec(env_ids[0], num_envs=1), seed)
    return GymEnv([gymnasium.make(env_id) for env_id in env_ids], seed)
cartpoles = ["Mine-v0", "Named-v0", "CartPole-v1", "Wrapped-v0"]
for env_ids in (cartpoles, ["Vector-v0"], ["ALE/Pong-v5"]):
    with RL_Batcher(9, Rewriter, {}, create_env, {"env_ids": env_ids}, 1, seeds=0) as batcher:
        batcher.reset()
        batcher.execute()
        print(batcher.get()[0].trajectories.lengths.tolist())
"""


def test_what_a_script_registers_with_gymnasium_is_known_in_processes():
    pytest.importorskip("ale_py")
    command = [sys.executable, "-c", REGISTERING]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == ["[3, 3, 3, 3]", "[3]", "[9]"], run.stderr
    assert run.stderr.count("UserWarning") == 1, run.stderr  # By the script.


def test_programs_of_an_environment_end_with_the_caller(tmp_path):
    path = tmp_path / "pid"
    subprocess.run([sys.executable, "-c", PROGRAMS.format(path=str(path))], check=False)
    pid = int(path.read_text())
    for _ in range(100):
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or " Z " in status.read_text():
            return
        time.sleep(0.1)
    pytest.fail(f"expected process {pid} to have ended")


SPAWNING = """
import multiprocessing
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from rlbatch import RL_Batcher
from rlbatch.envs import GymEnv
from tests.batchers import Rewriter
class Mine(CartPoleEnv):
    pass
gymnasium.register("Mine-v0", "__mp_main__:Mine", max_episode_steps=3)
def create_env(seed):
    return GymEnv([Mine(), gymnasium.make("Mine-v0").unwrapped], seed)
def work():
    with RL_Batcher(2, Rewriter, {}, create_env, {}, 1, seeds=0) as batcher:
        batcher.reset()
        batcher.execute()
        print(batcher.get()[0].trajectories.lengths.tolist())
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
"""


def test_a_script_may_use_a_batcher_in_a_child_that_is_spawned(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SPAWNING)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.stdout == "[2, 2]\n", run.stderr
