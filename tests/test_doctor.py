"""`python -m rlbatch.doctor`: in a process of its own, on this machine and on poorer ones."""

import contextlib
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from rlbatch import doctor
from rlbatch.devices import as_device
from rlbatch.envs.atari import build, device_code
from rlbatch.envs.atari.native_library import load_library
from rlbatch.envs.atari.roms import rom_folder

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


def test_what_it_is_not_asked_is_an_error() -> None:
    command = [sys.executable, "-m", "rlbatch.doctor", "--cuda"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert (result.returncode, result.stdout) == (2, "")
    assert "rlbatch.doctor: error: unrecognized arguments: --cuda" in result.stderr


def test_it_names_what_is_missing_and_the_remedy() -> None:
    result = run(without="cupy")
    assert "pip install 'rlbatch[cuda13]'" in result.stdout
    assert result.returncode == int(torch.cuda.is_available())


@pytest.fixture
def have_gpus(monkeypatch) -> Callable[..., None]:
    """Lets PyTorch tell of GPUs with these compute capabilities."""

    def have(*able: tuple[int, int]) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(able))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(able))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"GPU {as_device(i).index}")
        capability = lambda i: able[as_device(i).index]  # noqa: E731
        monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
        monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)

    return have


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_a_driver_that_is_too_old_for_the_kernels(have_gpus, capsys) -> None:
    """PyTorch may have a GPU, as its CUDA is older, where kernels do not start."""
    pytest.importorskip("cupy")
    have_gpus((9, 0))
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
    monkeypatch.setattr(device_code, "compile_cubin", lambda flags: b"")
    printed = complaint(capsys)
    assert "Atari library  MISSING" in printed
    assert "apt install g++" in printed
    assert "Atari ROMs     MISSING" in printed
    assert "pip install 'rlbatch[atari]'" in printed


@pytest.mark.parametrize("is_there", [False, True])
def test_what_a_gpu_needs_is_missing_only_where_there_is_one(
    monkeypatch, have_gpus, is_there
) -> None:
    def missing() -> None:
        raise build.BuildError("no CuPy")

    monkeypatch.setattr(device_code, "import_cupy", missing)
    have_gpus(*[(9, 0)] * is_there)
    assert doctor.check_cupy().is_fine is (False if is_there else None)


@pytest.mark.parametrize("is_fine", [False, None])
def test_what_is_not_there_comes_with_its_remedy(is_fine) -> None:
    assert "-> mend it" in doctor._paragraph("GPU", doctor.Finding(is_fine, "none", "mend it"))


def test_the_first_lines_of_a_long_message_are_shown() -> None:
    lines = [f"line {number}" for number in range(20)]
    printed = doctor._paragraph("GPU", doctor.Finding(False, "\n".join(lines), "mend it"))
    first, *more = printed.splitlines()
    assert first == "GPU            MISSING  line 0"
    assert [line.strip() for line in more] == [*lines[1:12], "-> mend it"]
    assert doctor._paragraph("GPU", doctor.Finding(None, "")).split() == ["GPU", "-"]


def test_what_is_not_installed_is_no_extra(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_version", {"pillow": "12.0"}.get)
    assert doctor.check_extras().found == "pillow 12.0"
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    assert doctor.check_extras() == (True, "none", "")
    assert doctor.check_python().found.endswith("rlbatch of a folder, not installed")


def test_roms_that_are_not_there_or_not_what_they_should_be(monkeypatch, tmp_path) -> None:
    roms = rom_folder()
    for module in ("rlbatch.envs.atari.roms", "rlbatch.doctor"):
        monkeypatch.setattr(f"{module}.rom_folder", lambda: tmp_path)
    finding = doctor.check_roms()
    assert finding.is_fine is False
    assert finding.found.startswith(
        f"0 of 104 in {tmp_path}; {tmp_path}/adventure.bin: expected a ROM"
    )
    for path in roms.glob("*.bin"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "pong.bin").write_bytes(bytes(2048))
    finding = doctor.check_roms()
    assert finding.is_fine is False
    assert finding.found.startswith(f"103 of 104 in {tmp_path}; {tmp_path}/pong.bin: expected pong")


VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Apr  1 00:00:00 2025\n"


@pytest.mark.parametrize(
    ("driver", "cuda", "is_fine", "found"),
    [
        ("", None, None, "none, or no driver for it"),
        ("", "13.0", None, "none, or no driver for it"),
        (VERSION, None, False, "driver 580.159.04, but this PyTorch is for the CPU"),
        (VERSION, "13.0", False, "driver 580.159.04, but PyTorch finds no GPU"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(monkeypatch, tmp_path, driver, cuda, is_fine, found) -> None:
    if driver:
        (tmp_path / "version").write_text(driver)
    monkeypatch.setattr(doctor, "_DRIVER_FILE", tmp_path / "version")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    finding = doctor.check_driver()
    assert finding.is_fine is is_fine
    assert finding.found.startswith(found)
    assert finding.remedy
    if cuda:  # One that is hidden is not missed.
        for hides in ("", "-1"):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hides)
            assert doctor.check_driver().is_fine is None


@pytest.mark.parametrize(
    ("able", "is_fine"),
    [([(9, 0), (7, 5)], True), ([(7, 0), (7, 5)], True), ([(7, 0), (6, 1)], False)],
)
def test_gpus_are_told_with_what_they_can_do(
    monkeypatch, tmp_path, have_gpus, able, is_fine
) -> None:
    (tmp_path / "version").write_text(VERSION)
    monkeypatch.setattr(doctor, "_DRIVER_FILE", tmp_path / "version")
    have_gpus(*able)
    finding = doctor.check_driver()
    assert finding.found == (
        f"GPU 0, compute capability {able[0][0]}.{able[0][1]}; "
        f"GPU 1, compute capability {able[1][0]}.{able[1][1]}; driver 580.159.04"
    )
    assert finding.is_fine is is_fine
    assert "7.5" in finding.remedy


def test_one_gpu_that_is_new_enough_is_the_one_that_is_tried(monkeypatch, have_gpus) -> None:
    pytest.importorskip("cupy")
    have_gpus((6, 1), (9, 0))
    tried = []
    monkeypatch.setattr(device_code, "device_kernels", lambda games, device: tried.append(device))
    assert doctor.check_compiler().found.startswith("sm_90: ")
    finding = doctor.check_kernels()
    assert finding.is_fine
    assert finding.found == "they start on cuda:1, GPU 1"
    assert tried == [torch.device("cuda:1")]


def test_a_gpu_that_is_full_is_a_finding(monkeypatch, have_gpus) -> None:
    def full(games, device) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    have_gpus((9, 0))
    monkeypatch.setattr(device_code, "device_kernels", full)
    finding = doctor.check_kernels()
    assert finding.is_fine is False
    assert finding.found == "OutOfMemoryError: CUDA out of memory"
    assert "nvidia-smi" in finding.remedy


def test_a_gpu_that_is_too_old_lacks_nothing_else(monkeypatch, have_gpus, capsys) -> None:
    def missing() -> None:
        raise build.BuildError("no CuPy")

    monkeypatch.setattr(device_code, "import_cupy", missing)
    have_gpus((7, 0))
    assert doctor.main() == 1
    printed = capsys.readouterr().out
    assert printed.count("MISSING") == 1
    assert "GPU            MISSING  GPU 0, compute capability 7.0" in printed


def test_a_compiler_that_does_not_know_the_gpu(have_gpus) -> None:
    pytest.importorskip("cupy")
    have_gpus((99, 0))
    for check in (doctor.check_compiler, doctor.check_kernels):
        finding = check()
        assert finding.is_fine is False
        assert "compute capability 99.0" in finding.found
        assert finding.remedy.startswith("pip install -U nvidia-cuda-nvrtc")


def test_headers_are_found_and_need_not_be_there(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor, "_CUDA_FOLDER", str(tmp_path / "none"))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    finding = doctor.check_headers()
    assert finding.is_fine is None
    assert "pip install 'rlbatch[cuda13]'" in finding.remedy
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_runtime.h").touch()
    assert doctor.check_headers() == (True, str(tmp_path / "include"), "")


def test_headers_of_nvidias_packages_are_found(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(doctor, "_CUDA_FOLDER", str(tmp_path / "none"))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    include = tmp_path / "nvidia" / "cu13" / "include"
    include.mkdir(parents=True)
    (include / "cuda_runtime.h").touch()
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert doctor.check_headers() == (True, str(include), "")


def test_a_library_that_does_not_load_is_no_missing_compiler(monkeypatch, tmp_path) -> None:
    def fails() -> None:
        raise build.BuildError("file too short")

    monkeypatch.setattr(doctor, "load_library", fails)
    monkeypatch.delenv(build.LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(build, "host_library", lambda: tmp_path / "library.so")
    assert doctor.check_library().remedy.startswith(f"rm {tmp_path / 'library.so'}")
    monkeypatch.setattr(build, "host_library", lambda: build.NATIVE / "library.so")
    assert doctor.check_library().remedy == "pip install --force-reinstall rlbatch"
    monkeypatch.setenv(build.LIBRARY_VARIABLE, "mine.so")
    assert doctor.check_library().remedy == "unset RLBATCH_ATARI_LIBRARY"
