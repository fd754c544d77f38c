"""The native code for GPUs: `native/device.cu` compiled into kernels, and how they are started.

Kernels are compiled for one cartridge each, on first use, by NVRTC, which comes with CuPy, and kept
in the cache folder. No other module imports CuPy. For tests without a GPU the host's compiler makes
a library of the same source, in which the CPU plays the grid of a GPU.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import functools
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from rlbatch.envs.atari.build import (
    LIBRARY_NAME,
    NATIVE,
    BuildError,
    appearing,
    cache_folder,
    cache_key,
    compile_library,
    digest_of,
    find_compiler,
    made_once,
    usable_cores,
)
from rlbatch.envs.atari.games import CARTS, Game
from rlbatch.envs.atari.program import PROGRAM_CARTS, program_macros
from rlbatch.envs.atari.roms import read_rom

_KERNEL_SOURCE = NATIVE / "device.cu"

# What `rlb_sizes` in `native/device.cu` tells.
SIZES = (
    *("State", "Generators", "Mt19937", "Episode", "Pictures", "View", "Log", "Image"),
    *("KernelBatch", "Resize", "NearMemory", "NearRAM"),
    *("ram_at", "head_at", "bytes_at"),  # Where they begin, in a `State` and in `Pictures`.
)
_KERNELS = ("rlb_step", "rlb_observe", "rlb_save", "rlb_restore", "rlb_sizes")

# The last one for what bears no mark in `native/`: constructors, operators, lambdas.
CUDA_FLAGS = ("--std=c++17", "--fmad=false", "--device-as-default-execution-space")
_EXTRA = "pip install 'rlbatch[cuda13]' (or cuda12, for an older driver)"
OLDEST_GPU = 7, 5  # Turing. CUDA 13 has no code for older ones, and none has been tried.
NEWER_NVRTC = "pip install -U nvidia-cuda-nvrtc (or nvidia-cuda-nvrtc-cu12, for an older driver)"

# Xavier, Orin and Thor, as far as they share a generation with other GPUs.
_TEGRA = (72, 87, 101)

# At once; each takes about 300 MB.
_MOST_COMPILERS = 16

# The CPU plays the grid of a GPU: the kernels' tests on a machine without one.
GRID_VARIABLE = "RLBATCH_ATARI_GRID"
_GRID_FLAGS = ("-DRLB_GRID", "-O1", "-x", "c++")

_IMPORTING = threading.Lock()


class ArchitectureError(BuildError):
    """A GPU is too old, or the compiler knows no code for it; the message says what is needed."""


class Kernels(Protocol):
    """Compiled kernels for one game.

    Attributes:
        sizes: Bytes of what they work on, by the names in `SIZES`.
    """

    sizes: dict[str, int]

    def launch(
        self, name: str, n_blocks: int, n_threads: int, n_shared: int, *arguments: np.generic
    ) -> None:
        """Starts a kernel, with so many bytes of shared memory per block."""


def plays_grid() -> bool:
    """Returns whether the CPU is to play a GPU: RLBATCH_ATARI_GRID=1."""
    return os.environ.get(GRID_VARIABLE) == "1"


def device_kernels(games: Sequence[Game], device: torch.device) -> list[Kernels]:
    """Returns the kernels of games for a device, compiled first where that is necessary.

    Raises:
        BuildError: CuPy, NVRTC or the device is missing, or the compiler fails.
    """
    if device.type == "cpu":
        return [grid_kernels(game) for game in games]
    return [_cuda_kernels(defines(game), device) for game in games]


def _has_program(game: Game) -> bool:
    """Whether its program is compiled as well, for its resets; see `native/program.h`."""
    return game.reset_depends_on == "play" and game.cart in PROGRAM_CARTS and not game.runs_ram


def defines(game: Game) -> tuple[str, ...]:
    """Returns the compiler's options for the kernels of a game."""
    values: dict[str, Any] = {"CART": CARTS.index(game.cart), "RULE": game.rule}
    values["RUNS_RAM"] = int(game.runs_ram)
    if _has_program(game):
        values |= program_macros(read_rom(game), game.cart)
    return tuple(f"-DRLB_{name}={value}" for name, value in values.items())


def sizes_of(kernels: Kernels, device: torch.device) -> dict[str, int]:
    """Returns what kernels say of what they work on: bytes, by the names in `SIZES`."""
    out = torch.zeros(len(SIZES), dtype=torch.int32, device=device)
    kernels.launch("rlb_sizes", 1, 1, 0, np.uint64(out.data_ptr()))
    return dict(zip(SIZES, out.tolist(), strict=True))


class _Stream:
    """A CUDA stream in the form that CuPy takes."""

    def __init__(self, handle: int):
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """Returns the protocol's version and the stream."""
        return 0, self.handle


@contextlib.contextmanager
def _on(device: torch.device) -> Iterator[Any]:
    """Makes a GPU CuPy's current one; gives CuPy's object of it."""
    # PyTorch goes first, which goes back to another GPU only if that is in use. CuPy always does,
    # and takes memory there.
    with torch.cuda.device(device), import_cupy().cuda.Device(device.index) as current:
        yield current


class _CudaKernels:
    def __init__(self, path: Path, device: torch.device):
        cupy = import_cupy()
        self._device, self._cupy = device, cupy
        try:
            with _on(device) as current:
                current.use()  # A thread that has not used it yet may find no context otherwise.
                module = cupy.RawModule(path=str(path))
                self._functions = {name: module.get_function(name) for name in _KERNELS}
            self.sizes = sizes_of(self, device)
        except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
            raise BuildError(
                f"AtariEnv on CUDA: expected kernels that start on {device}, got {error}; {_EXTRA}"
            ) from error

    def launch(
        self, name: str, n_blocks: int, n_threads: int, n_shared: int, *arguments: np.generic
    ) -> None:
        stream = _Stream(torch.cuda.current_stream(self._device).cuda_stream)
        with _on(self._device), self._cupy.cuda.Stream.from_external(stream):
            self._functions[name]((n_blocks,), (n_threads,), arguments, shared_mem=n_shared)


@functools.cache
def _cuda_kernels(options: tuple[str, ...], device: torch.device) -> _CudaKernels:
    return _CudaKernels(cubin_path(options, architecture_of(device)), device)


def architecture_of(device: torch.device) -> str:
    """Returns the architecture to compile for, such as sm_90: the newest that runs on a GPU.

    Code runs on GPUs of the same generation that are newer; but that for Tegra systems runs on
    these alone. Source: NVIDIA, CUDA C++ Programming Guide 13.0, section "Binary Compatibility".

    Raises:
        ArchitectureError: The GPU is too old, or NVRTC is too old or too new for it.
        BuildError: CuPy or NVRTC is missing.
    """
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < OLDEST_GPU:
        raise ArchitectureError(
            f"AtariEnv on CUDA: expected a GPU of compute capability {_dotted(OLDEST_GPU)} or "
            f"newer, got {device}, of {_dotted((major, minor))}"
        )
    version, known = _nvrtc()
    own = 10 * major + minor
    able = [n for n in known if n // 10 == major and n <= own and (n == own or n not in _TEGRA)]
    if not able:
        raise ArchitectureError(
            f"AtariEnv on CUDA: expected an NVRTC that compiles for the compute capability "
            f"{_dotted((major, minor))} of {device}, got NVRTC {version}, which compiles for "
            f"{', '.join(_dotted(divmod(number, 10)) for number in known)}; "
            f"{NEWER_NVRTC}"
        )
    return f"sm_{max(able)}"


def _dotted(capability: tuple[int, int]) -> str:
    return "{}.{}".format(*capability)


def compile_kernels(games: Sequence[Game], device: torch.device) -> None:
    """Compiles the kernels of games, with all cores; what is in the cache is left as it is.

    Raises:
        BuildError: See `device_kernels`.
    """
    architecture = architecture_of(device)
    with concurrent.futures.ThreadPoolExecutor(min(usable_cores(), _MOST_COMPILERS)) as pool:
        made = [
            pool.submit(cubin_path, options, architecture)
            for options in dict.fromkeys(defines(game) for game in games)
        ]
        try:
            for one in made:
                one.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def kernel_attributes(game: Game, device: torch.device) -> dict[str, dict[str, int]]:
    """Returns registers, bytes of local memory and threads of a block at most, of each kernel.

    Raises:
        BuildError: See `device_kernels`.
    """
    kernels = _cuda_kernels(defines(game), device)
    names = ("num_regs", "local_size_bytes", "max_threads_per_block")
    with _on(device):
        return {
            kernel: {name: int(getattr(function, name)) for name in names}
            for kernel, function in kernels._functions.items()
        }


@functools.cache
def import_cupy() -> Any:
    """Returns the module `cupy`.

    Raises:
        BuildError: It is not installed, or does not work.
    """
    try:
        # The filters are the process's: threads that set them side by side leave the wrong ones.
        with _IMPORTING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # About a machine without a GPU, which can compile.
            import cupy  # noqa: PLC0415
    except Exception as error:
        raise BuildError(f"AtariEnv on CUDA: expected CuPy, got {error}; {_EXTRA}") from error
    if not hasattr(cupy.cuda.Stream, "from_external"):
        raise BuildError(
            f"AtariEnv on CUDA: expected CuPy 14 or newer, got {cupy.__version__}; {_EXTRA}"
        )
    return cupy


def _nvrtc() -> tuple[str, tuple[int, ...]]:
    """Returns the version of the compiler, and the architectures that it knows, such as 90.

    Raises:
        BuildError: CuPy or NVRTC is missing.
    """
    import_cupy()
    from cupy.cuda import nvrtc  # noqa: PLC0415

    try:
        version = ".".join(str(part) for part in nvrtc.getVersion())
        return version, tuple(nvrtc.getSupportedArchs())
    except Exception as error:
        raise BuildError(f"AtariEnv on CUDA: expected NVRTC, got {error}; {_EXTRA}") from error


def cubin_path(options: Sequence[str], architecture: str) -> Path:
    """Returns the file with the kernels for an architecture, such as sm_90; no GPU is needed.

    Raises:
        BuildError: CuPy or NVRTC is missing, or the compiler fails.
    """
    flags = (*CUDA_FLAGS, *options, f"--gpu-architecture={architecture}")
    version, _ = _nvrtc()
    key = digest_of(f"nvrtc {version}", *flags, source=_KERNEL_SOURCE)
    path = cache_folder() / f"rlbatch_atari-{key}.cubin"

    def make() -> None:
        code = compile_cubin(flags)
        with appearing(path) as name:
            Path(name).write_bytes(code)

    return made_once(path, f"Atari kernels for {architecture}", make)


def compile_cubin(flags: Sequence[str]) -> bytes:
    """Compiles `native/device.cu` with NVRTC; returns the code for one architecture.

    Raises:
        BuildError: The compiler fails; with what it says.
    """
    # In a thread of its own: NVRTC 12.0 to 12.4 leave theirs in the C locale, where Python takes
    # text files for ASCII.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(_compile_cubin, flags).result()


def _compile_cubin(flags: Sequence[str]) -> bytes:
    from cupy.cuda import nvrtc  # noqa: PLC0415

    program = nvrtc.createProgram(_KERNEL_SOURCE.read_text(), _KERNEL_SOURCE.name, [], [])
    try:
        nvrtc.compileProgram(program, [*flags, f"--include-path={NATIVE}"])
        # CuPy cuts the last byte off, as if it ended a text; the file is not whole without it.
        return nvrtc.getCUBIN(program) + b"\0"
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise BuildError(
            f"device.cu: expected code for a GPU, got {error}\n{log[:4000]}"
        ) from error
    finally:
        nvrtc.destroyProgram(program)


class _GridKernels:
    def __init__(self, path: Path):
        self._library = ctypes.CDLL(str(path))
        self.sizes = sizes_of(self, torch.device("cpu"))

    def launch(
        self, name: str, n_blocks: int, n_threads: int, n_shared: int, *arguments: np.generic
    ) -> None:
        shape = (ctypes.c_int32(number) for number in (n_blocks, n_threads, n_shared))
        types = {"uint64": ctypes.c_uint64, "int64": ctypes.c_int64, "int32": ctypes.c_int32}
        values = (types[value.dtype.name](value.item()) for value in arguments)
        getattr(self._library, name)(*shape, *values)


def grid_options(game: Game) -> tuple[str, ...]:
    """Returns the compiler's options for a game's kernels on the grid; none, mostly."""
    return defines(game) if _has_program(game) else ()


def grid_kernels(game: Game) -> Kernels:
    """Returns kernels of a game for a grid that the CPU plays, compiled first where necessary.

    One library is for all games, except for those whose program is compiled as well.
    """
    return _grid_kernels(grid_options(game))


@functools.cache
def _grid_kernels(options: tuple[str, ...]) -> _GridKernels:
    compiler, flags = find_compiler(), (*_GRID_FLAGS, *options)
    key = cache_key([*compiler, *flags], _KERNEL_SOURCE)
    path = cache_folder() / f"{LIBRARY_NAME}-grid-{key}.so"
    make = functools.partial(compile_library, path, compiler, flags, _KERNEL_SOURCE)
    return _GridKernels(made_once(path, "Atari kernels for the processor", make))
