"""Logged states of any source, in the one form that drawing reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ...runtime.arrays import fill_masked
from ...runtime.rows import FileRows
from ...runtime.text import escaped_errors
from . import d3rlpy
from .arrays import to_array
from .files import check_regular, reading
from .keys import ALL_KEYS, KEYS, find_key, list_names
from .lerobot import is_lerobot
from .loading import READERS, read_arrays
from .minari import find_minari, read_minari_states
from .rlds import is_rlds
from .stored import ArrayStates, FlatStates, SlicedStates, StoredStates, states_of_hdf5
from .tables import group_numbered, is_frame, read_frame
from .transitions import Transitions

_NO_STATES = (ALL_KEYS - {*KEYS["states"]}) | {"time", "timestamp", "timestep", "step", "episode", "episode_id"}


@escaped_errors()
def load_states(path: str | os.PathLike, *, columns: str | Sequence[str] | None = None) -> StoredStates:
    """Open the logged states of a file; those of `.npy` and HDF5 files are read only as they are drawn.

    Args:
        path: An `.npy` file; an `.npz`, parquet, CSV or HDF5 file with an array `observations`, `states`, `obs`,
            `observation` or `state`, in parquet and CSV also as columns `obs_0`, `obs_1`, …; a folder with an `.npy`
            file of such a name; a dump of d3rlpy, a pickled replay buffer, a LeRobot or an RLDS dataset, see
            `sopr_fast.load_log`; or the folder or id of a local Minari dataset.
        columns: Name of the array of states, or names of the columns that they consist of, where they have others.

    Raises:
        FileNotFoundError: No such file.
        ImportError: The extra that reads such files is not installed.
        MemoryError: The states are larger than the free memory.
        TypeError: The states are not numbers.
        ValueError: The file is damaged or has no states; or they are not a table, not finite or too large.
    """
    if columns is not None:
        arrays, where = read_arrays(path, {"states": columns})
        return ArrayStates(np.asarray(arrays[KEYS["states"][0]]), where)
    dataset = find_minari(path)
    if dataset is not None:
        return _of_minari(dataset)
    path = Path(path)
    if is_rlds(path) or (path.is_dir() and is_lerobot(path)):
        arrays, where = read_arrays(path)
        return ArrayStates(arrays[find_key("states", arrays, where)], where)
    if path.is_dir():
        path = next((file for key in KEYS["states"] if (file := path / f"{key}.npy").is_file()), path)
    if path.suffix not in (".npy", *READERS):
        raise ValueError(f"{path}: expected states in a file of .npy, {', '.join(READERS)}, or a Minari dataset")
    check_regular(path)
    if path.suffix == ".npy":
        with reading(path, "an .npy file of a plain array"):
            rows = FileRows.of_npy(path)
        return FlatStates(rows)
    if path.suffix in (".hdf5", ".h5") and not d3rlpy.is_dump(path):
        return states_of_hdf5(path)
    arrays = READERS[path.suffix](path, KEYS["states"])
    return ArrayStates(arrays[find_key("states", arrays, path)], str(path))


def as_states(states: Any) -> StoredStates:
    """Return the user's states in the form that drawing reads.

    Args:
        states: One of

            - (rows, dim_s) array, tensor or nested sequence; (rows, 1, dim_s), as replay buffers of one environment
              have it, counts as (rows, dim_s);
            - path, see `load_states`;
            - `Transitions`;
            - Minari dataset;
            - data frame whose columns are named as in `load_states`, or that holds states only;
            - object with `shape`, `dtype` and slices, such as an open `h5py.Dataset`, read as rows are drawn.

    Raises:
        TypeError: Not a source of the list above, or not numbers.
        ValueError: Empty, not a table, not finite or too large; names the row. Or a data frame with rewards, ends or
            times among its columns and no states named so. For paths, see `load_states`.
    """
    if isinstance(states, StoredStates):
        return states
    if isinstance(states, str | os.PathLike):
        return load_states(states)
    if isinstance(states, Transitions):
        return ArrayStates(states.states)
    if hasattr(states, "iterate_episodes"):
        return _of_minari(states)
    if isinstance(states, Tensor):
        return ArrayStates(to_array(states, "states: "))
    if isinstance(states, np.ndarray):
        return ArrayStates(fill_masked(states))
    if is_frame(states):
        states = _select_columns(states)
    elif not isinstance(states, Sequence):
        if all(hasattr(states, part) for part in ("shape", "dtype", "__getitem__")):
            return SlicedStates(states)
        if not hasattr(states, "__array__"):
            raise TypeError(f"states must be an array, tensor, data frame or path, got {type(states).__name__}")
    try:
        values = np.asarray(states)
        if values.dtype.kind not in "fiub":  # objects, such as the integers of pandas that may be missing
            values = np.asarray(states, np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise TypeError(f"states must be numbers: {error}") from error
    return ArrayStates(values)


def _select_columns(frame: Any) -> Any:
    """Return the columns of a data frame that hold states."""
    arrays = read_frame(frame, KEYS["states"], "data frame")
    for key in KEYS["states"]:
        if key in arrays:
            return arrays[key]
    columns = [str(name) for name in frame.columns]
    lower = [name.lower() for name in columns]
    if not _NO_STATES.isdisjoint(lower) or group_numbered(lower, _NO_STATES):
        raise ValueError(
            f"which columns of the data frame are states? It has {list_names(columns)}; name the states obs_0, obs_1, "
            "… or pass only their columns"
        )
    return frame


def _of_minari(dataset: Any) -> StoredStates:
    return ArrayStates(read_minari_states(dataset), f"Minari dataset {dataset.id}")
