"""Containers whose every row is different, and their content as plain Python."""

import math

import torch

from rlbatch.dicttensor import DictTensor, TemporalDictTensor, Trajectories

B, T = 4, 3
LENGTHS = [3, 1, 0, 2]
KINDS = [DictTensor, TemporalDictTensor, Trajectories]
NAMED = [DictTensor, TemporalDictTensor]
DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
]
# torch knows these on fewer devices and in fewer functions.
RARE_DTYPES = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]


def counted(shape, dtype=torch.float32, device="cpu", first=0):
    """Numbers that count up from `first`, in any dtype."""
    numbers = torch.arange(first, first + math.prod(shape)) % 100
    return numbers.reshape(shape).to(dtype).to(device)


def make(kind, device="cpu", n_elems=B, first=0, dtype=None):
    """A container with a different content in every row; of one dtype, or of several."""
    floats, bools, bytes_ = (dtype,) * 3 if dtype else (torch.float32, torch.bool, torch.uint8)
    lead = (n_elems,) if kind is DictTensor else (n_elems, T)
    if kind is Trajectories:
        info = DictTensor({"policy": counted((n_elems, 1), dtype or torch.int64, device, first)})
        return Trajectories(info, make(TemporalDictTensor, device, n_elems, first, dtype))
    variables = {
        "obs/frame": counted((*lead, 2, 2), bytes_, device, first),
        "obs/reward": counted(lead, floats, device, first),
        "done": counted(lead, bools, device, first),
    }
    if kind is DictTensor:
        return DictTensor(variables)
    return TemporalDictTensor(variables, torch.tensor(LENGTHS * n_elems, device=device)[:n_elems])


def named(container):
    """All tensors of a container by name, lengths and info included."""
    if isinstance(container, Trajectories):
        info = {f"info/{key}": tensor for key, tensor in container.info.items()}
        return {**info, **named(container.trajectories)}
    if isinstance(container, TemporalDictTensor):
        return {**container.variables, "lengths": container.lengths}
    return dict(container.variables) if isinstance(container, DictTensor) else {"": container}


def rows_in(container):
    """The content of a container, row by row, as plain Python."""
    tensors = {name: tensor.cpu() for name, tensor in named(container).items()}
    n_rows = {len(tensor) for tensor in tensors.values()}
    assert len(n_rows) == 1, n_rows
    return [
        {name: tensor[row].tolist() for name, tensor in tensors.items()}
        for row in range(n_rows.pop())
    ]


def address(tensor):
    """Where the bytes of a tensor begin, the same for all views of them."""
    return tensor.untyped_storage().data_ptr()
