"""Arrays of data frames, and tables in CSV and JSON files."""

from __future__ import annotations

import contextlib
import csv
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runtime.containers import check_size, read_json
from ..runtime.file_errors import reading
from ..runtime.files import check_regular
from .lazy_arrays import shape_of

if TYPE_CHECKING:
    import pandas

_CSV_COPIES = 6  # bytes of a table for a byte of text


def load_csv(path: Path, **options: Any) -> pandas.DataFrame:
    """Return the table of a file in UTF-8, separated by commas; `options` are those of pandas."""
    import pandas

    check_size(path, _CSV_COPIES * path.stat().st_size)
    with reading(path, "a table with a header, and numbers with a decimal point"):
        with path.open(newline="", encoding="utf-8-sig") as file:
            head = file.readline()
        names = [name.strip() for name in next(csv.reader([head]), [])]
        if len(names) == 1 and (other := re.search("[;\t]", head)):
            raise ValueError(
                f"{path}: separated by {other[0]!r}: write commas, or open it by pandas and pass the frame"
            )
        if len({*names}) < len(names) or not any(names) or all(re.fullmatch(r"[-+\d.eE]+", name) for name in names):
            raise ValueError(f"{path}: its first line must name the columns, each once; it is {head.strip()[:80]!r}")
        if int(pandas.__version__.partition(".")[0]) < 3:  # later versions are exact by default
            options |= {"float_precision": "round_trip"}
        with warnings.catch_warnings(action="error", category=pandas.errors.ParserWarning):
            table = pandas.read_csv(path, index_col=False, skipinitialspace=True, **options)
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
        arrays[name] = to_cells(values) if values.dtype == object else values
    return arrays


def to_cells(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Return the numbers of lists of one length as an array; other values as one of objects."""
    if len(values) and shape_of(values[0]):
        with contextlib.suppress(TypeError, ValueError):  # of lists of unequal length
            return np.array([*values])
    return np.fromiter(values, object, len(values))
