"""Transitions from files and objects that hold named arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.arrays import fill_masked
from ...runtime.text import escaped_errors
from . import d3rlpy
from .csv_files import read_csv
from .files import check_regular, read_folder, read_npz
from .hdf5 import read_hdf5
from .keys import ALL_KEYS, KEYS, MIXED_ENDS, find_key, list_names
from .lerobot import is_lerobot, read_lerobot
from .minari import find_minari, is_minari_id, read_minari
from .replay_buffers import read_pickled
from .rlds import is_rlds, read_rlds
from .tables import is_frame, read_frame, read_parquet
from .transitions import Transitions


def _read_hdf5(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    return d3rlpy.read_dump(path) if d3rlpy.is_dump(path) else read_hdf5(path, wanted)


READERS: dict[str, Callable[[Path, Collection[str]], dict[str, np.ndarray]]] = {
    ".npz": read_npz,
    ".parquet": read_parquet,
    ".csv": read_csv,
    ".hdf5": _read_hdf5,
    ".h5": _read_hdf5,
    ".pkl": read_pickled,
    ".pickle": read_pickled,
}
Columns = Mapping[str, str | Sequence[str]]
NEEDED = ("states", "actions", "rewards")


@escaped_errors()
def load(source: Any, *, columns: Columns | None = None, max_episode_steps: int | None = None) -> Transitions:
    """Load logged transitions into memory.

    Arrays are recognised by name; the first name present is read:

    - states: `observations`, `states`, `obs`, `observation`, `state`
    - actions: `actions`, `action`
    - rewards: `rewards`, `reward`
    - next states: `next_observations`, `next_states`, `next_obs`, `next_observation`, `next_state`
    - terminals: `terminals`, `terminations`, `terminated`, `terminal`, `dones`, `done`
    - timeouts: `timeouts`, `truncations`, `truncated`, `timeout`
    - log-probabilities of the actions: `infos/action_log_probs`, `log_probs`

    Columns of parquet files and data frames may be numbered: `obs_0`, `obs_1`, … (also `obs.0`, `obs[0]`). Arrays of
    shape (rows, 1, columns), as replay buffers of one environment have them, count as (rows, columns).

    Without next states, the last step of each timed-out episode is dropped, see `Transitions.from_arrays`.

    Args:
        source: One of

            - path of an HDF5 file in D4RL's layout (.hdf5, .h5), or of an .npz, parquet or CSV file;
            - path of an HDF5 file that d3rlpy's `ReplayBuffer.dump` wrote;
            - path of a pickle (.pkl) of a replay buffer of Stable-Baselines3 or sb3-contrib, of a dict of arrays, or of
              a list of such dicts, one for each episode; nothing in it is executed;
            - path of a folder of .npy files, of a LeRobot dataset, or of an RLDS dataset that TensorFlow Datasets made;
            - id, folder or object of a local Minari dataset;
            - dictionary of arrays or tensors, such as d4rl's `qlearning_dataset(env)` returns;
            - data frame;
            - `Transitions`, returned unchanged.
        columns: Part of the log (an argument of `Transitions.from_arrays`, such as "states") → name of its array, or
            names of the columns that it consists of, for logs whose names are not those above.
        max_episode_steps: Time limit of the environment, if the log does not show where it cut episodes.

    Raises:
        FileNotFoundError: No such file.
        ImportError: The extra that reads such files is not installed.
        MemoryError: The log is larger than the free memory.
        TypeError: Not a source of the list above, or an array that does not hold numbers.
        ValueError: The file is damaged, or an array is missing or wrong; names the array and row.

    Warns:
        UserWarning: Nothing shows where a time limit cut episodes, or most states are equal.
    """
    if isinstance(source, Transitions):
        if max_episode_steps is not None:
            raise ValueError("max_episode_steps: Transitions are cut into episodes already; leave it out")
        if columns is not None:
            raise ValueError("columns: Transitions have no names to map; leave it out")
        return source
    arrays, where = read_arrays(source, columns)
    return from_mapping(arrays, where, max_episode_steps)


def is_log(path: Path) -> bool:
    """Return whether a path is a log: by its suffix, as a folder, or as the id of a Minari dataset."""
    return (
        path.suffix in (".npy", *READERS)
        or path.is_dir()
        or is_rlds(path)
        or (not path.exists() and is_minari_id(path))
    )


@escaped_errors()
def read_arrays(source: Any, columns: Columns | None = None) -> tuple[Mapping[str, Any], str]:
    """Return the named arrays of a source, see `load`, and its name for error messages."""
    if columns is None:
        return _read_named(source, ALL_KEYS)
    parts = {part: [names] if isinstance(names, str) else list(names) for part, names in columns.items()}
    if unknown := [part for part in parts if part not in KEYS]:
        raise ValueError(f"columns name the part {unknown[0]!r}; a log's parts are {', '.join(KEYS)}")
    arrays, where = _read_named(source, ALL_KEYS | {name for names in parts.values() for name in names})
    mapped = {name: values for name, values in arrays.items() if name not in ALL_KEYS}
    for part, names in parts.items():
        if missing := [name for name in names if name not in arrays]:
            raise ValueError(f"{where}: no column {missing[0]!r} for the {part}; it has {list_names([*arrays])}")
        values = [np.asarray(fill_masked(arrays[name])) for name in names]
        key = next((name for name in names if part == "terminals" and name in MIXED_ENDS), KEYS[part][0])
        mapped[key] = values[0] if len(values) == 1 else np.column_stack(values)
    unmapped = {part: name for part, name in find_names(arrays).items() if part not in parts}
    return mapped | {name: arrays[name] for name in unmapped.values()}, where


def _read_named(source: Any, wanted: Collection[str]) -> tuple[Mapping[str, Any], str]:
    if isinstance(source, Mapping):
        return source, "dataset"
    if is_frame(source):
        return read_frame(source, wanted, "data frame"), "data frame"
    dataset = find_minari(source)
    if dataset is not None:
        return read_minari(dataset), f"Minari dataset {dataset.id}"
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            "transitions must be a path, a Minari dataset, a data frame or a dictionary of arrays with states, actions "
            f"and rewards at least, got {type(source).__name__}"
        )
    path = Path(source)
    if path.suffix == ".npy":
        raise ValueError(
            f"{path}: an .npy file is one array; transitions need states, actions and rewards at least: put them into "
            "an .npz file, a dictionary or a folder of .npy files of these names"
        )
    if is_rlds(path):
        return read_rlds(path, wanted), str(path)
    if path.is_dir():
        return read_lerobot(path) if is_lerobot(path) else read_folder(path, wanted), str(path)
    if path.suffix not in READERS:
        raise ValueError(f"{path}: expected transitions in a file of {', '.join(READERS)}, or a Minari dataset")
    check_regular(path)
    return READERS[path.suffix](path, wanted), str(path)


def from_mapping(arrays: Mapping[str, Any], where: str, max_episode_steps: int | None = None) -> Transitions:
    """Return transitions of named arrays, see `load`.

    Raises:
        TypeError, ValueError: See `Transitions.from_arrays`; begins with `where`.
    """
    for part in NEEDED:
        find_key(part, arrays, where)
    names = find_names(arrays)
    parts = {part: arrays[name] for part, name in names.items()}
    return Transitions.from_arrays(**parts, max_episode_steps=max_episode_steps, where=where, names=names)


def find_names(arrays: Mapping[str, Any]) -> dict[str, str]:
    """Return part of the log → its name among the arrays, for the parts that are there."""
    names = {part: next((key for key in keys if key in arrays), None) for part, keys in KEYS.items()}
    return {part: name for part, name in names.items() if name is not None}
