"""Parts of a log by their arrays, which are checked and converted here, once."""

from __future__ import annotations

import contextlib
import datetime
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...runtime.arrays import as_numbers
from ...runtime.checks import TOO_LARGE
from ...runtime.rows import FileRows
from ...runtime.text import NAME_WIDTH, printable
from ..lazy_arrays import Lazy, shape_of, table_shape, warn_of_rounding

STORED = (Lazy, FileRows)  # arrays that are read when they are needed, into memory of their own
_TABLES = ("states", "actions", "next_states")
_FLAGS = ("terminals", "truncations", "dones", "last", "first", "valid")
_LABELS = ("episodes", "agents")
_EXACT = ("steps", "times")  # as float64
_NUMBER = re.compile(r"[-+]?[\d.]{1,400}(?:[eE][-+]?\d{1,400})?")
_CELL = re.compile(r"[-+]?[\d.,]{1,400}(?:[eE][-+]?\d{1,400})?")  # of a number, perhaps with a comma
_PIECE = 4096  # rows that are checked together
_DICTIONARIES = (
    "; pass a list of dictionaries, one for each episode or step: of tuples, [dict(zip(('state', 'action', …), step)) "
    "for step in log]; of a dictionary of lists, [dict(zip(log, one)) for one in zip(*log.values())]; of arrays of all "
    "rows, one dictionary, dict(zip(('state', 'action', …), log))"
)
_OF_STATES = (
    "; if some rows hold only a state, or the action that led to it, make episodes of them by a recipe "
    "(docs/files.md, rows of other libraries)"
)


@dataclass(frozen=True)
class Parts:
    """Arrays of a log by what they mean."""

    where: str  # beginning of messages, such as the file's path
    arrays: dict[str, Any]  # part of the log → its array, which may not be read yet
    names: dict[str, str]  # part of the log → name of the array
    unread: list[str]  # names of arrays with one value a row that are not read
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
        stored, result, count = [0], 0, self.count or 0
        for part, values in self.arrays.items():
            size = int(np.prod(shape_of(values), dtype=np.float64))
            if isinstance(values, STORED):
                stored.append(0 if values.dtype == np.float32 else size * values.dtype.itemsize)
            result += 4 * size * (2 if part == "states" and "next_states" not in self.arrays else 1)
        return result + max(stored) + 48 * count  # of flags and numbers of rows

    def read(self, part: str) -> np.ndarray:
        """Return the checked values of a part, in memory of their own.

        States, next states and actions are (rows, columns) float32, one number for each row is one column; flags are
        (rows,) bool, labels (rows,) int64 in the order of their first rows, steps and times (rows,) float64, others
        (rows,) float32. Rows of next states may be NaN.
        """
        values, name = self.numbers(part), self._name(part)
        if part in _TABLES:
            values = values[:, None] if values.ndim == 1 else values
            shape = table_shape(values.shape, f"{name} must have shape (rows, columns)")
            if 0 in shape:
                raise ValueError(f"{name} must have shape (rows, columns), got {values.shape}")
            return self._finite(part, values.reshape(shape))
        if values.shape not in ((len(values),), (len(values), 1)):
            hint = f"; choose one of {self.names[part]}_0, …" if values.ndim == 2 else ""
            hint = "; pass only that of the logged action" if part == "probabilities" else hint
            raise ValueError(f"{name} must have shape (rows,), got {values.shape}{hint}")
        values = values.reshape(-1)
        if part in _LABELS:
            import pandas

            if wrong := [x for x in values.tolist() if isinstance(x, dict | list)][:1]:
                raise TypeError(f"{name} hold a {type(wrong[0]).__name__}, expected numbers or names")
            numbers, _ = pandas.factorize(values)
            if (numbers < 0).any():
                raise ValueError(f"{name} has no value at row {int(np.argmax(numbers < 0))}: fill it")
            return numbers
        if part not in _FLAGS:
            return self._finite(part, values)
        inverted = part in self.inverted
        if not inverted:  # a discount may be 0.99
            self._refuse(part, values, (values != 0) & (values != 1), "must be 0 or 1", "; write values == …")
        return (values == 0) if inverted else values.astype(bool)

    def log_probs(self) -> np.ndarray | None:
        """Return (rows,) log-probabilities or logarithms of densities of actions; None without them."""
        logs, values = (self.read(part) if part in self.arrays else None for part in ("log_probs", "probabilities"))
        if values is not None:
            self._refuse("probabilities", values, values <= 0, "must be above 0", "; name logarithms 'log_probs'")
        if logs is None or values is None:
            return logs if values is None else np.log(values)
        if not np.allclose(np.exp(logs), values, rtol=1e-3, atol=1e-6):
            first, second = self.names["probabilities"], self.names["log_probs"]
            raise ValueError(
                f"{self.where}: {first!r} and {second!r} disagree; leave one out by columns={{'unread': {first!r}}}"
            )
        return logs

    def _name(self, part: str) -> str:
        return f"{self.where}: {self.names[part]!r}"

    def _refuse(self, part: str, values: np.ndarray, wrong: np.ndarray, what: str, remedy: str = "") -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"{self._name(part)} {what}, got {values[row]:g} at row {row}{remedy}")

    def numbers(self, part: str) -> np.ndarray:
        """Return the values of an array, which must be numbers, or labels, for each row."""
        try:
            values = as_numbers(self.arrays[part])
        except (OverflowError, RuntimeError, TypeError, ValueError) as error:
            if str(error).startswith(self.where):
                raise
            raise ValueError(f"{self._name(part)} is no array: {error}{_DICTIONARIES}") from error
        if values.dtype.kind in "OSU" and part not in _LABELS:
            with contextlib.suppress(OverflowError, TypeError, ValueError):  # numbers, or arrays of equal length
                values = np.array(values.tolist(), np.float64)
        if part in _EXACT and values.size and isinstance(values.flat[0], str | datetime.date | np.datetime64):
            import pandas

            times = pandas.to_datetime(values.reshape(-1), errors="coerce", format="ISO8601", utc=True)
            values = np.where(times.isna(), np.nan, times.asi8)
        if values.dtype.kind == "m":
            values = values / np.timedelta64(1, "s")
        if values.dtype.kind not in "fiub" and part not in _LABELS:
            raise TypeError(f"{self._name(part)} must be numbers, got dtype {values.dtype}{self._advice(part, values)}")
        if values.ndim == 0 or len(values) == 0:
            raise ValueError(f"{self._name(part)} is empty: shape {values.shape}")
        if self.count not in (None, len(values)):
            raise ValueError(
                f"{self._name(part)} has {len(values)} rows, {self.names['states']!r} has {self.count}; pass a list of "
                "dictionaries, one for each episode, if states hold the last ones of episodes too"
            )
        return values

    def _advice(self, part: str, values: np.ndarray) -> str:
        """Return what to do with values that are no numbers."""
        if values.dtype.names:
            return "; pass {name: x[name] for name in x.dtype.names}"
        words = (i for i, x in enumerate(values.flat) if isinstance(x, str) and not _NUMBER.fullmatch(x))
        if (place := next(words, None)) is None:
            return _DICTIONARIES if values.dtype == object else ""
        word, (row, column) = printable(values.flat[place], NAME_WIDTH), divmod(place, values.size // len(values))
        if any(isinstance(x, str) and _CELL.fullmatch(x) for x in values.reshape(len(values), -1)[:, column]):
            return f": {word!r} at row {row} is among numbers: write a number, or leave the row out"
        if part != "actions":
            what = "1 where they hold, 0 elsewhere" if part in _FLAGS else "numbers"
            return f": write {what}, such as by table[name].map({{{word!r}: …, …}})"
        return f": number the words, actions as the policies do, such as by table[name].map({{{word!r}: 0, …}})"

    def _finite(self, part: str, exact: np.ndarray) -> np.ndarray:
        dtype = np.float64 if part in _EXACT else np.float32
        with np.errstate(over="ignore"):
            values = np.array(exact, dtype, order="C", copy=None if isinstance(self.arrays[part], STORED) else True)
        largest = TOO_LARGE if part in ("rewards", "costs") else np.inf
        for start in range(0, len(values), _PIECE):
            piece = values[start : start + _PIECE]
            finite = (np.isfinite(piece) & (np.abs(piece) <= largest)).reshape(len(piece), -1).all(1)
            if part == "next_states":
                finite |= np.isnan(piece).all(1)
            if not finite.all():
                row = start + int(np.argmin(finite))
                what, remedy = f"is not finite (as float32) at row {row}", ": fill it, or leave the row out"
                if part in _EXACT:
                    what, remedy = (
                        f"is no number or ISO date at row {row}",
                        ": make dates by pandas.to_datetime, or leave it out by columns={'unread': …}",
                    )
                elif np.isfinite(values[row]).all():
                    what = f"is {values[row]:g} at row {row}, beyond the supported magnitude {largest:g}"
                    remedy = ": leave the row out, or divide all by a constant, and returns too"
                elif part in ("actions", "rewards", "costs"):
                    remedy = f": each row needs the action and the reward of its state{_OF_STATES}"
                raise ValueError(f"{self._name(part)} {what}{remedy}")
        if part == "states":
            warn_of_rounding(values, lambda some: exact[some], exact.dtype, f"{self.where}: ")
        return values
