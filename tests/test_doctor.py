"""`python -m rlbatch.doctor`: in a process of its own, on this machine and on poorer ones."""

import contextlib
import subprocess
import sys

import pytest
import torch

from rlbatch import doctor
from rlbatch.envs.atari import build
from rlbatch.envs.atari.native_library import load_library

pytest.importorskip("ale_py")


def run(*, without: str = "") -> subprocess.CompletedProcess:
    """Runs the doctor in a Python that cannot import a package."""
    code = (
        "import importlib.abc, runpy, sys\n"
        "class Without(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {without!r}: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Without())\n"
        "runpy.run_module('rlbatch.doctor', run_name='__main__')\n"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=250)


def test_this_machine_is_fine() -> None:
    result = run()
    assert result.returncode == 0, result.stdout + result.stderr
    for name in ("Atari library  ok", "Atari ROMs     ok", "PyTorch        ok"):
        assert name in result.stdout
    assert ("GPU            ok" in result.stdout) == torch.cuda.is_available()


def test_it_names_what_is_missing_and_the_remedy() -> None:
    result = run(without="cupy")
    assert "pip install 'rlbatch[cuda13]'" in result.stdout
    assert result.returncode == int(torch.cuda.is_available())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_a_driver_that_is_too_old_for_the_kernels(monkeypatch, capsys) -> None:
    """PyTorch may have a GPU, as its CUDA is older, where kernels do not start."""
    pytest.importorskip("cupy")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "H100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    assert doctor.main() == 1
    printed = capsys.readouterr().out
    assert "GPU compiler   ok" in printed
    assert "GPU kernels    MISSING  AtariEnv on CUDA: expected kernels that start" in printed
    assert "-> pip install 'rlbatch[cuda13]'" in printed


def complaint(capsys) -> str:
    """Returns what the doctor prints where something is missing."""
    load_library.cache_clear()
    try:
        assert doctor.main() == 1
    finally:
        load_library.cache_clear()
    return capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_no_missing_compiler(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(build, "packaged_library", lambda: None)
    printed = complaint(capsys)
    assert "Atari library  MISSING" in printed
    assert "-> export XDG_CACHE_HOME=" in printed
    assert "g++" not in printed


def test_a_machine_without_roms_and_compiler(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("rlbatch.envs.atari.roms.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(build, "packaged_library", lambda: None)
    monkeypatch.setattr(build, "compile_cubin", lambda flags: b"")
    printed = complaint(capsys)
    assert "Atari library  MISSING" in printed
    assert "apt install g++" in printed
    assert "Atari ROMs     MISSING" in printed
    assert "pip install 'rlbatch[atari]'" in printed


@pytest.mark.parametrize("is_there", [False, True])
def test_what_a_gpu_needs_is_missing_only_where_there_is_one(monkeypatch, is_there) -> None:
    def missing() -> None:
        raise build.BuildError("no CuPy")

    monkeypatch.setattr(build, "import_cupy", missing)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_there)
    assert doctor.check_cupy().is_fine is (False if is_there else None)


@pytest.mark.parametrize("is_fine", [False, None])
def test_what_is_not_there_comes_with_its_remedy(is_fine) -> None:
    assert "-> mend it" in doctor._paragraph("GPU", doctor.Finding(is_fine, "none", "mend it"))
