"""Named arrays of any source: a file, a folder, a data frame, a dataset of Minari or a dictionary."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.text import escaped_errors
from .arrays import flatten
from .episode_files import join_episodes
from .files import check_regular, read_folder, read_json, read_npz, reading
from .hdf5 import read_hdf5
from .replay_buffers import is_list_of_dicts, join_dicts, read_pickled
from .tables import is_frame, read_csv, read_frame, read_parquet

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


def is_log(path: Path) -> bool:
    """Return whether a path is a log: by its suffix, as a folder, or as the id of a Minari dataset."""
    return path.suffix.lower() in (".npy", *READERS) or path.is_dir() or (not path.exists() and _is_minari_id(path))


def has_names(source: Any) -> bool:
    """Return whether a log consists of named arrays, see `read_arrays`."""
    if isinstance(source, str | os.PathLike):
        return Path(source).suffix.lower() != ".npy"
    return (
        isinstance(source, Mapping)
        or (is_frame(source) and any(isinstance(name, str) for name in source.columns))
        or is_list_of_dicts(source)
        or hasattr(source, "iterate_episodes")
    )


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
    if hasattr(source, "iterate_episodes"):
        return _read_minari(source), f"Minari dataset {source.id}"
    path = _minari_file(source) or Path(source)
    suffix = path.suffix.lower()
    if path.is_dir():
        return read_folder(path), str(path)
    if suffix not in READERS:
        raise ValueError(f"{path}: expected a log in a file of .npy, {', '.join(READERS)}, or a Minari dataset")
    check_regular(path)
    return READERS[suffix](path), str(path)


def _is_minari_id(source: str | os.PathLike) -> bool:
    """Return whether a text has the form of the id of a Minari dataset, such as mujoco/hopper/medium-v0."""
    return _MINARI_ID.fullmatch(str(source)) is not None


def _minari_file(source: str | os.PathLike) -> Path | None:
    """Return the data of the local Minari dataset that a folder or an id names; None if it names something else."""
    path = Path(source)
    folder = next((place for place in (path, path / "data") if (place / "metadata.json").is_file()), None)
    if folder is None and not path.exists() and _is_minari_id(source):
        root = os.environ.get("MINARI_DATASETS_PATH", Path.home() / ".minari" / "datasets")
        folder = Path(root) / source / "data"
        if not folder.is_dir():
            raise FileNotFoundError(f"{source}: no such Minari dataset on this machine, expected in {folder}")
    if folder is not None and not (folder / _MINARI_DATA).exists():
        raise ValueError(
            f"{folder}: no {_MINARI_DATA}; pass the object that minari.load_dataset returns, which reads other forms"
        )
    return None if folder is None else folder / _MINARI_DATA


def _read_minari(dataset: Any) -> dict[str, Any]:
    """Return the arrays of an open dataset."""
    name, episodes = f"Minari dataset {dataset.id}", []
    with reading(name, "a Minari dataset"):
        for episode in dataset.iterate_episodes():
            keys = ("observations", "actions", "rewards", "terminations", "truncations")
            arrays = flatten({key: getattr(episode, key) for key in keys})
            if other := [key for key, values in arrays.items() if not isinstance(values, np.ndarray)]:
                kind = type(arrays[other[0]]).__name__
                raise TypeError(f"{name}: {other[0]!r} of an episode are a {kind}; flatten them to one array per step")
            episodes.append((f"episode {episode.id}", arrays))
    return join_episodes(episodes, name)
