"""The kernels compile for GPUs, on a machine that need not have one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import importlib.metadata
import locale
import struct
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pytest
import torch

from rlbatch.envs.atari import GAMES, build, device_code, find_game
from scripts.elf import Elf

pytest.importorskip("cupy")

# Every architecture from Turing to Blackwell, and with the slow ones every kind of cartridge.
CASES = {
    "seaquest": "sm_75",  # 4K
    "ms_pacman": "sm_100",  # F8
    "solaris": "sm_90",  # F6
    "klax": "sm_86",  # F6SC
    "robotank": "sm_80",  # FE
    "pitfall2": "sm_120",  # DPC
}
SLOW = {
    "pong": "sm_86",  # 2K
    "elevator_action": "sm_120",  # F8SC
    "tutankham": "sm_75",  # E0
    "haunted_house": "sm_120",  # With its program.
}


def check_whole(content: bytes) -> None:
    assert content[:4] == b"\x7fELF"
    assert content[18:20] == (190).to_bytes(2, "little")  # NVIDIA CUDA
    segments, segment_size, n_segments = struct.unpack_from("<Q14xHH", content, 32)
    assert len(content) >= segments + segment_size * n_segments


def compiled(game: str, architecture: str) -> bytes:
    flags = (*device_code.CUDA_FLAGS, *device_code.defines(find_game(game)))
    return device_code.compile_cubin((*flags, f"--gpu-architecture={architecture}"))


@pytest.fixture(scope="module")
def cubins() -> dict[str, concurrent.futures.Future[bytes]]:
    """Code for every fast case, compiled in the background."""
    pool = concurrent.futures.ThreadPoolExecutor(2)
    return {game: pool.submit(compiled, game, name) for game, name in CASES.items()}


def test_the_cases_are_all_kinds() -> None:
    kinds = {find_game(game).cart for game in (*CASES, *SLOW)}
    assert kinds == {game.cart for game in GAMES.values()}


@pytest.mark.parametrize("game", CASES)
def test_kernels_compile(cubins: dict[str, concurrent.futures.Future[bytes]], game: str) -> None:
    check_kernels(cubins[game].result())


@pytest.mark.slow
@pytest.mark.parametrize("game", SLOW)
def test_kernels_of_the_other_kinds_compile(game: str) -> None:
    check_kernels(compiled(game, SLOW[game]))


def check_kernels(content: bytes) -> None:
    check_whole(content)
    code = Elf(content)
    for kernel in ("rlb_step", "rlb_observe", "rlb_save", "rlb_restore"):
        assert len(code.section(f".text.{kernel}")) > 1000
    exported = {symbol.name for symbol in code.symbols() if symbol.is_global}
    assert exported == set(device_code._KERNELS)
    # A driver keeps that much for every thread that a GPU can hold, 270,336 on an H100.
    assert 0 < code.frame_sizes()["rlb_step"] <= 2432


def oldest_nvrtc() -> ctypes.CDLL:
    files = importlib.metadata.files("nvidia-cuda-nvrtc-cu12") or []
    nvrtc = ctypes.CDLL(str(next(f.locate() for f in files if f.name == "libnvrtc.so.12")))
    version = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(*map(ctypes.byref, version))
    assert [number.value for number in version] == [12, 0]
    return nvrtc


def compile_with(nvrtc: ctypes.CDLL, source: bytes, flags: Sequence[str]) -> tuple[int, str]:
    """Returns the compiler's result, 0 where it took the source, and what it said."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"device.cu", 0, None, None)
    options = (ctypes.c_char_p * len(flags))(*map(str.encode, flags))
    result = nvrtc.nvrtcCompileProgram(program, len(flags), options)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return result, log.value.decode()


def test_the_oldest_compiler_makes_code_of_the_source_too() -> None:
    """Not PTX alone, which may call what the compiler has not got."""
    source = (build.NATIVE / "device.cu").read_bytes()
    flags = [*device_code.CUDA_FLAGS, *device_code.defines(find_game("pitfall2"))]
    flags += ["--gpu-architecture=sm_75", f"--include-path={build.NATIVE}"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # It changes its thread's locale.
        result, log = pool.submit(compile_with, oldest_nvrtc(), source, flags).result()
    assert result == 0, log


def test_a_compiler_that_changes_the_locale_changes_its_threads_alone(monkeypatch) -> None:
    """As NVRTC 12.0 does: in the C locale Python would take text files for ASCII from then on."""
    from cupy.cuda import nvrtc  # noqa: PLC0415

    before, inside = locale.getencoding(), []

    def compile_program(program: int, flags: Sequence[str]) -> None:
        compile_with(oldest_nvrtc(), b"__global__ void nothing() {}", [])
        inside.append(locale.getencoding())

    monkeypatch.setattr(nvrtc, "compileProgram", compile_program)
    monkeypatch.setattr(nvrtc, "getCUBIN", lambda program: b"code")
    assert device_code.compile_cubin(()) == b"code\0"
    assert inside == ["ANSI_X3.4-1968"]
    assert locale.getencoding() == before


def test_what_does_not_compile_is_an_error() -> None:
    flags = (
        *device_code.CUDA_FLAGS,
        "-DRLB_CART=1",
        "-DRLB_RULE=nonsense",
        "--gpu-architecture=sm_90",
    )
    with pytest.raises(build.BuildError, match="nonsense"):
        device_code.compile_cubin(flags)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_kernels_that_do_not_start_are_an_error(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)  # PyTorch's may be the CPU's.
    path = device_code.cubin_path(device_code.defines(find_game("pong")), "sm_90")
    with pytest.raises(build.BuildError, match=r"start on cuda:0, got .*; pip install 'rlbatch\["):
        device_code._CudaKernels(path, torch.device("cuda:0"))


def test_code_is_cached_by_all_that_it_depends_on(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []

    def compile_cubin(flags):
        made.append(flags)
        return b"code"

    monkeypatch.setattr(device_code, "compile_cubin", compile_cubin)
    pong, robotank = (device_code.defines(find_game(name)) for name in ("pong", "robotank"))
    paths = [
        device_code.cubin_path(pong, "sm_90"),
        device_code.cubin_path(pong, "sm_80"),
        device_code.cubin_path(robotank, "sm_90"),
    ]
    assert len(set(paths)) == len(made) == 3
    assert device_code.cubin_path(pong, "sm_90") == paths[0]
    assert len(made) == 3
    lines = [record.message for record in caplog.records]  # One for each that was compiled.
    assert [line.split(", once, to ")[1] for line in lines] == [str(path) for path in paths]
    assert lines[1].startswith("compiling Atari kernels for sm_80")
    assert [path.read_bytes() for path in paths] == [b"code"] * 3
    (tmp_path / "native").mkdir()
    for path in build.NATIVE.glob("*.*"):
        if path.suffix != ".so":
            (tmp_path / "native" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(device_code, "_KERNEL_SOURCE", tmp_path / "native" / "device.cu")
    assert device_code.cubin_path(pong, "sm_90") == paths[0]
    header = tmp_path / "native" / "riot.h"
    header.write_text(header.read_text() + "// More.\n")
    assert device_code.cubin_path(pong, "sm_90") not in paths


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [((7, 5), "sm_75"), ((9, 0), "sm_90"), ((8, 2), "sm_80"), ((12, 9), "sm_121")],
)
def test_a_gpu_that_the_compiler_does_not_know_gets_the_code_of_its_generation(
    monkeypatch, capability: tuple[int, int], architecture: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert device_code.architecture_of(torch.device("cuda:0")) == architecture


def test_only_tegra_systems_get_code_for_these(monkeypatch) -> None:
    monkeypatch.setattr(device_code, "_nvrtc", lambda: ("12.8", (75, 80, 87, 90, 100, 101, 120)))
    for capability, architecture in (((10, 3), "sm_100"), ((8, 7), "sm_87"), ((8, 9), "sm_80")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, it=capability: it)
        assert device_code.architecture_of(torch.device("cuda:0")) == architecture


def test_a_gpu_of_another_generation_is_named(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (99, 0))
    expected = r"capability 99\.0 of cuda:1, got NVRTC 13\.\d, .* 7\.5, 8\.0,"
    with pytest.raises(device_code.ArchitectureError, match=expected):
        device_code.architecture_of(torch.device("cuda:1"))


def test_a_gpu_that_is_too_old_is_refused_by_compilers_that_know_it_as_well(monkeypatch) -> None:
    monkeypatch.setattr(device_code, "_nvrtc", lambda: ("12.4", (61, 70, 75, 90)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 2))
    expected = r"expected a GPU of compute capability 7\.5 or newer, got cuda:1, of 7\.2"
    with pytest.raises(device_code.ArchitectureError, match=expected):
        device_code.architecture_of(torch.device("cuda:1"))


class RecordedCuPy:
    """What CuPy is asked for, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        runtime = types.SimpleNamespace(CUDARuntimeError=OSError)
        driver = types.SimpleNamespace(CUDADriverError=OSError)
        self.cuda = types.SimpleNamespace(
            Device=self.device, Stream=self, runtime=runtime, driver=driver
        )

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[types.SimpleNamespace]:
        self.calls.append(("on", index))
        yield types.SimpleNamespace(use=lambda: None)
        self.calls.append(("off", index))

    @contextlib.contextmanager
    def from_external(self, stream: device_code._Stream) -> Iterator[None]:
        self.calls.append(("stream", stream.__cuda_stream__()))
        yield
        self.calls.append(("off stream",))

    def RawModule(self, path: str) -> types.SimpleNamespace:  # noqa: N802 - CuPy's name
        return types.SimpleNamespace(get_function=lambda name: partial(self.launched, name))

    def launched(self, *given: object, **named: object) -> None:
        self.calls.append((*given, named))


def test_what_a_kernel_is_started_with(monkeypatch, tmp_path) -> None:
    """On its GPU and PyTorch's current stream there, with blocks, threads and shared memory."""
    cupy = RecordedCuPy()
    monkeypatch.setattr(device_code, "import_cupy", lambda: cupy)
    monkeypatch.setattr(device_code, "sizes_of", lambda kernels, device: {})
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    stream = lambda device: types.SimpleNamespace(cuda_stream=70 + device.index)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    kernels = device_code._CudaKernels(tmp_path, torch.device("cuda:1"))
    cupy.calls.clear()
    kernels.launch("rlb_step", 2, 128, 99, np.int32(3), np.uint64(4))
    assert cupy.calls == [
        ("on", 1),
        ("stream", (0, 71)),
        ("rlb_step", (2,), (128,), (3, 4), {"shared_mem": 99}),
        ("off stream",),
        ("off", 1),
    ]


def test_kernels_run_on_a_stream_of_pytorch() -> None:
    stream = device_code.import_cupy().cuda.Stream.from_external(device_code._Stream(4711))
    assert stream.ptr == 4711


def test_cupy_is_imported_by_many_threads_without_losing_warnings() -> None:
    code = """
import concurrent.futures, warnings
from rlbatch.envs.atari import build, device_code
before = list(warnings.filters)
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    list(pool.map(lambda _: device_code.import_cupy(), range(100)))
assert warnings.filters == before, warnings.filters
"""
    subprocess.run([sys.executable, "-c", code], check=True)
