"""Errors that all processes of a group know, and the loss of a process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

store: Any = None  # of the processes that torchrun started


class LostProcessError(RuntimeError):
    """A process of the group has ended, or cannot be reached."""


def is_told(error: BaseException) -> bool:
    """Return whether all processes know of an error, or of one that led to it."""
    return told_by(error) is not None


def told_by(error: BaseException | None) -> int | None:
    """Return the process whose error all processes know, or None."""
    return next((each.process for each in _chain(error) if hasattr(each, "process")), None)


def lost_before(error: BaseException) -> LostProcessError | None:
    """Return the loss of a process that an error followed, or None."""
    return next((each for each in _chain(error) if isinstance(each, LostProcessError)), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def mark(error: BaseException, process: int) -> BaseException:
    """Return an error that all processes know, and of which one of them tells the user."""
    error.process = process  # type: ignore[attr-defined]
    return error


def first_to_tell(process: int) -> int:
    """Return this process if it is the first to ask, so that it alone tells of a lost one, else -1.

    Without the store of `torchrun`, every process tells.
    """
    try:
        return process if store is None or store.add("sopr_fast/lost", 1) == 1 else -1
    except RuntimeError:  # the machine of the store is lost too
        return process


def reason(error: Exception) -> str:
    """Return the first sentence of a message of gloo, without its place in the code."""
    return re.sub(r"^\[[^]]*\] ", "", (str(error) or type(error).__name__).splitlines()[0]).partition(". ")[0]
