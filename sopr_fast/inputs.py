"""States and returns from users' files."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

_COLUMNS = (("name", "policy"), ("return", "return_mean"))


def read_states(path: Path) -> np.ndarray:
    """Logged states (rows, dim_s): an `.npy`, or `observations` or `states` of an `.npz` or HDF5 file.

    Raises:
        FileNotFoundError, ValueError: no such file, a damaged one, or one without them.
        ImportError: h5py is not installed.
    """
    readers = {".npy": _read_npy, ".npz": _read_npz, ".hdf5": _read_hdf5, ".h5": _read_hdf5}
    if path.suffix not in readers:
        raise ValueError(f"{path}: expected states in an .npy, .npz or .hdf5 file")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        states, names = readers[path.suffix](path)
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise ValueError(f"{path}: damaged, or not an {path.suffix} file of plain arrays") from error
    if states is None:
        raise ValueError(f"{path}: no array 'observations' or 'states', found {', '.join(names) or 'nothing'}")
    return states


_Read = tuple[np.ndarray | None, list[str]]  # states, or None and what is there instead


def _read_npy(path: Path) -> _Read:
    return np.load(path, mmap_mode="r", allow_pickle=False), []


def _read_npz(path: Path) -> _Read:
    with np.load(path, allow_pickle=False) as archive:
        return _states_of(archive, list(archive))


def _read_hdf5(path: Path) -> _Read:
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"{path}: reading it needs h5py: pip install 'sopr_fast[hdf5]'") from error
    with h5py.File(path) as archive:
        return _states_of(archive, list(archive))


def _states_of(archive: Mapping[str, np.ndarray], names: list[str]) -> _Read:
    key = next((key for key in ("observations", "states") if key in names), None)
    return (None if key is None else np.asarray(archive[key])), names


def read_returns(path: Path, names: list[str]) -> dict[str, float]:
    """Name and return of policies, from a CSV file with columns name or policy and return or return_mean.

    Without a header the first two columns are meant. Integers that name no policy are positions in `names`.

    Raises:
        FileNotFoundError, ValueError: no such file, or the line at fault.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [(line, [cell.strip() for cell in row]) for line, row in enumerate(csv.reader(file), 1) if row]
    if not rows:
        raise ValueError(f"{path}: no returns in it")
    at = [0, 1]
    header = rows[0][1]
    if not any(map(_is_number, header)):
        at = [next((i for i, cell in enumerate(header) if cell in known), -1) for known in _COLUMNS]
        if -1 in at:
            raise ValueError(f"{path}: expected columns name and return, found {', '.join(header)}")
        rows = rows[1:]
    returns: dict[str, float] = {}
    for line, row in rows:
        where = f"{path}, line {line}"
        if len(row) <= max(at) or not _is_number(row[at[1]]):
            raise ValueError(f"{where}: expected a name and a number, found {','.join(row)}")
        name = row[at[0]]
        if name not in names and name.isdecimal() and int(name) < len(names):
            name = names[int(name)]
        if name not in names:
            raise ValueError(f"{where}: no policy is named {name!r}")
        if name in returns:
            raise ValueError(f"{where}: a second return of {name!r}")
        returns[name] = float(row[at[1]])
    return returns


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
