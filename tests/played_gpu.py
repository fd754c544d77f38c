"""GPUs that the CPU plays: tensors that say they are on `cuda:0`, on a machine without one.

Their data is in the host's memory. Operators that mix devices fail as they do with CUDA, and it is
noted what crosses between host and GPU, or makes the host wait, and which GPUs are used. The first
one is always current. Gradients are not played.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import subprocess
import tempfile
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from rlbatch.envs.atari import build, device_code
from rlbatch.envs.atari.games import Game

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")

_COPIES = ("aten._to_copy.", "aten.copy_.", "aten._foreach_copy_.")
_INDEXES = ("aten.index.", "aten.index_put", "aten._index_put")
_WAITS = (
    *("aten._local_scalar_dense.", "aten.nonzero", "aten.equal.", "aten.masked_select."),
    *("aten._unique", "aten.unique_", "aten.bincount.", "aten.allclose."),
)


class PlayedTensor(torch.Tensor):
    """A tensor on a played GPU, around one on the CPU: `on_host`."""

    on_host: torch.Tensor

    @staticmethod
    def __new__(
        cls, on_host: torch.Tensor, requires_grad: bool = False, device: torch.device = GPU
    ) -> PlayedTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            on_host.size(),
            strides=on_host.stride(),
            storage_offset=on_host.storage_offset(),
            dtype=on_host.dtype,
            device=device,
            requires_grad=requires_grad,
        )
        made.on_host = on_host
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError(f"{func}: expected a GPU that is played, got a test that has ended")

    def __repr__(self, **_: Any) -> str:
        return f"{self.on_host!r} on the played {self.device}"

    # What PyTorch does below its operators, where it is not seen.

    def data_ptr(self) -> int:
        return self.on_host.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.on_host.untyped_storage()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def record_stream(self, stream: Any) -> None:
        self.used_on = [*getattr(self, "used_on", []), stream]

    def __getitem__(self, index: Any) -> torch.Tensor:
        return super().__getitem__(_on_gpu(index, self.device))

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            value = torch.tensor(value, dtype=self.dtype)
        super().__setitem__(_on_gpu(index, self.device), value)


def _on_gpu(index: Any, gpu: torch.device) -> Any:
    """Returns an index with its lists and tensors on the GPU, where PyTorch copies them."""
    if isinstance(index, tuple):
        return tuple(_on_gpu(part, gpu) for part in index)
    is_elsewhere = isinstance(index, torch.Tensor) and index.dim() and index.is_cpu
    if isinstance(index, list):
        return torch.tensor(index, dtype=None if index else torch.int64).to(gpu)
    return index.to(gpu) if is_elsewhere else index


class PlayedStream:
    """A stream of a played GPU, which does everything at once, and tells what it is asked for."""

    def __init__(self, gpu: PlayedGPU):
        self._gpu = gpu

    def wait_stream(self, other: PlayedStream) -> None:
        self._gpu.launches.append(("wait_stream", self, other))

    def synchronize(self) -> None:
        """Notes that the host waits for it."""
        self._gpu.cross("synchronize")


class PlayedKernels:
    """Kernels of a played GPU, started on its current stream."""

    def __init__(self, gpu: PlayedGPU, game: Game):
        self._gpu, self._kernels = gpu, device_code.grid_kernels(game)
        self.sizes = self._kernels.sizes

    def launch(self, name: str, *arguments: Any) -> None:
        self._gpu.launches.append((name, self._gpu.stream))
        self._kernels.launch(name, *arguments)


class _Created(TorchFunctionMode):
    """Creates tensors from data on the host, and moves them to the GPU, as PyTorch does inside."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


class PlayedGPU(TorchDispatchMode):
    """Runs operators on played tensors, while it is entered.

    Attributes:
        crossings: What has crossed between host and GPU, or from one GPU to another, or made the
            host wait; a line each.
        most_bytes: Of a tensor that has crossed.
        used: The GPUs on which there were tensors or kernels, or that were asked for streams.
        launches: The kernels that were started, and on which stream, in turn with streams that were
            told to wait for others.
        stream: The current one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.crossings: list[str] = []
        self.most_bytes = 0
        self.used: set[torch.device] = set()
        self.launches: list[tuple] = []
        self.stream = PlayedStream(self)  # Of all GPUs, which `used` tells apart.
        self._is_alone = False

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Makes everything raise that crosses between host and GPU, or makes the host wait."""
        self._is_alone = True
        try:
            yield
        finally:
            self._is_alone = False

    @contextlib.contextmanager
    def on(self, stream: PlayedStream) -> Iterator[None]:
        """Makes a stream the current one."""
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def use(self, device: Any = "cuda") -> None:
        """Notes that a GPU is used."""
        self.used.add(_indexed(torch.device(device)))

    def current_stream(self, device: Any = "cuda") -> PlayedStream:
        """Returns the current stream, and notes of which GPU."""
        self.use(device)
        return self.stream

    def new_stream(self, device: Any = "cuda") -> PlayedStream:
        """Returns another stream, and notes of which GPU."""
        self.use(device)
        return PlayedStream(self)

    def synchronize(self, device: Any = "cuda") -> None:
        """Notes that the host waits for a GPU."""
        self.use(device)
        self.cross("synchronize")

    def kernels(self, games: Sequence[Game], device: torch.device) -> list[PlayedKernels]:
        """Returns the kernels of games, as `device_kernels` does."""
        self.used.add(device)
        return [PlayedKernels(self, game) for game in games]

    def cross(self, what: str) -> None:
        """Notes that something crosses or waits, or raises; see `alone`."""
        if self._is_alone:
            raise AssertionError(f"expected a GPU that is left alone, got {what}")
        self.crossings.append(what)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch would import its compiler, and ask it about every operator."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), str(func)
        device = kwargs.get("device")
        if PlayedTensor not in types and not _is_gpu(device):
            return func(*args, **kwargs)
        if name.startswith(_COPIES):
            place = self._copies(name, args, device)
        else:
            place = self._computes(name, args, kwargs) or _indexed(device or CPU)
        if _is_gpu(device):
            kwargs["device"] = CPU
        on_host = pytree.tree_map_only(PlayedTensor, lambda one: one.on_host, (args, kwargs))
        found = func(*on_host[0], **on_host[1])
        if place == CPU:
            return found
        self.used.add(place)
        make = functools.partial(PlayedTensor, device=place)
        played = pytree.tree_map_only(torch.Tensor, make, found)
        return return_and_correct_aliasing(func, args, kwargs, played)

    def _copies(
        self, name: str, args: tuple[Any, ...], device: torch.device | None
    ) -> torch.device:
        """Notes a copy from one device to another; returns where the copy is."""
        if name.startswith("aten._to_copy."):
            source = args[0].device
            pairs = [(source if device is None else _indexed(device), args[0])]
        else:
            targets, sources = (pytree.tree_leaves(one) for one in args[:2])
            pairs = [
                (target.device, source) for target, source in zip(targets, sources, strict=True)
            ]
        for to, source in pairs:
            if to != source.device:
                where = "host" if to == CPU else "GPU" if source.device == CPU else "other GPU"
                self.most_bytes = max(self.most_bytes, source.nbytes)
                self.cross(f"{name}, to the {where}")
        return pairs[0][0]

    def _computes(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.device | None:
        """Notes an operator for which the host waits; returns the GPU it runs on, if one does.

        Raises:
            RuntimeError: Its tensors are on other devices as well.
        """
        tensors = _tensors((args, kwargs))
        gpu = next((one.device for one in tensors if isinstance(one, PlayedTensor)), None)
        if gpu is None:
            return None
        # A number on the CPU is handed over with the call.
        elsewhere = [one for one in tensors if one.device != gpu and (one.dim() or one.is_cuda)]
        if elsewhere:
            raise RuntimeError(f"{name}: expected tensors on {gpu} alone, got {elsewhere}")
        if _waits(name, args, kwargs):
            self.cross(f"{name}, which waits")
        return gpu


def _waits(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether the answer, or the shape of it, depends on what a tensor holds."""
    if name.startswith(_WAITS):
        return True
    if name.startswith("aten.repeat_interleave."):
        return kwargs.get("output_size") is None
    is_mask = name.startswith(_INDEXES) and any(
        one.dtype == torch.bool for one in _tensors(args[1])
    )
    # Where a number is written, the mask is not looked at.
    is_filled = name.startswith(_INDEXES[1:]) and not isinstance(args[2], PlayedTensor)
    return is_mask and not is_filled


def _is_gpu(device: torch.device | None) -> bool:
    return device is not None and device.type == GPU.type


def _indexed(device: torch.device) -> torch.device:
    """Returns a device with its number; without one it is the current one."""
    return GPU if _is_gpu(device) and device.index is None else device


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in pytree.tree_leaves(values) if isinstance(one, torch.Tensor)]


def play_gpu(monkeypatch: pytest.MonkeyPatch, n_gpus: int = 1) -> Iterator[PlayedGPU]:
    """Plays GPUs, at most two, in a test; their Atari kernels are those of `native/grid.h`."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, which is not to be played")
    _register_guard()
    gpu = PlayedGPU()
    properties = types.SimpleNamespace(
        multi_processor_count=1, major=9, minor=0, shared_memory_per_multiprocessor=228 * 1024
    )
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "current_stream", gpu.current_stream)
    monkeypatch.setattr(torch.cuda, "Stream", gpu.new_stream)
    monkeypatch.setattr(torch.cuda, "stream", gpu.on)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    monkeypatch.setattr(device_code, "device_kernels", gpu.kernels)
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # Weights change their class.
    try:
        with gpu, _Created():
            yield gpu
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)


@functools.cache
def _register_guard() -> None:
    """Compiles and loads `played_gpu.cpp`."""
    installed = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "played_gpu.so"
        flags = ["-std=c++20", "-shared", "-fPIC", f"-I{installed / 'include'}"]
        flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
        source = Path(__file__).with_suffix(".cpp")
        linked = [f"-L{installed / 'lib'}", "-lc10", "-o", library]
        subprocess.run([*build.find_compiler(), *flags, source, *linked], check=True)
        ctypes.CDLL(str(library))
