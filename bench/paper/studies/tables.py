"""Tables and figures of the studies, made from their CSV files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sopr_fast.runtime.files import atomic_path

from . import published
from .cells import STUDIES, TASKS, read
from .methods import LABELS

TESTS = {"II": "unseen snapshots", "competent": "competent", "I": "offline RL", "foreign": "other authors"}
_MARK = re.compile(r"(?<=<!-- main -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)


def load(folder: Path, study: str) -> pd.DataFrame:
    """Return the numbers of a study, with the columns method and rest, which make its setting."""
    frame = pd.DataFrame(read(folder / f"{study}.csv"))
    if frame.empty:
        return frame
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


def seconds(frame: pd.DataFrame) -> str:
    """Return CPU seconds of each method and the paper's."""
    lines = []
    for method, own in frame.groupby("method", sort=False):
        theirs = []
        for stage in (published.training_seconds, published.inference_seconds):
            values = [value for i in range(len(TASKS)) if (value := stage(str(method), i)) is not None]
            theirs.append(f"{sum(values) / len(values):,.0f}" if values else "—")
        lines.append([LABELS[str(method)], mean(own, "fit", 0), mean(own, "rank", 1), *theirs])
    return table(["s of one core", "training", "ranking", "the paper's training, P100", "its inference"], lines)


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
        parts["Seconds"] = seconds(frame)
    elif study == "subsets":
        parts["Spearman"] = by_test(frame, ["subsets"], lambda key: f"{key[0]:.0f} subsets")
    else:
        parts["Spearman"] = by_test(frame, ["method", "rest"], lambda key: f"{LABELS[key[0]]} ({key[1]})")
    return f"# {STUDIES[study]}\n\n" + "\n".join(f"**{title}**\n\n{text}" for title, text in parts.items())


def write(study: str, folder: Path) -> Path:
    """Write `STUDY.md` and `STUDY.png` next to `STUDY.csv`; return the former."""
    page = folder / f"{study}.md"
    with atomic_path(page) as temporary:
        temporary.write_text(describe(study, folder))
    frame = load(folder, study)
    if not frame.empty:
        plot(study, frame, folder / f"{study}.png")
    return page


def plot(study: str, frame: pd.DataFrame, path: Path) -> None:
    """Draw the rank correlation of each setting, on each set of candidates, with standard errors over tasks."""
    from matplotlib.figure import Figure

    tests = [test for test in TESTS if test in set(frame.test)]
    figure = Figure(figsize=(10, 4), layout="constrained")
    keys = "subsets" if study == "subsets" else "setting"
    for axes, test in zip(figure.subplots(1, len(tests), sharey=True, squeeze=False)[0], tests, strict=True):
        own = frame[frame.test == test].groupby([keys, "task"], sort=False).spearman.mean().unstack()
        axes.errorbar(own.mean(axis=1), range(len(own)), xerr=own.sem(axis=1).fillna(0), fmt="o", capsize=2)
        axes.set_yticks(range(len(own)), [str(name) for name in own.index], fontsize=7)
        axes.set(title=TESTS[test], xlabel="Spearman")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def update_page(page: Path, folder: Path) -> None:
    """Write the main table between the marks of a page."""
    text = page.read_text()
    if not _MARK.search(text):
        raise ValueError(f"{page} has no lines <!-- main --> and <!-- end -->")
    with atomic_path(page) as temporary:
        temporary.write_text(_MARK.sub(lambda _: f"\n{main_table(load(folder, 'main'))}\n", text))
