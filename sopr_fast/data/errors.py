"""What reading a file may end in."""

from __future__ import annotations


def unreadable(verdict: str, error: Exception) -> Exception:
    """A ValueError of what reading raised, but a MemoryError where memory did not suffice."""
    if isinstance(error, MemoryError):
        return MemoryError(f"{verdict}, or larger than the memory that is free: {error}")
    return ValueError(f"{verdict}: {error}")
