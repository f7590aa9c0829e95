"""Named arrays of `.npz`, parquet and HDF5 files and of folders of `.npy` files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .errors import unreadable
from .hdf5 import read_hdf5

_NUMBERED = re.compile(r"(.+?)[._]?\[?(\d+)\]?")  # observations_0, observations.0, observations[0]


def read_npy(path: Path) -> np.ndarray:
    """The array of a file, memory-mapped; what is written to it stays in memory.

    Raises:
        ValueError: damaged, or an array of Python objects.
    """
    try:
        return np.load(path, mmap_mode="c", allow_pickle=False)
    except Exception as error:  # what a damaged header raises can be of nearly any type
        raise ValueError(f"{path}: damaged, or not an .npy file of a plain array: {error}") from error


def read_folder(path: Path, wanted: Iterable[str]) -> dict[str, np.ndarray]:
    """The arrays of its `.npy` files by their stems, as `read_npy`; of those not wanted, empty ones in their place.

    Raises:
        ValueError: one of them is damaged.
    """
    files = {file.stem: file for file in sorted(path.glob("*.npy"))}
    return {stem: read_npy(file) if stem in wanted else np.empty(0) for stem, file in files.items()}


def read_npz(path: Path, wanted: Iterable[str]) -> dict[str, np.ndarray]:
    """The arrays of an archive; of those not wanted, empty ones in their place.

    Raises:
        MemoryError: an array is larger than what is free.
        ValueError: damaged, or an array of Python objects.
    """
    arrays, key = {}, None
    try:
        with np.load(path, allow_pickle=False) as archive:
            for key in archive.files:
                arrays[key] = archive[key] if key in wanted else np.empty(0)
    except Exception as error:  # likewise
        at = f" at {key!r}" if key else ""
        raise unreadable(f"{path}: damaged{at}, or not an .npz file of plain arrays", error) from error
    return arrays


def read_parquet(path: Path, wanted: Iterable[str]) -> dict[str, np.ndarray]:
    """The columns of a table, likewise; an array of several columns is one of lists, or several numbered ones.

    Raises:
        ImportError: pyarrow is not installed.
        MemoryError: the columns are larger than what is free.
        TypeError, ValueError: damaged, missing values, lists of different lengths, not numbers.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"{path}: reading it needs pyarrow: pip install 'sopr_fast[parquet]'") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            numbered = _numbered(names, wanted)
            parts = {name for columns in numbered.values() for name in columns}
            needed = [name for name in names if name in wanted or name in parts]
            table = file.read(needed)
            chunks = {name: table.column(name).combine_chunks() for name in needed}
    except Exception as error:  # likewise
        raise unreadable(f"{path}: damaged, or not a parquet file", error) from error
    columns = {name: _column(path, name, column) for name, column in chunks.items()}
    arrays = {name: columns.get(name, np.empty(0)) for name in names if name not in parts}
    return arrays | {key: np.stack([columns[name] for name in group], 1) for key, group in numbered.items()}


def _numbered(names: list[str], wanted: Iterable[str]) -> dict[str, list[str]]:
    groups: dict[str, dict[int, str]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match and match[1] in wanted and match[1] not in names:
            groups.setdefault(match[1], {})[int(match[2])] = name
    return {key: [group[i] for i in sorted(group)] for key, group in groups.items()}


def _column(path: Path, name: str, column: Any) -> np.ndarray:
    import pyarrow.types as types

    width = None
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        _refuse_nulls(path, name, column)
        rows, width = len(column), _width(path, name, column)
        column = column.flatten()
    _refuse_nulls(path, name, column)
    if not (types.is_boolean(column.type) or types.is_integer(column.type) or types.is_floating(column.type)):
        raise TypeError(f"{path}: {name!r} must be numbers or lists of numbers, got {column.type}")
    values = column.to_numpy(zero_copy_only=False)
    return values if width is None else values.reshape(rows, width)


def _width(path: Path, name: str, lists: Any) -> int:
    import pyarrow.compute

    lengths = pyarrow.compute.list_value_length(lists).to_numpy()
    differs = lengths != lengths[:1]
    if differs.any():
        row = int(np.argmax(differs))
        raise ValueError(
            f"{path}: {name!r} has lists of different lengths, {lengths[0]} at row 0 and {lengths[row]} at row {row}"
        )
    return int(lengths[0]) if len(lengths) else 0


def _refuse_nulls(path: Path, name: str, column: Any) -> None:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise ValueError(f"{path}: {name!r} has no value at row {row}")


READERS = {".npz": read_npz, ".parquet": read_parquet, ".hdf5": read_hdf5, ".h5": read_hdf5}
