"""Logged states that stay on disk: of a log larger than memory, just the rows asked for are read."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .hdf5 import datasets, open_hdf5
from .keys import find_key

_PIECE_BYTES = 8 << 20
_NEAR_BYTES = 4096  # reading over a smaller gap costs less than another read


class StoredStates(ABC):
    """(rows, dim_s) numbers outside memory; `read` takes rows, `numpy.asarray` the whole.

    Attributes:
        shape, dtype: as those of an array.
        name: of the file, for errors.
    """

    shape: tuple[int, int]
    dtype: np.dtype
    name: str
    _unit = 1  # rows that the store reads together

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with self._reader() as read:
            return np.asarray(read(0, len(self)), dtype)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """(n, dim_s) float32: `rows` (n,) int64, ascending.

        Raises:
            ValueError: the file cannot be read there, or has changed.
        """
        states = np.empty((len(rows), self.shape[1]), np.float32)
        with self._reader() as read, np.errstate(over="ignore"):
            for first, last in self._pieces(rows):
                start, stop = int(rows[first]), int(rows[last - 1]) + 1
                states[first:last] = read(start, stop)[rows[first:last] - start]
        return states

    def _pieces(self, rows: np.ndarray) -> Iterator[tuple[int, int]]:
        """Bounds in `rows` of what is read at once: whole units, at most a few megabytes, no wide gaps."""
        row_bytes = self.shape[1] * self.dtype.itemsize
        reach = 1 if self._unit > 1 else max(1, _NEAR_BYTES // row_bytes)
        at_once = max(1, _PIECE_BYTES // (self._unit * row_bytes))
        units = rows // self._unit
        cuts = np.flatnonzero((np.diff(units) > reach) | (np.diff(units // at_once) > 0)) + 1
        bounds = [0, *cuts.tolist(), len(rows)]
        return pairwise(bounds)

    @abstractmethod
    @contextmanager
    def _reader(self): ...


class FlatStates(StoredStates):
    """Rows one after the other from some offset of a file: an `.npy`, or a contiguous HDF5 dataset."""

    def __init__(self, path: Path, offset: int, shape: tuple[int, ...], dtype: np.dtype, name: str) -> None:
        self.path, self.offset, self.shape, self.dtype, self.name = path, offset, tuple(shape), np.dtype(dtype), name
        check_table(self, f"{self.name}: ")
        if os.path.getsize(path) < offset + np.prod(shape) * self.dtype.itemsize:
            raise ValueError(f"{name}: cut short, {shape[0]} rows are missing some")

    @contextmanager
    def _reader(self):
        width = self.shape[1] * self.dtype.itemsize
        # Not memory-mapped: every page touched would count as resident.
        with open(self.path, "rb", buffering=0) as file:

            def read(start: int, stop: int) -> np.ndarray:
                values = np.empty((stop - start, self.shape[1]), self.dtype)
                buffer, done = memoryview(values).cast("B"), 0
                file.seek(self.offset + start * width)
                while done < len(buffer):
                    found = file.readinto(buffer[done:])
                    if not found:
                        raise ValueError(f"{self.name}: cut short before row {stop - 1}")
                    done += found
                return values

            yield read


class SlicedStates(StoredStates):
    """An object with `shape`, `dtype` and slices: an open `h5py.Dataset`, a zarr array; chunks are read whole."""

    def __init__(self, values: Any, name: str | None = None) -> None:
        self.values, self.name = values, name or f"{type(values).__name__} {getattr(values, 'name', '')}".strip()
        self.shape, self.dtype = tuple(values.shape), np.dtype(values.dtype)
        check_table(self, f"{self.name}: ")
        self._unit = rows_at_once(values)

    @contextmanager
    def _reader(self):
        yield lambda start, stop: read_slice(self.values, start, stop, self.name)


class Hdf5States(StoredStates):
    """A chunked dataset of an HDF5 file, opened when rows are read."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key, self.name = path, key, f"{path}: {key!r}"
        with open_hdf5(path) as file:
            dataset = file[key]
            self.shape, self.dtype = dataset.shape, dataset.dtype
            check_table(self, f"{self.name}: ")
            self._unit = rows_at_once(dataset)

    @contextmanager
    def _reader(self):
        # Without a cache of chunks, HDF5 reads just the rows of those that are not compressed.
        with open_hdf5(self.path, rdcc_nbytes=0) as file:
            dataset = file[self.key]
            yield lambda start, stop: read_slice(dataset, start, stop, self.name)


def stored_in_hdf5(path: Path) -> StoredStates:
    """The states of a file, read as its layout allows.

    Raises:
        TypeError, ValueError: damaged, without states, not (rows, columns) of numbers.
    """
    with open_hdf5(path) as file:
        key = find_key("states", datasets(file), path)
        dataset, name = file[key], f"{path}: {key!r}"
        offset = dataset.id.get_offset()
        if offset is not None and file.userblock_size == 0 and dataset.external is None:
            return FlatStates(path, offset, dataset.shape, dataset.dtype, name)
    return Hdf5States(path, key)


def check_table(states: Any, where: str) -> None:
    """Refuses what is not (rows, columns) of numbers.

    Raises:
        TypeError, ValueError: beginning with `where`.
    """
    if states.dtype.kind not in "fiub":
        raise TypeError(f"{where}states must be numbers, got dtype {states.dtype}")
    if len(states.shape) != 2:
        raise ValueError(f"{where}states must have shape (rows, dim_s), got {states.shape}")
    if 0 in states.shape:
        raise ValueError(f"{where}states are empty: shape {states.shape}")


def rows_at_once(values: Any) -> int:
    """Rows of one chunk where chunks are compressed, and so read whole; else 1."""
    chunks = getattr(values, "chunks", None)
    if not chunks:
        return 1
    if hasattr(values, "id") and values.id.get_create_plist().get_nfilters() == 0:
        return 1
    first = chunks[0]
    return int(first if isinstance(first, int) else first[0])


def read_slice(values: Any, start: int, stop: int, name: str) -> np.ndarray:
    try:
        return np.asarray(values[start:stop])
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{name}: damaged between rows {start} and {stop - 1}: {error}") from error
