"""Durations of the stages of a computation."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Timings(dict[str, float]):
    """Total seconds by stage."""

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the duration of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self[name] = self.get(name, 0.0) + time.perf_counter() - start
