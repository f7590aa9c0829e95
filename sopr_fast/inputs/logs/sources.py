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
from ..files import check_regular, reading
from .arrays import Lazy, flatten, opened_later
from .episode_files import is_list_of_dicts, join_dicts
from .hdf5 import read_hdf5
from .keys import part_of
from .replay_buffers import read_pickled
from .tables import is_frame, load_csv, load_json, read_frame, read_parquet


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


READERS: dict[str, Callable[[Path], Any]] = {  # suffix → function that returns what `_named` takes
    ".npy": lambda path: {"states": open_npy(path)},
    ".npz": read_npz,
    ".parquet": read_parquet,
    ".csv": load_csv,
    ".tsv": load_csv,
    ".json": load_json,
    ".jsonl": load_json,
    ".hdf5": read_hdf5,
    ".h5": read_hdf5,
    ".pkl": read_pickled,
    ".pickle": read_pickled,
}
_MINARI_ID = re.compile(r"(?:[\w.-]+/)*[\w.-]+-v\d+")
_MINARI_DATA = "main_data.hdf5"
_OF_EPISODES = ("observations", "actions", "rewards", "terminations", "truncations", "terminated")
_OF_STEPS = ("state", "action", "reward", "next_state", "done")


def is_log(path: Path) -> bool:
    """Return whether a path is a log: by its suffix, as a folder, or as the id of a Minari dataset."""
    return path.suffix.lower() in READERS or path.is_dir() or _is_minari_id(path)


def _is_minari_id(source: Any) -> bool:
    """Return whether an object is the id of a Minari dataset, such as mujoco/hopper/medium-v0."""
    is_path = isinstance(source, str | os.PathLike)
    return is_path and not os.path.exists(source) and _MINARI_ID.fullmatch(str(source)) is not None


def read_arrays(source: Any) -> tuple[Mapping[str, Any], str]:
    """Return the named arrays of a source, see `load_log`, and its name for messages; an array without name is states.

    Arrays of files may be read when they are needed. Nested names are joined, such as `observations/position`.
    """
    if _is_minari_id(source):
        source = library("minari", "minari", f"{source}: reading it").load_dataset(str(source))
    if not isinstance(source, str | os.PathLike):
        where = "data frame" if is_frame(source) else "dataset"
        arrays = _named(source, where)
        return {"states": source} if arrays is None else arrays, where
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
    if (suffix := path.suffix.lower()) not in READERS:
        raise ValueError(
            f"{path}: expected a log in a file of {', '.join(READERS)}, or a Minari dataset; open others "
            "by pandas, and pass the data frame"
        )
    check_regular(path)
    content = READERS[suffix](path)
    if (arrays := _named(content, str(path))) is None:
        found = type(content).__name__
        raise ValueError(f"{path}: expected an object of arrays, or a list of objects, found a {found}")
    return arrays, str(path)


def _named(content: Any, where: str) -> dict[str, Any] | None:
    """Return the arrays of a mapping, frame, list of episodes or steps, or dataset; None of anything else."""
    if hasattr(content, "to_pandas") and not is_frame(content):  # tables of arrow, datasets of Hugging Face
        content = content.to_pandas()
    if isinstance(content, Mapping) and content:
        inner = [value for value in content.values() if isinstance(value, Mapping)]
        if len(inner) == len(content) and all("rewards" in map(part_of, episode) for episode in inner):
            content = inner  # an episode by each name
        elif len(inner) == len(content) and all("0" in column for column in inner):  # as pandas writes JSON
            import pandas

            content = pandas.DataFrame(content)
    if isinstance(content, list | tuple) and content and all(map(_is_step, content)):
        names = getattr(content[0], "_fields", _OF_STEPS)
        content = dict(zip(names, map(list, zip(*content, strict=True)), strict=True))
    if isinstance(content, Mapping):
        return flatten(content, where)
    if is_frame(content) and any(isinstance(name, str | tuple) for name in content.columns):
        return read_frame(content, where)
    if is_list_of_dicts(content):
        return join_dicts(content, where)
    if not is_frame(content) and (hasattr(content, "iterate_episodes") or hasattr(content, "episodes")):
        with reading(where, "a dataset of Minari or d3rlpy"):
            episodes = content.iterate_episodes() if hasattr(content, "iterate_episodes") else content.episodes
            items = [{key: getattr(item, key) for key in _OF_EPISODES if hasattr(item, key)} for item in episodes]
        return join_dicts(items, where)
    return None


def _is_step(item: Any) -> bool:
    """Return whether an object is a named tuple, or one of state, action, reward, next state and terminal."""
    if not isinstance(item, tuple) or len(item) != len(_OF_STEPS) or hasattr(item, "_fields"):
        return hasattr(item, "_fields")
    is_state = np.shape(item[0]) == np.shape(item[3])
    return is_state and (np.ndim(item[0]) > 0 or isinstance(item[4], bool | np.bool_))
