"""Rows of tensors: which there are, and how they are taken, written and padded."""

from __future__ import annotations

import torch

from rlbatch._checks import check_device, check_same_rows, check_shape, check_tensors
from rlbatch.errors import DtypeMismatchError, ShapeError

# torch indexes these dtypes on few devices and in few layouts; the signed ones have the same bytes.
SIGNED = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2: torch.int8,
}


def rows_of(index: torch.Tensor | list[int], n_elems: int, device: torch.device) -> torch.Tensor:
    """Returns the numbers of the rows that an index names.

    Args:
        index: [N] of row numbers, or a bool mask [B].
        n_elems: B.
        device: Where the result is to be.

    Returns:
        [N] int64 (int32 where the index is), counted from the front.

    Raises:
        IndexError: There is no such row. Not checked for an index that is on the device.
        ShapeError: The index is not [N], or the mask not [B].
        DtypeMismatchError: The index holds neither integers nor bools.
    """
    if isinstance(index, torch.Tensor) and index.device == device:
        rows = index
    else:
        empty = isinstance(index, list) and not index  # Of which torch makes float32.
        place = None if isinstance(index, torch.Tensor) else "cpu"
        rows = torch.as_tensor(index, dtype=torch.int64 if empty else None, device=place)
        check_rows(rows, n_elems)
        rows = rows.to(device)
    if rows.dtype == torch.bool:
        check_shape("index", rows, (n_elems,))
        return rows.nonzero().squeeze(1)
    if rows.dtype not in (torch.int64, torch.int32):
        raise DtypeMismatchError(f"index: expected torch.int64 or torch.bool, got {rows.dtype}")
    if rows.dim() != 1:
        raise ShapeError(f"index: expected shape [N], got {tuple(rows.shape)}")
    return torch.add(rows, rows < 0, alpha=n_elems)  # B more where it counts from the end.


def check_rows(rows: torch.Tensor, n_elems: int) -> None:
    """Checks that there are such rows, of an index on the CPU.

    Raises:
        IndexError: There is none.
    """
    if _may_be_looked_at(rows) and rows.numel():
        for row in rows.aminmax():
            if not -n_elems <= int(row) < n_elems:
                raise IndexError(f"index: expected one of {n_elems} rows, got {int(row)}")


def check_different(rows: torch.Tensor, n_elems: int) -> None:
    """Checks that no row is there twice, of an index on the CPU.

    Raises:
        ValueError: One is.
    """
    if _may_be_looked_at(rows):
        in_order = (rows % max(n_elems, 1)).sort().values
        again = in_order[1:][in_order[1:] == in_order[:-1]]
        if len(again):
            raise ValueError(
                f"destination_indexes: expected all different, got row {int(again[0])} twice"
            )


def _may_be_looked_at(rows: torch.Tensor) -> bool:
    """Returns whether an index holds numbers, for which no GPU has to be waited."""
    return rows.dtype in (torch.int64, torch.int32) and rows.is_cpu


def take_rows(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns some of the rows (a copy); none of the numbers may be negative."""
    # index_select copies whole rows; tensor[rows] goes element by element, and is up to 30 times
    # as slow on the CPU where a row is an image.
    if tensor.dtype in SIGNED:
        return _signed(tensor).index_select(0, rows).view(tensor.dtype)
    return tensor.index_select(0, rows)


def take_places(tensor: torch.Tensor, places: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Returns a tensor at some places of its first dimensions (a copy)."""
    if tensor.dtype in SIGNED:
        return _signed(tensor)[places].view(tensor.dtype)
    return tensor[places]  # To view it, if only as what it is, would end its gradient.


def put_rows(tensor: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
    """Writes values [N, ...] into some of the rows; none of the numbers may be negative."""
    _signed(tensor).index_copy_(0, rows.long(), _signed(values))


def _signed(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same bytes in a dtype that PyTorch can index."""
    dtype = SIGNED.get(tensor.dtype)
    return tensor.view(dtype) if dtype else tensor


def masked_tensor(tensor0: torch.Tensor, tensor1: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Takes each row from `tensor1` where the mask is set, from `tensor0` elsewhere.

    Args:
        tensor0: [B, ...].
        tensor1: [B, ...], shape and dtype as `tensor0`.
        mask: [B], bool or a number; any value but 0 is set.

    Returns:
        [B, ...], a copy.

    Raises:
        ShapeError: The tensors differ in shape, or the mask is not [B].
        DtypeMismatchError: The dtypes differ; one would be cast silently.
        DeviceMismatchError: They are not all on one device.

    Example:
        >>> masked_tensor(torch.zeros(2, 2), torch.ones(2, 2), torch.tensor([True, False]))
        tensor([[1., 1.],
                [0., 0.]])
    """
    return masked_rows("tensor1", tensor0, tensor1, mask)


def masked_rows(
    where: str, tensor0: torch.Tensor, tensor1: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """`masked_tensor`, with errors that name `tensor1` in another way."""
    check_tensors({"tensor0": tensor0}, n_common=1)
    check_same_rows(where, tensor1, tensor0, n_common=0)
    check_shape("mask", mask, tensor0.shape[:1])
    check_device("mask", mask, tensor0.device)
    return torch.where(mask.bool().view(-1, *[1] * (tensor0.dim() - 1)), tensor1, tensor0)


def padded(tensor: torch.Tensor, n_timesteps: int) -> torch.Tensor:
    """Returns [B, T, ...] with zeros after its end, up to T: the same object if T it has."""
    missing = n_timesteps - tensor.shape[1]
    if not missing:
        return tensor
    return torch.cat([tensor, tensor.new_zeros(len(tensor), missing, *tensor.shape[2:])], dim=1)
