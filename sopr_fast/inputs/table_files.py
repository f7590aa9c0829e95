"""Arrays of data frames, and tables in CSV and JSON files."""

from __future__ import annotations

import contextlib
import csv
import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runtime.containers import check_size, open_parquet, read_json
from .file_errors import reading
from .lazy_arrays import Lazy

if TYPE_CHECKING:
    import pandas

_CSV_COPIES = 6  # bytes of a table for a byte of text
_MISSING = ("", "NA", "N/A", "nan", "NaN", "null", "NULL", "None", "<NA>")


def load_csv(path: Path, text: Sequence[str] = ()) -> pandas.DataFrame:
    """Return the table of a file in UTF-8, separated by commas, semicolons or tabs; `text` names columns of text."""
    import pandas

    check_size(path, _CSV_COPIES * path.stat().st_size)
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
        has_commas = separator != "," and any(re.fullmatch(r"[-+]?\d+,\d+(e[-+]?\d+)?", cell) for cell in values)
        has_commas = separator != "," and any(re.fullmatch(r"[-+]?\d+,\d+(e[-+]?\d+)?", cell) for cell in values)
        has_commas = separator != "," and any(re.fullmatch(r"[-+]?\d+,\d+(e[-+]?\d+)?", cell) for cell in values)
        has_commas = separator != "," and any(re.fullmatch(r"[-+]?\d+,\d+(e[-+]?\d+)?", cell) for cell in values)
        has_commas = separator != "," and any(re.fullmatch(r"[-+]?\d+,\d+(e[-+]?\d+)?", cell) for cell in values)
        has_commas = separator != "," and any(re.fullmatch(r"[-+]?\d+,\d+(e[-+]?\d+)?", cell) for cell in values)
        has_commas = separator != "," and any(re.fullmatch(r"[-+]?\d+,\d+(e[-+]?\d+)?", cell) for cell in values)
        form: dict[str, Any] = {"sep": separator, "decimal": "," if has_commas else ".", "encoding": "utf-8-sig"}
        if words := {name: str for name in names if name.lower() in text}:
            missing = {name: _MISSING for name in names if name not in words}
            form |= {"dtype": words, "keep_default_na": False, "na_values": missing}
        if int(pandas.__version__.partition(".")[0]) < 3:  # later versions are exact by default
            form["float_precision"] = "round_trip"
        try:
            return pandas.read_csv(path, header=0, names=names, index_col=False, skipinitialspace=True, **form)
        except pandas.errors.ParserError as error:
            raise ValueError(f"{path}: {error}; write numbers with a decimal point") from error


def load_parquet(path: Path) -> pandas.DataFrame:
    """Return the table of a parquet file."""
    with reading(path, "a parquet file"), open_parquet(path) as file:
        return file.read().to_pandas()


def load_json(path: Path) -> Any:
    """Return the content of a JSON file in UTF-8; the list of the contents of its lines if each is JSON of its own."""
    with reading(path, "JSON"):
        return read_json(path)


def is_list_of_dicts(content: Any) -> bool:
    """Return whether an object is a list or tuple of mappings, one for each episode or step."""
    return isinstance(content, list | tuple) and bool(content) and all(isinstance(item, Mapping) for item in content)


def is_frame(source: Any) -> bool:
    """Return whether `source` is a data frame of pandas or a similar library."""
    return all(hasattr(source, part) for part in ("columns", "to_numpy", "__getitem__"))


def read_frame(frame: Any) -> dict[str, Any]:
    """Return the columns of a data frame, and named levels of its index, by name; one without name is `unnamed`."""
    arrays: dict[str, Any] = {}
    levels = [name for name in getattr(getattr(frame, "index", None), "names", ()) if name is not None]
    if levels and not {*levels} & {*frame.columns}:
        frame = frame.reset_index()
    for key in frame.columns:
        name = "/".join(map(str, key)) if isinstance(key, tuple) else str(key) or "unnamed"
        if name in arrays:
            raise ValueError(f"several columns {name!r}; leave only one of them")
        values = frame[key].to_numpy()
        if values.dtype == object and len(values):
            read = functools.partial(to_cells, values, repr(name))
            values = Lazy((len(values), *_shape(map(_cell, values))), object, read)
        arrays[name] = values
    return arrays


def to_cells(values: np.ndarray, where: str, first: int = 0, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Return the numbers of a column of objects, which may be lists, or text of lists; words stay as they are.

    Where others are lists, a cell without value is NaN. Rows count from `first`; `shape` is that of the rows before.
    """
    if values.dtype != object:
        return values
    cells = [_cell(value) for value in values]
    if shape := shape or _shape(cells):
        cells = [np.full(shape, np.nan) if _is_missing(cell) else cell for cell in cells]
        if wrong := [row for row, cell in enumerate(cells) if np.shape(cell) != shape]:
            found = f"{shape} and {np.shape(cells[wrong[0]])} at row {first + wrong[0]}"
            raise ValueError(f"{where}: lists of equal length expected, got {found}")
        return np.stack(cells)
    with contextlib.suppress(TypeError, ValueError):
        return values if any(isinstance(cell, str) for cell in cells) else values.astype(np.float64)
    return values


def _shape(cells: Iterable[Any]) -> tuple[int, ...]:
    return next((np.shape(cell) for cell in cells if not _is_missing(cell)), ())


def _is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def _cell(value: Any) -> Any:
    """Return the numbers of a list or of its text, such as "[0.5, 1.5]" or "[0.5 1.5]"; other values as they are."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError):
            return np.array([float(part) for part in re.findall(r"[^\s,\[\]]+", value)])
    return np.asarray(value) if isinstance(value, list | tuple) else value
