"""Arrays of CSV files, parquet files and data frames: a column each, or a column for each dimension."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.rows import FileVersion
from .arrays import Lazy
from .files import check_memory, reading
from .keys import ALL_KEYS

_NUMBERED = re.compile(r"(.+?)[._]?\[?(\d+)\]?")  # obs_0, obs.0, obs[0]
_CSV_COPIES = 6  # bytes of a table for a byte of text
_BATCH = 16384  # rows
_BUFFER = 1 << 20  # bytes


def read_csv(path: Path) -> dict[str, Any]:
    """Return the columns of a file in UTF-8, separated by commas, semicolons or tabs, whose first line names them.

    Raises:
        MemoryError: The file is larger than the free memory.
        ValueError: The file has no header, or a row has more values than it.
    """
    import pandas
    from pandas.errors import ParserError

    check_memory(path, _CSV_COPIES * path.stat().st_size)
    with reading(path, "a table with a header"):
        with path.open(newline="", encoding="utf-8-sig") as file:
            head, second = file.readline(), file.readline()
        separator = max(",;\t", key=head.count)
        names = [name.strip() for name in next(csv.reader([head], delimiter=separator), [])]
        if len(set(names)) < len(names) or not any(names) or all(map(_is_number, names)):
            raise ValueError(f"{path}: its first line must name the columns, each once; it is {','.join(names)[:80]!r}")
        if len(next(csv.reader([second], delimiter=separator), names)) > len(names):
            raise ValueError(f"{path}: line 2 has more values than the header; write numbers with a decimal point")
        decimal = "," if separator == ";" and re.search(r"\d,\d", second) and "." not in second else "."
        form: dict[str, Any] = {"sep": separator, "decimal": decimal, "encoding": "utf-8-sig"}
        form |= {"index_col": False, "float_precision": "round_trip", "skipinitialspace": True}
        try:
            frame = pandas.read_csv(path, header=0, names=names, **form)
        except ParserError as error:
            raise ValueError(f"{path}: {error}; write numbers with a decimal point") from error
    return read_frame(frame, str(path))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_frame(source: Any) -> bool:
    """Return whether `source` is a data frame of pandas or a similar library."""
    return all(hasattr(source, part) for part in ("columns", "to_numpy", "__getitem__"))


def read_frame(frame: Any, where: str) -> dict[str, Any]:
    """Return the columns of a data frame by name, and those of one number each, such as `obs_0`, together as `obs`.

    Args:
        frame: Data frame of pandas or alike.
        where: Beginning of messages.

    Raises:
        ValueError: Two columns have one number, such as `obs_1` and `obs_01`.
    """
    keys = {str(name): name for name in frame.columns}

    def column(name: str) -> np.ndarray:
        return _cells(frame[keys[name]].to_numpy(), f"{where}: {name!r}")

    def stacked(names: list[str]) -> np.ndarray:
        return np.stack([column(name) for name in names], 1)

    columns: dict[str, Any] = {name: frame[key].to_numpy() for name, key in keys.items()}
    for name, values in columns.items():
        if values.dtype == object:
            columns[name] = _lazy_cells(values, functools.partial(column, name))
    for group, names in group_numbered(keys, keys, where).items():
        columns[group] = Lazy((len(frame), len(names)), np.float64, functools.partial(stacked, names))
    return columns


def _lazy_cells(values: np.ndarray, read: Any) -> Lazy:
    first = values[0] if len(values) else 0.0
    if isinstance(first, str) and first.lstrip().startswith("["):
        first = _parse_list(first)
    width = np.shape(first) if isinstance(first, list | tuple | np.ndarray) else ()
    return Lazy((len(values), *width), np.float64 if width else object, read)


def _cells(values: np.ndarray, where: str) -> np.ndarray:
    """Return the numbers of a column whose cells may be lists, or text of lists; words stay as they are.

    Raises:
        ValueError: Lists differ in length, or a cell is empty.
    """
    if values.dtype != object or not len(values):
        return values
    if isinstance(values[0], str):
        if not values[0].lstrip().startswith("["):
            return values
        values = np.array([*map(_parse_list, values), None], object)[:-1]
    if isinstance(values[0], list | tuple | np.ndarray):
        lengths = np.array([np.size(cell) if isinstance(cell, list | tuple | np.ndarray) else 0 for cell in values])
        if (differs := lengths != lengths[0]).any():
            row = int(np.argmax(differs))
            raise ValueError(
                f"{where}: lists of equal length expected, got {lengths[0]} at row 0, {lengths[row]} at {row}"
            )
        return np.stack([np.asarray(cell) for cell in values])
    with contextlib.suppress(TypeError, ValueError):
        if not any(isinstance(value, str) for value in values):
            return values.astype(np.float64)
    return values


def _parse_list(text: Any) -> Any:
    """Return the numbers of a list as Python or numpy writes it, such as "[0.5, 1.5]" or "[0.5 1.5]"."""
    try:
        return json.loads(re.sub(r"(?<=[\d.])\s+(?=[-\d.])", ", ", str(text)).replace(". ", ".0 ").replace(".,", ".0,"))
    except ValueError:
        return [float(part) for part in re.findall(r"[^\s,\[\]]+", str(text))]


def read_parquet(path: Path) -> dict[str, Any]:
    """Return the columns of a file by name, and numbered ones together as in `read_frame`, read when they are needed.

    Raises:
        ImportError: pyarrow is not installed.
        ValueError: The file is damaged.
    """
    with _open_parquet(path) as file:
        names = list(file.schema_arrow.names)
    arrays: dict[str, Any] = {name: _open_columns(path, name, [name]) for name in names}
    return arrays | {
        name: _open_columns(path, name, group) for name, group in group_numbered(names, names, str(path)).items()
    }


def _open_columns(path: Path, name: str, columns: list[str]) -> Any:
    try:
        return ParquetArray(path, (name,), columns)
    except (TypeError, ValueError):  # raised where the array is needed
        return Lazy((), object, lambda: np.asarray(ParquetArray(path, (name,), columns)))


class ParquetArray:
    """An array in the columns of a parquet file, of which rows are read on demand, a row group at a time.

    Args:
        path: File.
        names: Names that the array may have, see `read_parquet`.
        columns: Columns of the array, if they are known.

    Attributes:
        shape: (rows,) or (rows, width).
        dtype: Type of the values.
        columns: Names of all columns of the file.

    Raises:
        ImportError: pyarrow is not installed.
        MemoryError: A row group is larger than the free memory.
        TypeError: A column does not hold numbers.
        ValueError: The file is damaged, or has no or several such arrays.
    """

    def __init__(self, path: Path, names: Collection[str], columns: list[str] | None = None) -> None:
        self.path, self._version = path, FileVersion(os.stat(path), str(path))
        with _open_parquet(path) as file:
            self.columns: list[str] = file.schema_arrow.names
            groups = group_numbered(self.columns, names, str(path)) if columns is None else {}
            candidates = [*groups, *(name for name in self.columns if name in names)] if columns is None else [*names]
            if len(candidates) != 1:
                found = ", ".join(candidates or self.columns)
                raise ValueError(f"{path}: expected one of the columns {', '.join(names)}; found {found}")
            self._name, self._columns = candidates[0], columns or groups.get(candidates[0], candidates)
            counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
            self._bounds = np.concatenate([[0], np.cumsum(counts)])
            first = next(file.iter_batches(batch_size=1, columns=self._columns), None)
            row = np.empty(0) if first is None else self._decode(first, 0)
            if columns is None and row.dtype.kind not in "fiub":
                raise TypeError(f"{path}: {candidates[0]!r} must be numbers or lists of numbers, got words")
        self.shape, self.dtype = (int(self._bounds[-1]), *row.shape[1:]), row.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values, start = np.empty(self.shape, self.dtype), 0
        with _open_parquet(self.path) as file:
            self._version.check(os.stat(self.path))
            for batch in file.iter_batches(batch_size=_BATCH, columns=self._columns):
                values[start : start + len(batch)] = self._checked(batch, start)
                start += len(batch)
        return np.asarray(values, dtype)

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
            values = self._checked(file.read_row_group(group, self._columns), int(self._bounds[group]))
            self._version.check(os.stat(self.path))
        return values

    def _checked(self, table: Any, first: int) -> np.ndarray:
        values = self._decode(table, first)
        if values.shape[1:] != self.shape[1:]:
            raise ValueError(
                f"{self.path}: {self._name!r} has lists of different lengths: row {first} has shape "
                f"{values.shape[1:]}, row 0 {self.shape[1:]}"
            )
        return values

    def _decode(self, table: Any, first: int) -> np.ndarray:
        with reading(self.path, "a parquet file"):
            parts = (table.column(name) for name in self._columns)
            chunks = [part.combine_chunks() if hasattr(part, "chunks") else part for part in parts]
            named = zip(self._columns, chunks, strict=True)
            columns = [_column(self.path, name, part, first) for name, part in named]
            return columns[0] if self._columns == [self._name] else np.stack(columns, 1)


@functools.lru_cache(maxsize=1)  # the next batch of states often lies in the same group
def _read_row_group(array: ParquetArray, group: int) -> np.ndarray:
    return array.read_group(group)


@contextlib.contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"{path}: reading it needs pyarrow: pip install 'sopr_fast[parquet]'") from error
    pool = pyarrow.default_memory_pool()
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # others keep twice as much
    try:
        with reading(path, "a parquet file"), pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER) as file:
            yield file
    finally:
        pyarrow.default_memory_pool().release_unused()
        pyarrow.set_memory_pool(pool)


def group_numbered(names: Iterable[str], wanted: Collection[str], where: str = "") -> dict[str, list[str]]:
    """Return name → its numbered columns in ascending order, for names that are no column.

    Args:
        names: Names of all columns.
        wanted: Names to group; all columns stand for all names.
        where: Beginning of the error message.

    Raises:
        ValueError: Two columns of a part of a log have one number, such as `obs_1` and `obs_01`.
    """
    groups: dict[str, dict[int, str]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match and (wanted is names or match[1] in wanted) and match[1] not in names:
            group, number = groups.setdefault(match[1], {}), int(match[2])
            if number in group and match[1] in ALL_KEYS:
                raise ValueError(
                    f"{where}: columns {group[number]!r} and {name!r} are both number {number}; rename one"
                )
            group[number] = name
    return {key: [group[i] for i in sorted(group)] for key, group in groups.items()}


def _decoded_size(metadata: Any, names: list[str], group: int) -> int:
    """Return a lower bound on the decoded bytes of columns in a row group: one byte per value."""
    columns = (metadata.row_group(group).column(i) for i in range(metadata.num_columns))
    return sum(
        column.num_values
        for column in columns
        if column.path_in_schema.partition(".")[0] in names or column.path_in_schema in names
    )


def _column(path: Path, name: str, column: Any, first: int) -> np.ndarray:
    import pyarrow.types as types

    rows, width = len(column), None
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        _check_nulls(path, name, column, first)
        width = _list_length(path, name, column, first)
        column = column.flatten()
    elif types.is_string(column.type) or types.is_large_string(column.type) or types.is_dictionary(column.type):
        return column.to_numpy(zero_copy_only=False).astype(object)
    _check_nulls(path, name, column, first)
    if not (types.is_boolean(column.type) or types.is_integer(column.type) or types.is_floating(column.type)):
        raise TypeError(f"{path}: {name!r} must be numbers or lists of numbers, got {column.type}")
    values = column.to_numpy(zero_copy_only=False)
    return values if width is None else values.reshape(rows, width)


def _list_length(path: Path, name: str, lists: Any, first: int) -> int:
    import pyarrow.compute

    lengths = pyarrow.compute.list_value_length(lists).to_numpy()
    differs = lengths != lengths[:1]
    if differs.any():
        row = int(np.argmax(differs))
        raise ValueError(
            f"{path}: {name!r} has lists of different lengths, {lengths[0]} at row {first} and {lengths[row]} at row "
            f"{first + row}"
        )
    return int(lengths[0]) if len(lengths) else 0


def _check_nulls(path: Path, name: str, column: Any, first: int) -> None:
    if column.null_count:
        row = first + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise ValueError(f"{path}: {name!r} has no value at row {row}")
