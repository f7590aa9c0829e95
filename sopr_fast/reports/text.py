"""Text of a report: names of strangers made safe, numbers with few digits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from markupsafe import Markup, escape

from ..runtime.text import printable

_LONGEST = 200
_TIED = "\u00a0"
MISSING = "–"


class Name(str):
    """Name of a policy, group or method: untrusted text, set apart from the direction of the text around it."""

    def __html__(self) -> Markup:
        return Markup("<bdi>{}</bdi>").format(printable(str(self), _LONGEST))


def safe(text: str) -> str:
    """Return text with invisible characters escaped, except for the spaces that keep a number with its unit."""
    return _TIED.join(printable(part) for part in text.split(_TIED))


def sentence(form: str, *parts: object) -> Markup:
    """Return a sentence of trusted text with other text in its gaps, which is escaped.

    Args:
        form: The sentence, with {} for each gap.
        parts: Text, names or markup for the gaps.
    """
    return Markup(form).format(*(safe(p) if type(p) is str else p for p in parts))


def listed(names: Sequence[str], joint: str = "and", most: int = 8) -> Markup:
    """Return names as a list in words."""
    shown = [escape(Name(name)) for name in names[:most]]
    if len(names) > most:
        shown.append(Markup(f"{len(names) - most} more"))
    if len(shown) < 2:
        return Markup("").join(shown)
    return Markup(", ").join(shown[:-1]) + Markup(f" {joint} ") + shown[-1]


def capital(text: str) -> str:
    """Return text as a sentence: with a capital at its beginning and a full stop at its end."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def label(name: str, width: int = 22) -> str:
    """Return a name for a figure: escaped, its middle cut out if it is long."""
    return printable(name, width)


class Numbers:
    """Format of numbers that are compared with each other.

    Args:
        values: The numbers; their spread tells how many decimals are of interest.
    """

    def __init__(self, values: Iterable[float] | np.ndarray) -> None:
        array = np.asarray(list(np.ravel(np.asarray(values, float))))
        array = array[np.isfinite(array)]
        spread = float(np.ptp(array)) if len(array) > 1 else abs(float(array[0])) if len(array) else 1.0
        self.decimals = min(6, max(0, 2 - math.floor(math.log10(spread)))) if spread > 0 else 2

    def __call__(self, value: float) -> str:
        return number(value, self.decimals)


def number(value: float, decimals: int = 2) -> str:
    """Return a number as text, a dash where it is undefined."""
    if not math.isfinite(value):
        return MISSING
    text = f"{value:,.{decimals}f}"
    if not text.strip("-0.,"):
        text = text.lstrip("-")
    return text.replace("-", "−")


def spread(error: float, numbers: Numbers) -> str:
    """Return a standard error as text, which is 0 only if the error is."""
    if error > 0 and not numbers(error).strip("0."):
        return f"±{_TIED}<{_TIED}{number(10.0**-numbers.decimals, numbers.decimals)}"
    return f"± {numbers(error)}" if math.isfinite(error) else MISSING


def percent(share: float) -> str:
    """Return a share as whole percent; one that is neither 0 nor 1 is never rounded to 0 or 100."""
    return chance(share) if 0 < share < 1 or not math.isfinite(share) else f"{round(100 * share)}{_TIED}%"


def chance(share: float) -> str:
    """Return a probability as whole percent, never 0 or 100: nothing is that certain."""
    if not math.isfinite(share):
        return MISSING
    if share < 0.01:
        return f"<{_TIED}1{_TIED}%"
    if share > 0.99:
        return f">{_TIED}99{_TIED}%"
    return f"{round(100 * share)}{_TIED}%"


def interval(low: float, high: float, numbers: Numbers) -> str:
    """Return an interval as text."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return MISSING
    return f"{numbers(low)} to {numbers(high)}"
