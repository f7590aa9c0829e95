"""Text of a report: untrusted names made safe, numbers with few digits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from ..ranking.tables import MISSING
from ..runtime.text import printable

_LONGEST = 200
_TIED = "\u00a0"


class Name(str):
    """Name of a policy, group or method: untrusted text, set apart from the direction of the text around it."""

    def __html__(self) -> Markup:
        return Markup("<bdi>{}</bdi>").format(printable(str(self), _LONGEST))


def safe(text: str) -> str:
    """Return text with invisible characters escaped, except for the spaces that keep a number with its unit."""
    return _TIED.join(printable(part) for part in text.split(_TIED))


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names as a list in words."""
    shown = list(names[:most])
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else ""


class Numbers:
    """Formats numbers of one column with as many decimals as distinguish them.

    Args:
        values: The numbers of the column.
    """

    def __init__(self, values: Sequence[float] | np.ndarray) -> None:
        array = np.asarray(values, float)
        array = array[np.isfinite(array)]
        spread = float(np.ptp(array) or abs(array[0])) if len(array) else 1.0
        self.decimals = min(6, max(0, 2 - math.floor(math.log10(spread)))) if spread > 0 else 2

    def __call__(self, value: float) -> str:
        return number(value, self.decimals)


def number(value: float, decimals: int = 2) -> str:
    """Return a number as text, a dash if it is undefined."""
    if not math.isfinite(value):
        return MISSING
    text = f"{value:,.{decimals}f}"
    return (text if text.strip("-0.,") else text.lstrip("-")).replace("-", "−")


def chance(share: float) -> str:
    """Return a probability as whole percent, never 0 or 100: nothing is that certain."""
    if not math.isfinite(share):
        return MISSING
    if not 0.01 <= share <= 0.99:
        return f"{'<' if share < 0.01 else '>'}{_TIED}{1 if share < 0.01 else 99}{_TIED}%"
    return f"{round(100 * share)}{_TIED}%"


def plain(value: object) -> str:
    """Return a setting as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
