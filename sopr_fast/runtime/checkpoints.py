"""What the checkpoints of all training share: whose run they are of, when one is due, what optimisers remember."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .files import by_prefix

_SECONDS_BETWEEN = 10.0


def is_due(saved: float) -> bool:
    """Whether the last one, at `saved` by the monotonic clock, is long ago."""
    return time.monotonic() - saved > _SECONDS_BETWEEN


def fingerprint(*parts: Any) -> str:
    """Tells one run from another by its numbers, arrays and tensors."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray | Tensor):
            array = part.cpu().numpy() if isinstance(part, Tensor) else part
            digest.update(f"{array.shape} {array.dtype}\n".encode())
            digest.update(np.ascontiguousarray(array))
        else:
            digest.update(f"{part}\n".encode())
    return digest.hexdigest()


def check_same_run(
    path: str | os.PathLike | None, description: dict[str, Any] | None, fingerprints: Sequence[str], data: str
) -> None:
    """Raises where the checkpoint so described, if any, is of another run as far as the fingerprints tell.

    Args:
        fingerprints: all that it was written with, or the first ones.
        data: that they tell of, beside policies, options and seed.
    """
    if description is not None and description["fingerprint"][: len(fingerprints)] != [*fingerprints]:
        raise ValueError(
            f"checkpoint {path} is of a run with other policies, {data}, options or seed; "
            "delete it or name another file"
        )


def optimizer_tensors(optimizer: torch.optim.Optimizer, name: str) -> dict[str, Tensor]:
    states = optimizer.state_dict()["state"]
    return {f"{name}.{i}.{key}": value for i, state in states.items() for key, value in state.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], name: str) -> None:
    """Sets it to what `optimizer_tensors` gave, found among other tensors."""
    states: dict[int, dict[str, Tensor]] = {}
    for place, value in by_prefix(tensors, name)[0].items():
        i, key = place.split(".")
        states.setdefault(int(i), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
