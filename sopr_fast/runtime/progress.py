"""Progress of long work: a bar on a terminal and in a notebook, lines elsewhere."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from tqdm import auto, tqdm

from .options import current
from .process import in_notebook, is_first

_DELAY = 1.0  # seconds before anything is shown
_SECONDS_BETWEEN_LINES = 30.0
_LINE = "{desc}: {unit} {n_fmt} of {total_fmt}{postfix}, {elapsed}"
_log = logging.getLogger("sopr_fast")
_T = TypeVar("_T")
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
    """Return a bar of tqdm as a context manager; it shows how far a stage is, after the first second.

    On a terminal and in a notebook it is a bar. Elsewhere it logs a line every 30 seconds, and one at the end of such
    a stage, to the logger "sopr_fast" at level INFO; without any handler, to stderr. It is shown in process 0 only, if
    `sopr_fast.options` asks for it; `initial` units were done before.
    """
    show = show and current().progress and is_first()
    options = {"total": total, "initial": initial, "desc": _part.get() + description, "unit": unit, "miniters": 1}
    if show and (_is_on_terminal() or in_notebook()):
        return _Bar(**options, delay=_DELAY)
    seconds = {"delay": _SECONDS_BETWEEN_LINES, "mininterval": _SECONDS_BETWEEN_LINES}
    return _Lines(**options, **seconds, disable=not show, file=io.StringIO(), bar_format=_LINE)


def each(items: Sequence[_T], description: str, unit: str) -> Iterator[_T]:
    """Yield the items, and show how many are done; see `progress_bar`."""
    with progress_bar(len(items), description, unit) as bar:
        for item in items:
            yield item
            bar.update()


def _is_on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, a stand-in that only writes, or a closed one
        return False


class _Bar(auto.tqdm):
    """tqdm with a lock of its own, and without its thread."""

    monitor_interval = 0


class _Lines(tqdm):
    """The same with lines in place of a bar."""

    monitor_interval = 0

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], None]:
        """Return what shows a line."""
        return _write


def _write(line: str) -> None:
    if _log.hasHandlers():
        _log.info(line)
    elif sys.stderr is not None and not sys.stderr.closed:
        print(f"sopr_fast: {line}", file=sys.stderr, flush=True)


# Not tqdm's lock, which forked processes share: one that is killed while it holds it would block the others.
for _kind in (_Bar, _Lines):
    _kind.set_lock(threading.RLock())
