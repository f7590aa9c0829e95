"""Logs that d3rlpy's `ReplayBuffer.dump` wrote: HDF5 files with arrays of each episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .files import check_memory
from .hdf5 import get_dataset, list_datasets, open_hdf5

_NAMES = ("observations", "actions", "rewards")


def is_dump(path: Path) -> bool:
    """Return whether an HDF5 file is a dump of d3rlpy, version 2.1 of its format.

    Raises:
        ImportError, ValueError: See `open_hdf5`.
    """
    with open_hdf5(path) as file:
        return all(name in file for name in ("columns", "num_episodes", "version"))


def read_dump(path: Path) -> dict[str, np.ndarray]:
    """Read all episodes, one after the other.

    Args:
        path: The file.

    Returns:
        Observations, actions, rewards, terminals and timeouts; an episode that just stops is timed out.

    Raises:
        MemoryError: The arrays are larger than the free memory.
        ValueError: An episode is missing, has tuples of observations, or arrays of unequal length.
    """
    with open_hdf5(path) as file:
        return _join(file, list_datasets(file), path)


def _join(file: Any, names: list[str], path: Path) -> dict[str, np.ndarray]:
    count = int(get_dataset(file, "num_episodes", path)[()])
    if not 0 < count <= len(names):
        raise ValueError(f"{path}: announces {count} episodes and holds {len(names)} arrays")
    present = set(names)
    wanted = [f"{key}_{i}" for key in (*_NAMES, "terminated") for i in range(count)]
    if missing := [name for name in wanted if name not in present]:
        hint = ": a dump of several observations at a time" if f"{missing[0]}_0" in present else ""
        raise ValueError(f"{path}: no array {missing[0]!r}{hint}")
    check_memory(path, sum(get_dataset(file, name, path).nbytes for name in wanted))
    arrays = {key: [np.asarray(file[f"{key}_{i}"][()]) for i in range(count)] for key in _NAMES}
    lengths = [len(values) for values in arrays["observations"]]
    for key, episodes in arrays.items():
        for i, values in enumerate(episodes):
            if values.ndim == 0 or len(values) != lengths[i] or not lengths[i]:
                raise ValueError(f"{path}: episode {i} has {key} of shape {values.shape} for {lengths[i]} steps")
    ends = np.cumsum(lengths) - 1
    terminated = np.array([bool(file[f"terminated_{i}"][()]) for i in range(count)])
    terminals = np.zeros(ends[-1] + 1, bool)
    terminals[ends] = terminated
    timeouts = np.zeros_like(terminals)
    timeouts[ends] = ~terminated
    joined = {key: np.concatenate(episodes) for key, episodes in arrays.items()}
    return joined | {"terminals": terminals, "timeouts": timeouts}
