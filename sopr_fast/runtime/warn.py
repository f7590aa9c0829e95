"""Warnings attributed to the caller's line."""

from __future__ import annotations

import sys
import warnings

from .process import is_first
from .text import printable

_SKIPPED = ("sopr_fast", "torch", "contextlib")  # decorators lie between this package's frames


class DoubtfulPolicyWarning(UserWarning):
    """Training policies are few, or actions of a policy may be unintended: they are random, or whole numbers."""


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning, escaped, that points at the innermost line outside this package and torch; only in process 0."""
    if not is_first():
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _SKIPPED:
        frame, level = frame.f_back, level + 1
    warnings.warn(printable(text), category, stacklevel=level)
