"""Seconds by stage."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Timings(dict[str, float]):
    """Stage name → seconds spent in it so far."""

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self[name] = self.get(name, 0.0) + time.perf_counter() - start
