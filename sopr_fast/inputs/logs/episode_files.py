"""Logs that hold the arrays of each episode apart: Minari, robomimic, d3rlpy, lists of dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .arrays import Lazy, flatten, shape_of
from .keys import ENDS, NEEDED, missing, part_of
from .tables import join_numbered


def is_list_of_dicts(content: Any) -> bool:
    """Return whether an object is a list or tuple of mappings, one for each episode or step."""
    return isinstance(content, list | tuple) and bool(content) and all(isinstance(item, Mapping) for item in content)


def join_dicts(items: Sequence[Mapping[Any, Any]], where: str) -> dict[str, Any]:
    """Return the arrays of dicts, one for each episode, or for each step if they hold single rewards."""
    if not items:
        raise ValueError(f"{where}: no episodes")
    first = flatten(items[0], where)
    named = [key for key in first if part_of(key) == "rewards"]
    if not named and not {*NEEDED} & {*map(part_of, first)}:
        named = [*first]  # which `columns` may name
    dims = [len(shape_of(first[key])) for key in named]
    if dims and min(dims) == 0 and max(dims) < 2:
        return join_numbered(flatten(_columns(items, where), where), where)
    return join_episodes({f"episode {i}": flatten(item, where) for i, item in enumerate(items)}, where)


def _columns(steps: Sequence[Any], where: str) -> dict[Any, Any]:
    """Return the values of all steps by name, in the mappings that a step holds."""
    names = steps[0].keys()
    if differs := next((i for i, step in enumerate(steps) if not isinstance(step, Mapping) or step.keys() != names), 0):
        raise ValueError(f"{where}: step {differs} has other names than step 0")
    columns = {name: [step[name] for step in steps] for name in names}
    return {name: _columns(x, where) if isinstance(x[0], Mapping) else x for name, x in columns.items()}


def join_episodes(episodes: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, Any]:
    """Return the arrays of named episodes, one after the other, and `episode`, the number of each row's episode.

    Observations may have one row more than the episode has steps: the last next state. They give next states then,
    named `next_…`. A single flag of an end is that of the episode's last row. Messages begin with `where`.
    """
    labels, items = [*episodes], [*episodes.values()]
    keys = list(items[0])
    counter = next((key for part in NEEDED[::-1] for key in keys if part_of(key) == part), None)
    if is_unknown := counter is None:  # then `columns` may name the arrays, most of which have as many rows
        rows = {key: shape[0] for key in keys if (shape := shape_of(items[0][key]))}
        counter = max(rows, key=lambda key: [*rows.values()].count(rows[key]), default=None)
    if counter is None:
        raise missing("states", items[0], where)
    for label, arrays in episodes.items():
        if absent := [key for key in keys if key not in arrays and (part_of(key) or key == counter)]:
            raise ValueError(f"{where}: {label} has no {absent[0]!r}")
    counts = [next(iter(shape_of(arrays[counter])), 0) for arrays in items]
    joined: dict[str, Any] = {}
    for key in (key for key in keys if all(key in arrays for arrays in items)):
        values = [arrays[key] for arrays in items]
        shapes = [*map(shape_of, values)]
        if part_of(key) in ENDS and set(shapes) == {()}:
            joined[key] = np.zeros(sum(counts), bool)
            joined[key][np.cumsum(counts) - 1] = [bool(np.asarray(value)) for value in values]
            continue
        lengths = [shape[0] if shape else 0 for shape in shapes]
        may_be_longer = is_unknown or part_of(key.split("/")[0]) == "states"
        longer = may_be_longer and lengths == [count + 1 for count in counts]
        if not longer and lengths != counts:
            if part_of(key) in ("", "episodes"):
                continue  # other information, such as seeds
            place = next(i for i, count in enumerate(counts) if lengths[i] != count)
            hint = f", expected as many or {counts[place] + 1}" if part_of(key) == "states" else ""
            if isinstance(values[place], str):
                hint = ", but text: if RLlib packed it, write it with compress_columns=[]"
            raise ValueError(
                f"{where}: {labels[place]} has {lengths[place]} {key!r} for {counts[place]} {counter!r}{hint}"
            )
        if len({shape[1:] for shape in shapes}) > 1:
            raise ValueError(f"{where}: {key!r} of the episodes differ in width")
        joined[key] = _join(values, counts, 0)
        if longer:
            joined[f"next_{key}"] = _join(values, counts, 1)
    if any(part_of(key) == "episodes" for key in joined):
        return joined  # of batches, which are no episodes
    return {"episode": np.repeat(np.arange(len(counts)), counts)} | joined


def _join(values: list[Any], counts: list[int], first: int) -> Lazy:
    """Return `counts` rows of each array, from row `first` on."""
    dtype = np.result_type(*{np.dtype(getattr(array, "dtype", np.float64)) for array in values})
    shape = (sum(counts), *shape_of(values[0])[1:])

    def read() -> np.ndarray:
        joined = np.empty(shape, dtype)
        for array, (start, stop) in zip(values, pairwise(np.cumsum([0, *counts]).tolist()), strict=True):
            joined[start:stop] = np.asarray(array)[first : first + stop - start]
        return joined

    return Lazy(shape, dtype, read)
