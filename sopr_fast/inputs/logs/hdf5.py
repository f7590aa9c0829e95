"""Arrays of HDF5 files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .files import check_memory, reading


def read_hdf5(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """Read the arrays of a file.

    Args:
        path: File.
        wanted: Names of the arrays to read; the others give empty arrays.

    Returns:
        Arrays by their path inside the file.

    Raises:
        ImportError: h5py is not installed.
        MemoryError: The wanted arrays are larger than the free memory.
        TypeError: An array does not hold numbers.
        ValueError: The file is damaged, cut short, or keeps a wanted array in another file.
    """
    with open_hdf5(path) as file:
        names = list_datasets(file)
        datasets = {name: get_dataset(file, name, path) for name in names if name in wanted}
        check_memory(path, sum(dataset.nbytes for dataset in datasets.values()))
        return {name: _read(path, name, datasets[name]) if name in datasets else np.empty(0) for name in names}


@contextmanager
def open_hdf5(path: Path, **options: Any) -> Iterator[Any]:
    """Open an HDF5 file for reading; errors of h5py inside the block name the file.

    Args:
        path: File.
        options: Further arguments of `h5py.File`.

    Yields:
        The open `h5py.File`.

    Raises:
        ImportError: h5py is not installed.
        ValueError: Not an HDF5 file, damaged or cut short.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"{path}: reading it needs h5py: pip install 'sopr_fast[hdf5]'") from error
    with reading(path, "an HDF5 file"), h5py.File(path, "r", **options) as file:
        yield file


def list_datasets(file: Any) -> list[str]:
    """Return the paths of the arrays inside an open file; soft and external links are not followed."""
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if hasattr(item, "dtype") else None)
    return names


def get_dataset(file: Any, name: str, path: Path) -> Any:
    """Return an open file's dataset after checking that its values lie in the file itself.

    Raises:
        ValueError: The values lie in another file.
    """
    dataset = file[name]
    if dataset.external is not None or dataset.is_virtual:
        raise ValueError(f"{path}: {name!r} refers to other files; copy its values into this file")
    return dataset


def check_contained(path: Path) -> None:
    """Check that all links and datasets of an HDF5 file stay in the file, and that its arrays fit into memory.

    Raises:
        ImportError: h5py is not installed.
        MemoryError: The arrays are larger than the free memory.
        ValueError: The file refers to other files, or is damaged.
    """
    with open_hdf5(path) as file:
        import h5py

        inside = (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT)
        name = file.id.links.visit(lambda name, info: None if info.type in inside else name, info=True)
        if name is not None:
            raise ValueError(f"{path}: {name.decode(errors='replace')!r} is a link to another file; copy its values")
        check_memory(path, sum(get_dataset(file, name, path).nbytes for name in list_datasets(file)))


def _read(path: Path, name: str, dataset: Any) -> np.ndarray:
    if dataset.dtype.kind not in "fiub":
        raise TypeError(f"{path}: {name!r} must be numbers, got dtype {dataset.dtype}")
    with reading(f"{path}: {name!r}", "an array"):
        return dataset[()]
