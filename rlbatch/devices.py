"""How a device is named: as PyTorch's object, by a string, or by the index of a CUDA device."""

from __future__ import annotations

import torch

DeviceLike = torch.device | str | int


def as_device(device: DeviceLike, name: str = "device") -> torch.device:
    """Returns the device with its index, so that two names of one device compare equal.

    Args:
        device: A `torch.device`, its name, or the index of a CUDA device.
        name: Of the argument, for the message.

    Returns:
        The same device; `cuda` without an index becomes the current one (`cuda:0` at start).

    Raises:
        ValueError: `device` does not name a device.

    Example:
        >>> as_device("cpu")
        device(type='cpu')
    """
    try:
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name}: expected a device such as cuda:0, got {device!r}") from error
    if device.type == "cuda" and device.index is None:
        # torch.cuda.current_device() would open a context; before there is one, it is 0.
        index = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
        return torch.device("cuda", index)
    return torch.device("cpu") if device.type == "cpu" else device  # Without an index.


def as_present_device(device: DeviceLike, name: str = "device") -> torch.device:
    """Returns the device like `as_device`, if it is there.

    Raises:
        ValueError: `device` does not name a device, or this machine does not have it.

    Example:
        >>> as_present_device("cpu")
        device(type='cpu')
    """
    found = as_device(device, name)
    if found.type != "cuda":
        try:
            torch.empty(0, device=found)
        except Exception:  # Of many classes, some with a hundred lines.
            raise ValueError(f"{name}: expected one that is there, got {found}") from None
        return found
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found.index >= n_devices:
        there = f"of {n_devices} CUDA devices" if n_devices else "without CUDA"
        raise ValueError(f"{name}: expected one that is there, got {found} {there}")
    return found
