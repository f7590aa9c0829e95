"""Named arrays, which may be read when they are needed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..runtime.arrays import as_numbers, is_tensor

LONGEST_NAME = 400


class Lazy:
    """Array of a shape and type, which a function reads when it is needed."""

    def __init__(self, shape: Sequence[int], dtype: Any, read: Callable[[], np.ndarray]) -> None:
        self.shape, self.dtype, self._read = tuple(shape), np.dtype(dtype), read

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._read(), dtype)


def shape_of(values: Any) -> tuple[int, ...]:
    """Return the shape of an array, which need not be read, or of a nested sequence."""
    with contextlib.suppress(OverflowError, RuntimeError, TypeError, ValueError):  # as of sequences of unequal length
        return tuple(values.shape) if hasattr(values, "shape") else np.shape(values)
    return ()


def check_names(names: Iterable[Any]) -> None:
    """Raise ValueError for a name that is too long: messages and nested names that repeat it could fill the memory."""
    if any(len(str(name)) > LONGEST_NAME for name in names):
        raise ValueError(f"an array whose name is longer than {LONGEST_NAME} characters")


def flatten(tree: Mapping[Any, Any], prefix: str = "", separator: str = "/") -> dict[str, Any]:
    """Return the leaves of nested mappings by their paths, such as `observations/position`; lists become arrays."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        check_names([name])
        if isinstance(value, Mapping):
            leaves |= flatten(value, f"{name}{separator}", separator)
        elif value is not None:
            leaves[name] = np.asarray(value) if isinstance(value, list) and shape_of(value) else value
    return leaves


def side_by_side(arrays: Sequence[Any]) -> Lazy:
    """Return arrays (N,) or (N, …) next to each other as columns (N, K)."""
    count = next(iter(shape_of(arrays[0])), 0)
    stops = np.cumsum([0, *(math.prod(shape_of(values)[1:]) for values in arrays)]).tolist()
    everything = slice(None)
    return _assembled((count, stops[-1]), arrays, [((everything, slice(*x)), everything) for x in pairwise(stops)])


def end_to_end(arrays: Sequence[Any], counts: Sequence[int], first: int) -> Lazy:
    """Return `counts` rows of each array, from row `first` on."""
    shape = (sum(counts), *shape_of(arrays[0])[1:])
    starts = np.cumsum([0, *counts]).tolist()
    return _assembled(shape, arrays, [(slice(*x), slice(first, first + x[1] - x[0])) for x in pairwise(starts)])


def _assembled(shape: tuple[int, ...], arrays: Sequence[Any], places: Sequence[tuple[Any, slice]]) -> Lazy:
    """Return an array of pieces: `places` holds where an array lies in it, and which of the array's rows."""

    def read() -> np.ndarray:
        types = {np.float32 if is_tensor(values) else getattr(values, "dtype", np.float64) for values in arrays}
        joined = np.empty(shape, np.result_type(*types))
        for (place, rows), values in zip(places, arrays, strict=True):
            joined[place] = as_numbers(values)[rows].reshape(joined[place].shape)
        return joined

    return Lazy(shape, np.float64, read)
