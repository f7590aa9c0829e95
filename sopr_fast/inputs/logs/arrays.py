"""Checks shared by states and transitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from ...runtime.warn import warn

_FEWEST_ROWS = 32
_SAMPLED_ROWS = 4096
_COARSE = 100  # distances between float32 numbers


def to_array(tensor: Tensor, where: str) -> np.ndarray:
    """Return the values of a tensor; half precision becomes float32.

    Raises:
        TypeError: numpy has no such layout or dtype; begins with `where`.
        ValueError: A tensor on the meta device, which holds no values.
    """
    if tensor.is_meta:
        raise ValueError(f"{where}a tensor on the meta device holds no values; load it on another device")
    tensor = tensor.detach().cpu()
    try:
        return (tensor.float() if tensor.is_floating_point() and tensor.itemsize <= 2 else tensor).numpy()
    except (RuntimeError, TypeError) as error:
        raise TypeError(f"{where}not a plain tensor: {error}") from error


def table_shape(shape: Sequence[int], what: str) -> tuple[int, int]:
    """Return (rows, columns) of a shape that is this, or (rows, 1, columns) as replay buffers of one environment have.

    Args:
        shape: Shape of an array.
        what: Beginning of the error message: the array's name and the expected shape.

    Raises:
        ValueError: Another number of dimensions.
    """
    if len(shape) == 3 and shape[1] == 1:
        return int(shape[0]), int(shape[2])
    if len(shape) != 2:
        hint = "; pass the rows of one environment at a time" if len(shape) == 3 else ""
        raise ValueError(f"{what}, got {tuple(shape)}{hint}")
    return int(shape[0]), int(shape[1])


def warn_of_equal_rows(states: np.ndarray, where: str) -> None:
    """Warn if more than half of the states (rows, dim_s) are the same row, judged by a sample of at most 4,096.

    Args:
        states: States in any order; fewer than 32 are not judged.
        where: Beginning of the message.

    Warns:
        UserWarning: They are, as those of a replay buffer that is not full.
    """
    if len(states) < _FEWEST_ROWS:
        return
    sample = states[_spread_rows(len(states))]
    share = np.unique(sample, axis=0, return_counts=True)[1].max() / len(sample)
    if share > 0.5:
        warn(
            f"{where}{share:.0%} of the states are the same row, as in a replay buffer that is not full: "
            "pass only the rows that were filled"
        )


def warn_of_rounding(states: np.ndarray, read: Callable[[np.ndarray], np.ndarray], dtype: np.dtype, where: str) -> None:
    """Warn if a column varies by so little around a large value that float32 rounds its differences away.

    Args:
        states: (rows, dim_s) float32 states in any order, of which a sample is judged.
        read: Function from rows (n,) of the states to the numbers (n, dim_s) from which they were made.
        dtype: Type of these numbers; nothing was lost if it holds no more than float32 does.
        where: Beginning of the message.

    Warns:
        UserWarning: The standard deviation of a column is less than 100 times the distance between float32 numbers.
    """
    if np.can_cast(dtype, np.float32):
        return
    rows = _spread_rows(len(states))
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


def _spread_rows(count: int) -> np.ndarray:
    """Return at most 4,096 of the rows, evenly spread."""
    return np.linspace(0, count - 1, min(count, _SAMPLED_ROWS)).astype(np.int64)
