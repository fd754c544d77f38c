"""Tells what this machine can run, what is missing, and the line that mends it.

    python -m rlbatch.doctor

Exits with 0 if Atari games run on the CPU, and on a GPU if there is one; else with 1.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from rlbatch.devices import as_device
from rlbatch.envs.atari import build, device_code
from rlbatch.envs.atari.games import GAMES, find_game
from rlbatch.envs.atari.native_library import load_library
from rlbatch.envs.atari.roms import RomError, RomNotFoundError, read_rom, rom_folder

_CUDA_EXTRA = "pip install 'rlbatch[cuda13]'; with a driver for CUDA 12, 'rlbatch[cuda12]'"
_CUDA_FOLDER = "/usr/local/cuda"
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


class Finding(NamedTuple):
    """What a check has found.

    Attributes:
        is_fine: Whether it works; None if it is not there and need not be.
        found: What was found.
        remedy: What to do about it.
    """

    is_fine: bool | None
    found: str
    remedy: str = ""


def check_python() -> Finding:
    """Python and the package itself."""
    own = _version("rlbatch") or "of a folder, not installed"
    found = f"{platform.python_version()}, {sys.executable}, rlbatch {own}"
    return Finding(sys.version_info >= (3, 11), found)


def check_torch() -> Finding:
    """PyTorch, and the CUDA that it is built for."""
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"
    return Finding(True, f"{torch.__version__}, built for {built}")


def check_library() -> Finding:
    """The native library, or a compiler that can make it."""
    try:
        path = build.host_library()
    except build.BuildError as error:
        remedy = "apt install g++, or conda install cxx-compiler"
        return Finding(False, str(error), _remedy(error, remedy))
    try:
        load_library()
    except build.BuildError as error:
        return Finding(False, str(error), _remedy_of_library(path))
    return Finding(True, str(path))


def check_roms() -> Finding:
    """The ROMs, which come with ale-py."""
    try:
        folder = rom_folder()
    except RomNotFoundError:
        return Finding(False, "no ale-py", "pip install 'rlbatch[atari]'")
    problems = []
    for game in GAMES.values():
        try:
            read_rom(game)
        except RomError as error:
            problems.append(str(error))
    if not problems:
        return Finding(True, f"{len(GAMES)} in {folder}")
    found = f"{len(GAMES) - len(problems)} of {len(GAMES)} in {folder}; {problems[0]}"
    return Finding(False, found, "pip install --force-reinstall 'ale-py>=0.12.1,<0.13'")


def check_driver() -> Finding:
    """GPUs that PyTorch can use and the kernels are made for, and their driver."""
    driver = _driver()
    if torch.cuda.is_available():
        numbers = range(torch.cuda.device_count())
        able = [torch.cuda.get_device_capability(i) for i in numbers]
        names = [
            f"{torch.cuda.get_device_name(i)}, compute capability {major}.{minor}"
            for i, (major, minor) in zip(numbers, able, strict=True)
        ]
        found = "; ".join([*names, f"driver {driver or 'of unknown version'}"])
        remedy = "a GPU of compute capability {}.{} or newer".format(*device_code.OLDEST_GPU)
        return Finding(max(able) >= device_code.OLDEST_GPU, found, remedy)
    if driver and torch.version.cuda is None:
        found = f"driver {driver}, but this PyTorch is for the CPU"
        return Finding(False, found, "pip install --force-reinstall torch; see pytorch.org")
    if driver:
        found = f"driver {driver}, but PyTorch finds no GPU, or wants a newer driver"
        is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
        return Finding(None if is_hidden else False, found, "see nvidia-smi, CUDA_VISIBLE_DEVICES")
    return Finding(None, "none, or no driver for it", "install NVIDIA's driver; see nvidia-smi")


def _driver() -> str | None:
    """Returns the version of NVIDIA's driver, as Linux tells it; None without one."""
    try:
        found = re.search(r"Kernel Module.*?(\d+(\.\d+)+)", _DRIVER_FILE.read_text())
    except OSError:
        return None
    return found[1] if found else None


def check_headers() -> Finding:
    """CUDA's headers: rlbatch's kernels include none, but others that CuPy compiles do."""
    roots = [os.environ.get("CUDA_PATH", ""), _CUDA_FOLDER]
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        roots += map(str, sorted(Path(place).iterdir()))
    for root in filter(None, roots):
        folder = Path(root, "include")
        if (folder / "cuda_runtime.h").exists():
            return Finding(True, str(folder))
    return Finding(None, "none: not needed here, except for CuPy's own kernels", _CUDA_EXTRA)


def check_cupy() -> Finding:
    """CuPy, which loads and starts kernels."""
    try:
        return Finding(True, device_code.import_cupy().__version__)
    except build.BuildError as error:
        return Finding(_needed(), str(error), _CUDA_EXTRA)


def check_compiler() -> Finding:
    """NVRTC, and whether it compiles the kernels for this GPU; for an H100 where there is none."""
    gpu, architecture = _gpu(), "sm_90"
    try:
        if gpu:
            architecture = device_code.architecture_of(gpu)
        path = device_code.cubin_path(device_code.defines(find_game("pong")), architecture)
    except build.BuildError as error:
        return Finding(_needed(), str(error), _remedy(error, _CUDA_EXTRA))
    return Finding(True, f"{architecture}: {path}")


def check_kernels() -> Finding:
    """Whether the kernels start on this GPU: its driver may be older than CuPy's CUDA."""
    gpu = _gpu()
    if not gpu:
        return Finding(None, "not started: there is no GPU for them")
    try:
        device_code.device_kernels([find_game("pong")], gpu)
    except build.BuildError as error:
        return Finding(False, str(error), _remedy(error, _CUDA_EXTRA))
    except RuntimeError as error:  # Of PyTorch.
        remedy = "nvidia-smi, which tells whether other programs use the GPU"
        return Finding(False, f"{type(error).__name__}: {error}", remedy)
    return Finding(True, f"they start on {gpu}, {torch.cuda.get_device_name(gpu)}")


def _gpu() -> torch.device | None:
    """Returns the first GPU that the kernels are made for; None without one."""
    if not torch.cuda.is_available():
        return None
    gpus = (as_device(number) for number in range(torch.cuda.device_count()))
    return next(
        (gpu for gpu in gpus if torch.cuda.get_device_capability(gpu) >= device_code.OLDEST_GPU),
        None,
    )


def check_extras() -> Finding:
    """What else is installed of the extras."""
    packages = (
        "tensordict",
        "tyro",
        "rich",
        "tensorboard",
        "matplotlib",
        "imageio",
        "pillow",
        "wandb",
        "optuna",
        "ray",
    )
    found = [name for name in packages if _version(name)]
    return Finding(True, ", ".join(f"{name} {_version(name)}" for name in found) or "none")


CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": check_python,
    "PyTorch": check_torch,
    "Atari library": check_library,
    "Atari ROMs": check_roms,
    "GPU": check_driver,
    "CuPy": check_cupy,
    "CUDA headers": check_headers,
    "GPU compiler": check_compiler,
    "GPU kernels": check_kernels,
    "extras": check_extras,
}


def main() -> int:
    """Runs all checks and prints what they find; returns the exit status."""
    findings = {name: check() for name, check in CHECKS.items()}
    sys.stdout.writelines(_paragraph(name, finding) for name, finding in findings.items())
    return int(any(finding.is_fine is False for finding in findings.values()))


def _paragraph(name: str, finding: Finding) -> str:
    word = {True: "ok", False: "MISSING", None: "-"}[finding.is_fine]
    first, *more = finding.found.splitlines()[:12] or [""]
    if finding.is_fine is not True and finding.remedy:
        more.append(f"-> {finding.remedy}")
    return "\n".join([f"{name:14} {word:8} {first}", *(f"{'':24}{line}" for line in more)]) + "\n"


def _remedy_of_library(path: Path) -> str:
    if os.environ.get(build.LIBRARY_VARIABLE):
        return f"unset {build.LIBRARY_VARIABLE}"
    if path.parent == build.NATIVE:
        return "pip install --force-reinstall rlbatch"
    return f"rm {path}, or export XDG_CACHE_HOME=/a/folder/that/programs/may/run/from"


def _remedy(error: build.BuildError, usual: str) -> str:
    if isinstance(error, build.CacheError):
        return "export XDG_CACHE_HOME=/a/folder/of/yours"
    return device_code.NEWER_NVRTC if isinstance(error, device_code.ArchitectureError) else usual


def _needed() -> bool | None:
    # What a GPU needs is missing only where there is one.
    return False if _gpu() else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    formatter = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser("rlbatch.doctor", None, __doc__, formatter_class=formatter).parse_args()
    sys.exit(main())
