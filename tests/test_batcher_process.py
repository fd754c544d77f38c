"""The processes that a batcher starts: their streams, flags and priority, and reads that break."""

import functools
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from rlbatch import DictTensor, RL_Agent, RL_Batcher, WorkerError, _process
from rlbatch._pickling import dumps, loads, search_path
from tests.batchers import CountingAgent, acquire, make_batcher
from tests.containers import DTYPES, RARE_DTYPES
from tests.helpers import CountingEnv

ROOT = str(Path(__file__).parents[1])

# Prints in all ways, from the environment's process, and tells how it ended in a file.
PRINTS = """
import os, subprocess, sys
from pathlib import Path
from rlbatch import RL_Batcher
from tests.batchers import CountingAgent
from tests.helpers import CountingEnv

class Prints(CountingEnv):
    def reset(self, env_info=None):
        for stream in (sys.stdout, sys.stderr):
            if stream:
                stream.write("from the environment\\n")
        subprocess.run(["echo", "from a child"])
        os.system("echo from a shell; echo and its errors >&2")
        return super().reset(env_info)

with RL_Batcher(3, CountingAgent, {}, lambda seed: Prints([4]), {}, 1, seeds=0, timeout=20) as one:
    one.reset()
    one.execute()
    lengths = one.get()[0].trajectories.lengths.tolist()
Path(sys.argv[1]).write_text(repr(lengths))
"""


def run(script: str, path: Path, redirections: str = "") -> subprocess.CompletedProcess:
    command = f'exec "$0" -c "$1" "$2" {redirections}'
    return subprocess.run(
        ["bash", "-c", command, sys.executable, script, str(path)],
        # With a buffer, which is only written when the process ends.
        env={**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""},
        timeout=120,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "closed",
    [
        *(">&-", "<&- 2>&-", "<&- >&- 2>&-"),
        *(pytest.param(other, marks=pytest.mark.slow) for other in (">&- 2>&-", "<&- >&-")),
    ],
)
def test_what_is_printed_where_streams_are_closed_reaches_nobody(tmp_path, closed):
    done = run(PRINTS, tmp_path / "result", closed)
    assert (tmp_path / "result").read_text() == "[3]"
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_a_worker_ends_well_where_nobody_reads_what_it_prints(tmp_path):
    done = run(PRINTS, tmp_path / "result", "> /dev/full")
    assert (tmp_path / "result").read_text() == "[3]"
    assert "_process.py" not in done.stderr


# Makes a terminal, which the streams are, that of the script.
OWNS_ITS_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"


def test_a_terminal_does_not_stop_a_worker_that_prints(tmp_path):
    ours, theirs = os.openpty()
    settings = termios.tcgetattr(theirs)
    settings[3] |= termios.TOSTOP  # Stops who prints in the background.
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    command = [sys.executable, "-c", OWNS_ITS_TERMINAL + PRINTS, str(tmp_path / "result")]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    subprocess.run(command, cwd=ROOT, start_new_session=True, timeout=120, **streams)
    for end in (ours, theirs):
        os.close(end)
    assert (tmp_path / "result").read_text() == "[3]"


def test_no_folder_has_to_be_writable(monkeypatch):
    def refuse(*_, **__):
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with make_batcher(1) as batcher:
        batcher.reset()
        batcher.execute()
        assert batcher.get()[1] == 4


FLAGS = """
import sys
from pathlib import Path
from rlbatch import RL_Batcher
from tests.batchers import CountingAgent
from tests.helpers import CountingEnv

path = sys.argv[1]

def create_env(seed):
    flags = sys.flags.bytes_warning, sys.flags.dont_write_bytecode, sys.flags.safe_path
    Path(path).write_text(repr(flags))
    return CountingEnv([4])

RL_Batcher(3, CountingAgent, {}, create_env, {}, 1, seeds=0).close()
"""


def test_a_worker_has_the_flags_of_the_caller(tmp_path):
    subprocess.run(
        [sys.executable, "-b", "-B", "-c", FLAGS, str(tmp_path / "result")],
        env={**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=True,
    )
    assert (tmp_path / "result").read_text() == "(1, 1, True)"


def test_a_child_that_an_environment_forks_answers_nothing():
    class Forks(CountingEnv):
        n_steps = 0

        def step(self, action):
            self.n_steps += 1
            if self.n_steps == 6:
                os.fork()
            return super().step(action)

    with make_batcher(1, create_env=lambda seed: Forks([99], seed=seed), env_args={}) as batcher:
        batcher.reset()
        for begin in range(0, 20, 4):
            batcher.execute()
            time.sleep(0.3)  # In which the child would answer as well.
            trajectories, _ = batcher.get()
            counts = trajectories.trajectories["action/count"][0].tolist()
            assert counts == [begin, begin + 1, begin + 2, begin + 3]


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="of Linux")
def test_a_worker_has_no_more_priority_than_the_caller():
    with make_batcher(1) as batcher:
        assert os.sched_getscheduler(batcher._crew.workers[0]._process.pid) == os.SCHED_BATCH

    def of_an_idle_thread():  # A process that imports torch like that waits for all others.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        _process._let_parent_go_on()
        return os.sched_getscheduler(0)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(of_an_idle_thread).result() == os.SCHED_IDLE


def test_an_answer_that_is_lost_in_an_interrupted_read_is_reported_at_once(monkeypatch):
    with make_batcher(1) as batcher:
        batcher.reset()
        batcher.execute()
        batcher.get()
        batcher.execute()
        connection = batcher._crew.workers[0].connection
        receive = connection.recv

        def interrupted():
            receive()
            raise KeyboardInterrupt

        monkeypatch.setattr(connection, "recv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            batcher.get()
        with pytest.raises(WorkerError, match="execute: expected an answer, but .* interrupted"):
            batcher.get()


def test_descriptors_are_closed_where_a_process_can_not_be_started(monkeypatch):
    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(FileNotFoundError):
        RL_Batcher(3, CountingAgent, {}, lambda seed: CountingEnv([4]), {}, 2, seeds=0)
    assert set(os.listdir("/proc/self/fd")) <= before


def test_what_an_environment_leaves_to_python_is_not_left_behind(tmp_path):
    class Careless(CountingEnv):
        def __init__(self):
            super().__init__([9])
            self.folder = tempfile.TemporaryDirectory(dir=tmp_path)
            self.log = (tmp_path / "log").open("w")
            self.log.write("reset")

    with make_batcher(1, create_env=lambda seed: Careless(), env_args={}):
        assert len(list(tmp_path.iterdir())) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert (tmp_path / "log").read_text() == "reset"


def test_a_long_command_line_reaches_a_process(monkeypatch):
    monkeypatch.setattr("sys.argv", ["script", *["x" * 100] * 10**4])  # More than a pipe holds.

    def create_env(seed):
        assert len(sys.argv) == 10**4 + 1
        return CountingEnv([3])

    with make_batcher(1, create_env=create_env, env_args={}) as batcher:
        acquire(batcher)


class Wide(torch.Tensor):
    """A tensor of a class of its own."""


def sent(value):
    """What arrives of a value in a process."""
    return loads(dumps(value, torch.device("cpu")))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_reach_a_process_as_they_are(dtype):
    whole = torch.arange(12).reshape(3, 4).to(dtype)
    for tensor in (whole, whole[1], whole.t(), whole[:0], whole[0, 0]):
        found = sent({"w": tensor})["w"]
        assert found.dtype == dtype
        assert found.shape == tensor.shape
        assert torch.equal(found, tensor)
    found.fill_(0)  # Its memory can be written to.


@pytest.mark.parametrize("dtype", RARE_DTYPES)
def test_turned_tensors_that_pytorch_does_not_pickle_reach_a_process(dtype):
    tensor = torch.arange(6).reshape(2, 3).to(dtype).t()
    found = sent(tensor)
    assert found.dtype == dtype
    assert found.tolist() == tensor.tolist()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_reach_a_process():
    parts = [torch.ones(2), torch.arange(3.0)]
    found = sent(torch.nested.nested_tensor(parts))
    assert all(torch.equal(a, b) for a, b in zip(found.unbind(), parts, strict=True))


def test_properties_that_are_worked_out_once_reach_a_process():
    class Known:
        @functools.cached_property
        def table(self):
            return [1]

    known = sent(Known)()
    assert known.table == [1]
    assert known.table is known.table


@pytest.mark.parametrize("kind", ["spectral_norm", "weight_norm", "orthogonal"])
def test_modules_with_parametrizations_reach_a_process(kind):
    parametrized = getattr(torch.nn.utils.parametrizations, kind)
    model = torch.nn.Sequential(parametrized(torch.nn.Linear(4, 3)), torch.nn.Tanh()).eval()
    found = sent(model)
    assert torch.equal(found(torch.ones(2, 4)), model(torch.ones(2, 4)))
    changed = {key: tensor + 1 for key, tensor in model.state_dict().items()}
    found.load_state_dict(changed)
    assert torch.equal(found.state_dict()["0.bias"], changed["0.bias"])


def test_what_is_more_than_numbers_reaches_a_process_too():
    weight = torch.nn.Parameter(torch.ones(2))
    learns = torch.zeros(3, requires_grad=True)
    both = sent([weight, learns, weight, torch.ones(2, dtype=torch.complex64).conj()])
    assert type(both[0]) is torch.nn.Parameter
    assert both[0] is both[2]
    assert both[0].requires_grad
    assert both[1].requires_grad
    assert torch.equal(both[3], torch.ones(2, dtype=torch.complex64))
    assert type(sent(torch.ones(2).as_subclass(Wide))) is Wide
    assert torch.equal(sent(torch.eye(3).to_sparse()).to_dense(), torch.eye(3))


def test_a_part_of_a_tensor_reaches_a_process_without_the_rest():
    assert len(dumps(torch.zeros(1000, 1000)[0], torch.device("cpu"))) < 10_000


READS = """
import sys
from tests.batchers import make_batcher
from tests.helpers import CountingEnv

def create_env(seed):
    assert sys.stdin.read() == ""
    return CountingEnv([9])

make_batcher(1, create_env=create_env, env_args={}).close()
print(sys.stdin.read())
"""


def test_what_the_caller_is_told_is_not_read_by_workers():
    command = [sys.executable, "-c", READS]
    found = subprocess.run(
        command, input="for the caller", capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert found.stdout == "for the caller\n", found.stderr


# Each step does in the process what code there may do with what the script has.
OF_A_SCRIPT = """
import copy, dataclasses, functools, io, pickle, sys, typing
import torch
import torch.backends.cudnn as cudnn
from tests.batchers import make_batcher
from tests.helpers import CountingEnv

@dataclasses.dataclass
class Inner:
    x: int = 0

@dataclasses.dataclass
class Simulator:
    inner: Inner = dataclasses.field(default_factory=Inner)

@functools.lru_cache(maxsize=7)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

BY_NAME = pickle.dumps(Simulator())

class Looks(CountingEnv):
    def step(self, action):
        buffer = io.BytesIO()
        torch.save(Simulator(), buffer)
        buffer.seek(0)
        assert torch.load(buffer, weights_only=False) == Simulator()
        assert pickle.loads(BY_NAME) == Simulator() == pickle.loads(pickle.dumps(Simulator()))
        assert typing.get_type_hints(Simulator) == {"inner": Inner}
        assert fibonacci(20) == 6765 and fibonacci.cache_parameters()["maxsize"] == 7
        cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = True
        assert torch.ops.aten.add(torch.ones(1), 1) == 2
        assert sys.argv[1:] == ["--game", "pong"]
        return super().step(action)

create_env = lambda seed: Looks([9])
with make_batcher(int(sys.stdin.read()), create_env=create_env, env_args={}) as batcher:
    batcher.reset()
    batcher.execute()
    print(batcher.get()[1])
"""


@pytest.mark.parametrize("n_processes", ["0", "2"])
def test_what_a_script_has_is_there_in_its_workers(n_processes):
    found = subprocess.run(
        [sys.executable, "-c", OF_A_SCRIPT, "--game", "pong"],
        input=n_processes,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert (found.stdout, found.returncode) == ("2\n" if n_processes == "2" else "1\n", 0), (
        found.stderr
    )


OF_A_FILE = """
import importlib.util, pickle, sys
from tests.batchers import make_batcher

spec = importlib.util.spec_from_file_location("NAME", sys.argv[1])
module = sys.modules["NAME"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with make_batcher(1, create_env=module.create_env, env_args={}) as batcher:
    batcher.reset()
    batcher.execute()
    print(batcher.get()[1])
"""

FILE = """
import pickle
from tests.helpers import CountingEnv

N_STEPS = 9

class Looks(CountingEnv):
    def step(self, action):
        assert type(pickle.loads(pickle.dumps(Looks([N_STEPS])))) is Looks
        return super().step(action)

def create_env(seed):
    return Looks([N_STEPS])
"""


@pytest.mark.parametrize(
    "name", ["of_no_path", "of_no.path", "tests.of_no_path", "tests.containers"]
)
def test_a_module_that_is_not_found_by_its_name_is_sent_along(tmp_path, name):
    """As pytest's `--import-mode=importlib` makes them; the last is there, but another one."""
    file = tmp_path / "file.py"
    file.write_text(FILE)
    found = subprocess.run(
        [sys.executable, "-c", OF_A_FILE.replace("NAME", name), str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert (found.stdout, found.returncode) == ("1\n", 0), found.stderr


MOVES = """
import os, sys
sys.path[:0] = sys.argv[2:]
sys.path.append(sys.argv[1])
from tests.batchers import make_batcher
import file

for folder in (".", os.path.join("..", "other")):
    os.chdir(folder)
    with make_batcher(1, create_env=file.create_env, env_args={}) as batcher:
        batcher.reset()
        batcher.execute()
        print(batcher.get()[1])
"""


@pytest.mark.parametrize("entry", ["", ".", "library"])
def test_a_module_of_the_current_folder_is_found_after_a_move(tmp_path, entry):
    """As in a notebook, or in a script that Hydra has moved."""
    folder, other = tmp_path / "folder", tmp_path / "other"
    for made in (folder / entry, other):
        made.mkdir(parents=True)
    (folder / entry / "file.py").write_text(FILE)
    found = subprocess.run(
        [sys.executable, "-P", "-c", MOVES, str(ROOT), entry],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
    )
    assert (found.stdout, found.returncode) == ("1\n1\n", 0), found.stderr


def test_entries_that_are_no_relative_folders_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    kept = ["__editable__.hook", "archive.zip", f"{tmp_path}/link/..", ROOT]
    monkeypatch.setattr(sys, "path", ["", "folder", "folder/..", Path("folder"), *kept])
    here = str(tmp_path)
    assert search_path() == [here, f"{here}/folder", f"{here}/folder/..", *kept]


def test_a_current_folder_that_is_gone_is_left_out(tmp_path, monkeypatch):
    class Updated(CountingAgent):
        def update(self, info):
            pass

    with make_batcher(1, create_agent=Updated) as batcher:
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        monkeypatch.setattr(sys, "path", ["", "folder", *sys.path])
        gone.rmdir()
        assert search_path() == sys.path
        batcher.update({"a": 1})
        monkeypatch.chdir(ROOT)
        assert acquire(batcher)[0].info["policy_version"].tolist() == [1] * batcher.n_elems()


def test_modules_that_are_found_are_not_sent_along():
    for value in (CountingEnv, make_batcher, torch.nn.Linear, functools.partial, RL_Agent):
        assert pickle.loads(dumps(value, torch.device("cpu"))) is value


@pytest.mark.parametrize("n_processes", [0, 1])
def test_what_is_logged_is_decided_by_the_caller(n_processes):
    class Levels(CountingAgent):
        def __call__(self, state, observation, agent_info, history=None):
            level = logging.getLogger("rlbatch.envs").getEffectiveLevel()
            levels = torch.full((observation.n_elems(),), level)
            return DictTensor({"action": torch.zeros_like(levels), "level": levels}), state

    logger = logging.getLogger("rlbatch")
    before = logger.level
    try:
        logger.setLevel(logging.CRITICAL)
        with make_batcher(n_processes, create_agent=Levels) as batcher:
            trajectories, _ = acquire(batcher)
    finally:
        logger.setLevel(before)
    assert trajectories.trajectories["action/level"][0, 0] == logging.CRITICAL


GIVEN_UP_ON = """
import os, sys
from multiprocessing.connection import Pipe
from rlbatch import _process
mine, theirs = Pipe()
lifeline, _ = os.pipe()
# In the middle of its start, which takes its time on a busy machine.
_process._let_parent_go_on = lambda: os.kill(os.getpid(), _process.INTERRUPT)
_process.main(theirs, sys.stderr.fileno(), lifeline, os.getppid())
"""


def test_a_worker_that_is_given_up_on_while_it_starts_says_nothing():
    done = subprocess.run(
        [sys.executable, "-c", GIVEN_UP_ON],
        env={**os.environ, "PYTHONPATH": ROOT},
        timeout=60,
        capture_output=True,
        text=True,
        start_new_session=True,  # It ends its process group.
    )
    assert done.stderr == ""
    assert done.returncode == -signal.SIGKILL
