"""Logged states, of which only the rows that are needed are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...runtime.checks import TOO_LARGE
from ...runtime.rows import StoredRows
from ...runtime.text import printable
from .parts import check_finite, table_shape


class StoredStates:
    """(rows, dim_s) logged states; `read` returns some rows, `numpy.asarray` all.

    States in memory are checked at once, others as they are read. TypeError is raised if they are not numbers,
    ValueError if they are empty, not a table, not finite or too large.

    Args:
        values: Array of states, which may be in a file.
        name: Name of the file in errors.
        columns: Names of the columns, if `columns` of `load_states` chose several.
        actions: (rows, …) logged actions next to them, with which those of policies are compared.
    """

    summary = ""  # why a log has only states, and which of its arrays were not read

    def __init__(self, values: np.ndarray | StoredRows, name: str = "", columns: str = "", actions: Any = None) -> None:
        self.dtype, self.name = np.dtype(values.dtype), printable(name)
        self.columns, self.actions = columns, actions
        self._what = f"{self.name}: the array of states" if self.name else "the array of states"
        if self.dtype.kind not in "fiub":
            raise TypeError(f"{self._what} must be numbers, got dtype {self.dtype}")
        count, width = table_shape(values.shape, self._what)
        self.shape = count, width
        self._values = values
        if isinstance(values, np.ndarray):
            self._values = values.reshape(count, width)
            check_finite(self._values, self._what, TOO_LARGE)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        states = np.asarray(self._values, dtype).reshape(self.shape)
        return states.copy() if copy and isinstance(self._values, np.ndarray) else states

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return `rows` (n,) int64, ascending, as (n, dim_s) float32.

        Raises:
            ValueError: A row cannot be read, is not finite or too large.
        """
        states = self._values[rows].reshape(len(rows), self.shape[1])
        check_finite(states, self._what, TOO_LARGE, rows=rows)
        return np.ascontiguousarray(states, np.float32)

    def has_rows(self, rows: np.ndarray, states: np.ndarray) -> bool:
        """Return whether `rows` (n,) int64, ascending, are the states (n, dim_s) float32; read no others."""
        return bool(rows[-1] < len(self)) and np.array_equal(
            self._values[rows].reshape(states.shape).astype(np.float32), states
        )
