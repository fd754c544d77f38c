"""What travels to a worker process, and what a script has there.

NOTE [ a script in a worker ]

A worker does not run the caller's script; what it needs of it is pickled by value. The same goes
for modules that the worker would not find: pytest's `--import-mode=importlib`, for one, loads
files that are on no search path. But code that runs in the worker may look for a class or a
function of these by name, as `pickle` and `torch.save` do. So those that arrive are given their
names there as well.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import io
import itertools
import marshal
import mmap
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch.nn.utils import parametrize

SCRIPT = ("__main__", "__mp_main__")  # The latter in a child that multiprocessing has spawned.

ScriptNames = dict[tuple[str, str], Any]  # By module and name.


def dumps(value: Any, device: torch.device) -> bytes:
    """Pickles by value; a CUDA tensor travels through the CPU and arrives on `device`."""
    buffer = io.BytesIO()
    with contextlib.ExitStack() as afterwards:
        pickler = _Pickler(buffer, device, afterwards)
        pickler.dump(value)
        if pickler.of_script:  # The same objects as before: only their names are added.
            pickler.dump(pickler.of_script)
    return buffer.getvalue()


def loads(payload: bytes | mmap.mmap) -> Any:
    """Returns what `dumps` or `pickle.dumps` has pickled; see NOTE [ a script in a worker ]."""
    buffer = io.BytesIO(payload) if isinstance(payload, bytes) else payload
    unpickler = pickle.Unpickler(buffer)
    value = unpickler.load()
    if buffer.tell() < len(payload):
        name_in_script(unpickler.load())
    return value


def name_in_script(named: ScriptNames) -> None:
    """Makes classes and functions known by their names, in modules that need not exist."""
    for (module, name), value in named.items():
        _import_packages_of(module)
        setattr(sys.modules.setdefault(module, types.ModuleType(module)), name, value)


def _import_packages_of(module: str) -> None:
    """Imports what a module is in, or makes it: `pickle` looks for that too."""
    *packages, _ = _with_packages(module)
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError:
            sys.modules[package] = types.ModuleType(package)


def _with_packages(module: str) -> Iterator[str]:
    """Yields `a`, `a.b` and `a.b.c` of `a.b.c`."""
    return itertools.accumulate(module.split("."), "{}.{}".format)


class _Pickler(cloudpickle.Pickler):
    """Pickles tensors as the bytes that they show, several times as fast as PyTorch does.

    CUDA tensors open no context, in the child, on the device that they are on here.

    Attributes:
        of_script: Classes and functions that it has come across, of the script and of modules
            that are sent along like it.
    """

    def __init__(self, buffer: io.BytesIO, device: torch.device, afterwards: contextlib.ExitStack):
        super().__init__(buffer)
        self._device, self._afterwards = device, afterwards
        self._search_path = tuple(search_path())
        self.of_script: ScriptNames = {}

    def reducer_override(self, value: Any) -> Any:
        if type(value) is types.CodeType:
            # cloudpickle forgets the file, which tracebacks show. The child has this interpreter.
            with contextlib.suppress(ValueError):
                return marshal.loads, (marshal.dumps(value),)
        if type(value) is torch.Tensor:
            return self._reduced(value)
        if isinstance(value, Connection):  # Else the number of its file goes, which is another's.
            raise TypeError("its pipe is open here only; send an address, for a Client to connect")
        if type(value) is functools.cached_property:  # Until Python 3.12 it holds a lock.
            return _property, (value.func, value.attrname)
        if isinstance(value, torch.nn.Module) and parametrize.is_parametrized(value):
            # PyTorch refuses, for the sake of files that other versions of it read.
            return object.__new__, (type(value),), vars(value)
        if isinstance(value, (type, types.FunctionType, functools._lru_cache_wrapper)):
            self._note(value)
        if isinstance(value, functools._lru_cache_wrapper) and value.__module__ in SCRIPT:
            return _cached, (value.__wrapped__, value.cache_parameters())
        if isinstance(value, types.ModuleType) and type(value) is not types.ModuleType:
            # Such as torch.backends.cudnn, which cloudpickle does not take for a module.
            names = [name for name, one in sys.modules.items() if one is value]
            if names:
                return importlib.import_module, (names[0],)
        return super().reducer_override(value)

    def _reduced(self, tensor: torch.Tensor) -> Any:
        if tensor.is_cuda:
            return _arrive, (tensor.detach().cpu(), self._device, tensor.requires_grad)
        if _is_plain(tensor):
            content = tensor.detach().reshape(-1).view(torch.uint8).numpy()
            return _rebuilt, (content, tensor.dtype, tensor.shape, tensor.requires_grad)
        if _has_no_pickle(tensor):
            numbers = tensor.detach().view(_INTEGERS[tensor.dtype.itemsize])
            return _as_dtype, (numbers, tensor.dtype, tensor.requires_grad)
        return NotImplemented  # As PyTorch does it.

    def _note(self, value: Any) -> None:
        name = (value.__module__, value.__qualname__)
        module = sys.modules.get(name[0])
        if module is None or not (name[0] in SCRIPT or self._is_sent_along(module)):
            return
        if getattr(module, name[1], None) is value:
            self.of_script[name] = value

    def _is_sent_along(self, module: types.ModuleType) -> bool:
        if _is_found(module, self._search_path):
            return False
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            self._afterwards.callback(_by_name_again, module)
        return True


def search_path() -> list[str]:
    """Returns where `import` looks for modules, wherever the current folder is afterwards."""
    return [_absolute(entry) for entry in sys.path if isinstance(entry, str)]  # As `import` does.


def _absolute(entry: str) -> str:
    """Returns where a folder of the search path is; what is none, such as an archive, as it is."""
    if os.path.isabs(entry):
        return entry
    finder = sys.path_importer_cache.get(entry) if entry else None
    if isinstance(finder, importlib.machinery.FileFinder):
        return finder.path  # Where it was when a module was first looked for there.
    try:
        place = os.path.join(os.getcwd(), entry) if entry else os.getcwd()
    except FileNotFoundError:  # The current folder is gone.
        return entry
    return place if os.path.isdir(place) else entry


def _by_name_again(module: types.ModuleType) -> None:
    with contextlib.suppress(ValueError):  # Another thread has done so.
        cloudpickle.unregister_pickle_by_value(module)


@functools.cache
def _is_found(module: types.ModuleType, places: tuple[str, ...]) -> bool:
    """Returns whether a worker, which has this search path, can import the same module.

    What is installed is left to it, and so is what is in no file: another module has made it.
    """
    file = getattr(module, "__file__", None)
    if not (isinstance(file, str) and os.path.isfile(file)) or _is_installed(file):
        return True
    try:
        origin = _origin(module.__name__)
    except Exception:  # An import hook of somebody's that wants more than a name.
        return True
    if origin is None:
        return False
    return not os.path.isfile(origin) or os.path.samefile(origin, file)


def _is_installed(file: str) -> bool:
    prefixes = (sys.prefix, sys.base_prefix, os.path.dirname(__file__))
    return any(file.startswith(os.path.join(prefix, "")) for prefix in prefixes)


def _origin(name: str) -> str | None:
    """Returns where `import` would find a module, None where it would not.

    That it is imported here already does not count.
    """
    origin = places = None
    for part in _with_packages(name):
        finders = (finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next(filter(None, (find(part, places) for find in finders)), None)
        if spec is None:
            return None
        origin, places = spec.origin, spec.submodule_search_locations
    return origin


def _is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is no more than numbers, one behind the other, on a CPU."""
    return _is_dense(tensor) and tensor.is_contiguous() and not vars(tensor)


def _is_dense(tensor: torch.Tensor) -> bool:
    is_strided = tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested
    return is_strided and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _has_no_pickle(tensor: torch.Tensor) -> bool:
    """Returns whether PyTorch writes a tensor that it cannot read, for want of a storage class."""
    dtype = tensor.dtype
    is_new = dtype in (torch.uint16, torch.uint32, torch.uint64, torch.complex32)
    is_small = dtype.is_floating_point and dtype.itemsize == 1
    return (is_new or is_small) and _is_dense(tensor) and not vars(tensor)


def _rebuilt(
    content: np.ndarray, dtype: torch.dtype, shape: torch.Size, requires_grad: bool
) -> torch.Tensor:
    return torch.from_numpy(content).view(dtype).view(shape).requires_grad_(requires_grad)


def _as_dtype(numbers: torch.Tensor, dtype: torch.dtype, requires_grad: bool) -> torch.Tensor:
    return numbers.view(dtype).requires_grad_(requires_grad)


def _property(function: Callable, name: str | None) -> functools.cached_property:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _arrive(tensor: torch.Tensor, device: torch.device, requires_grad: bool) -> torch.Tensor:
    return tensor.to(device).requires_grad_(requires_grad)


def _cached(function: Callable, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)
