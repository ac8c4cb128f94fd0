"""Devices by name: which there are, and a clear error for one that there is not."""

from __future__ import annotations

from typing import Any

import torch

from ppl_models.core.errors import MethodError
from ppl_models.data.held import Device


def available_devices() -> list[str]:
    """The names of the devices that torch can compute on here: "cpu", and those of accelerators."""
    names = ["cpu"]
    if torch.cuda.is_available():
        names += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def resolve_device(device: Device) -> torch.device | None:
    """Resolve ``device=`` to a device with its index, so that it equals the device of the tensors there; None for None.

    Raises MethodError for what names no device, and for one that is not available here; those that are, are listed.
    """
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise MethodError(f"device = {device!r} names no device; available here: {_list_devices()}") from None
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type == "cuda" and found.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if found.type in ("cuda", "mps") and str(found) not in available_devices():
        raise MethodError(f"device = {str(found)!r} is not available here; available: {_list_devices()}")
    return found


def _list_devices() -> str:
    return ", ".join(map(repr, available_devices()))


def device_of(x: torch.Tensor | None) -> Any:
    """Return the device on which a plate makes its indices: the data's, or None (torch's default) without data."""
    return None if x is None else x.device
