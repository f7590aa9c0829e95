"""Policies given as arrays of what they do in every state of the user's data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .output import Gaussian, Output, Probabilities, read_output
from .policy import Policy


class ArrayPolicy(Policy):
    """Actions (N_all, dim_a), indices (N_all,), `Gaussian` or `Probabilities`, a row for every state of the
    data.

    Arrays may be memory-mapped, read-only, of any order and float or integer type: only the rows asked for
    are read.
    """

    def __init__(self, name: str, values: Any, *, states_count: int | None = None, action_count: int | None = None):
        self.name, self.given = name, values
        self.values, self.action_count = values, action_count
        parts = values if isinstance(values, tuple) else (values,)
        for part in parts:
            if isinstance(part, Tensor) and part.layout != torch.strided:
                raise ValueError(f"policy {name!r} is a tensor of layout {part.layout}, expected torch.strided")
            if part.ndim not in (1, 2):
                raise ValueError(f"policy {name!r} has shape {tuple(part.shape)}, expected (states, action width)")
        self._rows = min(len(part) for part in parts)
        if states_count is not None and any(len(part) != states_count for part in parts):
            raise ValueError(
                f"policy {name!r} has actions for {self._rows} states, the data has {states_count} "
                "(arrays of actions are indexed like the states)"
            )

    def _output(self, states: Tensor, source: Tensor | None) -> Output:
        if source is None:
            raise ValueError(f"policy {self.name!r} is an array of actions: source, the states' rows, is needed")
        if len(source) and int(source.max()) >= self._rows:
            raise ValueError(
                f"policy {self.name!r} has actions for {self._rows} states, not for row {int(source.max())}"
            )
        values = self.values
        if isinstance(values, Gaussian | Probabilities):
            taken = type(values)(*(_take(part, source) for part in values))
        else:
            taken = _take(values, source)
        return read_output(self.name, taken, len(source), source, self.action_count)


def is_array(value: Any) -> bool:
    if isinstance(value, Gaussian | Probabilities):
        return all(map(is_array, value))
    return isinstance(value, np.ndarray | torch.Tensor)


def _take(values: np.ndarray | Tensor, source: Tensor) -> np.ndarray | Tensor:
    if isinstance(values, Tensor) and values.dtype in _NOT_INDEXED and values.is_cpu:
        values = values.numpy()
    return values[source.to(values.device)] if isinstance(values, Tensor) else values[source.numpy()]


_NOT_INDEXED = (torch.uint16, torch.uint32, torch.uint64)  # by the oldest torch
