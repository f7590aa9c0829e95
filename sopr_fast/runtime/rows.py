"""Rows of arrays in files, read in contiguous pieces.

No file is mapped: every page touched would count as resident, and cutting a mapped file short ends the process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

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


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return the shape, whether columns come first, and the type in the header of an `.npy` file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


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
    """Rows of the array in an `.npy` file, read by position; indexed by arrays of rows.

    ValueError if the file is damaged, an archive, a single number, or an array of Python objects.
    """

    unit = 1  # row that is read together with others

    def __init__(self, path: Path) -> None:
        self.name, self._path = printable(path), path
        with open(path, "rb") as file:
            self._version = FileVersion(os.fstat(file.fileno()), self.name)
            self.shape, self._is_transposed, self.dtype = read_header(file)
            self._start, size = file.tell(), os.fstat(file.fileno()).st_size
        if self.dtype.hasobject:
            raise ValueError("Python objects are not read")
        if not self.shape or min(self.shape) < 0:
            raise ValueError("not an array with rows")
        self.ndim, self.row_bytes = len(self.shape), math.prod(self.shape[1:]) * self.dtype.itemsize
        if self._start + self.row_bytes * self.shape[0] > size:
            raise ValueError("cut short")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Return rows (n,), in any order, as (n, …), or raise ValueError if the file was changed."""
        order, out = np.argsort(rows, kind="stable"), np.empty((len(rows), *self.shape[1:]), self.dtype)
        with self.reader() as read:
            gather(read, np.asarray(rows)[order], out, self.row_bytes)
        return out[np.argsort(order, kind="stable")]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with self.reader() as read:
            return np.asarray(read(0, len(self)), dtype)

    @contextmanager
    def reader(self) -> Iterator[Read]:
        """Yield a function that reads consecutive rows; ValueError if the file was changed."""
        with open(self._path, "rb", buffering=0) as file:
            self._version.check(os.fstat(file.fileno()))

            def read_values(place: int, count: int) -> np.ndarray:
                file.seek(self._start + place * self.dtype.itemsize)
                values = np.fromfile(file, self.dtype, count)
                if len(values) < count:
                    raise ValueError(f"{self.name}: the file was cut short after it was opened; load it again")
                return values

            def read(start: int, stop: int) -> np.ndarray:
                count, columns = stop - start, math.prod(self.shape[1:])
                if not self._is_transposed:
                    return read_values(start * columns, count * columns).reshape(count, *self.shape[1:])
                table = [read_values(i * len(self) + start, count) for i in range(columns)]
                return np.reshape(table, (columns, count)).T.reshape(count, *self.shape[1:], order="F")

            yield read
            self._version.check(os.fstat(file.fileno()))
