"""Logged states of which rows are read as they are drawn, from memory or from a file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.arrays import fill_masked
from ...runtime.checks import TOO_LARGE
from ...runtime.rows import FileRows, FileVersion, Read, gather
from ...runtime.text import printable
from .arrays import table_shape, warn_of_equal_rows, warn_of_rounding
from .hdf5 import get_dataset, list_datasets, open_hdf5
from .keys import find_key


class StoredStates(ABC):
    """(rows, dim_s) logged states; `read` returns some rows, `numpy.asarray` all.

    Attributes:
        shape: (rows, dim_s).
        dtype: Type of the numbers in the store.
        name: Name of the file or object in errors; empty for arrays in memory.
    """

    shape: tuple[int, int]
    dtype: np.dtype
    name: str

    def __init__(self, shape: tuple[int, ...], dtype: Any, name: str) -> None:
        self.dtype, self.name = np.dtype(dtype), printable(name)
        if self.dtype.kind not in "fiub":
            raise TypeError(f"{self._where}states must be numbers, got dtype {self.dtype}")
        self.shape = table_shape(shape, f"{self._where}states must have shape (rows, dim_s)")
        if 0 in self.shape:
            raise ValueError(f"{self._where}states are empty: shape {tuple(shape)}")

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...

    @abstractmethod
    def _gather(self, rows: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
        """Return `rows` (n,) int64, ascending, as (n, dim_s) numbers of a type, unchecked."""

    @property
    def _where(self) -> str:
        return f"{self.name}: " if self.name else ""

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return rows of the states.

        Args:
            rows: (n,) int64, ascending.

        Returns:
            (n, dim_s) float32.

        Raises:
            ValueError: A row cannot be read, is not finite or too large.

        Warns:
            UserWarning: More than half of the rows are equal, or a column loses its differences in float32.
        """
        states = self._gather(rows)
        self._check_values(states, rows)
        warn_of_equal_rows(states, self._where)
        warn_of_rounding(states, lambda some: self._gather(rows[some], self.dtype), self.dtype, self._where)
        return states

    def has_rows(self, rows: np.ndarray, states: np.ndarray) -> bool:
        """Return whether `rows` (n,) int64, ascending, are the states (n, dim_s) float32; read no others."""
        return bool(rows[-1] < len(self)) and np.array_equal(self._gather(rows), states)

    def _check_values(self, states: np.ndarray, rows: np.ndarray | None) -> None:
        """Raise if a value is not finite or too large; `rows` are the rows of the states, None for all."""
        with np.errstate(over="ignore"):
            values = states.astype(np.float32, copy=False)
        accepted = (values > -TOO_LARGE) & (values < TOO_LARGE)
        if accepted.all():
            return
        place = int(np.argmin(accepted.all(1)))
        row = place if rows is None else rows[place]
        if not np.isfinite(values[place]).all():
            raise ValueError(f"{self._where}states are not finite (as float32) at row {row}")
        value = values[place][~accepted[place]][0]
        raise ValueError(
            f"{self._where}states hold {value:g} at row {row}, beyond the supported magnitude {TOO_LARGE:g}"
        )


class ArrayStates(StoredStates):
    """States in memory, all checked at once; memory-mapped ones are checked as they are read."""

    def __init__(self, values: np.ndarray, name: str = "") -> None:
        super().__init__(values.shape, values.dtype, name)
        self._values = values.reshape(self.shape)
        if not isinstance(values, np.memmap):
            self._check_values(self._values, None)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._values, dtype) if copy else np.asarray(self._values, dtype)

    def _gather(self, rows: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(self._values[rows], dtype)


class _PiecewiseStates(StoredStates):
    """States outside memory, read in contiguous pieces."""

    _unit = 1  # rows that the store reads together

    @abstractmethod
    def _reader(self) -> AbstractContextManager[Read]: ...

    @property
    def _row_bytes(self) -> int:
        return self.shape[1] * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with self._reader() as read:
            return np.asarray(read(0, len(self)), dtype)

    def _gather(self, rows: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
        states = np.empty((len(rows), self.shape[1]), dtype)
        with self._reader() as read:
            gather(read, rows, states, self._row_bytes, self._unit)
        return states


class FlatStates(_PiecewiseStates):
    """States that lie uncompressed in a file: an `.npy` file or a contiguous HDF5 dataset."""

    def __init__(self, rows: FileRows) -> None:
        super().__init__(rows.shape, rows.dtype, rows.name)
        self._rows = rows

    @property
    def _row_bytes(self) -> int:
        return self._rows.row_bytes

    @contextmanager
    def _reader(self) -> Iterator[Read]:
        with self._rows.reader() as read:
            yield lambda start, stop: read(start, stop).reshape(-1, self.shape[1])


class SlicedStates(_PiecewiseStates):
    """States of an object with `shape`, `dtype` and slices: an open `h5py.Dataset`, a zarr array; chunks are read
    whole."""

    def __init__(self, values: Any, name: str | None = None) -> None:
        name = name or f"{type(values).__name__} {getattr(values, 'name', '')}".strip()
        super().__init__(tuple(values.shape), values.dtype, name)
        self._values, self._unit = values, _rows_per_read(values)

    @contextmanager
    def _reader(self) -> Iterator[Read]:
        yield lambda start, stop: _read_slice(self._values, start, stop, self)


class Hdf5States(_PiecewiseStates):
    """A chunked dataset of an HDF5 file, opened when rows are read."""

    def __init__(self, path: Path, key: str, status: os.stat_result) -> None:
        self._path, self._key = path, key
        with open_hdf5(path) as file:
            dataset = get_dataset(file, key, path)
            super().__init__(dataset.shape, dataset.dtype, f"{path}: {key!r}")
            self._version = FileVersion(status, self.name)
            self._unit = _rows_per_read(dataset)

    @contextmanager
    def _reader(self) -> Iterator[Read]:
        # Without a chunk cache, HDF5 reads only the needed rows of uncompressed chunks.
        with open_hdf5(self._path, rdcc_nbytes=0) as file:
            self._version.check(os.stat(self._path))
            dataset = get_dataset(file, self._key, self._path)
            yield lambda start, stop: _read_slice(dataset, start, stop, self)
            self._version.check(os.stat(self._path))


def states_of_hdf5(path: Path) -> StoredStates:
    """Return the states of a file, to be read as its layout allows.

    Raises:
        ImportError: h5py is not installed.
        TypeError: The states are not numbers.
        ValueError: The file is damaged, has no states, or keeps them in another file; or the states are not a table.
    """
    status = os.stat(path)
    with open_hdf5(path) as file:
        key = find_key("states", list_datasets(file), path)
        dataset = get_dataset(file, key, path)
        offset = dataset.id.get_offset()
        if offset is not None and file.userblock_size == 0:
            return FlatStates(FileRows(path, status, offset, dataset.shape, dataset.dtype, f"{path}: {key!r}"))
    return Hdf5States(path, key, status)


def _rows_per_read(values: Any) -> int:
    """Return the rows of one chunk if chunks are compressed, which are read whole, otherwise 1."""
    chunks = getattr(values, "chunks", None)
    if not chunks:
        return 1
    if hasattr(values, "id") and values.id.get_create_plist().get_nfilters() == 0:
        return 1
    first = chunks[0]
    return int(first if isinstance(first, int) else first[0])


def _read_slice(values: Any, start: int, stop: int, states: StoredStates) -> np.ndarray:
    try:
        return np.asarray(fill_masked(values[start:stop])).reshape(stop - start, states.shape[1])
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{states.name}: damaged between rows {start} and {stop - 1}: {error}") from error
