"""Named arrays of any source: a file, a folder, a data frame, a dataset of Minari or d3rlpy, or a dictionary."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ... import formats
from ...runtime.extras import library
from ...runtime.pickles import Record
from ..file_errors import check_regular, reading
from ..lazy_arrays import end_to_end, flatten, join_numbered, opened_later, shape_of
from ..table_files import is_frame, is_list_of_dicts, load_csv, load_json, read_frame
from .schema import ENDS, ITEM, missing, part_of
from .stores import open_npy, read_hdf5, read_npz, read_parquet, read_pickled

READERS: dict[str, Callable[[Path], Any]] = {  # suffix → function that returns what `_named` takes
    ".npy": lambda path: {"states": open_npy(path)},
    ".npz": read_npz,
    ".parquet": read_parquet,
    ".csv": load_csv,
    ".tsv": load_csv,
    ".json": load_json,
    ".jsonl": load_json,
    ".hdf5": read_hdf5,
    ".h5": read_hdf5,
    ".pkl": read_pickled,
    ".pickle": read_pickled,
}
_MINARI_ID = re.compile(r"(?:[\w.-]+/)*[\w.-]+-v\d+")
_SPARSEST = 100  # values of a table of steps for each that is given
_MINARI_DATA = "main_data.hdf5"
_SEVERAL = "of several files, one for each episode, pass [dict(numpy.load(path)) for path in paths] or the like"
_OF_EPISODES = ("observations", "actions", "rewards", "terminations", "truncations", "terminated")


def is_log(path: Path) -> bool:
    """Return whether a path is a log: by its suffix, as a folder, or as the id of a Minari dataset."""
    return path.suffix.lower() in READERS or path.is_dir() or _is_minari_id(path)


def _is_minari_id(source: Any) -> bool:
    """Return whether an object is the id of a Minari dataset, such as mujoco/hopper/medium-v0."""
    is_path = isinstance(source, str | os.PathLike)
    return is_path and not os.path.exists(source) and _MINARI_ID.fullmatch(str(source)) is not None


def read_arrays(source: Any) -> tuple[Mapping[str, Any], str]:
    """Return the named arrays of a source, see `load_log`, and its name for messages; an array without name is states.

    Arrays of files may be read when they are needed. Nested names are joined, such as `observations/position`.
    """
    if _is_minari_id(source):
        source = library("minari", "minari", f"{source}: reading it").load_dataset(str(source))
    if isinstance(source, list | tuple) and source and all(isinstance(item, str | os.PathLike) for item in source):
        raise TypeError(f"a list of paths, expected one log; {_SEVERAL}")
    if not isinstance(source, str | os.PathLike):
        where = "data frame" if is_frame(source) else "dataset"
        arrays = _named(source, where)
        if arrays is None and not hasattr(source, "__len__"):
            raise TypeError(f"expected a path, array, data frame, dictionary or list, got {type(source).__name__}")
        return {"states": source} if arrays is None else arrays, where
    path = Path(source)
    if path.is_dir():
        path = next((file for file in (path / _MINARI_DATA, path / "data" / _MINARI_DATA) if file.exists()), path)
    if path.is_dir():
        if not (files := sorted(path.glob("*.npy"))):
            raise ValueError(
                f"{path}: a folder is a log if it has .npy files, one of each array, or main_data.hdf5 of Minari; "
                f"{_SEVERAL}; of other forms of Minari's datasets, pass the object that minari.load_dataset returns"
            )
        return {file.stem: opened_later(partial(open_npy, file)) for file in files}, str(path)
    if (suffix := path.suffix.lower()) not in READERS:
        raise ValueError(
            f"{path}: expected a log in a file of {', '.join(READERS)}, or a Minari dataset; open others "
            "by their library, such as pandas or torch.load, and pass the data frame or the arrays"
        )
    check_regular(path)
    content = READERS[suffix](path)
    if (arrays := _named(content, str(path))) is None:
        found = type(content).__name__
        raise ValueError(f"{path}: expected an object of arrays, or a list of objects, found a {found}")
    return arrays, str(path)


def _named(content: Any, where: str) -> dict[str, Any] | None:
    """Return the arrays of a mapping, frame, list of episodes or steps, or dataset; None of anything else."""
    if hasattr(content, "to_pandas") and not is_frame(content):  # tables of arrow, datasets of Hugging Face
        content = content.to_pandas()
    if isinstance(content, Mapping) and all(isinstance(x, Mapping) and "0" in x for x in content.values()) and content:
        import pandas

        content = pandas.DataFrame(content)  # as pandas writes JSON
    if isinstance(content, deque) or (isinstance(content, np.ndarray) and content.dtype == object):
        content = list(content)
    if isinstance(content, list | tuple) and content and all(map(is_list_of_dicts, content)):
        content = [_columns(steps, where) for steps in content]  # of episodes
    if isinstance(content, Mapping):
        return flatten(content, where)
    if is_frame(content) and any(isinstance(name, str | tuple) for name in content.columns):
        return read_frame(content, where)
    if isinstance(content, list | tuple) and content and all(map(is_frame, content)):
        content = [read_frame(item, where) for item in content]
    if is_list_of_dicts(content):
        return _join_dicts(content, where)
    if isinstance(content, Record) or all(hasattr(content, key) for key in ("observations", "dones", "pos")):
        with reading(where, "a replay buffer of Stable-Baselines3"):
            return dict(formats.load(formats.LOGS["stable_baselines3"])(content, where))
    is_list = isinstance(content, list | tuple) and all(hasattr(item, "observations") for item in content)
    if is_list or (not is_frame(content) and any(hasattr(content, key) for key in ("iterate_episodes", "episodes"))):
        with reading(where, "a dataset of Minari or d3rlpy"):
            episodes = content if is_list else getattr(content, "episodes", None) or content.iterate_episodes()
            items = [{key: getattr(item, key) for key in _OF_EPISODES if hasattr(item, key)} for item in episodes]
        return _join_dicts(items, where)
    return None


def _join_dicts(items: Sequence[Mapping[Any, Any]], where: str) -> dict[str, Any]:
    """Return the arrays of dicts, one for each episode; or for each step, if their rewards are single values."""
    if not items:
        raise ValueError(f"{where}: no episodes")
    first = flatten(items[0], where)
    rewards = [key for key in first if part_of(key) in ("rewards", "costs")] or [*first]
    if any(shape_of(first[key]) == () for key in rewards):
        return join_numbered(flatten(_columns(items, where), where), where)
    return _join_episodes([flatten(item, where) for item in items], where)


def _columns(steps: Sequence[Any], where: str) -> dict[Any, Any]:
    """Return the values of all steps by name, in the mappings that a step holds.

    A flag that a step lacks is False, and a next state that it lacks, or that is None, is unknown.
    """
    columns: dict[Any, Any] = {}
    names = dict.fromkeys(name for step in steps for name in step)
    if len(names) * len(steps) > _SPARSEST * sum(map(len, steps)):
        raise ValueError(f"{where}: steps have {len(names):,} different names, most of which each step lacks")
    for name in names:
        given = [value for step in steps if (value := step.get(name)) is not None]
        if given and all(isinstance(value, Mapping) for value in given):
            columns[name] = _columns([step.get(name) or {} for step in steps], where)
            continue
        missing: Any = False if all(isinstance(value, bool | np.bool_) for value in given) else None
        if part_of(name) == "next_states" and given:
            missing = np.full(shape_of(given[0]), np.nan)
        values = (step.get(name) for step in steps)
        columns[name] = [missing if value is None else value for value in values]
    return columns


def _join_episodes(episodes: Sequence[Mapping[str, Any]], where: str) -> dict[str, Any]:
    """Return the arrays of episodes, one after the other, and `ITEM`, the number of each row's episode.

    Observations may have one row more than the episode has steps: the last next state. They give next states then,
    named `next_…`. A single flag of an end is that of the episode's last row. Messages begin with `where`.
    """
    keys = list(episodes[0])
    counter = next(
        (key for part in ("rewards", "costs", "actions", "states") for key in keys if part_of(key) == part), None
    )
    if is_unknown := counter is None:  # then `columns` may name the arrays: the shortest has a row for each step
        rows = {key: shape[0] for key in keys if (shape := shape_of(episodes[0][key]))}
        counter = min(rows, key=rows.__getitem__, default=None)
    if counter is None:
        raise missing("states", episodes[0], where)
    for i, arrays in enumerate(episodes):
        if absent := [key for key in keys if key not in arrays and (part_of(key) or key == counter)]:
            raise ValueError(f"{where}: episode {i} has no {absent[0]!r}")
    counts = [next(iter(shape_of(arrays[counter])), 0) for arrays in episodes]
    joined: dict[str, Any] = {}
    for key in (key for key in keys if all(key in arrays for arrays in episodes)):
        values = [arrays[key] for arrays in episodes]
        shapes = [*map(shape_of, values)]
        if part_of(key) in ENDS and set(shapes) == {()}:
            joined[key] = np.zeros(sum(counts), bool)
            joined[key][np.cumsum(counts) - 1] = [bool(np.asarray(value)) for value in values]
            continue
        lengths = [shape[0] if shape else -1 for shape in shapes]
        may_be_longer = is_unknown or part_of(key.split("/")[0]) == "states"
        longer = may_be_longer and lengths == [count + 1 for count in counts]
        if not longer and lengths != counts:
            if part_of(key) in ("", "episodes", "agents", "steps", "times"):
                continue  # other information, such as seeds
            place = next(i for i, count in enumerate(counts) if lengths[i] != count)
            hint = f", expected as many or {counts[place] + 1}" if part_of(key) == "states" else ""
            if isinstance(values[place], str):
                hint = ", but text: if RLlib packed it, write it with compress_columns=[]"
            raise ValueError(
                f"{where}: episode {place} has {max(lengths[place], 0)} {key!r} for {counts[place]} {counter!r}{hint}"
            )
        if len({shape[1:] for shape in shapes}) > 1:
            raise ValueError(f"{where}: {key!r} of the episodes differ in width")
        joined[key] = end_to_end(values, counts, 0)
        if longer:
            joined[f"next_{key}"] = end_to_end(values, counts, 1)
    if any(part_of(key) == "episodes" for key in joined):
        return joined  # of batches, which are no episodes
    return {ITEM: np.repeat(np.arange(len(counts)), counts)} | joined
