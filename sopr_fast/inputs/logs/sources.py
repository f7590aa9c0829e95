"""Named arrays of any source: a file, a folder, a data frame, a dataset of Minari or d3rlpy, or a dictionary."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.extras import library
from ...runtime.text import escaped_errors
from ..files import check_regular, reading
from .arrays import flatten
from .episode_files import is_list_of_dicts, join_dicts, join_episodes
from .hdf5 import read_hdf5
from .numpy_files import read_folder, read_npz
from .replay_buffers import read_pickled
from .tables import is_frame, load_csv, load_json, read_frame, read_parquet


def read_json(path: Path) -> dict[str, Any]:
    """Return the arrays of a JSON file: of one object, or of one for each step, episode or batch.

    pandas writes columns as objects of rows.
    """
    import pandas

    content = load_json(path)
    with reading(path, "a log in JSON"):
        if is_list_of_dicts(content):
            return join_dicts(content, str(path))
        if all(isinstance(value, Mapping) and "0" in value for value in content.values()):
            return read_frame(pandas.DataFrame(content), str(path))
        return {key: np.asarray(values) for key, values in flatten(content).items()}


def read_csv(path: Path) -> dict[str, Any]:
    """Return the columns of a CSV file by name, as `read_frame`."""
    return read_frame(load_csv(path), str(path))


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".npz": read_npz,
    ".parquet": read_parquet,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".json": read_json,
    ".jsonl": read_json,
    ".hdf5": read_hdf5,
    ".h5": read_hdf5,
    ".pkl": read_pickled,
    ".pickle": read_pickled,
}
_MINARI_ID = re.compile(r"(?:[\w.-]+/)*[\w.-]+-v\d+")
_MINARI_DATA = "main_data.hdf5"
_OF_EPISODES = ("observations", "actions", "rewards", "terminations", "truncations", "terminated")


def is_log(path: Path) -> bool:
    """Return whether a path is a log: by its suffix, as a folder, or as the id of a Minari dataset."""
    return path.suffix.lower() in (".npy", *READERS) or path.is_dir() or _is_minari_id(path)


def _is_minari_id(source: Any) -> bool:
    """Return whether an object is the id of a Minari dataset, such as mujoco/hopper/medium-v0."""
    is_path = isinstance(source, str | os.PathLike)
    return is_path and not os.path.exists(source) and _MINARI_ID.fullmatch(str(source)) is not None


def has_names(source: Any) -> bool:
    """Return whether a log consists of named arrays, see `read_arrays`."""
    if isinstance(source, str | os.PathLike):
        return Path(source).suffix.lower() != ".npy"
    return (
        isinstance(source, Mapping)
        or (is_frame(source) and any(isinstance(name, str) for name in source.columns))
        or is_list_of_dicts(source)
        or _is_dataset(source)
    )


def _is_dataset(source: Any) -> bool:
    """Return whether an object is a dataset of Minari or d3rlpy."""
    return hasattr(source, "iterate_episodes") or hasattr(source, "episodes")


@escaped_errors()
def read_arrays(source: Any) -> tuple[Mapping[str, Any], str]:
    """Return the named arrays of a source, see `load_log`, and its name for messages.

    Arrays of files may be read when they are needed. Nested names are joined, such as `observations/position`.
    """
    if isinstance(source, Mapping):
        return flatten(source), "dataset"
    if is_list_of_dicts(source):
        return join_dicts(source, "dataset"), "dataset"
    if is_frame(source):
        return read_frame(source, "data frame"), "data frame"
    if _is_minari_id(source):
        source = library("minari", "minari", f"{source}: reading it").load_dataset(str(source))
    if _is_dataset(source):
        return _read_dataset(source)
    path = Path(source)
    if path.is_dir():
        path = next((file for file in (path / _MINARI_DATA, path / "data" / _MINARI_DATA) if file.exists()), path)
    if path.is_dir():
        return read_folder(path), str(path)
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise ValueError(f"{path}: expected a log in a file of .npy, {', '.join(READERS)}, or a Minari dataset")
    check_regular(path)
    return READERS[suffix](path), str(path)


def _read_dataset(dataset: Any) -> tuple[Mapping[str, Any], str]:
    """Return the arrays of an open dataset of Minari or d3rlpy, and its name."""
    is_minari = hasattr(dataset, "iterate_episodes")
    name = f"Minari dataset {dataset.id}" if is_minari else type(dataset).__name__
    episodes = []
    with reading(name, "a dataset"):
        for i, episode in enumerate(dataset.iterate_episodes() if is_minari else dataset.episodes):
            arrays = flatten({key: getattr(episode, key) for key in _OF_EPISODES if hasattr(episode, key)})
            if other := [key for key, values in arrays.items() if not isinstance(values, np.ndarray | bool)]:
                kind = type(arrays[other[0]]).__name__
                raise TypeError(f"{name}: {other[0]!r} of an episode are a {kind}; flatten them to one array per step")
            episodes.append((f"episode {getattr(episode, 'id', i)}", arrays))
    return join_episodes(episodes, name), name
