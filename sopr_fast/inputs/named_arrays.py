"""Named arrays, which may be read when they are needed: of mappings, data frames, and tables in CSV and JSON files."""

from __future__ import annotations

import contextlib
import csv
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runtime.arrays import as_numbers, is_tensor
from ..runtime.containers import check_size, read_json
from ..runtime.files import check_regular, reading

if TYPE_CHECKING:
    import pandas

LONGEST_NAME = 400
_CSV_COPIES = 6  # bytes of a table for a byte of text


class Lazy:
    """Array of a shape and type, which a function reads when it is needed."""

    def __init__(self, shape: Sequence[int], dtype: Any, read: Callable[[], np.ndarray]) -> None:
        self.shape, self.dtype, self._read = tuple(shape), np.dtype(dtype), read

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._read(), dtype)


def shape_of(values: Any) -> tuple[int, ...]:
    """Return the shape of an array, which need not be read, or of a nested sequence."""
    with contextlib.suppress(OverflowError, RuntimeError, TypeError, ValueError):  # as of sequences of unequal length
        return tuple(values.shape) if hasattr(values, "shape") else np.shape(values)
    return ()


def check_names(names: Iterable[Any]) -> None:
    """Raise ValueError for a name that is too long: messages and nested names that repeat it could fill the memory."""
    if any(len(str(name)) > LONGEST_NAME for name in names):
        raise ValueError(f"an array whose name is longer than {LONGEST_NAME} characters")


def flatten(tree: Mapping[Any, Any], prefix: str = "", separator: str = "/") -> dict[str, Any]:
    """Return the leaves of nested mappings by their paths, such as `observations/position`; lists become arrays."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        check_names([name])
        if isinstance(value, Mapping):
            leaves |= flatten(value, f"{name}{separator}", separator)
        elif value is not None:
            leaves[name] = np.asarray(value) if isinstance(value, list) and shape_of(value) else value
    return leaves


def side_by_side(arrays: Sequence[Any]) -> Lazy:
    """Return arrays (N,) or (N, …) next to each other as columns (N, K)."""
    count = next(iter(shape_of(arrays[0])), 0)
    stops = np.cumsum([0, *(math.prod(shape_of(values)[1:]) for values in arrays)]).tolist()
    everything = slice(None)
    return _assembled((count, stops[-1]), arrays, [((everything, slice(*x)), everything) for x in pairwise(stops)])


def end_to_end(arrays: Sequence[Any], counts: Sequence[int], first: int) -> Lazy:
    """Return `counts` rows of each array, from row `first` on."""
    shape = (sum(counts), *shape_of(arrays[0])[1:])
    starts = np.cumsum([0, *counts]).tolist()
    return _assembled(shape, arrays, [(slice(*x), slice(first, first + x[1] - x[0])) for x in pairwise(starts)])


def _assembled(shape: tuple[int, ...], arrays: Sequence[Any], places: Sequence[tuple[Any, slice]]) -> Lazy:
    """Return an array of pieces: `places` holds where an array lies in it, and which of the array's rows."""

    def read() -> np.ndarray:
        types = {np.float32 if is_tensor(values) else getattr(values, "dtype", np.float64) for values in arrays}
        joined = np.empty(shape, np.result_type(*types))
        for (place, rows), values in zip(places, arrays, strict=True):
            joined[place] = as_numbers(values)[rows].reshape(joined[place].shape)
        return joined

    return Lazy(shape, np.float64, read)


def load_csv(path: Path, **options: Any) -> pandas.DataFrame:
    """Return the table of a file in UTF-8, separated by commas; `options` are those of pandas."""
    import pandas

    check_size(path, _CSV_COPIES * path.stat().st_size)
    with reading(path, "a table with a header, and numbers with a decimal point"):
        with path.open(newline="", encoding="utf-8-sig") as file:
            head = file.readline()
        names = [name.strip() for name in next(csv.reader([head]), [])]
        if len(names) == 1 and (other := re.search("[;\t]", head)):
            raise ValueError(f"{path}: separated by {other[0]!r}: write commas, or open it by pandas, and pass that")
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
