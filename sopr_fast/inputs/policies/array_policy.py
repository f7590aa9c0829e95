"""Policies given as actions in every state of the user's data: arrays, data frames, and files of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ...runtime.containers import open_parquet
from ...runtime.text import list_names
from .. import table_files as tables
from ..file_errors import naming, reading
from ..logs.schema import KEYS, check_is_policy, join_numbered, numbered
from ..logs.stores import open_npy
from .output import WORDS, Gaussian, Probabilities, to_array
from .policy import Policy
from .policy_files import ReadingOptions


class ArrayPolicy(Policy):
    """A policy given by its actions in every state of the user's data.

    Arrays may be memory-mapped, read-only, of any memory order and any type of numbers or bools; only requested rows
    are read.

    Args:
        name: Name in rankings and errors.
        values: Actions (N_all, dim_a), indices (N_all,) of discrete actions, `Gaussian` or `Probabilities`.

    Raises:
        ValueError: The array is not of numbers, or not of one or two dimensions.
    """

    def __init__(self, name: str, values: Any):
        self.name, self.original = name, values
        self._kind = type(values) if isinstance(values, Gaussian | Probabilities) else None
        parts = values if self._kind else (values,)
        self.parts = [to_array(part) if isinstance(part, Tensor) else part for part in parts]
        for part in self.parts:
            if part.dtype.kind not in "fiub":
                raise ValueError(f"policy {name!r} holds values of dtype {part.dtype}, expected numbers; {WORDS}")
            if part.ndim not in (1, 2):
                hint = "; pass actions[:, :, 0]" if part.ndim == 3 and part.shape[2] == 1 else ""
                raise ValueError(
                    f"policy {name!r} has shape {tuple(part.shape)}, expected (states, action width){hint}"
                )

    def _output(self, states: Tensor, source: Tensor | None) -> Any:
        if source is None:
            raise ValueError(f"policy {self.name!r} is an array of actions: pass source, the states' rows in the data")
        rows = [part[source.numpy()] for part in self.parts]
        if self._kind is Gaussian and rows[1].ndim == 1:  # one number for each state
            rows[1] = rows[1][:, None]
        return self._kind(*rows) if self._kind else rows[0]


def is_array(value: Any) -> bool:
    """Return whether the value is an array, a tensor, or `Gaussian` or `Probabilities` of those."""
    if isinstance(value, Gaussian | Probabilities):
        return all(map(is_array, value))
    return isinstance(value, np.ndarray | Tensor)


def read_npy(path: Path, options: ReadingOptions) -> list[ArrayPolicy]:
    """Open an `.npy` file, of which rows are read as they are asked for."""
    return [ArrayPolicy(options.name, open_npy(path))]


def read_parquet(path: Path, options: ReadingOptions) -> list[ArrayPolicy]:
    """Read the table of actions in a parquet file."""
    with reading(path, "a parquet file"), open_parquet(path) as file:
        frame = file.read().to_pandas()
    actions = of_frame(frame, f"policy {options.name!r}")
    check_is_policy(map(str, frame.columns), ("rewards", "next_states", "terminals"))  # states may accompany actions
    return [ArrayPolicy(options.name, actions)]


def of_frame(frame: Any, where: str) -> np.ndarray:
    """Return the columns of actions of a data frame; all columns if they have no names, but numbers from 0."""
    if [*frame.columns] == [*range(len(frame.columns))]:
        return np.asarray(frame.to_numpy())
    with naming(where):
        arrays = join_numbered(tables.read_frame(frame))
    named = [name for name in arrays if name in KEYS["actions"]]
    if len(named) != 1:
        raise ValueError(
            f"{where}: expected one of the columns {', '.join(KEYS['actions'])}; found {list_names([*arrays])}; write "
            "one table for each policy, with a row for each state and columns actions_0, actions_1, …"
        )
    if named[0] in frame.columns and (others := [n for n in arrays if n != named[0] and numbered(n)[0] == named[0]]):
        raise ValueError(f"{where}: there are {named[0]!r} and {others[-1]!r}: leave only the columns of the actions")
    return np.asarray(arrays[named[0]])
