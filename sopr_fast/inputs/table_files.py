"""Arrays of data frames, and tables in CSV and JSON files."""

from __future__ import annotations

import contextlib
import csv
import functools
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runtime.containers import check_size, read_json
from ..runtime.file_errors import reading
from ..runtime.files import check_regular
from .lazy_arrays import Lazy

if TYPE_CHECKING:
    import pandas

_CSV_COPIES = 6  # bytes of a table for a byte of text


def load_csv(path: Path, **options: Any) -> pandas.DataFrame:
    """Return the table of a file in UTF-8, separated by commas, or in .tsv by tabs; `options` are those of pandas."""
    import pandas

    check_size(path, _CSV_COPIES * path.stat().st_size)
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    with reading(path, "a table with a header"):
        with path.open(newline="", encoding="utf-8-sig") as file:
            head = file.readline()
        names = [name.strip() for name in next(csv.reader([head], delimiter=separator), [])]
        if len(names) == 1 and (other := re.search("[;\t]", head)):
            raise ValueError(
                f"{path}: separated by {other[0]!r}: write commas, or open it by pandas and pass the frame"
            )
        if len({*names}) < len(names) or not any(names) or all(re.fullmatch(r"[-+\d.eE]+", name) for name in names):
            raise ValueError(f"{path}: its first line must name the columns, each once; it is {head.strip()[:80]!r}")
        if int(pandas.__version__.partition(".")[0]) < 3:  # later versions are exact by default
            options |= {"float_precision": "round_trip"}
        try:
            with warnings.catch_warnings(action="error", category=pandas.errors.ParserWarning):
                table = pandas.read_csv(path, sep=separator, index_col=False, skipinitialspace=True, **options)
        except (pandas.errors.ParserError, pandas.errors.ParserWarning) as error:
            raise ValueError(f"{path}: {error}; write numbers with a decimal point") from error
        return table.rename(columns=str.strip)


def load_json(path: Path) -> Any:
    """Return the content of a JSON file in UTF-8; the list of the contents of its lines if each is JSON of its own."""
    check_regular(path)
    with reading(path, "JSON"):
        return read_json(path)


def is_frame(source: Any) -> bool:
    """Return whether `source` is a data frame of pandas or a similar library."""
    return all(hasattr(source, part) for part in ("columns", "to_numpy", "__getitem__"))


def read_frame(frame: Any) -> dict[str, Any]:
    """Return the columns of a data frame by name; its index is not read."""
    arrays: dict[str, Any] = {}
    for key in frame.columns:
        if (name := str(key)) in arrays:
            raise ValueError(f"several columns {name!r}; leave only one of them")
        values = frame[key].to_numpy()
        if values.dtype == object and len(values):
            read = functools.partial(to_cells, values, repr(name))
            values = Lazy((len(values), *np.shape(_cell(values[0]))), object, read)
        arrays[name] = values
    return arrays


def to_cells(values: np.ndarray, where: str) -> np.ndarray:
    """Return the numbers of a column of objects, which may be lists, or text of lists; words stay as they are."""
    cells = [_cell(value) for value in values]
    shape = np.shape(cells[0])
    if wrong := [row for row, cell in enumerate(cells) if np.shape(cell) != shape]:
        found = f"{shape} and {np.shape(cells[wrong[0]])} at row {wrong[0]}"
        raise ValueError(f"{where}: lists of equal length expected, got {found}")
    if shape:
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
