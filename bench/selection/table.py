"""Tables of the study: means over tasks and their standard errors, for choosing and for judging tasks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas

from .study import RESULTS
from .tasks import TASKS

KINDS = {
    "offline": "offline RL",
    "algorithm": "another algorithm",
    "run": "another run",
    "snapshots": "unseen snapshots",
}
METHODS = ("select", "simulator", "Gaussian process", "nearest policy", "random order")
DECISIONS = {
    "regret@1": "regret@1",
    "regret@3": "regret@3",
    "coverage": "80 % intervals cover",
    "measured 2": "regret after 2 measurements",
    "measured 3": "after 3",
    "deploy": "says deploy",
    "right": "rightly",
}
COUNTS = (0, 3, 10, 30)
_MARK = re.compile(r"(?<=<!-- selection -->\n)(.*?)(?=<!-- end selection -->)", re.DOTALL)


def results(*, chooses: bool) -> pandas.DataFrame:
    """Return the results of one half of the tasks."""
    rows = pandas.read_csv(RESULTS)
    halves = {task.environment: task.chooses for task in TASKS}
    return rows[rows["task"].map(halves) == chooses]


def decisions(rows: pandas.DataFrame) -> str:
    """Return what `select` is worth to a decision as a table in Markdown."""
    select = rows[rows["method"] == "select"]
    cells = {(kind, count): [(select, column) for column in DECISIONS] for kind in KINDS for count in COUNTS}
    return _table(list(DECISIONS.values()), cells)


def correlations(rows: pandas.DataFrame, counts: Sequence[int] = COUNTS) -> str:
    """Return the rank correlation of every method as a table in Markdown."""
    of_methods = [(rows[rows["method"] == method], "spearman") for method in METHODS[:-1]]
    return _table(list(METHODS[:-1]), {(kind, count): of_methods for kind in KINDS for count in counts})


def update_page(page: Path) -> None:
    """Write the main table, of the judging tasks, between the marks of a page."""
    rows = results(chooses=False)
    others = results(chooses=True)
    select, before = (frame[frame["method"] == "select"] for frame in (rows, others))
    columns: list[tuple[pandas.DataFrame, str]] = [(select, "spearman"), (before, "spearman")]
    columns += [(rows[rows["method"] == method], "spearman") for method in METHODS[1:4]]
    columns += [(select, column) for column in ("regret@1", "regret@3", "coverage")]
    head = ["`select`", "the same, choosing tasks", *METHODS[1:4], "regret@1", "regret@3", "80 % intervals cover"]
    text = _table(head, {(kind, count): columns for kind in KINDS for count in (0, 10)})
    content = page.read_text()
    if not _MARK.search(content):
        raise ValueError(f"{page} has no lines <!-- selection --> and <!-- end selection -->")
    page.write_text(_MARK.sub(lambda _: f"\n{text}\n\n", content))


def _table(head: list[str], lines: dict[tuple[str, int], list[tuple[pandas.DataFrame, str]]]) -> str:
    text = [f"| candidates | known | {' | '.join(head)} |", "|" + " --- |" * (2 + len(head))]
    for (kind, count), columns in lines.items():
        cells = [_cell(rows[(rows["kind"] == kind) & (rows["known"] == count)], column) for rows, column in columns]
        if any(cells):
            text.append(f"| {KINDS[kind]} | {count} | {' | '.join(cells)} |")
    return "\n".join(text)


def _cell(rows: pandas.DataFrame, column: str) -> str:
    """Return "mean ± standard error" over tasks, of their means over seeds and candidates."""
    means = rows.groupby("task")[column].mean().dropna()
    if means.empty:
        return ""
    return f"{means.mean():.2f} ± {means.sem():.2f}" if len(means) > 1 else f"{means.mean():.2f}"
