"""Arrays of HDF5 files."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .errors import unreadable


def read_hdf5(path: Path, wanted: Iterable[str]) -> dict[str, np.ndarray]:
    """The arrays of a file by their path inside it; of those not wanted, empty ones in their place.

    Raises:
        ImportError: h5py is not installed.
        MemoryError: an array is larger than what is free.
        TypeError, ValueError: the file is damaged or cut short, an array is not of numbers.
    """
    wanted, arrays = set(wanted), {}
    with open_hdf5(path) as file:
        for key in datasets(file):
            arrays[key] = _read(path, key, file[key]) if key in wanted else np.empty(0)
    return arrays


@contextmanager
def open_hdf5(path: Path, **options: Any):
    """An `h5py.File` to read from.

    Raises:
        ImportError: h5py is not installed.
        ValueError: no HDF5 file, damaged or cut short, wherever in the block that shows.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"{path}: reading it needs h5py: pip install 'sopr_fast[hdf5]'") from error
    try:
        with h5py.File(path, "r", **options) as file:
            yield file
    except Exception as error:  # what damage raises can be of nearly any type
        if str(error).startswith(f"{path}: "):
            raise
        raise unreadable(f"{path}: damaged, cut short, or not an HDF5 file", error) from error


def datasets(file: Any) -> list[str]:
    """The paths of the arrays inside an open file."""
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if hasattr(item, "dtype") else None)
    return found


def _read(path: Path, key: str, dataset: Any) -> np.ndarray:
    if dataset.dtype.kind not in "fiub":
        raise TypeError(f"{path}: {key!r} must be numbers, got dtype {dataset.dtype}")
    try:
        return dataset[()]
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{path}: {key!r} is damaged: {error}") from error
