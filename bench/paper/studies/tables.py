"""Tables of the studies, made from their CSV files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sopr_fast.runtime.files import atomic_path

from .cells import STUDIES, read
from .methods import LABELS

TESTS = {"II": "unseen snapshots", "competent": "competent", "I": "offline RL", "foreign": "other authors"}
_MARK = re.compile(r"(?<=<!-- main -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)


def load(folder: Path, study: str) -> pd.DataFrame:
    """Return the numbers of a study, with the columns method and rest, which make its setting."""
    frame = read(folder / f"{study}.csv")
    frame["method"], frame["rest"] = frame.setting.str.split(" ", n=1, expand=True).reindex(columns=[0, 1]).T.values
    return frame[frame.gap == ""]


def mean(frame: pd.DataFrame, column: str = "spearman", digits: int = 2) -> str:
    """Return "mean ± standard error" over tasks of the means over seeds, and the number of tasks if it is not all."""
    values = frame.groupby("task")[column].mean().dropna()
    if values.empty:
        return "—"
    error = f" ± {values.sem():.{digits}f}" if len(values) > 1 else ""
    part = "" if len(values) == frame.task.nunique() else f" ({len(values)} tasks)"
    return f"{values.mean():.{digits}f}{error}{part}".replace("-", "−")


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines)) + "\n"


def by_test(frame: pd.DataFrame, keys: Sequence[str], label: Callable[[Any], str], column: str = "spearman") -> str:
    """Return a table with a row for each group and a column for each set of candidates."""
    tests = [test for test in TESTS if test in set(frame.test)]
    groups = frame.groupby(list(keys), sort=False)
    lines = [[label(key), *(mean(own[own.test == test], column) for test in tests)] for key, own in groups]
    return table(["", *(TESTS[test] for test in tests)], lines)


def main_table(frame: pd.DataFrame) -> str:
    """Return the rank correlation of each method on each set of candidates."""
    return by_test(frame, ["method"], lambda key: LABELS[key[0]])


def describe(study: str, folder: Path) -> str:
    """Return the tables of a study in Markdown."""
    frame = load(folder, study)
    if frame.empty:
        return f"# {STUDIES[study]}\n\nNothing was run.\n"
    parts = {}
    if study == "main":
        parts["Spearman"] = main_table(frame)
        parts["regret@3"] = by_test(frame, ["method"], lambda key: LABELS[key[0]], "regret@3")
        sopr = frame[frame.method == "sopr-t"]
        parts["Distance to the training policies (Eq. 3)"] = by_test(sopr, ["task"], lambda key: key[0], "distance")
        parts["Spearman of SOPR-T by task"] = by_test(sopr, ["task"], lambda key: key[0])
    elif study == "subsets":
        parts["Spearman"] = by_test(frame, ["subsets"], lambda key: f"{key[0]:.0f} subsets")
    else:
        parts["Spearman"] = by_test(frame, ["method", "rest"], lambda key: f"{LABELS[key[0]]} ({key[1]})")
    return f"# {STUDIES[study]}\n\n" + "\n".join(f"**{title}**\n\n{text}" for title, text in parts.items())


def write(study: str, folder: Path) -> Path:
    """Write `STUDY.md` next to `STUDY.csv`, and return it."""
    page = folder / f"{study}.md"
    with atomic_path(page) as temporary:
        temporary.write_text(describe(study, folder))
    return page


def update_page(page: Path, folder: Path) -> None:
    """Write the main table between the marks of a page."""
    text = page.read_text()
    if not _MARK.search(text):
        raise ValueError(f"{page} has no lines <!-- main --> and <!-- end -->")
    with atomic_path(page) as temporary:
        temporary.write_text(_MARK.sub(lambda _: f"\n{main_table(load(folder, 'main'))}\n", text))
