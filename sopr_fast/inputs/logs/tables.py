"""Arrays of CSV files, parquet files and data frames: a column each, or a column for each dimension."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime.extras import library
from ...runtime.rows import FileVersion
from ...runtime.text import list_names
from ..files import check_memory, reading
from .arrays import Lazy, opened_later, side_by_side
from .keys import NUMBERED, part_of

if TYPE_CHECKING:
    import pandas

_CSV_COPIES = 6  # bytes of a table for a byte of text
_JSON_COPIES = 10  # bytes of objects for a byte of text
_MISSING = ("", "NA", "N/A", "nan", "NaN", "null", "NULL", "None", "<NA>")
_BATCH = 16384  # rows
_BUFFER = 1 << 20  # bytes


def load_csv(path: Path, text: Sequence[str] = ()) -> pandas.DataFrame:
    """Return the table of a file in UTF-8, separated by commas, semicolons or tabs; `text` names columns of text."""
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
            raise ValueError(
                f"{path}: line 2 has more values than the header; write numbers with a decimal point, and no "
                "line before the header"
            )
        form: dict[str, Any] = {"index_col": False, "skipinitialspace": True, "sep": separator, "encoding": "utf-8-sig"}
        has_commas = separator != "," and any(re.fullmatch(r"[-+]?\d+,\d+(e[-+]?\d+)?", cell) for cell in values)
        form["decimal"] = "," if has_commas else "."
        if words := {name: str for name in names if name.lower() in text}:
            missing = {name: _MISSING for name in names if name not in words}
            form |= {"dtype": words, "keep_default_na": False, "na_values": missing}
        if int(pandas.__version__.partition(".")[0]) < 3:  # later versions are exact by default
            form["float_precision"] = "round_trip"
        try:
            return pandas.read_csv(path, header=0, names=names, **form)
        except pandas.errors.ParserError as error:
            raise ValueError(f"{path}: {error}; write numbers with a decimal point") from error


def load_json(path: Path) -> Any:
    """Return the content of a JSON file in UTF-8; the list of the contents of its lines if each is JSON of its own."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            repeated = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
            raise ValueError(f"{path}: an object has the name {repeated!r} twice")
        return content

    check_memory(path, _JSON_COPIES * path.stat().st_size)
    with reading(path, "JSON"):
        text = path.read_text(encoding="utf-8-sig")
        try:
            return json.loads(text, object_pairs_hook=unique)
        except json.JSONDecodeError as error:
            if error.msg != "Extra data":
                raise
            return [json.loads(line, object_pairs_hook=unique) for line in text.splitlines() if line.strip()]


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
        name = "/".join(map(str, key)) if isinstance(key, tuple) else str(key)
        if name in arrays:
            raise ValueError(f"{where}: it has several columns {name!r}; leave only one of them")
        values = frame[key].to_numpy()
        if values.dtype == object and len(values):
            read = functools.partial(_cells, values, f"{where}: {name!r}")
            values = Lazy((len(values), *np.shape(_cell(values[0]))), object, read)
        arrays[name] = values
    return join_numbered(arrays, where)


def join_numbered(arrays: dict[str, Any], where: str) -> dict[str, Any]:
    """Return arrays, and those of one number each, such as `obs_0`, together as `obs`."""

    def join(names: list[str]) -> Lazy:
        check_numbers(names, where)
        return side_by_side([arrays[name] for name in names])

    return arrays | {
        group: opened_later(functools.partial(join, names)) for group, names in group_numbered([*arrays], where).items()
    }


def _cells(values: np.ndarray, where: str) -> np.ndarray:
    """Return the numbers of a column of objects, which may be lists, or text of lists; words stay as they are."""
    cells = [_cell(value) for value in values]
    if np.ndim(cells[0]):
        try:
            return np.stack(cells)
        except ValueError as error:
            lengths = [np.size(cell) if np.ndim(cell) else 0 for cell in cells]
            row = next(i for i, length in enumerate(lengths) if length != lengths[0])
            raise ValueError(
                f"{where}: lists of equal length expected, got {lengths[0]} at row 0, {lengths[row]} at row {row}"
            ) from error
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
    version = FileVersion(os.stat(path), str(path))
    with _open_parquet(path) as file:
        rows, names = file.metadata.num_rows, list(file.schema_arrow.names)
        first = next(file.iter_batches(batch_size=1), None)

    def column(name: str) -> Lazy:
        with reading(path, "a parquet file"):
            row = np.empty(0) if first is None else _numbers(first.column(name), f"{path}: {name!r}", 0)

        def read() -> np.ndarray:
            values, start = np.empty((rows, *row.shape[1:]), row.dtype), 0
            version.check(os.stat(path))
            with _open_parquet(path) as file:
                for batch in file.iter_batches(_BATCH, columns=[name]):
                    part = _numbers(batch.column(name), f"{path}: {name!r}", start, *row.shape[1:])
                    values[start : start + len(batch)] = part
                    start += len(batch)
            version.check(os.stat(path))
            return values

        return Lazy((rows, *row.shape[1:]), row.dtype, read)

    return join_numbered({name: opened_later(functools.partial(column, name)) for name in names}, str(path))


@contextlib.contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    parquet, pyarrow = (library(name, "parquet", f"{path}: reading it") for name in ("pyarrow.parquet", "pyarrow"))
    form = {"buffer_size": _BUFFER, "pre_buffer": False}  # otherwise whole columns stay in memory
    with reading(path, "a parquet file"), parquet.ParquetFile(path, **form) as file:
        yield file
    pyarrow.default_memory_pool().release_unused()


def _numbers(column: Any, where: str, first: int, width: int = 0) -> np.ndarray:
    """Return numbers, words, or lists of `width` numbers, of a column of arrow whose first row has number `first`."""
    import pyarrow.compute
    import pyarrow.types as types

    count = len(column)
    is_list = any(is_kind(column.type) for is_kind in (types.is_list, types.is_large_list, types.is_fixed_size_list))
    if is_list:
        lengths = pyarrow.compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        width = width or int(lengths[0])
        if (differs := lengths != width).any():
            row = int(np.argmax(differs))
            raise ValueError(f"{where} has lists of different lengths, {width} and {lengths[row]} at row {first + row}")
        column = column.flatten()
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))) // (width or 1)
        raise ValueError(f"{where} has no value at row {first + row}")
    values = column.to_numpy(zero_copy_only=False)
    return values.reshape(count, width) if is_list else values


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


def check_numbers(names: Sequence[str], where: str) -> None:
    """Raise ValueError if the numbers of several columns, in ascending order, leave one out, or begin above 1."""
    matches = [match for name in names if (match := NUMBERED.fullmatch(name))]
    numbers = [int(match[2]) for match in matches]
    if len(numbers) > 1 and numbers not in ([*range(len(numbers))], [*range(1, len(numbers) + 1)]):
        part = part_of(matches[0][1]) or "states"
        raise ValueError(
            f"{where}: numbers of the columns {list_names([*names])} leave some out: add these, or name the columns of "
            f"the {part} by columns={{{part!r}: [{list_names([*map(repr, names)])}]}}"
        )
