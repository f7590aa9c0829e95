"""Arrays of CSV files, parquet files and data frames: a column each, or a column for each dimension."""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.extras import library
from ...runtime.rows import FileVersion
from .arrays import Lazy, opened_later
from .files import check_memory, reading
from .keys import NUMBERED, part_of

_CSV_COPIES = 6  # bytes of a table for a byte of text
_BATCH = 16384  # rows
_BUFFER = 1 << 20  # bytes


def read_csv(path: Path) -> dict[str, Any]:
    """Return the columns of a file in UTF-8, separated by commas, semicolons or tabs, whose first line names them."""
    import pandas

    check_memory(path, _CSV_COPIES * path.stat().st_size)
    with reading(path, "a table with a header"):
        with path.open(newline="", encoding="utf-8-sig") as file:
            head, second = file.readline(), file.readline()
        separator = max(",;\t", key=head.count)
        names, values = (next(csv.reader([line], delimiter=separator), []) for line in (head, second))
        names = [name.strip() for name in names]
        if len(set(names)) < len(names) or not any(names) or all(re.fullmatch(r"[-+\d.eE]+", name) for name in names):
            raise ValueError(f"{path}: its first line must name the columns, each once; it is {','.join(names)[:80]!r}")
        if len(values) > len(names):
            raise ValueError(f"{path}: line 2 has more values than the header; write numbers with a decimal point")
        decimal = "," if separator == ";" and re.search(r"\d,\d", second) and "." not in second else "."
        form: dict[str, Any] = {"index_col": False, "skipinitialspace": True}
        if int(pandas.__version__.partition(".")[0]) < 3:  # later versions are exact by default
            form["float_precision"] = "round_trip"
        form |= {"sep": separator, "decimal": decimal, "encoding": "utf-8-sig"}
        try:
            frame = pandas.read_csv(path, header=0, names=names, **form)
        except pandas.errors.ParserError as error:
            raise ValueError(f"{path}: {error}; write numbers with a decimal point") from error
    return read_frame(frame, str(path))


def is_frame(source: Any) -> bool:
    """Return whether `source` is a data frame of pandas or a similar library."""
    return all(hasattr(source, part) for part in ("columns", "to_numpy", "__getitem__"))


def read_frame(frame: Any, where: str) -> dict[str, Any]:
    """Return the columns of a data frame by name, and those of one number each, such as `obs_0`, together as `obs`."""
    arrays: dict[str, Any] = {}
    levels = [name for name in getattr(getattr(frame, "index", None), "names", ()) if name is not None]
    if levels and not {*levels} & {*frame.columns}:
        frame = frame.reset_index()
    for key in frame.columns:
        if str(key) in arrays:
            raise ValueError(f"{where}: it has several columns {str(key)!r}; leave only one of them")
        values = frame[key].to_numpy()
        if values.dtype == object and len(values):
            read = functools.partial(_cells, values, f"{where}: {str(key)!r}")
            values = Lazy((len(values), *np.shape(_cell(values[0]))), object, read)
        arrays[str(key)] = values
    return join_numbered(arrays, where)


def join_numbered(arrays: dict[str, Any], where: str) -> dict[str, Any]:
    """Return arrays, and those of one number each, such as `obs_0`, together as `obs`."""
    for group, names in group_numbered(list(arrays), where).items():
        read = functools.partial(lambda names: np.stack([np.asarray(arrays[name]) for name in names], 1), names)
        arrays[group] = Lazy((len(arrays[names[0]]), len(names)), np.float64, read)
    return arrays


def _cells(values: np.ndarray, where: str) -> np.ndarray:
    """Return the numbers of a column of objects, which may be lists, or text of lists; words stay as they are."""
    cells = [_cell(value) for value in values]
    if np.ndim(cells[0]):
        lengths = np.array([np.size(cell) if np.ndim(cell) else 0 for cell in cells])
        if (differs := lengths != lengths[0]).any():
            row = int(np.argmax(differs))
            raise ValueError(
                f"{where}: lists of equal length expected, got {lengths[0]} at row 0, {lengths[row]} at row {row}"
            )
        return np.stack(cells)
    with contextlib.suppress(TypeError, ValueError):
        return values if any(isinstance(cell, str) for cell in cells) else values.astype(np.float64)
    return values


def _cell(value: Any) -> Any:
    """Return the numbers of a list or of its text, such as "[0.5, 1.5]" or "[0.5 1.5]"; other values as they are."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError):
            return np.array([float(part) for part in re.findall(r"[^\s,\[\]]+", value)])
    return np.asarray(value) if isinstance(value, list | tuple) else value


def read_parquet(path: Path) -> dict[str, Any]:
    """Return the columns of a file by name, numbered ones together too, as `read_frame`; read when they are needed."""
    groups = parquet_columns(path)
    return {name: opened_later(functools.partial(ParquetArray, path, columns)) for name, columns in groups.items()}


def parquet_columns(path: Path) -> dict[str, list[str]]:
    """Return the arrays of a file: name → its columns."""
    with _open_parquet(path) as file:
        names = list(file.schema_arrow.names)
    return {name: [name] for name in names} | group_numbered(names, str(path))


class ParquetArray:
    """An array in the columns of a parquet file, of which rows are read on demand, a row group at a time.

    Args:
        path: File.
        columns: Columns of the array; one may hold lists of numbers, or words.

    Attributes:
        shape: (rows,) or (rows, width).
        dtype: Type of the values.

    Raises:
        ImportError: pyarrow is not installed.
        MemoryError: A row group is larger than the free memory.
        TypeError: A column does not hold numbers.
        ValueError: The file is damaged.
    """

    def __init__(self, path: Path, columns: list[str]) -> None:
        self.path, self._version, self._columns = path, FileVersion(os.stat(path), str(path)), columns
        with _open_parquet(path) as file:
            counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
            self._bounds = np.concatenate([[0], np.cumsum(counts)])
            first = next(file.iter_batches(batch_size=1, columns=self._columns), None)
            row = np.empty(0) if first is None else self._decode(first, 0)
        self.shape, self.dtype = (int(self._bounds[-1]), *row.shape[1:]), row.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values, start = np.empty(self.shape, self.dtype), 0
        with self._open() as file:
            for batch in file.iter_batches(batch_size=_BATCH, columns=self._columns):
                values[start : start + len(batch)] = self._decode(batch, start, self.shape[1:])
                start += len(batch)
        return np.asarray(values, dtype)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Return rows by their indices (N,)."""
        groups = np.searchsorted(self._bounds, rows, side="right") - 1
        values = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for group in np.unique(groups):
            mine = groups == group
            values[mine] = _read_row_group(self, int(group))[rows[mine] - self._bounds[group]]
        return values

    def read_group(self, group: int) -> np.ndarray:
        """Return all rows of a row group."""
        with self._open() as file:
            pieces = (file.metadata.row_group(group).column(i) for i in range(file.metadata.num_columns))
            mine = (x for x in pieces if {x.path_in_schema, x.path_in_schema.partition(".")[0]} & {*self._columns})
            check_memory(self.path, sum(piece.num_values for piece in mine))  # a byte for each value at least
            return self._decode(file.read_row_group(group, self._columns), int(self._bounds[group]), self.shape[1:])

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        with _open_parquet(self.path) as file:
            self._version.check(os.stat(self.path))
            yield file
            self._version.check(os.stat(self.path))

    def _decode(self, table: Any, first: int, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """Return the array of rows from `first` on, which must have `shape` each."""
        with reading(self.path, "a parquet file"):
            parts = [table.column(name) for name in self._columns]
            chunks = [part.combine_chunks() if hasattr(part, "chunks") else part for part in parts]
            where = [f"{self.path}: {name!r}" for name in self._columns]
            columns = [_column(part, name, first) for name, part in zip(where, chunks, strict=True)]
            values = columns[0] if len(columns) == 1 else np.stack(columns, 1)
            if shape is not None and values.shape[1:] != shape:
                raise ValueError(
                    f"{where[0]} has lists of different lengths: {shape} at row 0 and {values.shape[1:]} at row {first}"
                )
            return values


@functools.lru_cache(maxsize=1)  # the next batch of states often lies in the same group
def _read_row_group(array: ParquetArray, group: int) -> np.ndarray:
    return array.read_group(group)


@contextlib.contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    parquet, pyarrow = (library(name, "parquet", f"{path}: reading it") for name in ("pyarrow.parquet", "pyarrow"))
    form = {"buffer_size": _BUFFER, "pre_buffer": False}  # otherwise whole columns stay in memory
    with reading(path, "a parquet file"), parquet.ParquetFile(path, **form) as file:
        yield file
    pyarrow.default_memory_pool().release_unused()


def group_numbered(names: Sequence[str], where: str) -> dict[str, list[str]]:
    """Return name → its numbered columns in ascending order, for names that are no column themselves."""
    groups: dict[str, dict[int, str]] = {}
    for name in names:
        match = NUMBERED.fullmatch(name)
        if match and match[1] not in names:
            group, number = groups.setdefault(match[1], {}), int(match[2])
            if number in group and part_of(match[1]):
                raise ValueError(
                    f"{where}: columns {group[number]!r} and {name!r} are both number {number}; rename one"
                )
            group[number] = name
    return {key: [group[i] for i in sorted(group)] for key, group in groups.items()}


def _column(column: Any, where: str, first: int) -> np.ndarray:
    """Return the numbers, lists of numbers or words of a column of arrow, whose first row has number `first`."""
    import pyarrow.compute
    import pyarrow.types as types

    def check_nulls(column: Any) -> None:
        if column.null_count:
            row = first + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise ValueError(f"{where} has no value at row {row}")

    rows, width = len(column), None
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        check_nulls(column)
        lengths = pyarrow.compute.list_value_length(column).to_numpy()
        if (differs := lengths != lengths[:1]).any():
            row = int(np.argmax(differs))
            raise ValueError(
                f"{where} has lists of different lengths, {lengths[0]} at row {first} and {lengths[row]} at row "
                f"{first + row}"
            )
        width, column = int(lengths[0]) if rows else 0, column.flatten()
    elif types.is_string(column.type) or types.is_large_string(column.type) or types.is_dictionary(column.type):
        return column.to_numpy(zero_copy_only=False).astype(object)
    check_nulls(column)
    is_number = types.is_boolean(column.type) or types.is_integer(column.type) or types.is_floating(column.type)
    if not is_number and not types.is_timestamp(column.type):
        raise TypeError(f"{where} must be numbers or lists of numbers, got {column.type}")
    values = column.to_numpy(zero_copy_only=False)
    return values if width is None else values.reshape(rows, width)
