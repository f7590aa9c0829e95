"""Progress of long work: a bar on a terminal and in a notebook, log lines elsewhere; durations of its stages."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

from tqdm.auto import tqdm

from .options import current
from .process import in_notebook, is_first

_DELAY = 1.0  # seconds before anything is shown
_SECONDS_BETWEEN_LINES = 30.0
_log = logging.getLogger("sopr_fast")
_part: ContextVar[str] = ContextVar("part", default="")


@contextmanager
def part(place: int, count: int, name: str) -> Iterator[None]:
    """Name the part of the work in the bars of a block, as in "3 of 7, FQE: training"; places count from 1."""
    token = _part.set(f"{place} of {count}, {name}: ")
    try:
        yield
    finally:
        _part.reset(token)


def progress_bar(total: int, description: str, unit: str, *, show: bool = True, initial: int = 0) -> Any:
    """Return a context manager that shows how far a stage is, after its first second.

    On a terminal and in a notebook it is a bar of tqdm. Elsewhere it logs to the logger "sopr_fast" at level INFO,
    every 30 seconds and at the end of the stage; without any handler, lines go to stderr. Both have `n`, `update`,
    `set_postfix` and `reset`. It is shown in process 0 only, if `sopr_fast.options` asks for it; `initial` units
    were done before.
    """
    show = show and current().progress and is_first()
    description = _part.get() + description
    if show and (_is_on_terminal() or in_notebook()):
        return _Bar(total=total, initial=initial, desc=description, unit=unit, delay=_DELAY)
    return _ProgressLog(total, description, unit, initial, show)


def _is_on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, a stand-in that only writes, or a closed one
        return False


class _Bar(tqdm):
    """tqdm with a lock of its own."""


def _renew_lock() -> None:
    """Replace tqdm's lock. Forked processes share it, so that one killed while it holds the lock blocks the others."""
    _Bar.set_lock(threading.RLock())


_renew_lock()
os.register_at_fork(after_in_child=_renew_lock)


class _ProgressLog:
    """Stand-in for tqdm that logs lines, or shows nothing."""

    def __init__(self, total: int, description: str, unit: str, initial: int, show: bool) -> None:
        self.n, self._total, self._description, self._unit = initial, total, description, unit
        self._show = show
        self._postfix = ""
        self._begun = self._logged = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if time.monotonic() - self._begun > _DELAY:
            self._write()

    def update(self, count: int = 1) -> None:
        self.n += count
        if time.monotonic() - self._logged > _SECONDS_BETWEEN_LINES:
            self._write()

    def set_postfix(self, values: dict[str, Any] | None = None, refresh: bool = True, **more: Any) -> None:
        self._postfix = "".join(f", {name} {value}" for name, value in {**(values or {}), **more}.items())

    def reset(self) -> None:
        self.n = 0

    def _write(self) -> None:
        if not self._show:
            return
        self._logged = time.monotonic()
        seconds = self._logged - self._begun
        line = f"{self._description}: {self._unit} {self.n} of {self._total}{self._postfix}, {seconds:.0f} s"
        if _log.hasHandlers():
            _log.info(line)
        elif sys.stderr is not None and not sys.stderr.closed:
            print(f"sopr_fast: {line}", file=sys.stderr, flush=True)


class Timings(dict[str, float]):
    """Total seconds by stage."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the duration of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self[name] = self.get(name, 0.0) + time.perf_counter() - start
