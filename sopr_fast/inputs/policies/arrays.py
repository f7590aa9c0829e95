"""Policies given as arrays of actions, one row for every state of the user's data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .output import Gaussian, Output, Probabilities, read_output
from .policy import Policy
from .unsupported import WORDS

_UNINDEXED = (torch.uint16, torch.uint32, torch.uint64)  # the oldest torch cannot index tensors of these dtypes


class ArrayPolicy(Policy):
    """A policy given by its actions in every state of the user's data.

    Arrays may be memory-mapped, read-only, of any memory order and any float or integer type; only the requested rows
    are read.

    Args:
        name: Name in rankings and errors.
        values: Actions (N_all, dim_a), indices (N_all,) of discrete actions, `Gaussian` or `Probabilities`.
        action_count: Number of discrete actions, for an array of indices.

    Raises:
        ValueError: The array is of words, not dense, or not of one or two dimensions.
    """

    def __init__(self, name: str, values: Any, *, action_count: int | None = None):
        self.name, self.original = name, values
        self.values, self.action_count = values, action_count
        self._parts = values if isinstance(values, tuple) else (values,)
        for part in self._parts:
            if isinstance(part, Tensor) and part.layout != torch.strided:
                raise ValueError(f"policy {name!r} is a tensor of layout {part.layout}, expected torch.strided")
            if (kind := getattr(part.dtype, "kind", "f")) not in "fiu":
                what = WORDS if kind in "OSU" else f"values of dtype {part.dtype}, expected numbers"
                raise ValueError(f"policy {name!r} holds {what}")
            if part.ndim not in (1, 2):
                raise ValueError(f"policy {name!r} has shape {tuple(part.shape)}, expected (states, action width)")
        self._rows = min(map(len, self._parts))

    def check_rows(self, states_count: int) -> None:
        """Check that the arrays have a row for each state of the user's data.

        Raises:
            ValueError: One has another number of rows.
        """
        if any(len(part) != states_count for part in self._parts):
            raise ValueError(
                f"policy {self.name!r} has actions for {self._rows} states, the data has {states_count} "
                "(arrays of actions are indexed like the states)"
            )

    def _output(self, states: Tensor, source: Tensor | None) -> Output:
        if source is None:
            raise ValueError(f"policy {self.name!r} is an array of actions: pass source, the states' rows in the data")
        if len(source) and int(source.max()) >= self._rows:
            raise ValueError(
                f"policy {self.name!r} has actions for {self._rows} states, not for row {int(source.max())}"
            )
        rows: Any
        if isinstance(self.values, Gaussian):
            mean, std = (_rows(part, source) for part in self.values)
            rows = Gaussian(mean, std[:, None] if std.ndim == 1 else std)  # (N,) as one number for each state
        elif isinstance(self.values, Probabilities):
            rows = Probabilities(_rows(self.values.p, source))
        else:
            rows = _rows(self.values, source)
        return read_output(self.name, rows, len(source), source, self.action_count)


def is_array(value: Any) -> bool:
    """Return whether the value is an array, a tensor, or `Gaussian` or `Probabilities` of those."""
    if isinstance(value, Gaussian | Probabilities):
        return all(map(is_array, value))
    return isinstance(value, np.ndarray | torch.Tensor)


def _rows(values: np.ndarray | Tensor, source: Tensor) -> np.ndarray | Tensor:
    if isinstance(values, Tensor) and values.dtype in _UNINDEXED and values.is_cpu:
        values = values.numpy()
    return values[source.to(values.device)] if isinstance(values, Tensor) else values[source.numpy()]
