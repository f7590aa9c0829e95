"""Which device computes, and how tensors get there."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


def check_device(device: Any) -> torch.device:
    """The device, with its index.

    Raises:
        ValueError: torch knows no such device, has none here, or cannot compute in float64 on it.
    """
    try:
        probe = torch.zeros(1, dtype=torch.float64, device=torch.device(device))
        probe.item()
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"device is {device!r}, which torch cannot use here: {reason}") from error
    return probe.device


def without_autocast(device: torch.device) -> torch.autocast:
    """A context whose operators take what they are given; of the devices that have none, the CPU's."""
    return torch.autocast("cuda" if device.type == "cuda" else "cpu", enabled=False)


def put(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; a copy from the CPU to a GPU neither holds up the CPU nor waits for the GPU's work."""
    if tensor.device.type != "cpu" or device.type != "cuda":
        return tensor.to(device)
    stream, current = _copying_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        there = tensor.pin_memory().to(device, non_blocking=True)
    current.wait_stream(stream)
    there.record_stream(current)
    return there


@functools.cache
def _copying_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
