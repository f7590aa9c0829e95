"""Rows of arrays in files, read in contiguous pieces by ordinary reads.

Nothing is memory-mapped: every page touched would count as resident, and cutting a mapped file short ends the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .regular import open_regular
from .text import printable

_PIECE_BYTES = 8 << 20
_NEAR_BYTES = 4096  # reading through a smaller gap costs less than another read

Read = Callable[[int, int], np.ndarray]  # start and stop → (stop - start, …)


def gather(read: Read, rows: np.ndarray, out: np.ndarray, row_bytes: int, unit: int = 1) -> None:
    """Read rows in pieces: whole units, a few megabytes at most, without wide gaps.

    Args:
        read: Reads consecutive rows.
        rows: (n,) int64, ascending.
        out: (n, …) of any dtype; receives the rows.
        row_bytes: Bytes from one row to the next in the store.
        unit: Rows that the store reads together.
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
    """Version of a file whose rows are read after its header was.

    Args:
        status: Status of the file before its header was read.
        name: Beginning of the error message.
    """

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
    """Rows of an array that lies uncompressed in a file, such as an `.npy` file; indexed by arrays of rows.

    Attributes:
        shape: (rows, …).
        dtype: Type of the numbers.
        name: Beginning of error messages.

    Args:
        path: File.
        status: Its status before its header was read; later changes of the file are errors.
        offset: Byte at which the array begins.
        shape: (rows, …).
        dtype: Type of the numbers.
        name: Beginning of error messages.
        by_column: Whether the array is in Fortran order.

    Raises:
        ValueError: The file ends before the array does.
    """

    def __init__(
        self,
        path: Path,
        status: os.stat_result,
        offset: int,
        shape: tuple[int, ...],
        dtype: Any,
        name: str,
        *,
        by_column: bool = False,
    ) -> None:
        self.shape, self.dtype, self.name = tuple(shape), np.dtype(dtype), printable(name)
        self._path, self._offset, self._by_column = path, offset, by_column
        self._version = FileVersion(status, self.name)
        self._columns = int(np.prod(self.shape[1:]))
        if status.st_size < offset + len(self) * self._columns * self.dtype.itemsize:
            raise ValueError(f"{self.name}: cut short, fewer than the {len(self)} rows of its header")

    @classmethod
    def of_npy(cls, path: Path) -> FileRows:
        """Return the rows of an `.npy` file.

        Raises:
            ValueError: Damaged, an archive, a single number, or an array of Python objects.
        """
        status = os.stat(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # no page of the mapping is touched
        if not isinstance(array, np.memmap) or array.ndim == 0:
            raise ValueError("not an array with rows")
        by_column = not array.flags.c_contiguous
        return cls(path, status, array.offset, array.shape, array.dtype, str(path), by_column=by_column)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes from one row to the next."""
        return self.dtype.itemsize * (1 if self._by_column else self._columns)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Return rows (n,), in any order, as (n, …).

        Raises:
            ValueError: The file was changed after it was opened.
        """
        ascending, places = np.unique(rows, return_inverse=True)
        values = np.empty((len(ascending), *self.shape[1:]), self.dtype)
        with self.reader() as read:
            gather(read, ascending, values, self.row_bytes)
        return values[places]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with self.reader() as read:
            return np.asarray(read(0, len(self)), dtype)

    @contextmanager
    def reader(self) -> Iterator[Read]:
        """Yield a function that reads consecutive rows.

        Raises:
            ValueError: The file was changed after it was opened.
        """
        with open_regular(self._path, buffering=0) as file:

            def read_numbers(place: int, count: int) -> np.ndarray:
                buffer = memoryview(bytearray(count * self.dtype.itemsize))
                file.seek(self._offset + place * self.dtype.itemsize)
                done = 0
                while done < len(buffer):
                    size = file.readinto(buffer[done:])
                    if not size:
                        raise ValueError(f"{self.name}: cut short while it was read")
                    done += size
                return np.frombuffer(buffer, self.dtype)

            def read(start: int, stop: int) -> np.ndarray:
                shape = (stop - start, *self.shape[1:])
                if not self._by_column:
                    return read_numbers(start * self._columns, (stop - start) * self._columns).reshape(shape)
                values = np.empty((stop - start, self._columns), self.dtype)
                for column in range(self._columns):
                    values[:, column] = read_numbers(column * len(self) + start, stop - start)
                return values.reshape(shape, order="F")

            self._version.check(os.fstat(file.fileno()))
            yield read
            self._version.check(os.fstat(file.fileno()))
