"""Arrays of parquet files and data frames, one column or one per dimension."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.rows import FileVersion
from .files import check_memory, reading

_NUMBERED = re.compile(r"(.+?)[._]?\[?(\d+)\]?")  # obs_0, obs.0, obs[0]


def read_parquet(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """Read arrays from the columns of a file.

    A column of lists is one array, and so are the columns `obs_0`, `obs_1`, …, also written `obs.0` or `obs[0]`.

    Args:
        path: File.
        wanted: Names of the arrays to read; the others give empty arrays.

    Returns:
        Arrays by name.

    Raises:
        ImportError: pyarrow is not installed.
        MemoryError: The wanted columns are larger than the free memory.
        TypeError: A column does not hold numbers.
        ValueError: The file is damaged, values are missing, or lists differ in length.
    """
    pyarrow = _import_pyarrow(path)
    with reading(path, "a parquet file"):
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            groups = group_numbered(names, wanted)
            numbered = {name for group in groups.values() for name in group}
            needed = [name for name in names if name in wanted or name in numbered]
            check_memory(path, _decoded_size(file.metadata, needed))
            table = file.read(needed)
            chunks = {name: table.column(name).combine_chunks() for name in needed}
        columns = {name: _column(path, name, column) for name, column in chunks.items()}
        return stack_numbered(names, columns, groups)


class ParquetArray:
    """An array in the columns of a parquet file, of which rows are read on demand, a row group at a time.

    Args:
        path: File.
        names: Names that the array may have, see `read_parquet`.

    Attributes:
        shape: (rows,) or (rows, width).
        columns: Names of all columns of the file.

    Raises:
        ImportError: pyarrow is not installed.
        MemoryError: A row group is larger than the free memory.
        TypeError: A column does not hold numbers.
        ValueError: The file is damaged, or has no or several such arrays.
    """

    def __init__(self, path: Path, names: Collection[str]) -> None:
        self.path, self._version = path, FileVersion(os.stat(path), str(path))
        with _open_parquet(path) as file:
            self.columns: list[str] = file.schema_arrow.names
            groups = group_numbered(self.columns, names)
            candidates = [*groups, *(name for name in self.columns if name in names)]
            if len(candidates) != 1:
                found = ", ".join(candidates or self.columns)
                raise ValueError(f"{path}: expected one of the columns {', '.join(names)}; found {found}")
            self._name, self._columns = candidates[0], groups.get(candidates[0], candidates)
            counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
            self._bounds = np.concatenate([[0], np.cumsum(counts)])
            first = next(file.iter_batches(batch_size=1, columns=self._columns), None)
            width = () if first is None else self._decode(first).shape[1:]
        self.shape = (int(self._bounds[-1]), *width)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Return rows by their indices (N,)."""
        groups = np.searchsorted(self._bounds, rows, side="right") - 1
        values: np.ndarray | None = None
        for group in np.unique(groups):
            mine = groups == group
            read = _read_row_group(self, int(group))[rows[mine] - self._bounds[group]]
            if values is None:
                values = np.empty((len(rows), *read.shape[1:]), read.dtype)
            values[mine] = read
        return np.empty(self.shape[1:]) if values is None else values

    def read_group(self, group: int) -> np.ndarray:
        """Return all rows of a row group.

        Raises:
            ValueError: The file was changed after it was opened.
        """
        with _open_parquet(self.path) as file:
            self._version.check(os.stat(self.path))
            check_memory(self.path, _decoded_size(file.metadata, self._columns, group))
            values = self._decode(file.read_row_group(group, self._columns))
            self._version.check(os.stat(self.path))
        if values.shape[1:] != self.shape[1:]:
            first = self._bounds[group]
            raise ValueError(f"{self.path}: row {first} has shape {values.shape[1:]}, row 0 {self.shape[1:]}")
        return values

    def _decode(self, table: Any) -> np.ndarray:
        with reading(self.path, "a parquet file"):
            parts = (table.column(name) for name in self._columns)
            chunks = [part.combine_chunks() if hasattr(part, "chunks") else part for part in parts]
            columns = [_column(self.path, name, part) for name, part in zip(self._columns, chunks, strict=True)]
            return columns[0] if self._columns == [self._name] else np.stack(columns, 1)


@functools.lru_cache(maxsize=1)  # the next batch of states often lies in the same group
def _read_row_group(array: ParquetArray, group: int) -> np.ndarray:
    return array.read_group(group)


def _import_pyarrow(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"{path}: reading it needs pyarrow: pip install 'sopr_fast[parquet]'") from error
    return pyarrow


@contextlib.contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    with reading(path, "a parquet file"), _import_pyarrow(path).parquet.ParquetFile(path) as file:
        yield file


def is_frame(source: Any) -> bool:
    """Return whether `source` is a data frame of pandas or a similar library."""
    return all(hasattr(source, part) for part in ("columns", "to_numpy", "__getitem__"))


def read_frame(frame: Any, wanted: Collection[str], where: str) -> dict[str, np.ndarray]:
    """Return arrays from the columns of a data frame, which are named as in `read_parquet`.

    Args:
        frame: Data frame of pandas or alike.
        wanted: Names of the arrays to return; the others give empty arrays.
        where: Beginning of error messages.

    Raises:
        ValueError: Numbered columns are not numbers, or lists of a column differ in length.
    """
    columns = {str(name): name for name in frame.columns}
    groups = group_numbered(columns, wanted)
    numbered = {name for group in groups.values() for name in group}
    arrays = {}
    for name, key in columns.items():
        if name in wanted or name in numbered:
            values = frame[key].to_numpy()
            with reading(f"{where}: {name!r}", "numbers or lists of equal length"):
                arrays[name] = np.stack(list(values)) if values.dtype == object and len(values) else values
    return stack_numbered(columns, arrays, groups)


def group_numbered(names: Iterable[str], wanted: Collection[str]) -> dict[str, list[str]]:
    """Return wanted name → its numbered columns in ascending order, where no column has the name itself.

    Raises:
        ValueError: Two columns have one number, such as `obs_1` and `obs_01`.
    """
    groups: dict[str, dict[int, str]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match and match[1] in wanted and match[1] not in names:
            group, number = groups.setdefault(match[1], {}), int(match[2])
            if number in group:
                raise ValueError(f"columns {group[number]!r} and {name!r} are both number {number}; rename one")
            group[number] = name
    return {key: [group[i] for i in sorted(group)] for key, group in groups.items()}


def stack_numbered(
    names: Iterable[str], columns: dict[str, np.ndarray], groups: dict[str, list[str]]
) -> dict[str, np.ndarray]:
    """Return arrays of columns, numbered ones stacked; columns that were not read give empty arrays."""
    numbered = {name for group in groups.values() for name in group}
    arrays = {name: columns.get(name, np.empty(0)) for name in names if name not in numbered}
    return arrays | {key: np.stack([columns[name] for name in group], 1) for key, group in groups.items()}


def _decoded_size(metadata: Any, names: list[str], only: int | None = None) -> int:
    """Return a lower bound on the decoded bytes of columns, in one row group or all: one byte per value."""
    size = 0
    groups = range(metadata.num_row_groups) if only is None else (only,)
    for group in map(metadata.row_group, groups):
        for column in (group.column(i) for i in range(group.num_columns)):
            if column.path_in_schema.partition(".")[0] in names or column.path_in_schema in names:
                size += column.num_values
    return size


def _column(path: Path, name: str, column: Any) -> np.ndarray:
    import pyarrow.types as types

    rows, width = len(column), None
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        _check_nulls(path, name, column)
        width = _list_length(path, name, column)
        column = column.flatten()
    _check_nulls(path, name, column)
    if not (types.is_boolean(column.type) or types.is_integer(column.type) or types.is_floating(column.type)):
        raise TypeError(f"{path}: {name!r} must be numbers or lists of numbers, got {column.type}")
    values = column.to_numpy(zero_copy_only=False)
    return values if width is None else values.reshape(rows, width)


def _list_length(path: Path, name: str, lists: Any) -> int:
    import pyarrow.compute

    lengths = pyarrow.compute.list_value_length(lists).to_numpy()
    differs = lengths != lengths[:1]
    if differs.any():
        row = int(np.argmax(differs))
        raise ValueError(
            f"{path}: {name!r} has lists of different lengths, {lengths[0]} at row 0 and {lengths[row]} at row {row}"
        )
    return int(lengths[0]) if len(lengths) else 0


def _check_nulls(path: Path, name: str, column: Any) -> None:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise ValueError(f"{path}: {name!r} has no value at row {row}")
