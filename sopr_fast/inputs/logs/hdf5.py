"""Arrays of HDF5 files, of the whole log or of each episode."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.extras import library
from ...runtime.rows import FileVersion, Read
from ..files import reading
from .arrays import Lazy
from .episode_files import join_episodes

_GROUPED = re.compile(r"(?:.*/)?(?P<label>(?:episode|demo|traj)_(?P<number>\d+))/(?P<key>.+)")  # Minari, robomimic
_NUMBERED = re.compile(r"(?P<key>observations|actions|rewards|terminated)_(?P<label>(?P<number>\d+))")  # d3rlpy
_SCALED = ("scale_factor", "add_offset")  # attributes by which netCDF packs numbers into integers


class Hdf5Array(Lazy):
    """A dataset of a file, which is opened when values are read; its type is that of the numbers as they are read."""

    def __init__(self, path: Path, key: str, dataset: Any, status: os.stat_result) -> None:
        super().__init__(dataset.shape, dataset.dtype, self._read_all)
        self.name = f"{path}: {key!r}"
        self.row_bytes = int(np.prod(self.shape[1:])) * self.dtype.itemsize
        is_filtered = dataset.chunks and dataset.id.get_create_plist().get_nfilters()
        self.unit = int(dataset.chunks[0]) if is_filtered else 1  # rows that are read together
        self._path, self._key, self._version = path, key, FileVersion(status, self.name)

    def _read_all(self) -> np.ndarray:
        with self._open() as dataset, reading(self.name, "an array"):
            return np.asarray(dataset[()])

    @contextmanager
    def reader(self) -> Iterator[Read]:
        """Yield a function that reads consecutive rows."""
        # Without a chunk cache, HDF5 reads only the needed rows of uncompressed chunks.
        with self._open(rdcc_nbytes=0) as dataset:
            yield lambda start, stop: dataset[start:stop]

    @contextmanager
    def _open(self, **options: Any) -> Iterator[Any]:
        with open_hdf5(self._path, **options) as file:
            self._version.check(os.stat(self._path))
            dataset = file[self._key]
            if dataset.external is not None or dataset.is_virtual:
                raise ValueError(f"{self.name} refers to other files; copy its values into this file")
            if packed := [name for name in _SCALED if name in dataset.attrs]:
                raise ValueError(f"{self.name} is packed by {packed[0]}: write it as plain numbers")
            if self.dtype.kind not in "fiub":
                raise TypeError(f"{self.name} must be numbers, got dtype {self.dtype}")
            yield dataset
            self._version.check(os.stat(self._path))


def read_hdf5(path: Path) -> dict[str, Any]:
    """Return the arrays of a file by their path in it, and numbers among its attributes; arrays are read when needed.

    Arrays of each episode, as Minari (`episode_0/rewards`), robomimic (`data/demo_0/rewards`) and d3rlpy (`rewards_0`)
    write them, are joined. Soft and external links are not followed.
    """
    status, arrays = os.stat(path), {}
    episodes: dict[tuple[int, str], dict[str, Any]] = {}
    with open_hdf5(path) as file:

        def add(name: str, item: Any) -> None:
            if hasattr(item, "dtype") and item.shape is not None:
                arrays[name] = Hdf5Array(path, name, item, status)

        file.visititems(add)
        attributes = {key: value for key, value in file.attrs.items() if np.shape(value) == ()}
        pattern = _NUMBERED if {"columns", "num_episodes", "version"} <= arrays.keys() else _GROUPED
        for match in filter(None, map(pattern.fullmatch, arrays)):
            episodes.setdefault((int(match["number"]), match["label"]), {})[match["key"]] = arrays[match[0]]
    if not episodes:
        return arrays | {key: np.asarray(value) for key, value in attributes.items() if key not in arrays}
    return join_episodes({f"episode {label}": arrays for (_, label), arrays in sorted(episodes.items())}, str(path))


@contextmanager
def open_hdf5(path: Path, **options: Any) -> Iterator[Any]:
    """Open an HDF5 file for reading; errors of h5py inside the block name the file."""
    h5py = library("h5py", "hdf5", f"{path}: reading it")
    with reading(path, "an HDF5 file"), h5py.File(path, "r", **options) as file:
        yield file
