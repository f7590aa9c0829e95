"""Policies given as actions in every state of the user's data: arrays, and files of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ...runtime.containers import open_parquet
from ...runtime.file_errors import reading
from ...runtime.text import list_names
from .. import table_files as tables
from ..logs.schema import KEYS, check_is_policy, join_numbered, numbered
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
        self.name, self.original = name, values
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


def read_parquet(path: Path, options: ReadingOptions) -> list[ArrayPolicy]:
    """Read the column `action` or `actions`, or columns `action_0`, …, of a table in a parquet file."""
    with reading(path, "a parquet file"), open_parquet(path) as file:
        arrays = tables.read_frame(file.read().to_pandas())
    check_is_policy(arrays, ("rewards", "next_states", "terminals"))  # states may accompany actions
    joined = join_numbered(arrays)
    names = [name for name in joined if name in KEYS["actions"]]
    columns = [name for name in arrays if numbered(name)[0] in names]
    if len(names) != 1 or (names[0] in columns and len(columns) > 1):
        raise ValueError(
            f"expected one of the columns {', '.join(KEYS['actions'])}, or actions_0, actions_1, …; found "
            f"{list_names([*arrays])}; write one table for each policy, with a row for each state"
        )
    return [ArrayPolicy(options.name, np.asarray(joined[names[0]]))]
