"""What numbers given by users may be."""

from __future__ import annotations

import math
import numbers
from typing import Any

TOO_LARGE = 1e15  # sums of squares must be float32 numbers


def check_integer(name: str, value: Any, least: int) -> int:
    """The integer, Python's or numpy's, as Python's.

    Raises:
        ValueError: it is none, or less than `least`.
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer, {least} or more, got {value!r}")
    return int(value)


def check_number(name: str, value: Any) -> float:
    """The number, Python's or numpy's, as Python's.

    Raises:
        ValueError: it is none, not finite, or below 0.
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number, 0 or more, got {value!r}")
    return float(value)
