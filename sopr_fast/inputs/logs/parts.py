"""Parts of a log by their arrays, which are checked and converted here, once."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...runtime.arrays import as_numbers
from ...runtime.checks import TOO_LARGE
from ...runtime.rows import StoredRows
from ...runtime.text import NAME_WIDTH, counted, printable
from ..named_arrays import Lazy, shape_of

_STORED = (Lazy, StoredRows)  # arrays that are read when they are needed, into memory of their own
TABLES = ("states", "actions", "next_states")
FLAGS = ("terminals", "truncations", "dones")
LABELS = ("episodes", "agents")
_MARKS = (*FLAGS, "first", "valid")
_EXACT = ("steps", "times")  # as float64
_PIECE = 4096  # rows that are checked together
_DICTIONARIES = "pass a dictionary of arrays of all rows, or a list of dictionaries, one for each episode"
_FILL = (
    "fill it, or leave the row out; if rows hold only a state, or the action that led to it, make episodes of them by "
    "a recipe (docs/files.md, rows of other libraries)"
)


@dataclass(frozen=True)
class Parts:
    """Arrays of a log by what they mean."""

    arrays: dict[str, Any]  # part of the log → its array, which may not be read yet
    names: dict[str, str]  # part of the log → name of the array
    not_read: str  # names of arrays with one value a row that are not read, as the end of a sentence
    inverted: frozenset[str] = frozenset()  # flags that mark with 0

    @property
    def count(self) -> int | None:
        """Rows of the log; None if the states are missing or have no shape, which reading them refuses."""
        return next(iter(shape_of(self.arrays.get("states"))), None)

    @property
    def columns(self) -> str:
        """Names of the arrays that the states consist of, "" if it is one."""
        return self.names["states"] if ", " in self.names["states"] else ""

    def peak(self) -> int:
        """Return how many bytes loading takes at most: the result, and the largest array as it is stored."""
        sizes = {part: int(np.prod(shape_of(x), dtype=np.float64)) for part, x in self.arrays.items()}
        widths = {part: max(4, x.dtype.itemsize) if isinstance(x, _STORED) else 4 for part, x in self.arrays.items()}
        result = 4 * (sum(sizes.values()) + sizes["states"] * ("next_states" not in sizes))
        largest = max(sizes[part] * widths[part] for part in sizes)
        return result + largest + 48 * (self.count or 0)  # of flags and numbers of rows

    def read(self, part: str) -> np.ndarray:
        """Return the checked values of a part, in memory of their own.

        States, next states and actions are (rows, columns) float32, one number for each row is one column; flags are
        (rows,) bool, labels (rows,) int64 in the order of their first rows, steps and times (rows,) float64, others
        (rows,) float32. Rows of next states may be NaN.
        """
        values, name = self.numbers(part), repr(self.names[part])
        if part in TABLES:
            values = values.reshape(table_shape(values.shape, name))
        elif values.shape in ((len(values),), (len(values), 1)):
            values = values.reshape(-1)
        else:
            raise ValueError(f"{name} must have shape (rows,), got {values.shape}; pass one value a row")
        if part in LABELS:
            import pandas

            labels, _ = pandas.factorize(values)
            if (labels < 0).any():
                raise ValueError(f"{name} has no value at row {int(np.argmax(labels < 0))}: fill it")
            return labels
        if part in self.inverted:  # a discount may be 0.99
            return values == 0
        if part in _MARKS:
            _refuse(name, values, (values != 0) & (values != 1), "must be 0 or 1", "write values == …")
            return values.astype(bool)
        if part == "probabilities":
            _refuse(name, values, values <= 0, "must be above 0", "name logarithms 'log_probs'")
            values = np.log(values)
        largest = TOO_LARGE if part in ("rewards", "costs") else np.inf
        check_finite(values, name, largest, may_be_unknown=part == "next_states")
        dtype = np.float64 if part in _EXACT else np.float32
        is_own = isinstance(self.arrays[part], _STORED) and values.flags.writeable
        return np.array(values, dtype, order="C", copy=None if is_own else True)

    def numbers(self, part: str) -> np.ndarray:
        """Return the values of an array, which must be numbers, or labels, for each row."""
        name = repr(self.names[part])
        try:
            values = as_numbers(self.arrays[part])
        except (OverflowError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(self.arrays[part], _STORED):
                raise
            raise ValueError(f"{name} is no array: {error}; {_DICTIONARIES}") from error
        if values.ndim == 0 or len(values) == 0:
            raise ValueError(f"{name} is empty: shape {values.shape}")
        if values.dtype.kind in "OSU" and part not in LABELS:
            with contextlib.suppress(OverflowError, TypeError, ValueError):  # numbers, or arrays of equal length
                values = np.array(values.tolist(), np.float64)
        if part in _EXACT and values.size and isinstance(values.flat[0], str | datetime.date | np.datetime64):
            import pandas

            times = pandas.to_datetime(values.reshape(-1), errors="coerce", format="ISO8601", utc=True)
            values = np.where(times.isna(), np.nan, times.asi8)
        if values.dtype.kind not in "fiub" and part not in LABELS:
            raise TypeError(f"{name} must be numbers, got {_not_numbers(values)}")
        if self.count not in (None, len(values)):
            raise ValueError(
                f"{name} has {counted(len(values), 'row')}, {self.names['states']!r} has {self.count}; {_DICTIONARIES}"
            )
        return values


def _refuse(name: str, values: np.ndarray, wrong: np.ndarray, what: str, remedy: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"{name} {what}, got {values[row]:g} at row {row}; {remedy}")


def _not_numbers(values: np.ndarray) -> str:
    """Return what values (rows, …) that are no numbers are, and what to do."""
    cells = [*map(shape_of, values)] if values.dtype == object else [()]
    if cells[0] and (odd := [row for row, shape in enumerate(cells) if shape != cells[0]]):
        return f"lists of shape {cells[0]}, but {cells[odd[0]]} at row {odd[0]}: write lists of one length"
    for place, value in enumerate(values.flat if values.dtype.kind in "OSU" else ()):
        try:
            float(value)
        except (OverflowError, TypeError, ValueError):
            word, row = printable(value, NAME_WIDTH), place // (values.size // len(values))
            return (
                f"{word!r} at row {row}: write a number, one column for each of a list, or leave the row out; number "
                f"the words, actions as policies do, flags by 0 and 1: table[name].map({{{word!r}: …}})"
            )
    return f"dtype {values.dtype}"


def table_shape(shape: Sequence[int], name: str) -> tuple[int, int]:
    """Return (rows, columns) of a shape of this form, (rows,), or (rows, 1, columns), as of buffers of one environment.

    Errors name the array, and tell how to make such a table.
    """
    if 0 in shape or not len(shape):
        raise ValueError(f"{name} is empty: shape {tuple(shape)}")
    if len(shape) < 3 or (len(shape) == 3 and shape[1] == 1):
        return int(shape[0]), int(shape[-1]) if len(shape) > 1 else 1
    remedy = "pass values.reshape(len(values), -1) if policies read such rows"
    if len(shape) == 3:
        remedy += (
            "; if axis 0 is of episodes, pass a dictionary of each, [{name: x[i] for name, x in log.items()} for i in "
            f"range({shape[0]})]; if it is of time and axis 1 of environments, pass one dictionary of their rows, "
            "{name: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]) for name, x in log.items()} | "
            f"{{'environment': numpy.repeat(range({shape[1]}), {shape[0]})}}"
        )
    raise ValueError(f"{name} must have shape (rows, columns), got {tuple(shape)}; {remedy}")


def check_finite(
    values: np.ndarray,
    name: str,
    largest: float = np.inf,
    *,
    may_be_unknown: bool = False,
    rows: Sequence[int] | np.ndarray | None = None,
) -> None:
    """Raise ValueError if numbers (N, …) are not finite as float32, or beyond a magnitude; all of a row may be unknown.

    `rows` are their numbers in the log, if they are not all.
    """
    for start in range(0, len(values), _PIECE):
        with np.errstate(over="ignore"):
            piece = values[start : start + _PIECE].astype(np.float32, copy=False)
        piece = piece.reshape(len(piece), -1)
        wrong = ~(np.abs(piece) < largest)
        wrong[may_be_unknown & np.isnan(piece).all(1)] = False
        if wrong.any():
            i, column = np.argwhere(wrong)[0]
            number, row = piece[i, column], start + i if rows is None else rows[start + i]
            if np.isfinite(number):
                raise ValueError(
                    f"{name} holds {number:g} at row {row}, beyond the supported magnitude {largest:g}: leave the row "
                    "out, or divide all by a constant, and returns too"
                )
            raise ValueError(f"{name} is not finite (as float32) at row {row}: {_FILL}")
