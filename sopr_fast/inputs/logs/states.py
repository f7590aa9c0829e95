"""Logged states of any source, in the one form that drawing reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.arrays import fill_masked, is_tensor
from ...runtime.text import escaped_errors
from ..accepted import StatesLike
from .arrays import Lazy, shape_of, to_array
from .files import open_npy
from .keys import find_parts, missing
from .replay_buffers import filled_rows
from .sources import has_names, read_arrays
from .stored import StoredStates
from .transitions import Transitions


@escaped_errors()
def load_states(states: StatesLike, *, columns: str | Sequence[str] | None = None) -> StoredStates:
    """Return logged states in the form that drawing reads; of `.npy` and HDF5 files, only drawn rows are read.

    Args:
        states: One of

            - (rows, dim_s) array, tensor, nested sequence or data frame without column names; (rows, 1, dim_s), as
              replay buffers of one environment have it, counts as (rows, dim_s);
            - path of an `.npy` file, or anything that `sopr_fast.load_log` reads, of which the states are taken;
            - `Transitions`;
            - object with `shape`, `dtype` and slices, such as an open `h5py.Dataset`, read as rows are drawn.
        columns: Name of the array of states, or names of the columns that they consist of, where they have others.

    Raises:
        FileNotFoundError: No such file.
        ImportError: The extra that reads such files is not installed.
        MemoryError: The states are larger than the free memory.
        TypeError: Not a source of the list above, or not numbers.
        ValueError: The file is damaged or has no states; or they are empty, not a table, not finite or too large; names
            the row.
    """
    if isinstance(states, StoredStates):
        return states
    if isinstance(states, Transitions):
        return StoredStates(states.states)
    if has_names(states):
        arrays, where = read_arrays(states)
        return states_of(arrays, columns, where)
    if isinstance(states, str | os.PathLike):
        rows = open_npy(Path(states))
        return StoredStates(rows, rows.name)
    if is_tensor(states):
        return StoredStates(to_array(states, "states: "))
    if isinstance(states, np.ndarray):
        return StoredStates(fill_masked(states))
    if all(hasattr(states, part) for part in ("shape", "dtype", "__getitem__")):
        return StoredStates(states, f"{type(states).__name__} {getattr(states, 'name', '')}".strip())
    if isinstance(states, Sequence) or hasattr(states, "__array__"):
        return StoredStates(_numbers(states))
    raise TypeError(f"states must be an array, tensor, data frame or path, got {type(states).__name__}")


def states_of(arrays: Mapping[str, Any], columns: str | Sequence[str] | None, where: str) -> StoredStates:
    """Return the states among named arrays; rows of a buffer that were not filled are left out."""
    parts = find_parts(arrays, None if columns is None else {"states": columns}, where, ("states",))
    if "states" not in parts.arrays:
        raise missing("states", arrays, where)
    values = parts.arrays["states"]
    filled = filled_rows(arrays, shape_of(values)[0])
    rows = None if filled is None else len(filled)
    if isinstance(values, Lazy) or not hasattr(values, "reader"):
        values = to_array(values, f"{where}: ") if is_tensor(values) else np.asarray(fill_masked(values))
        values = values[:, None] if values.ndim == 1 else values
        return StoredStates(values, where, rows)
    if len(values.shape) == 1:
        return StoredStates(np.asarray(values)[:, None], where, rows)
    with values.reader():  # raises if the file does not hold them
        return StoredStates(values, values.name, rows)


def _numbers(states: Any) -> np.ndarray:
    try:
        values = np.asarray(states)
        if values.dtype.kind not in "fiub":  # objects, such as the integers of pandas that may be missing
            values = np.asarray(states, np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise TypeError(
            f"states must be numbers: {error}; pass transitions as a list of dictionaries of observation, action and "
            "reward"
        ) from error
    return values
