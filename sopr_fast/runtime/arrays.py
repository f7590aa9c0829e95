"""Arrays of NumPy from what users pass."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def is_tensor(values: Any) -> bool:
    """Return whether values are a tensor of torch, which is not imported for this: it takes seconds."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def as_numbers(values: Any) -> np.ndarray:
    """Return the numbers of a tensor on any device, array or sequence as an array, with NaN for masked ones."""
    if is_tensor(values):
        values = values.float() if values.is_floating_point() and values.itemsize <= 2 else values
        values = values.numpy(force=True)
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "fiub" and np.ma.is_masked(values):
        return np.where(np.ma.getmaskarray(values), np.nan, values.data)
    return np.asarray(values)
