"""Rows of arrays in files, read in contiguous pieces.

No file is mapped: every page touched would count as resident, and cutting a mapped file short ends the process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from .text import printable

_PIECE_BYTES = 8 << 20
_NEAR_BYTES = 4096  # reading through a smaller gap costs less than another read

Read = Callable[[int, int], np.ndarray]  # start and stop → (stop - start, …)


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return the shape, whether columns come first, and the type in the header of an `.npy` file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


class StoredRows:
    """Array in a file, of which only the needed rows are read; indexed by arrays of rows, in any order."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __init__(self, name: str, status: os.stat_result) -> None:
        self.name, self._version = printable(name), _version(status)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def reader(self) -> AbstractContextManager[Read]:
        """Open the file, and return a function that reads consecutive rows; ValueError if the file was changed."""
        raise NotImplementedError

    def check_version(self, status: os.stat_result) -> None:
        """Raise ValueError if the file was changed or replaced."""
        if _version(status) != self._version:
            raise ValueError(f"{self.name}: the file was changed after it was opened; load it again")

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with self.reader() as read:
            return np.asarray(read(0, len(self)), dtype)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Return rows (n,) as (n, …), read in ascending pieces of a few megabytes at most, without wide gaps."""
        order, out = np.argsort(rows, kind="stable"), np.empty((len(rows), *self.shape[1:]), self.dtype)
        rows, row_bytes = np.asarray(rows)[order], max(1, math.prod(self.shape[1:]) * self.dtype.itemsize)
        reach, pieces = max(1, _NEAR_BYTES // row_bytes), rows // max(1, _PIECE_BYTES // row_bytes)
        starts = np.flatnonzero((np.diff(rows, prepend=-reach - 1) > reach) | (np.diff(pieces, prepend=-1) > 0))
        with self.reader() as read, np.errstate(over="ignore"):
            for first, last in pairwise([*starts.tolist(), len(rows)]):
                start, stop = int(rows[first]), int(rows[last - 1]) + 1
                out[first:last] = read(start, stop)[rows[first:last] - start]
        return out if (order[1:] > order[:-1]).all() else out[np.argsort(order, kind="stable")]


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


class FileRows(StoredRows):
    """Rows of the array in an `.npy` file, read by position.

    ValueError if the file is damaged, an archive, a single number, or an array of Python objects.
    """

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            super().__init__(str(path), status := os.fstat(file.fileno()))
            self.shape, self._is_transposed, self.dtype = read_header(file)
            self._path, self._start = path, file.tell()
        if self.dtype.hasobject:
            raise ValueError("Python objects are not read")
        if not self.shape or min(self.shape) < 0:
            raise ValueError("not an array with rows")
        if self._start + math.prod(self.shape) * self.dtype.itemsize > status.st_size:
            raise ValueError("cut short")

    @contextmanager
    def reader(self) -> Iterator[Read]:
        with open(self._path, "rb", buffering=0) as file:
            self.check_version(os.fstat(file.fileno()))

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
            self.check_version(os.fstat(file.fileno()))
