"""Tables of the study: means over tasks and their standard errors, for choosing and for judging tasks."""

from __future__ import annotations

import re
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
METHODS = ("select", "simulator", "Gaussian process", "nearest policy")
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


def correlations(rows: pandas.DataFrame) -> str:
    """Return the rank correlation of every method as a table in Markdown."""
    return _table({method: (rows, method, "spearman") for method in METHODS})


def decisions(rows: pandas.DataFrame) -> str:
    """Return what `select` is worth to a decision as a table in Markdown."""
    return _table({head: (rows, "select", column) for column, head in DECISIONS.items()})


def update_page(page: Path) -> None:
    """Write the main table, of the judging tasks, between the marks of a page."""
    rows, others = results(chooses=False), results(chooses=True)
    lines = [
        "| | none known | ten known | simulator | nearest policy | regret@1 | regret@3 | 80 % intervals | other half |"
    ]
    lines.append("|" + " --- |" * 9)
    for kind, words in KINDS.items():
        columns = [
            (rows, "select", 0, "spearman"),
            (rows, "select", 10, "spearman"),
            (rows, "simulator", 10, "spearman"),
        ]
        columns += [(rows, "nearest policy", 10, "spearman")]
        columns += [(rows, "select", 10, column) for column in ("regret@1", "regret@3", "coverage")]
        columns += [(others, "select", 10, "spearman")]
        cells = [_cell(frame, kind, method, count, column) for frame, method, count, column in columns]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    names = [", ".join(frame["task"].unique()) or "no task" for frame in (rows, others)]
    lines.append(f"\nJudging: {names[0]}. Choosing: {names[1]}. Seeds: {rows['seed'].nunique()}.")
    text = page.read_text()
    if not _MARK.search(text):
        raise ValueError(f"{page} has no lines <!-- selection --> and <!-- end selection -->")
    page.write_text(_MARK.sub(lambda _: "\n" + "\n".join(lines) + "\n\n", text))


def _table(columns: dict[str, tuple[pandas.DataFrame, str, str]]) -> str:
    lines = [f"| candidates | known | {' | '.join(columns)} |", "|" + " --- |" * (2 + len(columns))]
    for kind, words in KINDS.items():
        for count in COUNTS:
            cells = [_cell(rows, kind, method, count, column) for rows, method, column in columns.values()]
            lines.append(f"| {words} | {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(rows: pandas.DataFrame, kind: str, method: str, count: int, column: str) -> str:
    """Return "mean ± standard error" over tasks, of their means over seeds and candidates."""
    rows = rows[(rows["kind"] == kind) & (rows["method"] == method) & (rows["known"] == count)]
    means = rows.groupby("task")[column].mean().dropna()
    if means.empty:
        return "—"
    return (f"{means.mean():.2f} ± {means.sem():.2f}" if len(means) > 1 else f"{means.mean():.2f}").replace("-", "−")
