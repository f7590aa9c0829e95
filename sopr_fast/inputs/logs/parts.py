"""Parts of a log, checked and in the form that `Transitions` have."""

from __future__ import annotations

import contextlib
import datetime
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...runtime.arrays import as_numbers
from ...runtime.text import NAME_WIDTH, printable
from .arrays import shape_of, spread_rows, table_shape, warn_of_rounding
from .keys import is_inverted

_PIECE = 4096  # rows that are checked together
_ROUNDING = 1e-4  # of log-probabilities


@dataclass(frozen=True)
class Parts:
    """Arrays of a log by what they mean."""

    where: str  # beginning of messages, such as the file's path
    arrays: dict[str, Any]  # part of the log → its array, which may not be read yet
    names: dict[str, str]  # part of the log → name of the array
    unread: tuple[str, ...]  # names of arrays that look like ends of episodes and are not read
    mapped: bool  # whether the user mapped an array of ends

    @cached_property
    def count(self) -> int | None:
        """Rows of the log; None if the states have no shape, which reading them refuses."""
        return next(iter(shape_of(self.arrays["states"])), None)

    def table(self, part: str, *, gaps: bool = False) -> np.ndarray:
        """Return (rows, columns) float32; one number for each row is one column; `gaps` allow rows of NaN."""
        values = self.numbers(part)
        if values.ndim == 1:
            values = values[:, None]
        what = f"{self._name(part)} must have shape (rows, columns)"
        if values.ndim == 3 and values.shape[1] > 1:
            raise ValueError(
                f"{what}, got {values.shape}; pass [{{name: x[i] for name, x in log.items()}} for i in "
                f"range({len(values)})], a dictionary for each episode, or x[:, i] for i in range({values.shape[1]}) "
                "if axis 1 is of environments"
            )
        shape = table_shape(values.shape, what)
        if 0 in shape:
            raise ValueError(f"{what}, got {values.shape}")
        return self._finite(part, values.reshape(shape), gaps=gaps)

    def column(self, part: str) -> np.ndarray:
        """Return (rows,) float32."""
        return self._finite(part, self._one_column(part, self.numbers(part)))

    def flags(self, part: str) -> np.ndarray:
        """Return (rows,) bool."""
        values = self._one_column(part, self.numbers(part))
        if "discount" not in self.names[part].lower():  # which may be 0.99
            self._refuse(part, values, (values != 0) & (values != 1), "must be 0 or 1")
        return (values == 0) if part != "valid" and is_inverted(self.names[part]) else values.astype(bool)

    def steps(self) -> np.ndarray | None:
        """Return (rows,) float64 numbers of steps, or times; None without an array."""
        if "steps" not in self.arrays:
            return None
        return self._finite("steps", self._one_column("steps", self.numbers("steps")), np.float64)

    def numbers_of_episodes(self) -> np.ndarray | None:
        """Return (rows,) int64 numbers of episodes in the order of their first rows; None without an array."""
        if "episodes" not in self.arrays:
            return None
        import pandas

        labels = self._counted("episodes", as_numbers(self.arrays["episodes"]))
        numbers, _ = pandas.factorize(self._one_column("episodes", labels))
        if (numbers < 0).any():
            raise ValueError(f"{self._name('episodes')} has no value at row {int(np.argmax(numbers < 0))}")
        return numbers

    def log_probs(self, actions: np.ndarray) -> np.ndarray | None:
        """Return (rows,) log-probabilities of actions (rows, dim_a), from probabilities too; None without both.

        Raises:
            ValueError: They are no log-probabilities, or no probabilities.
        """
        indices, names = _are_indices(actions), self.names
        values, logs = (self.column(part) if part in self.arrays else None for part in ("probabilities", "log_probs"))
        if values is not None:
            bound, remedy = "from above 0 to 1" if indices else "above 0", ""
            if (values <= 0).all():
                remedy = f"; if they are logarithms, pass columns={{'log_probs': {names['probabilities']!r}}}"
            wrong = (values <= 0) | ((values > 1) & indices)
            self._refuse("probabilities", values, wrong, f"must be {bound}", remedy)
        if logs is None:
            return None if values is None else np.log(values)
        remedy = f", as logarithms are; pass probabilities as columns={{'probabilities': {names['log_probs']!r}}}"
        self._refuse("log_probs", logs, (logs > _ROUNDING) & indices, "of discrete actions must be at most 0", remedy)
        if values is not None and not np.allclose(np.exp(logs), values, rtol=1e-3, atol=1e-6):
            raise ValueError(
                f"{self.where}: {names['probabilities']!r} and {names['log_probs']!r} disagree; choose one by "
                f"columns={{'log_probs': {names['log_probs']!r}}}"
            )
        return logs

    def _name(self, part: str) -> str:
        return f"{self.where}: {self.names[part]!r}"

    def _refuse(self, part: str, values: np.ndarray, wrong: np.ndarray, what: str, remedy: str = "") -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"{self._name(part)} {what}, got {values[row]:g} at row {row}{remedy}")

    def _counted(self, part: str, values: np.ndarray) -> np.ndarray:
        """Return values, which must have a row for each state."""
        if values.ndim == 0 or len(values) == 0:
            raise ValueError(f"{self._name(part)} is empty: shape {values.shape}")
        if self.count not in (None, len(values)):
            raise ValueError(
                f"{self._name(part)} has {len(values)} rows, {self.names['states']!r} has {self.count}; pass a list of "
                "dictionaries, one for each episode, if states hold the last ones of episodes too"
            )
        return values

    def numbers(self, part: str) -> np.ndarray:
        """Return the values of an array, which must be numbers."""
        try:
            values = as_numbers(self.arrays[part])
        except (OverflowError, RuntimeError, TypeError, ValueError) as error:
            if str(error).startswith(self.where):
                raise
            raise ValueError(
                f"{self._name(part)} is no array: {error}; pass a list of dictionaries, one for each episode, if it "
                "holds arrays"
            ) from error
        if part == "steps" and values.size and isinstance(values.flat[0], str | datetime.date | np.datetime64):
            import pandas

            times = pandas.to_datetime(values.reshape(-1), errors="coerce", format="ISO8601", utc=True)
            values = np.where(times.isna(), np.nan, times.asi8)
        if values.dtype == object and not any(isinstance(value, str) for value in values.flat):
            with contextlib.suppress(OverflowError, TypeError, ValueError):  # numbers, or arrays of equal length
                values = np.array(values.tolist(), np.float64)
        if values.dtype.kind not in "fiub":
            word = next((value for value in values.flat if isinstance(value, str)), None)
            remedy = ": it may hold arrays; pass a list of dictionaries, one for each episode" if word is None else ""
            if word is not None:
                shown, column = repr(printable(word, NAME_WIDTH)), f"table[{self.names[part]!r}]"
                remedy = (
                    f": it holds words such as {shown}; number them, actions as the policies do, and pass the table, "
                    f"such as {column} = {column}.map({{{shown}: 0, …}})"
                )
            raise TypeError(f"{self._name(part)} must be numbers, got dtype {values.dtype}{remedy}")
        return self._counted(part, values)

    def _one_column(self, part: str, values: np.ndarray) -> np.ndarray:
        if values.shape not in ((len(values),), (len(values), 1)):
            hint = "; pass only that of the logged action" if part == "probabilities" else ""
            raise ValueError(f"{self._name(part)} must have shape (rows,), got {values.shape}{hint}")
        return values.reshape(-1)

    def _finite(self, part: str, exact: np.ndarray, dtype: Any = np.float32, gaps: bool = False) -> np.ndarray:
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(exact, dtype)
        for start in range(0, len(values), _PIECE):
            piece = values[start : start + _PIECE]
            finite = np.isfinite(piece).reshape(len(piece), -1).all(1)
            if gaps:
                finite |= np.isnan(piece).all(1)
            if not finite.all():
                row = start + int(np.argmin(finite))
                what = "no number or ISO date" if part == "steps" else "not finite (as float32)"
                raise ValueError(f"{self._name(part)} is {what} at row {row}")
        if part == "states":
            warn_of_rounding(values, lambda some: exact[some], exact.dtype, f"{self.where}: ")
        return values


def _are_indices(actions: np.ndarray) -> bool:
    """Return whether actions are discrete: one-hot, or one column of whole numbers, judged by a sample."""
    few = actions[spread_rows(len(actions))]
    if few.shape[1] == 1:
        return bool((few == np.abs(np.round(few))).all() and few.any())
    return bool(((few == 0) | (few == 1)).all() and (few.sum(1) == 1).all())
