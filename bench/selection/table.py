"""Tables of the study: means over tasks and their standard errors, for choosing and for judging tasks."""

from __future__ import annotations

import re
from pathlib import Path

import pandas

from .archive import read_table
from .study import KNOWN, RESULTS, latest
from .tasks import TASKS

KINDS = {
    "offline": "offline RL",
    "algorithm": "another algorithm",
    "run": "another run",
    "snapshots": "unseen snapshots",
}
COLUMNS = {  # heading: method and result
    "`select`": ("select", "spearman"),
    "Simulator": ("simulator", "spearman"),
    "GaussianProcess": ("Gaussian process", "spearman"),
    "NearestPolicy": ("nearest policy", "spearman"),
    "latest snapshot": ("latest snapshot", "spearman"),
    "its regret@1": ("latest snapshot", "regret@1"),
    "regret@1": ("select", "regret@1"),
    "regret@3": ("select", "regret@3"),
    "80 % intervals": ("select", "coverage"),
    "after 2 measurements": ("select", "measured 2"),
    "after 3": ("select", "measured 3"),
    "says deploy": ("select", "deploy"),
    "of these right": ("select", "right"),
}
_PAGE = ["`select`", "Simulator", "NearestPolicy", "latest snapshot", "its regret@1", "regret@1", "regret@3"]
_PAGE += ["80 % intervals", "says deploy", "of these right"]


def results(*, chooses: bool) -> pandas.DataFrame:
    """Return the results of one half of the tasks, and those of taking the latest snapshot."""
    rows, policies = pandas.read_csv(RESULTS), read_table()
    rows = rows[rows["task"].isin([task.environment for task in TASKS if task.chooses == chooses])]
    pairs = rows[["task", "seed"]].drop_duplicates().itertuples(index=False)
    simple = [row for task, seed in pairs for row in latest(policies[policies["task"] == task], task, seed)]
    return pandas.concat([rows, pandas.DataFrame(simple)])


def describe(rows: pandas.DataFrame) -> str:
    """Return the names of tasks, and how many pairs of log and seed they have."""
    counts = rows[["task", "log", "seed"]].dropna().drop_duplicates().groupby("task", sort=False).size()
    return ", ".join(f"{task} ({count})" for task, count in counts.items()) or "none"


def markdown(rows: pandas.DataFrame) -> str:
    """Return all results as a table."""
    return _table({heading: (rows, *source) for heading, source in COLUMNS.items()}, KNOWN)


def _table(cells: dict[str, tuple[pandas.DataFrame, str, str]], counts: tuple[int, ...]) -> str:
    """Return a table with a row for each kind of candidates and number of known returns."""
    lines = [f"| candidates | known | {' | '.join(cells)} |", "|" + " --- |" * (2 + len(cells))]
    for kind, words in KINDS.items():
        for count in counts:
            texts = [_cell(frame, kind, method, count, column) for frame, method, column in cells.values()]
            lines.append(f"| {words} | {count} | {' | '.join(texts)} |")
    return "\n".join(lines)


def update_page(page: Path) -> None:
    """Write the main table, of the judging tasks, between the marks of a page."""
    rows, others = results(chooses=False), results(chooses=True)
    cells = {heading: (rows, *COLUMNS[heading]) for heading in _PAGE}
    table = _table(cells | {"choosing tasks": (others, *COLUMNS["`select`"])}, (0, 10))
    names = f"Judging (pairs of log and seed): {describe(rows)}. Choosing: {describe(others)}."
    fill(page, "selection", f"{table}\n\n{names}")


def fill(page: Path, part: str, text: str) -> None:
    """Write text between the marks of a part of a page."""
    marks = re.compile(rf"(?<=<!-- {part} -->\n)(.*?)(?=<!-- end {part} -->)", re.DOTALL)
    whole, count = marks.subn(lambda _: f"\n{text}\n\n", page.read_text())
    if not count:
        raise ValueError(f"{page} has no lines <!-- {part} --> and <!-- end {part} -->")
    page.write_text(whole)


def _cell(rows: pandas.DataFrame, kind: str, method: str, count: int, column: str) -> str:
    rows = rows[(rows["kind"] == kind) & (rows["method"] == method) & (rows["known"] == count)]
    return mean_of_tasks(rows, column)


def mean_of_tasks(rows: pandas.DataFrame, column: str) -> str:
    """Return "mean ± standard error" over tasks, of their means."""
    means = rows.groupby("task")[column].mean().dropna()
    if means.empty:
        return "—"
    return (f"{means.mean():.2f} ± {means.sem():.2f}" if len(means) > 1 else f"{means.mean():.2f}").replace("-", "−")
