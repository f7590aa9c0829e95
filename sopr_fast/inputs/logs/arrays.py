"""Arrays that may be read when they are needed, and checks of states in them."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ...runtime.arrays import as_numbers, is_tensor
from ...runtime.text import list_names
from ...runtime.warn import warn
from .keys import NUMBERED, advise, part_of

_FEWEST_ROWS = 32
_FEWEST_LAST = 10  # equal rows at the end
_SAMPLED_ROWS = 4096
_LONGEST_NAME = 400
_COARSE = 100  # distances between float32 numbers


class Lazy:
    """Array of a shape and type, which a function reads when it is needed."""

    def __init__(self, shape: Sequence[int], dtype: Any, read: Callable[[], np.ndarray]) -> None:
        self.shape, self.ndim, self.dtype, self._read = tuple(shape), len(shape), np.dtype(dtype), read

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._read(), dtype)


def opened_later(open_array: Callable[[], Any]) -> Any:
    """Return an array; if it cannot be opened, one that raises where it is needed."""
    try:
        return open_array()
    except (OSError, TypeError, ValueError):
        return Lazy((), object, lambda: np.asarray(open_array()))


def shape_of(values: Any) -> tuple[int, ...]:
    """Return the shape of an array, which need not be read, or of a nested sequence."""
    with contextlib.suppress(OverflowError, RuntimeError, TypeError, ValueError):  # as of sequences of unequal length
        return tuple(values.shape) if hasattr(values, "shape") else np.shape(values)
    return ()


def flatten(tree: Mapping[Any, Any], where: str, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their paths, such as `observations/position`; lists become arrays."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if len(name) > _LONGEST_NAME:  # names that repeat it could fill the memory
            raise ValueError(f"{where}: an array whose name is longer than {_LONGEST_NAME} characters")
        if isinstance(value, Mapping):
            leaves |= flatten(value, where, f"{name}/")
        elif value is not None:
            leaves[name] = np.asarray(value) if isinstance(value, list) and shape_of(value) else value
    return leaves


def side_by_side(arrays: Sequence[Any]) -> Lazy:
    """Return arrays (N,) or (N, …) next to each other as columns (N, K), read when they are needed."""
    count = shape_of(arrays[0])[0]
    stops = np.cumsum([int(np.prod(shape_of(values)[1:])) for values in arrays])
    dtype = np.result_type(*(getattr(values, "dtype", np.float64) for values in arrays if not is_tensor(values)))

    def read() -> np.ndarray:
        joined = np.empty((count, stops[-1]), dtype)
        for values, start, stop in zip(map(as_numbers, arrays), [0, *stops], stops, strict=False):
            if len(values) != count:
                raise ValueError(f"arrays that belong together have {count} and {len(values)} rows")
            joined[:, start:stop] = values.reshape(count, stop - start)
        return joined

    return Lazy((count, stops[-1]), dtype, read)


def column_of(table: Any, column: int) -> Lazy:
    """Return a column of a table (N, K)."""
    return Lazy(shape_of(table)[:1], getattr(table, "dtype", np.float64), lambda: as_numbers(table)[:, column])


def end_to_end(values: list[Any], counts: list[int], first: int) -> Lazy:
    """Return `counts` rows of each array, from row `first` on."""
    dtype = np.result_type(*{np.dtype(getattr(array, "dtype", np.float64)) for array in values})
    shape = (sum(counts), *shape_of(values[0])[1:])

    def read() -> np.ndarray:
        joined = np.empty(shape, dtype)
        for array, (start, stop) in zip(values, pairwise(np.cumsum([0, *counts]).tolist()), strict=True):
            joined[start:stop] = np.asarray(array)[first : first + stop - start]
        return joined

    return Lazy(shape, dtype, read)


def join_numbered(arrays: dict[str, Any], where: str) -> dict[str, Any]:
    """Return arrays, and those of one number each, such as `obs_0`, together as `obs`, in the order of the numbers."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in arrays:
        if (match := NUMBERED.fullmatch(name)) and match[1] not in arrays:
            groups.setdefault(match[1], []).append((int(match[2]), name))

    def join(group: str) -> Lazy:
        numbers, names = zip(*sorted(groups[group]), strict=True)
        if len(numbers) > 1 and [*numbers] not in ([*range(len(numbers))], [*range(1, len(numbers) + 1)]):
            fault = "leave some out: add these" if len({*numbers}) == len(numbers) else "repeat one: rename it"
            raise ValueError(
                f"{where}: numbers of the columns {list_names(names)} {fault}, or choose by "
                f"{advise(part_of(group) or 'states', *names)}"
            )
        return side_by_side([arrays[name] for name in names])

    return arrays | {group: opened_later(functools.partial(join, group)) for group in groups}


def table_shape(shape: Sequence[int], what: str) -> tuple[int, int]:
    """Return (rows, columns) of a shape that is this, or (rows, 1, columns), as of buffers of one environment."""
    if len(shape) == 3 and shape[1] == 1:
        return int(shape[0]), int(shape[2])
    if len(shape) == 3:
        raise ValueError(
            f"{what}, got {tuple(shape)}; pass values.reshape(-1, {shape[2]}), or for a log a dictionary of each "
            f"episode, [{{name: x[i] for name, x in log.items()}} for i in range({shape[0]})], or x[:, i] for i in "
            f"range({shape[1]}) if axis 1 is of environments"
        )
    if len(shape) != 2:
        raise ValueError(f"{what}, got {tuple(shape)}; pass values.reshape(len(values), -1) if policies read such rows")
    return int(shape[0]), int(shape[1])


def warn_of_equal_rows(states: np.ndarray, where: str) -> None:
    """Warn if more than half of the states (rows, dim_s) are the same row, judged by a sample."""
    sample = states[spread_rows(len(states))]
    share = np.unique(sample, axis=0, return_counts=True)[1].max() / len(sample)
    if len(states) >= _FEWEST_ROWS and share > 0.5:
        warn(
            f"{where}{share:.0%} of the states are the same row, as in a replay buffer that is not full: "
            "pass only the rows that were filled"
        )


def warn_of_padding(steps: Mapping[str, np.ndarray], where: str) -> None:
    """Warn if rows of transitions that only pad the log seem to count.

    It ends in ten or more equal rows, and more than twice as many as elsewhere; or states are fractions, and as many
    rows are 0 in everything, or repeat the row before them, though its next state is another.
    """
    states, actions, rewards, following = (steps[part] for part in ("states", "actions", "rewards", "next_states"))
    what, padding = "0 in everything", np.flatnonzero(rewards == 0)
    for values in (actions, states):
        padding = padding[(values[padding] == 0).all(1)]
    equal = (states[1:] == states[:-1]).all(1) & (actions[1:] == actions[:-1]).all(1) & (rewards[1:] == rewards[:-1])
    few = states[spread_rows(len(states))]
    if (few != np.round(few)).any(1).mean() <= 0.5 * few.any(1).mean():
        padding = padding[:0]  # in a grid, 0 may be a place
    elif len(padding) < _FEWEST_LAST:
        stays = (following[1:] != following[:-1]).any(1) | (following[1:] == states[1:]).all(1)
        what, padding = "the same as the row before, whose next state is another", np.flatnonzero(equal & ~stays) + 1
    if not (states[-1] != states[-_FEWEST_LAST:]).any():
        *others, last = np.diff(np.concatenate([[-1], np.flatnonzero(~equal), [len(equal)]])).tolist()
        if others and last > 2 * max(others):
            what, padding = "the same row, to the end", np.arange(len(states))[-last:]
    if len(padding) >= _FEWEST_LAST:
        first = steps["source"][padding[0]]
        warn(
            f"{where}{len(padding):,} rows, such as row {first}, are {what}, as where episodes are padded or a replay "
            "buffer is not full: leave these rows out, or add an array 'valid' that is 0 there"
        )


def warn_of_marks(values: np.ndarray, what: str) -> None:
    """Warn if a column of a table (rows, columns) has a value such as -999, far from all others."""
    extremes = [(k, end) for ends in (values.min(0), values.max(0)) for k, end in enumerate(ends)]
    for k, mark in ((k, end) for k, end in extremes if re.fullmatch("99+", f"{abs(end):.10g}")):
        rows = values[:, k] == mark
        others = values[~rows, k]
        if len(others) and np.abs(others - mark).min() > 2 * np.ptp(others):
            warn(
                f"{what} are {mark:g} in column {k} of {rows.sum():,} rows, such as row {rows.argmax()}, far from its "
                "other values, as where a value is missing: fill it, or leave these rows out"
            )


def warn_of_rounding(states: np.ndarray, read: Callable[[np.ndarray], np.ndarray], dtype: np.dtype, where: str) -> None:
    """Warn if a column varies by so little around a large value that float32 rounds its differences away."""
    if np.can_cast(dtype, np.float32):
        return
    rows = spread_rows(len(states))
    sample = states[rows]
    if (sample == sample[0]).all(0).any():
        sample = read(rows)  # a column may vary by less than float32 tells apart
    varies, spread = (sample != sample[0]).any(0), sample.std(0, dtype=np.float64)
    spacing = np.spacing(np.abs(sample).max(0).astype(np.float32))
    if (lost := np.flatnonzero(varies & (spread < _COARSE * spacing))).size:
        k = int(lost[0])
        warn(
            f"{where}column {k} of the states varies by {spread[k]:.3g} around {sample[0, k]:.6g}, where numbers of "
            f"float32 are {spacing[k]:.3g} apart, so policies see rounded states: shift it in the log and the policies"
        )


def spread_rows(count: int) -> np.ndarray:
    """Return at most 4,096 of the rows, evenly spread."""
    return np.linspace(0, count - 1, min(count, _SAMPLED_ROWS)).astype(np.int64)
