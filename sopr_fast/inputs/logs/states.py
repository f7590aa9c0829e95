"""Logged states, of which only the rows that are needed are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...runtime.checks import TOO_LARGE
from ...runtime.rows import Read, gather
from ...runtime.text import printable
from ..file_errors import reading
from .parts import check_finite, table_shape


class StoredStates:
    """(rows, dim_s) logged states; `read` returns some rows, `numpy.asarray` all.

    States in memory are checked at once, others as they are read. TypeError is raised if they are not numbers,
    ValueError if they are empty, not a table, not finite or too large.

    Args:
        values: Array, or rows of a file with `reader`, such as `FileRows`; `shape` and `dtype` are those of its states.
        name: Name of the file in errors.
        rows: Number of rows that were filled, if not all were.
        columns: Names of the columns, if `columns` of `load_states` chose several.
        actions: (rows, …) logged actions next to them, with which those of policies are compared.
    """

    summary = ""  # why a log has only states, and which of its arrays were not read

    def __init__(
        self, values: Any, name: str = "", rows: int | None = None, columns: str = "", actions: Any = None
    ) -> None:
        self.dtype, self.name = np.dtype(values.dtype), printable(name)
        self.columns, self.actions = columns, actions
        self._what = f"{self.name}: the array of states" if self.name else "the array of states"
        if self.dtype.kind not in "fiub":
            raise TypeError(f"{self._what} must be numbers, got dtype {self.dtype}")
        count, width = table_shape(values.shape, self._what)
        self.shape = (count if rows is None else rows, width)
        self._values = values
        if isinstance(values, np.ndarray):
            self._values = values.reshape(count, width)[: len(self)]
            check_finite(self._values, self._what, TOO_LARGE)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if isinstance(self._values, np.ndarray):
            return np.array(self._values, dtype) if copy else np.asarray(self._values, dtype)
        with self._reader() as read:
            return np.asarray(read(0, len(self)), dtype)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return `rows` (n,) int64, ascending, as (n, dim_s) float32.

        Raises:
            ValueError: A row cannot be read, is not finite or too large.
        """
        states = self._gather(rows)
        check_finite(states, self._what, TOO_LARGE, rows=rows)
        return np.ascontiguousarray(states, np.float32)

    def has_rows(self, rows: np.ndarray, states: np.ndarray) -> bool:
        """Return whether `rows` (n,) int64, ascending, are the states (n, dim_s) float32; read no others."""
        return bool(rows[-1] < len(self)) and np.array_equal(self._gather(rows).astype(np.float32), states)

    def _gather(self, rows: np.ndarray) -> np.ndarray:
        """Return `rows` (n,) int64, ascending, as they are stored, (n, dim_s)."""
        if isinstance(self._values, np.ndarray):
            return self._values[rows]
        states = np.empty((len(rows), self.shape[1]), self.dtype)
        with self._reader() as read:
            gather(read, rows, states, self._values.row_bytes, self._values.unit)
        return states

    @contextmanager
    def _reader(self) -> Iterator[Read]:
        """Yield a function that reads consecutive rows as a table."""
        with self._values.reader() as read_rows:

            def read(start: int, stop: int) -> np.ndarray:
                with reading(self.name, f"an array with rows {start} to {stop - 1}"):
                    return np.asarray(read_rows(start, stop)).reshape(stop - start, self.shape[1])

            yield read
