"""Compute devices, and copies to them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


def check_device(device: Any) -> torch.device:
    """Return a device with its index, or raise ValueError if torch cannot compute in float64 on it."""
    try:
        probe = torch.zeros(1, dtype=torch.float64, device=torch.device(device))
        probe.item()
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"device is {device!r}, which torch cannot use here: {reason}; pass device='cpu'") from error
    return probe.device


def runs_ahead(device: torch.device) -> bool:
    """Return whether the host runs ahead of a device, so that reading a value waits for all work before it."""
    return device.type != "cpu"


def without_autocast(device: torch.device) -> torch.autocast:
    """Return a context in which operators on the device keep the dtypes of their inputs."""
    return torch.autocast("cuda" if device.type == "cuda" else "cpu", enabled=False)


def put(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; copies from CPU to GPU overlap with the work of both."""
    if tensor.device.type != "cpu" or device.type != "cuda":
        return tensor.to(device)
    stream, current = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        copy = tensor.pin_memory().to(device, non_blocking=True)
    current.wait_stream(stream)
    copy.record_stream(current)
    return copy


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
