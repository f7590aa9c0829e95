"""The table of the study: means over tasks and their standard errors, for choosing and for judging tasks."""

from __future__ import annotations

import pandas

from .study import RESULTS
from .tasks import TASKS

KINDS = {
    "offline": "offline RL, trained on the log",
    "algorithm": "another algorithm",
    "run": "another run",
    "snapshots": "unseen snapshots",
}
COLUMNS = {
    "spearman": "Spearman",
    "regret@1": "regret@1",
    "regret@3": "regret@3",
    "coverage": "80 % intervals cover",
    "measured 2": "regret after 2 measurements",
    "deploy": "says deploy",
    "right": "deploy is right",
}


def table(*, chooses: bool, method: str = "select") -> str:
    """Return the results of one half of the tasks as a table in Markdown."""
    rows = pandas.read_csv(RESULTS)
    halves = {task.environment: task.chooses for task in TASKS}
    rows = rows[(rows["task"].map(halves) == chooses) & (rows["method"] == method)]
    lines = [
        f"| candidates | known | {' | '.join(COLUMNS.values())} |",
        "|" + " --- |" * (2 + len(COLUMNS)),
    ]
    for kind, words in KINDS.items():
        for count in sorted(rows["known"].unique()):
            own = rows[(rows["kind"] == kind) & (rows["known"] == count)]
            if len(own):
                lines.append(f"| {words} | {count} | {' | '.join(_cell(own, column) for column in COLUMNS)} |")
    return "\n".join(lines)


def _cell(rows: pandas.DataFrame, column: str) -> str:
    means = rows.groupby("task")[column].mean().dropna()  # tasks differ more than seeds
    if not len(means):
        return ""
    error = f" ± {means.std() / len(means) ** 0.5:.2f}" if len(means) > 1 else ""
    return f"{means.mean():.2f}{error}"
