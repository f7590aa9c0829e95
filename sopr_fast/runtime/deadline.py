"""Time limits of long work, checked wherever a progress bar advances."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Iterator

_deadline: contextvars.ContextVar[tuple[float, float] | None] = contextvars.ContextVar("deadline", default=None)


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Limit the time of a block.

    Args:
        seconds: Time until `check_deadline` raises; None for no limit.
    """
    token = _deadline.set(None if seconds is None else (time.monotonic() + seconds, seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


def check_deadline() -> None:
    """Raise where the time limit of the current block has passed.

    Raises:
        TimeoutError: It has.
    """
    limit = _deadline.get()
    if limit is not None and time.monotonic() > limit[0]:
        raise TimeoutError(f"stopped after its time limit of {limit[1]:g} s")
