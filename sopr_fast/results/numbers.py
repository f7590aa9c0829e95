"""The format of numbers and probabilities in tables, sentences and reports."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

MISSING = "–"
_MOST_DECIMALS = 6
_ROUNDING = 1e-6  # relative to the largest number, and in percent
_LARGE = 1e12  # from which numbers have an exponent
_HIDDEN = 1000.0  # how many times as close numbers look equal next to an outlier


def without_outliers(values: np.ndarray, closer: float = 10.0) -> np.ndarray:
    """Return sorted finite values, without the first and the last if others are `closer` times as close together."""
    ordered = np.sort(values[np.isfinite(values)], None)
    inner = ordered[1:-1]
    return inner if len(inner) > 1 and 0 < closer * np.ptp(inner) < np.ptp(ordered) else ordered


class Numbers:
    """Formats numbers of one column with as many decimals as distinguish them, or show their `errors` by two digits."""

    def __init__(self, values: ArrayLike, errors: ArrayLike = ()) -> None:
        array, sizes = without_outliers(np.asarray(values, float), _HIDDEN), np.asarray(errors, float)
        sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
        size = float(np.abs(array).max(initial=0))
        spread = float(np.ptp(array)) if len(array) and np.ptp(array) > _ROUNDING * size else size
        spread = 10 * float(np.median(sizes)) if len(sizes) else spread
        self.decimals = min(_MOST_DECIMALS, max(0, 2 - math.floor(math.log10(spread)))) if spread > 0 else 2

    def __call__(self, value: float) -> str:
        return number(value, self.decimals)


def number(value: float, decimals: int = 2) -> str:
    """Return a number as text, a dash if it is undefined."""
    if not math.isfinite(value):
        return MISSING
    if abs(value) >= _LARGE:
        return f"{value:.3e}"
    text = f"{value:,.{decimals}f}"
    if text.strip("-0.,"):
        return text
    return f"{value:.1e}" if value and decimals == _MOST_DECIMALS else text.lstrip("-")


def chance(share: float) -> str:
    """Return a probability as whole percent, never rounded up, and never 0 or 100: nothing is that certain."""
    if not math.isfinite(share):
        return MISSING
    if share > 0.99:
        return "over 99 %"
    return f"{int(100 * share + _ROUNDING)} %" if share >= 0.01 else "<1 %"
