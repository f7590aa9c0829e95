"""Rows of arrays in files, read in contiguous pieces.

No file stays mapped: every page touched would count as resident, and cutting a mapped file short ends the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .text import printable

_PIECE_BYTES = 8 << 20
_NEAR_BYTES = 4096  # reading through a smaller gap costs less than another read

Read = Callable[[int, int], np.ndarray]  # start and stop → (stop - start, …)


def gather(read: Read, rows: np.ndarray, out: np.ndarray, row_bytes: int, unit: int = 1) -> None:
    """Read ascending rows (n,) into `out` (n, …), in pieces of a few megabytes at most, without wide gaps.

    A row has `row_bytes` in the store, which reads `unit` rows together.
    """
    if not len(rows):
        return
    reach = 1 if unit > 1 else max(1, _NEAR_BYTES // max(1, row_bytes))
    units_per_piece = max(1, _PIECE_BYTES // max(1, unit * row_bytes))
    units = rows // unit
    cuts = np.flatnonzero((np.diff(units) > reach) | (np.diff(units // units_per_piece) > 0)) + 1
    with np.errstate(over="ignore"):
        for first, last in pairwise([0, *cuts.tolist(), len(rows)]):
            start, stop = int(rows[first]), int(rows[last - 1]) + 1
            out[first:last] = read(start, stop)[rows[first:last] - start]


class FileVersion:
    """Version of a file whose rows are read after its header was: by its status then; `name` begins the error."""

    def __init__(self, status: os.stat_result, name: str) -> None:
        self._numbers, self._name = self._of(status), name

    def check(self, status: os.stat_result) -> None:
        """Raise ValueError if the file was changed or replaced."""
        if self._of(status) != self._numbers:
            raise ValueError(f"{self._name}: the file was changed after it was opened; load it again")

    @staticmethod
    def _of(status: os.stat_result) -> tuple[int, int, int]:
        return status.st_ino, status.st_size, status.st_mtime_ns


class FileRows:
    """Rows of the array in an `.npy` file, which is mapped only while they are read; indexed by arrays of rows.

    ValueError if the file is damaged, an archive, a single number, or an array of Python objects.
    """

    unit = 1  # row that is read together with others

    def __init__(self, path: Path) -> None:
        self.name, self._path = printable(path), path
        self._version = FileVersion(os.stat(path), self.name)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.memmap) or array.ndim == 0:
            raise ValueError("not an array with rows")
        self.shape, self.ndim, self.dtype, self.row_bytes = array.shape, array.ndim, array.dtype, array.strides[0]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Return rows (n,), in any order, as (n, …), or raise ValueError if the file was changed."""
        with self._mapped() as array:
            return array[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with self._mapped() as array:
            return np.array(array, dtype)

    @contextmanager
    def reader(self) -> Iterator[Read]:
        """Yield a function that reads consecutive rows; ValueError if the file was changed."""
        with self._mapped() as array:
            yield lambda start, stop: array[start:stop].copy()

    @contextmanager
    def _mapped(self) -> Iterator[np.ndarray]:
        self._version.check(os.stat(self._path))
        yield np.asarray(np.load(self._path, mmap_mode="r", allow_pickle=False))
        self._version.check(os.stat(self._path))
