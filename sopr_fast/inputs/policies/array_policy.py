"""Policies given as actions in every state of the user's data: arrays, and files of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ..logs.stores import open_npy
from .output import WORDS, Output, to_array
from .policy import Policy
from .policy_files import ReadingOptions


class ArrayPolicy(Policy):
    """A policy given by its actions in every state of the user's data.

    Arrays may be memory-mapped, read-only, of any memory order and any type of numbers or bools; only requested rows
    are read.

    Args:
        name: Name in rankings and errors.
        values: Actions (N_all, dim_a), indices (N_all,) of discrete actions, or an `Output` of all states.

    Raises:
        ValueError: The array is not of numbers, or not of one or two dimensions.
    """

    def __init__(self, name: str, values: Any):
        self.name = name
        self.values = to_array(values) if isinstance(values, Tensor) else values
        if isinstance(values, Output):
            return
        if self.values.dtype.kind not in "fiub":
            raise ValueError(f"policy {name!r} holds values of dtype {self.values.dtype}, expected numbers; {WORDS}")
        if (dims := self.values.ndim) not in (1, 2):
            hint = "; pass actions[:, :, 0]" if dims == 3 and self.values.shape[2] == 1 else ""
            raise ValueError(f"policy {name!r} has shape {self.values.shape}, expected (states, action width){hint}")

    def __len__(self) -> int:
        return len(self.values.mean if isinstance(self.values, Output) else self.values)

    def _output(self, states: Tensor, source: Tensor | None) -> Any:
        if source is None:
            raise ValueError(f"policy {self.name!r} is an array of actions: pass source, the states' rows in the data")
        if not isinstance(self.values, Output):
            return self.values[source.numpy()]
        mean, std = self.values.mean, self.values.std
        return Output(self.values.kind, mean[source], None if std is None else std[source])


def read_npy(path: Path, options: ReadingOptions) -> list[ArrayPolicy]:
    """Open an `.npy` file, of which rows are read as they are asked for."""
    return [ArrayPolicy(options.name, open_npy(path))]
