"""Named arrays of any source: a file, a folder, a data frame, a dataset of Minari or d3rlpy, or a dictionary."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ... import formats
from ...runtime.files import check_regular
from ...runtime.pickles import Record
from ...runtime.text import list_names
from ..named_arrays import end_to_end, flatten, is_frame, load_csv, load_json, read_frame, shape_of, to_cells
from .schema import ENDS, ITEM, numbered, part_of
from .stores import open_npy, read_hdf5, read_npz, read_parquet, read_pickled

READERS: dict[str, Callable[[Path], Any]] = {  # suffix → function that returns what `_named` takes
    ".npy": lambda path: {"states": open_npy(path)},
    ".npz": read_npz,
    ".parquet": read_parquet,
    ".csv": load_csv,
    ".json": load_json,
    ".jsonl": load_json,
    ".hdf5": read_hdf5,
    ".h5": read_hdf5,
    ".pkl": read_pickled,
    ".pickle": read_pickled,
}
_MINARI_DATA = "main_data.hdf5"
_SEVERAL = "of several files, one for each episode, pass [dict(numpy.load(path)) for path in paths] or the like"
_OF_EPISODES = ("observations", "actions", "rewards", "terminations", "truncations", "terminated")


def name_of(source: Any) -> str:
    """Return the name of a source for messages."""
    if isinstance(source, str | os.PathLike):
        return str(source)
    return "data frame" if is_frame(source) else "dataset"


def read_arrays(source: Any) -> Mapping[str, Any]:
    """Return the named arrays of a source, see `load_log`; an array without name is states.

    Arrays of files may be read when they are needed. Nested names are joined, such as `observations/position`.
    """
    if isinstance(source, list | tuple) and source and all(isinstance(item, str | os.PathLike) for item in source):
        raise TypeError(f"a list of paths, expected one log; {_SEVERAL}")
    if is_path := isinstance(source, str | os.PathLike):
        source = _read_path(Path(source))
    if (arrays := _named(source)) is not None:
        return arrays
    if not is_path and hasattr(source, "__len__"):
        return {"states": source}
    expected = "an object of arrays, or a list of objects" if is_path else "a path, array, frame, dictionary or list"
    raise TypeError(f"expected {expected}, got {type(source).__name__}")


def _read_path(path: Path) -> Any:
    """Return the content of a file, or the arrays in a folder."""
    if path.is_dir():
        path = next((file for file in (path / _MINARI_DATA, path / "data" / _MINARI_DATA) if file.exists()), path)
    if path.is_dir():
        if not (files := sorted(path.glob("*.npy"))):
            raise ValueError(
                f"a folder is a log if it has .npy files, one of each array, or main_data.hdf5 of Minari; "
                f"{_SEVERAL}; of other forms of Minari's datasets, pass the object that minari.load_dataset returns"
            )
        return {file.stem: open_npy(file) for file in files}
    check_regular(path)
    if (suffix := path.suffix.lower()) in READERS:
        return READERS[suffix](path)
    raise ValueError(
        f"expected a log in a file of {', '.join(READERS)}; open others by their library, such as pandas, torch.load "
        "or minari.load_dataset, and pass the data frame, the arrays or the dataset"
    )


def _named(content: Any) -> dict[str, Any] | None:
    """Return the arrays of a mapping, frame, dataset, episode, or list of these or of steps; None of anything else."""
    if isinstance(content, Mapping):
        return flatten(content)
    if is_frame(content):
        return None if all(isinstance(name, int) for name in content.columns) else read_frame(content)
    if isinstance(content, Record) or all(hasattr(content, key) for key in ("observations", "dones", "pos")):
        return dict(formats.load(formats.LOGS["stable_baselines3"])(content))
    if hasattr(content, "iterate_episodes") or hasattr(content, "episodes"):
        content = [*(getattr(content, "episodes", None) or content.iterate_episodes())]
    if not isinstance(content, list | tuple):
        return flatten({key: getattr(content, key) for key in _OF_EPISODES if hasattr(content, key)}) or None
    items = [None if isinstance(item, list | tuple) else _named(item) for item in content]
    return _join([item for item in items if item is not None]) if items and None not in items else None


def _is_reward(name: str) -> bool:
    return part_of(name) in ("rewards", "costs")


def _join(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the arrays of items, one for each episode; or for each step, if their rewards are single values."""
    groups = [key.split("/")[:-1] for key, x in items[0].items() if shape_of(x) and _is_reward(key.split("/")[-1])]
    if groups and not any(map(part_of, items[0])):
        place = "".join(f"[{name!r}]" for name in groups[0])
        raise ValueError(
            f"items have no rewards but in {' and '.join(map('/'.join, groups[:2]))}: pass "
            f"those of one, [item{place} for item in items], after reading the file by its own library"
        )
    present = Counter(name for item in items for name in item)
    names = [name for name, count in present.items() if count == len(items)]
    for name, count in present.items():
        of_part = part_of(name) or part_of(numbered(name.partition("/")[0])[0])  # `rewards`; `obs_0`, or `obs/speed`
        if of_part and count < len(items):
            lacking = next(i for i, item in enumerate(items) if name not in item)
            raise ValueError(f"episode {lacking}, or step, has no {name!r}, but others do")
    if all(shape_of(items[0][key]) for key in [*filter(_is_reward, names)] or names):
        return _join_episodes(items, names)
    return {name: to_cells([item[name] for item in items]) for name in names}


def _join_episodes(episodes: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Return named arrays of episodes, one after the other, and `ITEM`, the number of each row's episode.

    Observations may have one row more than the episode has steps: the last next state. They give next states then,
    named `next_…`. A single flag of an end is that of the episode's last row.
    """
    known = [name for part in ("rewards", "costs", "actions", "states") for name in names if part_of(name) == part]
    if not known:
        raise ValueError(
            f"episodes hold {list_names(names)}: rename arrays to names that are known, such as 'observations', "
            "'actions' and 'rewards'"
        )
    counts = [next(iter(shape_of(arrays[known[0]])), 0) for arrays in episodes]
    joined: dict[str, Any] = {}
    for name in names:
        values, part = [arrays[name] for arrays in episodes], part_of(name)
        shapes = [*map(shape_of, values)]
        lengths = [next(iter(shape), 0) for shape in shapes]
        longer = part_of(name.split("/")[0]) == "states" and lengths == [count + 1 for count in counts]
        if part in ENDS and not any(shapes):
            joined[name] = np.zeros(sum(counts), bool)
            joined[name][np.cumsum(counts) - 1] = [bool(np.asarray(value)) for value in values]
        elif longer or lengths == counts:
            if len({shape[1:] for shape in shapes}) > 1:
                raise ValueError(f"{name!r} of the episodes differ in width")
            joined[name] = end_to_end(values, counts, 0)
            joined |= {f"next_{name}": end_to_end(values, counts, 1)} if longer else {}
        elif part not in ("", "episodes", "agents", "steps", "times"):  # such as seeds
            place = next(i for i, count in enumerate(counts) if lengths[i] != count)
            found = f"{lengths[place]} {name!r} for {counts[place]} {known[0]!r}"
            raise ValueError(f"episode {place} has {found}, expected as many, or of states one more")
    if any(part_of(name) == "episodes" for name in joined):
        return joined  # of batches, which are no episodes
    return {ITEM: np.repeat(np.arange(len(counts)), counts)} | joined
