"""Tells what this machine can run, what is missing, and the line that mends it.

    python -m rlbatch.doctor

Exits with 0 if Atari games run on the CPU, and on the GPU if there is one; else with 1.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch

from rlbatch.envs.atari import build
from rlbatch.envs.atari.games import find_game
from rlbatch.envs.atari.native_library import load_library
from rlbatch.envs.atari.roms import RomNotFoundError, rom_folder
from rlbatch.errors import as_device

_CUDA_EXTRA = "pip install 'rlbatch[cuda13]'; with a driver for CUDA 12, 'rlbatch[cuda12]'"


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
    return Finding(sys.version_info >= (3, 11), f"{platform.python_version()}, {sys.executable}")


def check_torch() -> Finding:
    """PyTorch, and the CUDA that it is built for."""
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"
    return Finding(True, f"{torch.__version__}, built for {built}")


def check_library() -> Finding:
    """The native library, or a compiler that can make it."""
    try:
        load_library()
        return Finding(True, str(build.host_library()))
    except build.BuildError as error:
        remedy = "apt install g++, or conda install cxx-compiler"
        return Finding(False, str(error), _remedy(error, remedy))


def check_roms() -> Finding:
    """The ROMs, which come with ale-py."""
    try:
        folder = rom_folder()
    except RomNotFoundError:
        return Finding(False, "no ale-py", "pip install 'rlbatch[atari]'")
    return Finding(True, f"{len(list(folder.glob('*.bin')))} in {folder}")


def check_driver() -> Finding:
    """A GPU that PyTorch can use."""
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Finding(True, ", ".join(names))
    if torch.version.cuda is None:
        return Finding(None, "none: this PyTorch is for the CPU", "see pytorch.org/get-started")
    return Finding(None, "none, or no driver for it", "install NVIDIA's driver; see nvidia-smi")


def check_cupy() -> Finding:
    """CuPy, which loads and starts kernels."""
    try:
        return Finding(True, build.import_cupy().__version__)
    except build.BuildError as error:
        return Finding(_needed(), str(error), _CUDA_EXTRA)


def check_compiler() -> Finding:
    """NVRTC, and whether it compiles the kernels for this GPU; for an H100 where there is none."""
    architecture = "sm_90"
    try:
        if torch.cuda.is_available():
            architecture = build.architecture_of(as_device("cuda"))
        path = build.cubin_path(build.defines(find_game("pong")), architecture)
    except build.BuildError as error:
        return Finding(_needed(), str(error), _remedy(error, _CUDA_EXTRA))
    return Finding(True, f"{architecture}: {path}")


def check_kernels() -> Finding:
    """Whether the kernels start on this GPU: its driver may be older than CuPy's CUDA."""
    if not torch.cuda.is_available():
        return Finding(None, "not started: there is no GPU")
    try:
        build.device_kernels([find_game("pong")], as_device("cuda"))
    except build.BuildError as error:
        return Finding(False, str(error), _remedy(error, _CUDA_EXTRA))
    return Finding(True, "they start")


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


def _remedy(error: build.BuildError, usual: str) -> str:
    is_folder = isinstance(error, build.CacheError)
    return "export XDG_CACHE_HOME=/a/folder/of/yours" if is_folder else usual


def _needed() -> bool | None:
    # What a GPU needs is missing only where there is one.
    return False if torch.cuda.is_available() else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
