"""Arrays of HDF5 files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np


def read_hdf5(path: Path, wanted: Iterable[str]) -> dict[str, np.ndarray]:
    """The arrays of a file by their path inside it; of those not wanted, empty ones in their place.

    Raises:
        ImportError: h5py is not installed.
        TypeError, ValueError: the file is damaged or cut short, an array is not of numbers.
    """
    h5py = import_h5py(path)
    wanted, arrays, key = set(wanted), {}, None
    try:
        with h5py.File(path, "r") as file:
            datasets: list[str] = []
            file.visititems(lambda name, item: datasets.append(name) if isinstance(item, h5py.Dataset) else None)
            for key in datasets:
                if key in wanted and file[key].dtype.kind not in "fiub":
                    raise TypeError(f"{path}: {key!r} must be numbers, got dtype {file[key].dtype}")
                arrays[key] = file[key][()] if key in wanted else np.empty(0)
    except (OSError, RuntimeError) as error:
        at = f" at {key!r}" if key else ""
        raise ValueError(f"{path}: damaged or cut short{at}, or not an HDF5 file: {error}") from error
    return arrays


def import_h5py(path: Path):
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"{path}: reading it needs h5py: pip install 'sopr_fast[hdf5]'") from error
    return h5py
