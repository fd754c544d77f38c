"""The import graph: imports point down, and `import rlbatch` stays light.

Place a new module by adding its name to `LAYERS`. A name covers everything below it, unless a
longer name in the table does; a facade covers only itself.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _of_atari(*names: str) -> set[str]:
    return {f"rlbatch.envs.atari.{name}" for name in names}


# Lowest first. A module may import from lower layers and from its own package, nothing else.
LAYERS = (
    {"rlbatch.errors", "rlbatch.devices", "rlbatch.seeding"},
    {"rlbatch._checks", "rlbatch._child", "rlbatch._memory", "rlbatch._pickling"},
    {"rlbatch._rows", "rlbatch._interop", "rlbatch._pipe", "rlbatch._stacks"},
    {"rlbatch._named_tensors"},
    {"rlbatch.dicttensor"},
    {"rlbatch.returns", "rlbatch.frames", "rlbatch.agent", "rlbatch.envs.base"},
    {"rlbatch.envs.spaces", "rlbatch.envs.device"},
    {"rlbatch._slots", "rlbatch._answers", "rlbatch._registry", "rlbatch._arguments"},
    {"rlbatch._messages", "rlbatch.envs._values", "rlbatch.envs._walk"},
    {"rlbatch.envs._backends", "rlbatch.envs.check", "rlbatch.envs.vector"},
    {"rlbatch.envs.gym", "rlbatch._worker"},
    _of_atari("games", "program", "console_state"),
    _of_atari("roms", "build", "console_settings", "registration"),
    _of_atari("native_library", "device_code"),
    _of_atari("_options"),
    _of_atari("_batch", "console"),
    _of_atari("_native_batch"),
    _of_atari("_device", "_host_steps", "vector_env"),
    _of_atari("_device_steps"),
    _of_atari("env"),
    _of_atari("video"),
    {"rlbatch.envs.atari"},
    {"rlbatch._process", "rlbatch._local"},
    {"rlbatch._remote"},
    {"rlbatch._crew"},
    {"rlbatch.envs", "rlbatch.batcher"},
    {
        "rlbatch.doctor",
        "rlbatch.episodes",
        "rlbatch.throughput",
        "rlbatch.waiting",
        "rlbatch.search",
        "rlbatch.distributed",
    },
    {"rlbatch"},
    {"algos"},
    {
        "algos.environments",
        "algos.networks",
        "algos.reproducibility",
        "algos.stopping",
        "algos.checkpoints",
        "algos.logs",
    },
    {"algos.policies", "algos.curves", "algos.command_line", "algos.videos"},
    {"algos.evaluation", "algos.folders"},
    {"algos.run"},
    {f"algos.{path.parent.name}" for path in (ROOT / "algos").glob("*/train.py")},
    {"algos.play"},
)
# Packages whose `__init__.py` only gathers names: each is a module of its own here.
FACADES = {"rlbatch", "rlbatch.envs", "rlbatch.envs.atari", "algos"}

# Heavy packages, and the only modules that may import them, at the top or in a function.
HEAVY = {
    "cupy": {"rlbatch.envs.atari.device_code"},
    "gymnasium": {"rlbatch.envs", "rlbatch._registry", "algos"},
    "ale_py": {"rlbatch.envs.atari"},
    "optuna": {"rlbatch.search"},
    "ray": {"rlbatch.search", "rlbatch.distributed"},
    "tensordict": {"rlbatch._interop"},
    "matplotlib": {"algos"},
    "tensorboard": {"algos"},
}


def find_faults(root: Path) -> list[str]:
    """Lists every import below `root` that the tables above forbid."""
    files = {
        _module_name(path.relative_to(root)): path
        for package in ("rlbatch", "algos")
        for path in sorted((root / package).rglob("*.py"))
    }
    assert "rlbatch" in files, f"{root} holds no rlbatch: nothing was checked"
    faults = []
    for module, path in files.items():
        place = _place(module)
        if place is None:
            faults.append(f"{module}: in no layer")
            continue
        for target in _imports(path, files):
            faults += _judge(module, place, target)
    return faults


def _judge(module: str, place: str, target: str) -> list[str]:
    package = target.partition(".")[0]
    if package in HEAVY and not any(_covers(name, module) for name in HEAVY[package]):
        return [f"{module}: {package} is not imported here"]
    if target.startswith("."):
        return [f"{module}: relative import"]
    if package not in ("rlbatch", "algos"):
        return []
    target_place = _place(target)
    if target_place is None:
        return [f"{module}: imports {target}, which is in no layer"]
    if target_place != place and _layer(target_place) >= _layer(place):
        return [f"{module}: imports {target}, which is not below it"]
    return []


def _imports(path: Path, files: dict[str, Path]) -> Iterator[str]:
    """Yields what a file imports, anywhere in it; `from a import b` is a.b if that is a file."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(level=level) if level:
                yield "." * level
            case ast.ImportFrom(module=str(module), names=names):
                joined = (f"{module}.{alias.name}" for alias in names)
                yield from dict.fromkeys(name if name in files else module for name in joined)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _covers(name: str, module: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def _place(module: str) -> str | None:
    """Returns the longest name in `LAYERS` that covers the module."""
    names = set().union(*LAYERS)
    places = [n for n in names if n == module or (n not in FACADES and _covers(n, module))]
    return max(places, key=len, default=None)


def _layer(place: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if place in names)


def loaded_heavy(root: Path) -> set[str]:
    """Names the heavy packages, and algos, that `import rlbatch` loads in a fresh process."""
    code = "import rlbatch, sys; print(rlbatch.__file__, *sys.modules, sep='\\n')"
    # -S leaves out .pth files, and so an editable install that would answer for another root.
    path = os.pathsep.join([str(root), *filter(None, sys.path)])
    result = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert result.returncode == 0, result.stderr
    file, *modules = result.stdout.splitlines()
    assert Path(file).is_relative_to(root)
    return set(modules) & {*HEAVY, "algos"}


def test_imports_point_down():
    assert find_faults(ROOT) == []


def test_import_rlbatch_loads_nothing_heavy():
    assert loaded_heavy(ROOT) == set()


# A tree that keeps the rules. Each fault below is planted into a fresh copy of it.
SOUND = {
    "rlbatch/__init__.py": "from rlbatch.batcher import RL_Batcher",
    "rlbatch/errors.py": "",
    "rlbatch/dicttensor.py": "from rlbatch import errors",
    "rlbatch/_slots.py": "import rlbatch.dicttensor",
    "rlbatch/_worker.py": "from rlbatch import _slots",
    "rlbatch/batcher.py": "from rlbatch import _worker\nRL_Batcher = _worker",
    "rlbatch/envs/__init__.py": "from rlbatch.envs.base import VecEnv",
    "rlbatch/envs/base.py": "VecEnv = None",
    "rlbatch/envs/gym.py": "import gymnasium",
    "rlbatch/envs/atari/__init__.py": "",
    "rlbatch/envs/atari/device_code.py": "import cupy",
    "rlbatch/envs/atari/env.py": "from rlbatch.envs.atari import device_code",
    "algos/__init__.py": "",
    "algos/logs.py": "import rlbatch",
    "algos/a2c/agent.py": "import rlbatch",
    "algos/a2c/train.py": "from algos.a2c import agent\nfrom algos.logs import Log",
    "algos/dqn/train.py": "from algos import logs",
}

# What is appended to which file, and the target that must then be reported as not below it.
UPWARD = {
    "upward": ("rlbatch/errors.py", "import rlbatch.dicttensor", "rlbatch.dicttensor"),
    "private": ("rlbatch/_slots.py", "from rlbatch import _worker", "rlbatch._worker"),
    "same layer": ("rlbatch/agent.py", "import rlbatch.envs.base", "rlbatch.envs.base"),
    "facade": ("rlbatch/doctor.py", "from rlbatch import RL_Batcher", "rlbatch"),
    "inner facade": ("rlbatch/envs/base.py", "from rlbatch.envs import VecEnv", "rlbatch.envs"),
    "library to algo": ("rlbatch/batcher.py", "import algos.logs", "algos.logs"),
    "algo to algo": ("algos/dqn/train.py", "from algos.a2c.agent import A", "algos.a2c.agent"),
    "shared to algo": ("algos/logs.py", "import algos.dqn.train", "algos.dqn.train"),
    "in a function": (
        "rlbatch/errors.py",
        "def f():\n    if f:\n        import rlbatch.batcher",
        "rlbatch.batcher",
    ),
    "by name": (
        "rlbatch/errors.py",
        "import importlib\nimportlib.import_module('rlbatch.batcher')",
        "rlbatch.batcher",
    ),
}
# The same with the whole report.
OTHER = {
    "relative": ("rlbatch/_slots.py", "from . import x", "rlbatch._slots: relative import"),
    "unplaced": ("rlbatch/new.py", "", "rlbatch.new: in no layer"),
    "unplaced env": ("rlbatch/envs/new.py", "", "rlbatch.envs.new: in no layer"),
    "import of unplaced": (
        "rlbatch/_slots.py",
        "import rlbatch.gone",
        "rlbatch._slots: imports rlbatch.gone, which is in no layer",
    ),
    "cupy elsewhere": (
        "rlbatch/envs/atari/env.py",
        "def f():\n    import cupy.cuda",
        "rlbatch.envs.atari.env: cupy is not imported here",
    ),
    "upward in atari": (
        "rlbatch/envs/atari/device_code.py",
        "from rlbatch.envs.atari import env",
        "rlbatch.envs.atari.device_code: imports rlbatch.envs.atari.env, which is not below it",
    ),
    "gymnasium elsewhere": (
        "rlbatch/_slots.py",
        "from gymnasium import spaces",
        "rlbatch._slots: gymnasium is not imported here",
    ),
}


def _write_tree(root: Path) -> None:
    for name, text in SOUND.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def _append(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


def test_a_sound_tree_has_no_faults(tmp_path):
    _write_tree(tmp_path)
    assert find_faults(tmp_path) == []


@pytest.mark.parametrize(("file", "text", "target"), UPWARD.values(), ids=UPWARD)
def test_an_import_that_does_not_point_down_is_caught(tmp_path, file, text, target):
    _write_tree(tmp_path)
    _append(tmp_path / file, text)
    module = _module_name(Path(file))
    assert find_faults(tmp_path) == [f"{module}: imports {target}, which is not below it"]


@pytest.mark.parametrize(("file", "text", "fault"), OTHER.values(), ids=OTHER)
def test_another_fault_is_caught(tmp_path, file, text, fault):
    _write_tree(tmp_path)
    _append(tmp_path / file, text)
    assert find_faults(tmp_path) == [fault]


@pytest.mark.parametrize(
    ("module", "loaded"),
    [("rlbatch.envs.gym", "gymnasium"), ("rlbatch.envs.atari.env", "cupy"), ("algos", "algos")],
)
def test_an_eager_heavy_import_is_caught(tmp_path, module, loaded):
    _write_tree(tmp_path)
    for name in HEAVY:  # Stand-ins, whatever is installed.
        (tmp_path / f"{name}.py").touch()
    assert loaded_heavy(tmp_path) == set()

    _append(tmp_path / "rlbatch/__init__.py", f"import {module}")
    assert loaded_heavy(tmp_path) == {loaded}


def test_an_empty_tree_does_not_pass(tmp_path):
    with pytest.raises(AssertionError, match="nothing was checked"):
        find_faults(tmp_path)
