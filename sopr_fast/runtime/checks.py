"""Checks of numbers and arrays that users pass."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from torch import Tensor

TOO_LARGE = 1e15  # sums of squares must be float32 numbers


def check_integer(name: str, value: Any, least: int) -> int:
    """Return an integer, Python's or NumPy's, as a Python int.

    Raises:
        ValueError: Not an integer, or less than `least`.
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer, {least} or more, got {value!r}")
    return int(value)


def check_number(
    name: str, value: Any, *, above: float | None = None, below: float = math.inf, most: float = math.inf
) -> float:
    """Return a finite number of at least 0, Python's or NumPy's, as a Python float.

    Args:
        name: Name of the option in the error message.
        value: Number to check.
        above: Largest number that is too small.
        below: Smallest number that is too large.
        most: Largest accepted number.

    Raises:
        ValueError: Not a number, not finite, or outside these limits.
    """
    try:
        number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not 0 <= number < below or number > most or number == math.inf or (above is not None and number <= above):
        least = "0 or more" if above is None else f"above {above:g}"
        limits = f", less than {below:g}" if below < math.inf else f", at most {most:g}" if most < math.inf else ""
        raise ValueError(f"{name} must be a finite number, {least}{limits}, got {value!r}")
    return number


def fill_masked(values: Any) -> Any:
    """Return a masked array as a plain one with NaN in place of masked numbers, and anything else as it is."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if values.dtype.kind in "fiub" and np.ma.is_masked(values):
        return np.where(np.ma.getmaskarray(values), np.nan, values.data)
    return values.data


def as_numbers(values: Any) -> np.ndarray:
    """Return the numbers of a tensor on any device, array or sequence as an array, with NaN for masked ones."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.is_floating_point() and values.itemsize <= 2 else values).numpy()
    return np.asarray(fill_masked(values))
