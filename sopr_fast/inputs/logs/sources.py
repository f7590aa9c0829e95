"""Named arrays of any source: a file, a folder, a data frame, a dataset of Minari or d3rlpy, or a dictionary."""

from __future__ import annotations

import contextlib
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.extras import library
from ...runtime.rows import FileRows
from ...runtime.text import escaped_errors
from ..files import check_regular, reading
from .arrays import Lazy, as_arrays, flatten, opened_later
from .episode_files import is_list_of_dicts, join_dicts, join_episodes
from .hdf5 import read_hdf5
from .keys import part_of
from .replay_buffers import read_pickled
from .tables import is_frame, load_csv, load_json, read_frame, read_parquet


def read_json(path: Path) -> dict[str, Any]:
    """Return the arrays of a JSON file: of one object, or of one for each step, episode, batch or column."""
    import pandas

    content = load_json(path)
    with reading(path, "a log in JSON"):
        if is_list_of_dicts(content):
            return join_dicts(content, str(path))
        if not isinstance(content, Mapping):
            raise ValueError(f"{path}: expected an object of arrays, or a list of objects, found neither")
        if all(isinstance(value, Mapping) and "0" in value for value in content.values()):
            return read_frame(pandas.DataFrame(content), str(path))
        return as_arrays(content)


def read_csv(path: Path) -> dict[str, Any]:
    """Return the columns of a CSV file by name, as `read_frame`."""
    return read_frame(load_csv(path), str(path))


def open_npy(path: Path) -> FileRows:
    """Open an `.npy` file, of which rows are read on demand."""
    check_regular(path)
    with reading(path, "an .npy file of a plain array"):
        return FileRows(path)


def read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays of an archive by name, decompressed when they are needed."""
    with reading(path, "an .npz file"), zipfile.ZipFile(path) as archive:
        return {info.filename.removesuffix(".npy"): _open_member(path, archive, info) for info in archive.infolist()}


def _open_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Lazy:
    where = f"{path}: {info.filename.removesuffix('.npy')!r}"
    shape: tuple[int, ...] = ()
    dtype = np.dtype(np.uint8)
    with contextlib.suppress(Exception), archive.open(info) as member:  # raised if the array is needed
        version = np.lib.format.read_magic(member)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(member)

    def read() -> np.ndarray:  # zipfile never inflates a member beyond its declared size
        if dtype.hasobject:
            raise ValueError(
                f"{where} holds Python objects, stored as a pickle: if you trust the file, pass "
                f"dict(numpy.load({str(path)!r}, allow_pickle=True))"
            )
        with reading(where, "a plain array"), zipfile.ZipFile(path) as archive, archive.open(info) as member:
            return np.lib.format.read_array(member, allow_pickle=False)

    return Lazy(shape, dtype, read)


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
        or _is_list_of_steps(source)
        or _is_dataset(source)
    )


def _is_list_of_steps(source: Any) -> bool:
    """Return whether an object is a list of tuples of state, action, reward, next state, and whether it is terminal."""
    steps = source if isinstance(source, list | tuple) else ()
    return bool(steps) and all(isinstance(x, tuple) and len(x) == 5 and np.ndim(x[0]) for x in steps)


def _is_dataset(source: Any) -> bool:
    """Return whether an object is a dataset of Minari or d3rlpy."""
    return hasattr(source, "iterate_episodes") or hasattr(source, "episodes")


@escaped_errors()
def read_arrays(source: Any) -> tuple[Mapping[str, Any], str]:
    """Return the named arrays of a source, see `load_log`, and its name for messages.

    Arrays of files may be read when they are needed. Nested names are joined, such as `observations/position`.
    """
    if isinstance(source, Mapping):
        if not all(isinstance(x, Mapping) and "rewards" in map(part_of, x) for x in source.values()) or not source:
            return flatten(source), "dataset"
        source = [*source.values()]  # an episode by each name
    if _is_list_of_steps(source):
        source = [dict(zip(("state", "action", "reward", "next_state", "done"), step, strict=True)) for step in source]
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
        if not (files := sorted(path.glob("*.npy"))):
            raise ValueError(
                f"{path}: a folder is a log if it has .npy files, one of each array, or main_data.hdf5 of Minari; "
                "other forms of Minari's datasets: pass the object that minari.load_dataset returns"
            )
        return {file.stem: opened_later(partial(open_npy, file)) for file in files}, str(path)
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
