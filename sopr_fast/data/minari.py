"""Local Minari datasets, by id, folder or object."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

_ID = re.compile(r"(?:[\w.-]+/)*[\w.-]+-v\d+")  # mujoco/hopper/medium-v0


def find_minari(source: Any) -> Any | None:
    """The Minari dataset that `source` is, names or holds; None if it is something else. Nothing is downloaded.

    Raises:
        ImportError: the path or id of one, and minari is not installed.
        FileNotFoundError: the id of none that is here.
        ValueError: a damaged one.
    """
    if hasattr(source, "iterate_episodes"):
        return source
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(source)
    folder = next((at for at in (path.parent, path, path / "data") if _is_folder(at, path)), None)
    if folder is None and (path.exists() or not _ID.fullmatch(str(source))):
        return None
    try:
        import minari
    except ImportError as error:
        raise ImportError(f"{source}: reading it needs minari: pip install 'sopr_fast[minari]'") from error
    if folder is None:
        return minari.load_dataset(str(source))
    try:
        return minari.MinariDataset(folder)
    except (OSError, KeyError, ValueError, AssertionError) as error:
        raise ValueError(f"{path}: damaged, or not a Minari dataset: {error}") from error


def _is_folder(folder: Path, path: Path) -> bool:
    return (folder / "metadata.json").is_file() and (folder != path.parent or path.name == "main_data.hdf5")


def read_minari(dataset: Any) -> dict[str, np.ndarray]:
    """Every episode's steps one after the other, under d4rl's names.

    Raises:
        TypeError: observations or actions are not plain arrays.
        ValueError: no steps, an episode of mismatched lengths, or damaged files.
    """
    parts: dict[str, list[np.ndarray]] = {}
    for episode in _episodes(dataset):
        steps, seen = len(episode.rewards), _array(dataset, episode, "observations")
        if len(seen) != steps + 1:
            raise ValueError(
                f"{_name(dataset)}: episode {episode.id} has {len(seen)} 'observations' for {steps} 'rewards', "
                f"expected {steps + 1}"
            )
        found = {
            "observations": seen[:-1],
            "next_observations": seen[1:],
            "actions": _array(dataset, episode, "actions"),
            "rewards": episode.rewards,
            "terminals": episode.terminations,
            "timeouts": _cut(episode),
        }
        for key, values in found.items():
            if len(values) != steps:
                raise ValueError(
                    f"{_name(dataset)}: episode {episode.id} has {len(values)} {key!r} for {steps} 'rewards'"
                )
            parts.setdefault(key, []).append(np.asarray(values))
    if not parts:
        raise ValueError(f"{_name(dataset)}: no episodes in it")
    return {key: np.concatenate(values) for key, values in parts.items()}


def read_minari_states(dataset: Any) -> np.ndarray:
    """(rows, dim_s): the state of every step, as in `read_minari`.

    Raises:
        TypeError, ValueError: observations are not plain arrays, there are none, or damaged files.
    """
    states = [_array(dataset, episode, "observations")[: len(episode.rewards)] for episode in _episodes(dataset)]
    if not states:
        raise ValueError(f"{_name(dataset)}: no episodes in it")
    return np.concatenate(states)


def _episodes(dataset: Any):
    try:
        yield from dataset.iterate_episodes()
    except (OSError, KeyError) as error:
        raise ValueError(f"{_name(dataset)}: damaged: {error}") from error


def _name(dataset: Any) -> str:
    return f"Minari dataset {dataset.id}"


def _array(dataset: Any, episode: Any, key: str) -> np.ndarray:
    values = getattr(episode, key)
    if not isinstance(values, np.ndarray):
        kind = f"a dictionary of {', '.join(values)}" if isinstance(values, dict) else f"a {type(values).__name__}"
        raise TypeError(f"{_name(dataset)}: {key!r} of an episode are {kind}; flatten them to one array a step")
    return values


def _cut(episode: Any) -> np.ndarray:
    """An episode that just stops counts as timed out: the next one does not go on from it."""
    timeouts = np.array(episode.truncations, bool)
    timeouts[-1:] |= ~np.asarray(episode.terminations, bool)[-1:]
    return timeouts
