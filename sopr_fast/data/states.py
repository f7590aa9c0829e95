"""Logged states as drawing takes them: arrays in memory, or stored ones of which it reads the rows it draws."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..runtime.checks import TOO_LARGE
from .files import READERS, read_npy
from .keys import KEYS, find_key
from .minari import find_minari, read_minari_states
from .stored import FlatStates, SlicedStates, StoredStates, check_table, stored_in_hdf5
from .transitions import Transitions


def load_states(path: str | os.PathLike) -> np.ndarray | StoredStates:
    """The logged states (rows, dim_s) of a file; those of `.npy` and HDF5 files stay on disk.

    Args:
        path: an `.npy`; an `.npz`, parquet or HDF5 file with an array `observations` or `states`, or a folder with an
            `.npy` of that name; or the folder or id of a local Minari dataset.

    Raises:
        FileNotFoundError, TypeError, ValueError: no such file, a damaged one, or one without states.
        ImportError: the extra that reads such files is not installed.
    """
    dataset = find_minari(path)
    if dataset is not None:
        return read_minari_states(dataset)
    path = Path(path)
    if path.is_dir():
        path = next((file for key in KEYS["states"] if (file := path / f"{key}.npy").is_file()), path)
    if path.suffix not in (".npy", *READERS):
        raise ValueError(f"{path}: expected states in a file of .npy, {', '.join(READERS)}, or a Minari dataset")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.suffix == ".npy":
        return _stored_in_npy(path)
    if path.suffix in (".hdf5", ".h5"):
        return stored_in_hdf5(path)
    arrays = READERS[path.suffix](path, KEYS["states"])
    return arrays[find_key("states", arrays, path)]


def as_states(states: Any) -> np.ndarray | StoredStates:
    """The user's states as a (rows, dim_s) array or `StoredStates`; values in memory are finite.

    Args:
        states: array, tensor, nested sequence, path (see `load_states`), `Transitions`, a Minari dataset, an
            array-like object such as an open `h5py.Dataset`, of which slices are read, or one that numpy makes an
            array of, such as a pandas data frame.

    Raises:
        TypeError, ValueError: not numbers, not two-dimensional, empty, or not finite or too large (which row).
    """
    where = ""
    if isinstance(states, str | os.PathLike):
        where = f"{states}: "
        states = load_states(states)
    if isinstance(states, Transitions):
        states = states.states
    elif hasattr(states, "iterate_episodes"):
        states = read_minari_states(states)
    if isinstance(states, StoredStates):
        return states
    if isinstance(states, np.ma.MaskedArray):
        states = states.astype(np.float32).filled(np.nan)
    if isinstance(states, Tensor):
        states = states.detach().cpu()
        states = (states.float() if states.dtype == torch.bfloat16 else states).numpy()
    elif not isinstance(states, np.ndarray):
        if not isinstance(states, Sequence):
            if all(hasattr(states, part) for part in ("shape", "dtype", "__getitem__")):
                return SlicedStates(states)
            if not hasattr(states, "__array__"):
                raise TypeError(f"states must be an array, tensor or path, got {type(states).__name__}")
        try:
            states = np.asarray(states, np.float32)
        except (TypeError, ValueError) as error:
            raise TypeError(f"states must be numbers: {error}") from error
    check_table(states, where)
    if not isinstance(states, np.memmap):
        _check_values(states, None, where)
    return states


def read_rows(log: np.ndarray | StoredStates, source: np.ndarray) -> np.ndarray:
    """(n, dim_s) float32: the rows `source` (n,) int64, ascending.

    Raises:
        ValueError: one that was not in memory before is not finite, or too large.
    """
    states = _read(log, source)
    if isinstance(log, StoredStates):
        _check_values(states, source, f"{log.name}: ")
    elif isinstance(log, np.memmap):
        _check_values(states, source, f"{log.filename}: ")
    return states


def has_rows(log: np.ndarray | StoredStates, source: np.ndarray, states: np.ndarray) -> bool:
    """Whether the rows `source` (n,) int64, ascending, are `states` (n, dim_s) float32; reads no others."""
    return bool(source[-1] < len(log)) and np.array_equal(_read(log, source), states)


def _read(log: np.ndarray | StoredStates, source: np.ndarray) -> np.ndarray:
    if isinstance(log, StoredStates):
        return log.read(source)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(log[source], np.float32)


def _check_values(states: np.ndarray, source: np.ndarray | None, where: str) -> None:
    with np.errstate(over="ignore"):
        values = states.astype(np.float32, copy=False)
    fine = (values > -TOO_LARGE) & (values < TOO_LARGE)
    if fine.all():
        return
    at = int(np.argmin(fine.all(1)))
    row = at if source is None else source[at]
    if not np.isfinite(values[at]).all():
        raise ValueError(f"{where}states are not finite (as float32) at row {row}")
    value = values[at][~fine[at]][0]
    raise ValueError(f"{where}states hold {value:g} at row {row}, too large to reckon with (limit {TOO_LARGE:g})")


def _stored_in_npy(path: Path) -> np.ndarray | StoredStates:
    mapped = read_npy(path)
    if not mapped.flags.c_contiguous or mapped.ndim != 2:
        return mapped
    return FlatStates(path, mapped.offset, mapped.shape, mapped.dtype, str(path))
