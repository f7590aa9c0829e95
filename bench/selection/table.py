"""Tables of the study: means over tasks and their standard errors, for choosing and for judging tasks."""

from __future__ import annotations

import itertools
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
METHODS = ["select", "progress", "nearest policy", "latest snapshot"]
COLUMNS = {
    "Spearman": "spearman",
    "regret@1": "regret@1",
    "80 % intervals": "coverage",
    "surely ordered": "stated",
    "rightly": "stated right",
    "to measure": "measurements",
    "deploy": "deploy",
    "right": "right",
}


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
    """Return a table with a row for each kind of candidates, number of known returns and method."""
    lines = [f"| candidates | known | method | {' | '.join(COLUMNS)} |", "|" + " --- |" * (3 + len(COLUMNS))]
    for (kind, words), count, method in itertools.product(KINDS.items(), KNOWN, METHODS):
        own = rows[(rows["kind"] == kind) & (rows["known"] == count) & (rows["method"] == method)]
        if len(own):
            texts = [mean_of_tasks(own, column) for column in COLUMNS.values()]
            lines.append(f"| {words} | {count} | {method} | {' | '.join(texts)} |")
    return "\n".join(lines)


def update_page(page: Path) -> None:
    """Write the tables of both halves of the tasks between the marks of a page."""
    parts = []
    for words, chooses in (("judge", False), ("chose", True)):
        rows = results(chooses=chooses)
        parts.append(f"Tasks that {words} settings, and pairs of log and seed: {describe(rows)}.\n\n{markdown(rows)}")
    fill(page, "selection", "\n\n".join(parts))


def fill(page: Path, part: str, text: str) -> None:
    """Write text between the marks of a part of a page."""
    marks = re.compile(rf"(?<=<!-- {part} -->\n)(.*?)(?=<!-- end {part} -->)", re.DOTALL)
    whole, count = marks.subn(lambda _: f"\n{text}\n\n", page.read_text())
    if not count:
        raise ValueError(f"{page} has no lines <!-- {part} --> and <!-- end {part} -->")
    page.write_text(whole)


def mean_of_tasks(rows: pandas.DataFrame, column: str) -> str:
    """Return "mean ± standard error" over tasks, of their means."""
    means = rows.groupby("task")[column].mean().dropna()
    if means.empty:
        return "—"
    return (f"{means.mean():.2f} ± {means.sem():.2f}" if len(means) > 1 else f"{means.mean():.2f}").replace("-", "−")
