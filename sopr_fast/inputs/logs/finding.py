"""Parts of a log, found among named arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...runtime.arrays import as_numbers, is_tensor
from ...runtime.warn import warn
from .arrays import Lazy, shape_of
from .keys import (
    BOUND_WORDS,
    ENDS,
    GROUP,
    KEYS,
    NUMBERED,
    TIMES,
    is_inverted,
    last_word,
    likely_part,
    list_names,
    named_like_ends,
    nested,
    part_of,
    words,
)
from .parts import Parts

_COLUMNS = ("last", "first", "episodes", "steps", "valid")  # such arrays count if they hold a number for each row
_FEW = 1000  # rows that are looked at first
_LARGEST_LOOK = 64 << 20  # bytes of an unread array that is looked into
Columns = Mapping[str, str | Sequence[str]]


def find_parts(arrays: Mapping[str, Any], columns: Columns | None, where: str, wanted: Sequence[str] = ()) -> Parts:
    """Find the parts of a log among named arrays: all, or the wanted ones."""
    columns, chosen = columns or {}, dict[str, tuple[list[str], Any]]()
    for part, names in columns.items():
        if part not in KEYS:
            raise ValueError(f"columns name the part {part!r}; a log's parts are {', '.join(KEYS)}")
        found = [_find(name, part, arrays, where) for name in ([names] if isinstance(names, str) else names)]
        meaning = part_of(found[0].rpartition("/")[2])
        own = meaning if part == "terminals" and meaning in ENDS else part
        chosen[own] = found, _join([arrays[name] for name in found])
        following = [f"next_{name}" for name in found]
        if part == "states" and "next_states" not in columns and {*following} <= {*arrays}:
            chosen["next_states"] = following, _join([arrays[name] for name in following])
    mapped = {name for found, _ in chosen.values() for name in found}
    free = {name: values for name, values in arrays.items() if name not in mapped}
    silenced = ("terminals", "dones", "last", "first") if "terminals" in columns else ()
    count = -1
    for part in wanted or KEYS:
        if part not in chosen and part not in silenced and (name := _choose(part, free, where, count)):
            chosen[part] = [name], arrays[name]
        if part == "states" and part in chosen:
            count = next(iter(shape_of(chosen[part][1])), -1)
    used = mapped | {name for found, _ in chosen.values() for name in found}
    groups = {GROUP.sub("", name) for name in used} | used  # obs_0, obs_1, … are read if obs is, and the reverse
    others = [] if wanted or count < 0 else [x for x in arrays if not {x, GROUP.sub("", x)} & groups]
    if "episodes" not in chosen and (bounds := [x for x in others if _is_bounds(x, arrays[x], count)]):
        warn(
            f"{where}: {list_names(bounds)}: lengths or bounds of episodes are not read: add an array 'episode' of the "
            "number of each row's episode, such as numpy.repeat(numpy.arange(len(lengths)), lengths)"
        )
    return Parts(
        where,
        {part: values for part, (_, values) in chosen.items()},
        {part: ", ".join(found) for part, (found, _) in chosen.items()},
        tuple(name for name in others if _looks_like_ends(name, arrays[name], count)),
        not {*ENDS}.isdisjoint(columns),
    )


def _find(name: str, part: str, arrays: Mapping[str, Any], where: str) -> str:
    """Return the array of a name, which may leave out the groups that it lies in."""
    if name in arrays:
        return name
    ends = [key for key in arrays if key.endswith(f"/{name}") and (part != "states" or not key.startswith("next_"))]
    if len(ends) != 1:
        listed = list_names(ends or [str(key) for key in arrays])
        raise ValueError(f"{where}: no column {name!r} for the {part}; it has {listed}")
    return ends[0]


def _choose(part: str, arrays: Mapping[str, Any], where: str, count: int) -> str:
    """Return the name of the array of a part, "" without one."""
    names = sorted((name for name in arrays if part_of(name) == part), key=lambda x: KEYS[part].index(words(x)))
    if part in _COLUMNS:
        names = [name for name in names if _is_column(arrays[name], count)]
    if part == "steps":
        names = [name for name in names if words(name) not in TIMES] or names[:1]
    if not names:
        return ""
    name, *others = names
    for other in others:
        first, second = (as_numbers(arrays[each]).reshape(-1) for each in (name, other))
        if not np.array_equal(first, second if is_inverted(name) == is_inverted(other) else 1 - second):
            raise ValueError(
                f"{where}: {name!r} and {other!r} both mean the {part} and disagree; choose one by "
                f"columns={{{part!r}: {name!r}}}"
            )
    if part == "states" and (inner := nested("states", arrays)):
        raise ValueError(
            f"{where}: {name!r} may be the states, and so may named ones: choose by columns={{'states': {name!r}}} or "
            f"columns={{'states': [{list_names([*map(repr, inner)])}]}}"
        )
    if part in ("states", "next_states", "actions"):
        numbered = [x for x in arrays if (match := NUMBERED.fullmatch(x)) and match[1] == name]
        if numbered and (shape := shape_of(arrays[name])) and shape[1:] != (len(numbered),):
            raise ValueError(
                f"{where}: there are {name!r} and {numbered[-1]!r}; name those of the {part} by "
                f"columns={{{part!r}: [{list_names([*map(repr, numbered)])}]}}"
            )
    return name


def _join(arrays: list[Any]) -> Any:
    """Return arrays next to each other, read when they are needed."""
    if len(arrays) == 1:
        return arrays[0]
    width = sum(int(np.prod(shape_of(values)[1:])) for values in arrays)
    dtype = np.result_type(*(getattr(values, "dtype", np.float64) for values in arrays if not is_tensor(values)))
    read = lambda: np.column_stack([(x := as_numbers(values)).reshape(len(x), -1) for values in arrays])  # noqa: E731
    return Lazy((shape_of(arrays[0])[0], width), dtype, read)


def _is_column(values: Any, count: int) -> bool:
    return shape_of(values) in ((count,), (count, 1))


def _is_bounds(name: str, values: Any, count: int) -> bool:
    """Return whether an array may hold the lengths, first rows or ends of episodes, by its name and shape."""
    shape = shape_of(values)
    return len(shape) == 1 and 0 < shape[0] < count and BOUND_WORDS.fullmatch(last_word(name)) is not None


def _looks_like_ends(name: str, values: Any, count: int) -> bool:
    """Return whether an unread array looks like ends of episodes: by two values, or by a name of episodes' numbers."""
    if not _is_column(values, count) or count * getattr(values, "dtype", np.dtype(float)).itemsize > _LARGEST_LOOK:
        return False
    try:
        read = as_numbers(values).reshape(-1)
        if likely_part(name) == "episodes":
            return bool((read != read[0]).any())
        two = len({*read[:_FEW].tolist()}) <= 2 and len({*read.tolist()}) == 2
    except (TypeError, ValueError, OSError, MemoryError):
        return False
    return two and (named_like_ends(name) or (read.dtype.kind in "fiub" and bool(((read == 0) | (read == 1)).all())))
