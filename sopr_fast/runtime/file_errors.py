"""Errors that name the file that is read, for all readers of logs and returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reading(where: str | Path, kind: str) -> Iterator[None]:
    """Make every error inside the block name what is being read.

    Libraries raise errors of nearly any type for damaged files. Errors that already begin with `where` pass unchanged.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or str(error).startswith(f"{where}: "):
            raise
        if isinstance(error, UnicodeDecodeError):
            raise ValueError(f"{where}: not in UTF-8, or not {kind}: {error}; save text in UTF-8") from error
        raise ValueError(f"{where}: damaged, cut short, or not {kind}: {error}") from error


@contextmanager
def naming(source: str | Path) -> Iterator[None]:
    """Make every error inside the block begin with the name of what is read: nothing below the door needs to know it.

    Errors of types that no reader documents become ValueErrors, since the source may be damaged.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ImportError | OSError) or str(error).startswith(str(source)):
            raise
        if not isinstance(error, MemoryError | TypeError | ValueError):
            what = f"damaged, or of a form that cannot be read ({type(error).__name__}: {error})"
            raise ValueError(f"{source}: {what}") from error
        error.args = (f"{source}: {error}",)
        raise
