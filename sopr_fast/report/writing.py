"""Reports written to files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..runtime.files import atomic_path, check_place
from .page import Page, render
from .svg import settings

if TYPE_CHECKING:
    from ..ranking.ranking import Ranking
    from ..selection import Evaluation, Selection


def check_report(path: str | os.PathLike) -> None:
    """Check before long work that a report can be written.

    Args:
        path: File to write.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    check_place(path)
    try:
        with settings():
            pass
    except ImportError as error:
        raise ImportError("a report needs matplotlib: pip install 'sopr_fast[plot]'") from error


def write_selection(
    selection: Selection, path: str | os.PathLike, *, command: str | None = None, date: str | None = None
) -> None:
    """Write the report of a selection, see `Selection.report`."""
    from .selecting import selection_page

    check_report(path)
    _write(path, selection_page(selection, command=command, date=date))


def write_evaluation(
    evaluation: Evaluation, path: str | os.PathLike, *, command: str | None = None, date: str | None = None
) -> None:
    """Write the report of an evaluation, see `Evaluation.report`."""
    from .evaluating import evaluation_page

    check_report(path)
    _write(path, evaluation_page(evaluation, command=command, date=date))


def write_ranking(
    ranking: Ranking,
    path: str | os.PathLike,
    *,
    returns: Any = None,
    coverage: Mapping[str, float] | None = None,
    command: str | None = None,
    date: str | None = None,
) -> None:
    """Write the report of a ranking, see `Ranking.report`."""
    from .ranks import ranking_page

    check_report(path)
    _write(path, ranking_page(ranking, returns=returns, coverage=coverage, command=command, date=date))


def _write(path: str | os.PathLike, page: Page) -> None:
    html = render(page)
    with atomic_path(path) as temporary:
        temporary.write_bytes(html.encode())
