"""Checks of numbers that users pass."""

from __future__ import annotations

import math
import numbers
from typing import Any

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
