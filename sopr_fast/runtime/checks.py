"""Checks of numbers that users pass."""

from __future__ import annotations

import math
import numbers
from typing import Any

TOO_LARGE = 1e15  # sums of squares must be float32 numbers


def check_integer(name: str, value: Any, least: int, most: float = math.inf) -> int:
    """Return an integer, Python's or NumPy's, as a Python int.

    Raises:
        ValueError: Not an integer, less than `least` or more than `most`.
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        limits = f"{least} or more" if most == math.inf else f"{least} to {most}"
        raise ValueError(f"{name} must be an integer, {limits}, got {short(value)}")
    return int(value)


def check_number(
    name: str,
    value: Any,
    *,
    least: float = 0.0,
    above: float | None = None,
    below: float = math.inf,
    most: float = math.inf,
) -> float:
    """Return a finite number, Python's or NumPy's, as a Python float.

    Args:
        name: Name of the option in the error message.
        value: Number to check.
        least: Smallest accepted number.
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
    if not least <= number < below or number > most or math.isinf(number) or (above is not None and number <= above):
        limits = f", above {above:g}" if above is not None else f", {least:g} or more" if least > -math.inf else ""
        limits += f", less than {below:g}" if below < math.inf else f", at most {most:g}" if most < math.inf else ""
        raise ValueError(f"{name} must be a finite number{limits}, got {short(value)}")
    return number


def short(value: Any) -> str:
    """Return a value as text of at most 60 characters."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
