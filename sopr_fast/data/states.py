"""Logged states as drawing takes them: arrays in memory, or stored ones of which it reads the rows it draws."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from .stored import FlatStates, SlicedStates, StoredStates, stored_in_hdf5
from .transitions import Transitions

KEYS = ("observations", "states")


def load_states(path: str | os.PathLike) -> np.ndarray | StoredStates:
    """The logged states (rows, dim_s) of a file; those of `.npy` and HDF5 files stay on disk.

    Args:
        path: an `.npy`, or an `.npz` or HDF5 file with an array `observations` or `states`.

    Raises:
        FileNotFoundError, TypeError, ValueError: no such file, a damaged one, or one without states.
        ImportError: the extra that reads such files is not installed.
    """
    path = Path(path)
    readers = {
        ".npy": _stored_in_npy,
        ".npz": _read_npz,
        ".hdf5": lambda path: stored_in_hdf5(path, KEYS),
        ".h5": lambda path: stored_in_hdf5(path, KEYS),
    }
    if path.suffix not in readers:
        raise ValueError(f"{path}: expected states in a file of {', '.join(readers)}")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    return readers[path.suffix](path)


def as_states(states: Any) -> np.ndarray | StoredStates:
    """The user's states as a (rows, dim_s) array or `StoredStates`; values in memory are finite.

    Args:
        states: array, tensor, nested sequence, path (see `load_states`), `Transitions`, or an array-like object
            such as an open `h5py.Dataset`, of which slices are read.

    Raises:
        TypeError, ValueError: not numbers, not two-dimensional, empty, or not finite (which row).
    """
    if isinstance(states, str | os.PathLike):
        states = load_states(states)
    if isinstance(states, Transitions):
        states = states.states
    if isinstance(states, StoredStates):
        return states
    if isinstance(states, Tensor):
        states = states.detach().cpu()
        states = (states.float() if states.dtype == torch.bfloat16 else states).numpy()
    elif not isinstance(states, np.ndarray):
        if not isinstance(states, Sequence):
            if all(hasattr(states, part) for part in ("shape", "dtype", "__getitem__")):
                return SlicedStates(states)
            raise TypeError(f"states must be an array, tensor or path, got {type(states).__name__}")
        try:
            states = np.asarray(states, np.float32)
        except (TypeError, ValueError) as error:
            raise TypeError(f"states must be numbers: {error}") from error
    if states.dtype.kind not in "fiub":
        raise TypeError(f"states must be numbers, got dtype {states.dtype}")
    if states.ndim != 2:
        raise ValueError(f"states must have shape (rows, dim_s), got {states.shape}")
    if 0 in states.shape:
        raise ValueError(f"states are empty: shape {states.shape}")
    if not isinstance(states, np.memmap):
        _check_finite(states, None)
    return states


def read_rows(log: np.ndarray | StoredStates, source: np.ndarray) -> np.ndarray:
    """(n, dim_s) float32: the rows `source` (n,) int64, ascending.

    Raises:
        ValueError: one that was not in memory before is not finite.
    """
    stored = isinstance(log, StoredStates)
    with np.errstate(over="ignore"):
        states = log.read(source) if stored else np.ascontiguousarray(log[source], np.float32)
    if stored or isinstance(log, np.memmap):
        _check_finite(states, source)
    return states


def _check_finite(states: np.ndarray, source: np.ndarray | None) -> None:
    with np.errstate(over="ignore"):
        finite = np.isfinite(states.astype(np.float32, copy=False)).all(1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(f"states are not finite (as float32) at row {row if source is None else source[row]}")


def _stored_in_npy(path: Path) -> np.ndarray | StoredStates:
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path}: damaged, or not an .npy file of a plain array: {error}") from error
    if not mapped.flags.c_contiguous or mapped.ndim != 2:
        return mapped
    return FlatStates(path, mapped.offset, mapped.shape, mapped.dtype, str(path))


def _read_npz(path: Path) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as archive:
            key = next((key for key in KEYS if key in archive), None)
            if key is not None:
                return archive[key]
            found = ", ".join(archive) or "nothing"
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise ValueError(f"{path}: damaged, or not an .npz file of plain arrays: {error}") from error
    raise ValueError(f"{path}: no array {' or '.join(map(repr, KEYS))}, found {found}")
