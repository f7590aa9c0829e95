"""Local Minari datasets, by id, folder or object."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.text import printable
from .files import check_regular, reading
from .hdf5 import check_contained

_ID = re.compile(r"(?:[\w.-]+/)*[\w.-]+-v\d+")
_DATA = "main_data.hdf5"


def find_minari(source: Any) -> Any | None:
    """Return the Minari dataset that `source` is or names, None if it is something else.

    Nothing is downloaded.

    Raises:
        ImportError: Path or id of a dataset, but minari is not installed.
        FileNotFoundError: Id of a dataset that is not on this machine.
        MemoryError: The dataset is larger than the free memory.
        ValueError: The dataset is damaged, refers to other files, or could run code.
    """
    if hasattr(source, "iterate_episodes"):
        return source
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(source)
    folder = next((place for place in (path.parent, path, path / "data") if _is_dataset(place, path)), None)
    if folder is None and (path.exists() or not is_minari_id(source)):
        return None
    try:
        import minari
    except ImportError as error:
        raise ImportError(f"{source}: reading it needs minari: pip install 'sopr_fast[minari]'") from error
    if folder is None:
        from minari.storage import get_dataset_path

        folder = get_dataset_path(str(source)) / "data"
        if not folder.is_dir():
            raise FileNotFoundError(f"{source}: no such Minari dataset on this machine, expected in {folder}")
    _check_folder(folder)
    with reading(folder, "a Minari dataset"):
        return minari.MinariDataset(folder)


def is_minari_id(source: str | os.PathLike) -> bool:
    """Return whether a text has the form of the id of a Minari dataset, such as mujoco/hopper/medium-v0."""
    return _ID.fullmatch(str(source)) is not None


def _is_dataset(folder: Path, path: Path) -> bool:
    return (folder / "metadata.json").is_file() and (folder != path.parent or path.name == _DATA)


def _check_folder(folder: Path) -> None:
    """Check what minari would trust.

    Raises:
        MemoryError: The arrays are larger than the free memory.
        ValueError: The dataset is damaged, refers to other files, or could run code.
    """
    file, data = folder / "metadata.json", folder / _DATA
    with reading(file, "the metadata of a Minari dataset"):
        check_regular(file)
        metadata = json.loads(file.read_text())
        if not all(isinstance(metadata.get(space), str) for space in ("observation_space", "action_space")):
            raise ValueError(
                f"{file}: no observation_space or no action_space, so that minari would create the environment, which "
                "can run any code; if you trust it, pass the object that minari.load_dataset returns"
            )
        size = data.stat().st_size if data.exists() else sum(path.stat().st_size for path in folder.rglob("*"))
        if not 0 <= int(metadata.get("total_episodes", 0)) <= size:
            raise ValueError(f"{file}: total_episodes is {metadata['total_episodes']!r}, for {size} bytes of data")
    if data.exists():
        check_contained(data)


def read_minari(dataset: Any) -> dict[str, np.ndarray]:
    """Return the steps of all episodes, one after the other, under d4rl's names.

    Raises:
        TypeError: Observations or actions are not plain arrays.
        ValueError: No episodes, an episode of mismatched lengths, or damaged files.
    """
    parts: dict[str, list[np.ndarray]] = {}
    for episode in _episodes(dataset):
        rewards, observations = _array(dataset, episode, "rewards"), _array(dataset, episode, "observations")
        steps = len(rewards)
        if len(observations) != steps + 1:
            raise ValueError(
                f"{_name(dataset)}: episode {episode.id} has {len(observations)} 'observations' for {steps} 'rewards', "
                f"expected {steps + 1}"
            )
        arrays = {
            "observations": observations[:-1],
            "next_observations": observations[1:],
            "actions": _array(dataset, episode, "actions"),
            "rewards": rewards,
            "terminals": _array(dataset, episode, "terminations"),
            "timeouts": _timeouts(dataset, episode),
        }
        for key, values in arrays.items():
            if len(values) != steps:
                raise ValueError(
                    f"{_name(dataset)}: episode {episode.id} has {len(values)} {key!r} for {steps} 'rewards'"
                )
            parts.setdefault(key, []).append(values)
    if not parts:
        raise ValueError(f"{_name(dataset)}: no episodes")
    return {key: _join(dataset, key, values) for key, values in parts.items()}


def read_minari_states(dataset: Any) -> np.ndarray:
    """Return the state of every step, (rows, dim_s), in the order of `read_minari`.

    Raises:
        TypeError: Observations are not plain arrays.
        ValueError: No episodes, or damaged files.
    """
    states = [
        _array(dataset, episode, "observations")[: len(_array(dataset, episode, "rewards"))]
        for episode in _episodes(dataset)
    ]
    if not states:
        raise ValueError(f"{_name(dataset)}: no episodes")
    return _join(dataset, "observations", states)


def _episodes(dataset: Any) -> Iterator[Any]:
    with reading(_name(dataset), "a Minari dataset"):
        yield from dataset.iterate_episodes()


def _name(dataset: Any) -> str:
    return f"Minari dataset {dataset.id}"


def _array(dataset: Any, episode: Any, key: str) -> np.ndarray:
    """Return one array of an episode, with a value per step."""
    values = getattr(episode, key)
    if not isinstance(values, np.ndarray) or values.ndim == 0:
        kind = (
            f"a dictionary of {printable(', '.join(values))}"
            if isinstance(values, dict)
            else f"a {type(values).__name__}"
        )
        raise TypeError(f"{_name(dataset)}: {key!r} of an episode are {kind}; flatten them to one array per step")
    return values


def _timeouts(dataset: Any, episode: Any) -> np.ndarray:
    """Return the timeouts of an episode; one that just stops is timed out, since the next does not continue it."""
    timeouts = _array(dataset, episode, "truncations").astype(bool)
    timeouts[-1:] |= ~_array(dataset, episode, "terminations")[-1:].astype(bool)
    return timeouts


def _join(dataset: Any, key: str, values: list[np.ndarray]) -> np.ndarray:
    if len({array.shape[1:] for array in values}) > 1:
        raise ValueError(f"{_name(dataset)}: {key!r} of the episodes differ in width")
    return np.concatenate(values)
