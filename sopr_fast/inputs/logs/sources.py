"""Named arrays of any source: a file, a folder, a data frame, a dataset of Minari or a dictionary."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.text import escaped_errors
from .arrays import flatten
from .episode_files import is_list_of_dicts, join_apart, join_dicts, join_episodes
from .files import check_memory, check_regular, read_folder, read_npz, reading
from .hdf5 import read_hdf5
from .keys import part_of
from .replay_buffers import read_pickled
from .tables import is_frame, read_csv, read_frame, read_parquet

_JSON_COPIES = 10  # bytes of objects for a byte of text


def read_json(path: Path) -> dict[str, Any]:
    """Return the arrays of a JSON file: of one object, or of one for each step, episode or batch.

    Objects lie in a list, or in a line each, as RLlib writes batches. pandas writes columns as objects of rows.
    """
    import pandas

    check_memory(path, _JSON_COPIES * path.stat().st_size)
    with reading(path, "JSON, or JSON in lines"):
        text = path.read_text(encoding="utf-8-sig")
        lines = [line for line in text.splitlines() if line.strip()]
        is_lines = len(lines) > 1 and _is_object(lines[0])
        content: Any = [json.loads(line) for line in lines] if is_lines else json.loads(text)
        if is_lines and any(part_of(key) == "rewards" and isinstance(value, list) for key, value in content[0].items()):
            batches = [flatten(batch) for batch in content]
            return {key: np.concatenate([np.atleast_1d(batch[key]) for batch in batches]) for key in batches[0]}
        if is_list_of_dicts(content):
            return join_dicts(content, str(path))
        if all(isinstance(value, Mapping) and "0" in value for value in content.values()):
            return read_frame(pandas.DataFrame(content), str(path))
        return {key: np.asarray(values) for key, values in flatten(content).items()}


def _is_object(text: str) -> bool:
    """Return whether a text is a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".npz": read_npz,
    ".parquet": read_parquet,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".json": read_json,
    ".jsonl": read_json,
    ".hdf5": read_hdf5,
    ".h5": read_hdf5,
    ".pkl": read_pickled,
    ".pickle": read_pickled,
}
_MINARI_ID = re.compile(r"(?:[\w.-]+/)*[\w.-]+-v\d+")
_MINARI_DATA = "main_data.hdf5"


def is_log(path: Path) -> bool:
    """Return whether a path is a log: by its suffix, as a folder, or as the id of a Minari dataset."""
    return path.suffix.lower() in (".npy", *READERS) or path.is_dir() or (not path.exists() and _is_minari_id(path))


def has_names(source: Any) -> bool:
    """Return whether a log consists of named arrays, see `read_arrays`."""
    if isinstance(source, str | os.PathLike):
        return Path(source).suffix.lower() != ".npy"
    return (
        isinstance(source, Mapping)
        or (is_frame(source) and any(isinstance(name, str) for name in source.columns))
        or is_list_of_dicts(source)
        or hasattr(source, "iterate_episodes")
    )


@escaped_errors()
def read_arrays(source: Any) -> tuple[Mapping[str, Any], str]:
    """Return the named arrays of a source, see `load_log`, and its name for messages.

    Arrays of files may be read when they are needed. Nested names are joined, such as `observations/position`.
    """
    arrays, where = _read(source)
    return join_apart(arrays, where), where


def _read(source: Any) -> tuple[Mapping[str, Any], str]:
    if isinstance(source, Mapping):
        is_of_episodes = bool(source) and all(
            isinstance(x, Mapping) and str(key)[-1:].isdigit() for key, x in source.items()
        )
        return (join_dicts([*source.values()], "dataset") if is_of_episodes else flatten(source)), "dataset"
    if is_list_of_dicts(source):
        return join_dicts(source, "dataset"), "dataset"
    if is_frame(source):
        return read_frame(source, "data frame"), "data frame"
    if hasattr(source, "iterate_episodes"):
        return _read_minari(source), f"Minari dataset {source.id}"
    path = _minari_file(source) or Path(source)
    suffix = path.suffix.lower()
    if path.is_dir():
        return read_folder(path), str(path)
    if suffix not in READERS:
        raise ValueError(f"{path}: expected a log in a file of .npy, {', '.join(READERS)}, or a Minari dataset")
    check_regular(path)
    return READERS[suffix](path), str(path)


def _is_minari_id(source: str | os.PathLike) -> bool:
    """Return whether a text has the form of the id of a Minari dataset, such as mujoco/hopper/medium-v0."""
    return _MINARI_ID.fullmatch(str(source)) is not None


def _minari_file(source: str | os.PathLike) -> Path | None:
    """Return the data of the local Minari dataset that a folder or an id names; None if it names something else."""
    path = Path(source)
    folder = next((place for place in (path, path / "data") if (place / "metadata.json").is_file()), None)
    if folder is None and not path.exists() and _is_minari_id(source):
        root = os.environ.get("MINARI_DATASETS_PATH", Path.home() / ".minari" / "datasets")
        folder = Path(root) / source / "data"
        if not folder.is_dir():
            raise FileNotFoundError(f"{source}: no such Minari dataset on this machine, expected in {folder}")
    if folder is not None and not (folder / _MINARI_DATA).exists():
        raise ValueError(
            f"{folder}: no {_MINARI_DATA}; pass the object that minari.load_dataset returns, which reads other forms"
        )
    return None if folder is None else folder / _MINARI_DATA


def _read_minari(dataset: Any) -> dict[str, Any]:
    """Return the arrays of an open dataset."""
    name, episodes = f"Minari dataset {dataset.id}", []
    with reading(name, "a Minari dataset"):
        for episode in dataset.iterate_episodes():
            keys = ("observations", "actions", "rewards", "terminations", "truncations")
            arrays = flatten({key: getattr(episode, key) for key in keys})
            if other := [key for key, values in arrays.items() if not isinstance(values, np.ndarray)]:
                kind = type(arrays[other[0]]).__name__
                raise TypeError(f"{name}: {other[0]!r} of an episode are a {kind}; flatten them to one array per step")
            episodes.append((f"episode {episode.id}", arrays))
    return join_episodes(episodes, name)
