"""Warnings that point at the caller's line."""

from __future__ import annotations

import sys
import warnings

_PASSED = ("sopr_fast", "torch")  # torch's decorators stand between


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns of the innermost line outside this package and torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
