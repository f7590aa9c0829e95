"""Transitions from files and objects that hold named arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import READERS, read_folder
from .keys import KEYS, find_key
from .minari import find_minari, read_minari
from .transitions import Transitions

_NEEDED = ("states", "actions", "rewards")


def load(source: Any, *, max_episode_steps: int | None = None) -> Transitions:
    """Reads logged transitions whole into memory.

    A D4RL file without `next_observations` loses the last step of each timed-out episode, see
    `Transitions.from_arrays`.

    Args:
        source: the path of an HDF5 file in D4RL's layout (.hdf5, .h5), of an .npz or parquet file with the same
            names, or of a folder of .npy files of those names, which are memory-mapped; the id, folder or object of a
            local Minari dataset; a dictionary of arrays or tensors as d4rl's `env.get_dataset()` and
            `qlearning_dataset(env)` return; or `Transitions`.
        max_episode_steps: the environment's time limit, where neither next states nor timeouts tell of it.

    Raises:
        FileNotFoundError: no such file.
        MemoryError: larger than the memory that is free.
        TypeError, ValueError: damaged, or the key and row at fault.
        ImportError: the extra that reads such files is not installed.

    Warns:
        UserWarning: neither next states nor timeouts nor `max_episode_steps`.
    """
    if isinstance(source, Transitions):
        if max_episode_steps is not None:
            raise ValueError("max_episode_steps: Transitions are cut into episodes already")
        return source
    arrays, where = _read(source)
    return from_mapping(arrays, where, max_episode_steps)


def _read(source: Any) -> tuple[Mapping[str, Any], str]:
    """Named arrays, and what errors call them all."""
    if isinstance(source, Mapping):
        return source, "dataset"
    dataset = find_minari(source)
    if dataset is not None:
        return read_minari(dataset), f"Minari dataset {dataset.id}"
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            "transitions must be a path, a Minari dataset or a dictionary of arrays, "
            f"states, actions and rewards at least, got {type(source).__name__}"
        )
    path = Path(source)
    if path.suffix == ".npy":
        raise ValueError(
            f"{path}: an .npy file is one array; transitions are states, actions and rewards at least, in an .npz "
            "file, a dictionary or a folder of .npy files of these names"
        )
    wanted = {key for keys in KEYS.values() for key in keys}
    if path.is_dir():
        return read_folder(path, wanted), str(path)
    if path.suffix not in READERS:
        raise ValueError(f"{path}: expected transitions in a file of {', '.join(READERS)}, or a Minari dataset")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    return READERS[path.suffix](path, wanted), str(path)


def from_mapping(arrays: Mapping[str, Any], where: str, max_episode_steps: int | None = None) -> Transitions:
    """Transitions of named arrays, see `KEYS`.

    Raises:
        TypeError, ValueError: beginning with `where`, as `Transitions.from_arrays`, or what is missing.
    """
    for part in _NEEDED:
        find_key(part, arrays, where)
    found = {part: [key for key in keys if key in arrays] for part, keys in KEYS.items()}
    names = {part: keys[0] for part, keys in found.items() if keys}
    given = {part: arrays[key] for part, key in names.items()}
    return Transitions.from_arrays(**given, max_episode_steps=max_episode_steps, where=where, names=names)
