"""Arrays that may be read when they are needed, and checks of states in them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..runtime.arrays import as_numbers, is_tensor
from ..runtime.text import list_names
from ..runtime.warn import warn

_SAMPLED_ROWS = 4096
_LONGEST_NAME = 400
_DIGITS = "0123456789"
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


def check_names(names: Iterable[Any], where: str) -> None:
    """Raise ValueError for a name that is too long: messages and nested names that repeat it could fill the memory."""
    if any(len(str(name)) > _LONGEST_NAME for name in names):
        raise ValueError(f"{where}: an array whose name is longer than {_LONGEST_NAME} characters")


def flatten(tree: Mapping[Any, Any], where: str, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their paths, such as `observations/position`; lists become arrays."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        check_names([name], where)
        if isinstance(value, Mapping):
            leaves |= flatten(value, where, f"{name}/")
        elif value is not None:
            leaves[name] = np.asarray(value) if isinstance(value, list) and shape_of(value) else value
    return leaves


def numbered(name: str) -> tuple[str, int | None]:
    """Return the stem and the number of a name such as `obs_0`, `obs.0` or `obs[0]`; the name and None of others."""
    text = name.removesuffix("]") if "[" in name else name
    stem = text.rstrip(_DIGITS)
    if len(stem) == len(text) or not stem.rstrip("[") or (text != name and stem[-1] != "["):
        return name, None
    bare = stem.removesuffix("[")
    return bare[:-1] if len(bare) > 1 and bare[-1] in "._ " else bare, int(text[len(stem) :])


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
    check_names(arrays, where)
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in arrays:
        stem, number = numbered(name)
        if number is not None and stem not in arrays:
            groups.setdefault(stem, []).append((number, name))

    def join(group: str) -> Lazy:
        numbers, names = zip(*sorted(groups[group]), strict=True)
        if len(numbers) > 1 and [*numbers] not in ([*range(len(numbers))], [*range(1, len(numbers) + 1)]):
            fault = "leave some out: add these" if len({*numbers}) == len(numbers) else "repeat one: rename it"
            raise ValueError(
                f"{where}: numbers of the columns {list_names(names)} {fault}, or name those that you mean, in order, "
                f"by columns={{'states': [{', '.join(map(repr, names[:10]))}]}} or another part"
            )
        return side_by_side([arrays[name] for name in names])

    return arrays | {group: opened_later(functools.partial(join, group)) for group in groups}


def table_shape(shape: Sequence[int], what: str, *, ordered: bool = True) -> tuple[int, int]:
    """Return (rows, columns) of a shape that is this, or (rows, 1, columns), as of buffers of one environment.

    Errors tell how to make such tables, of which the order of rows matters if they are `ordered`.
    """
    if len(shape) == 3 and shape[1] == 1:
        return int(shape[0]), int(shape[2])
    if len(shape) == 3 and not ordered:
        raise ValueError(f"{what}, got {tuple(shape)}; pass values.reshape(-1, {shape[2]})")
    if len(shape) == 3:
        raise ValueError(
            f"{what}, got {tuple(shape)}; if axis 0 is of episodes, pass a dictionary of each, [{{name: x[i] for name, "
            f"x in log.items()}} for i in range({shape[0]})]; if it is of time and axis 1 of environments, pass one "
            "dictionary of their rows, {name: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]) for name, x in log.items()} | "
            f"{{'environment': numpy.repeat(range({shape[1]}), {shape[0]})}}"
        )
    if len(shape) != 2:
        raise ValueError(f"{what}, got {tuple(shape)}; pass values.reshape(len(values), -1) if policies read such rows")
    return int(shape[0]), int(shape[1])


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
