"""Reports: one HTML file of a ranking, an evaluation or a selection, with figures and tables, that needs no network."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from ..results.ranking import Ranking
from ..runtime.files import atomic_path, check_place
from ..runtime.text import printable
from ..selection import Evaluation, Selection

__all__ = ["check_report", "report"]


def check_report(path: str | os.PathLike) -> None:
    """Raise OSError or ValueError before long work if no report can be written."""
    check_place(path)
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"a report is HTML, so its name must end in .html, got {printable(path)}")


def report(
    result: Ranking | Evaluation | Selection,
    path: str | os.PathLike,
    *,
    title: str = "",
    command: str = "",
    date: str | None = None,
) -> None:
    """Write a report of a result: one HTML file that needs no network.

    Args:
        result: The result of `rank`, `evaluate`, `select`, or of an estimator.
        path: File to write or replace, .html.
        title: What it is about, such as the name of the log or the task, to print with the date.
        command: Command that makes the report again.
        date: Date to print; None for today.

    Raises:
        OSError: The file cannot be written.
        TypeError: There is no report of such a result.
        ValueError: The name does not end in .html.
    """
    from .contents import content  # here, because jinja2 and matplotlib are needed only to write
    from .page import render

    page = content(result)
    check_report(path)
    date = datetime.date.today().isoformat() if date is None else date
    about = " · ".join(part for part in (page.pop("kind"), title, date) if part)
    with atomic_path(path) as temporary:
        temporary.write_bytes(render(about, command, **page).encode())
