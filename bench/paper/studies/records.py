"""Records: results of cells as the tables read them, with means and standard errors."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from .cells import Cell, read


@dataclass(frozen=True)
class Record:
    """One run, or the reason why there is none.

    Attributes:
        task: Game and log.
        setting: Everything else but the seed.
        method: Name of the method.
        seed: Seed.
        tests: Test set -> its numbers; empty for a gap.
        gap: Why there are no numbers, or "".
        rows: Rows of the log that are used, or None for all.
        result: All that the file holds.
    """

    task: str
    setting: str
    method: str
    seed: int
    tests: dict[str, dict[str, Any]]
    gap: str
    rows: int | None
    result: dict[str, Any]

    def cpu(self, *stages: str) -> float | None:
        """Return the CPU seconds of "fit" and "rank"; None if they were not measured."""
        parts = [self.result.get(f"{stage}_seconds") for stage in stages]
        seconds = [part["cpu"] for part in parts if part is not None and "cpu" in part]
        return sum(seconds) if seconds else None


def records(results: Path, cells: Sequence[Cell]) -> list[Record]:
    """Return a record of every cell."""
    rows = []
    for cell in cells:
        result = read(results, cell) or {"gap": "not run"}
        gap = result.get("gap", "")
        rows.append(
            Record(cell.task, cell.setting, cell.method, cell.seed, result.get("tests", {}), gap, cell.rows, result)
        )
    return rows


def stage_records(sets: Path, setting: str, tasks: Sequence[str]) -> list[Record]:
    """Return the runs of SOPR-T that the stage `scores` made: the paper's scores of both test sets.

    Args:
        sets: Folder of the games at one scale.
        setting: What to call them.
        tasks: Tasks to look for.
    """
    rows = []
    for task in tasks:
        game, log = task.split("-", 1)
        path = sets / f"{game}-v4" / "scores" / f"{log}.csv"
        if not path.exists():
            rows.append(Record(task, setting, "sopr-t", 0, {}, "not run", None, {}))
            continue
        with path.open(newline="") as file:
            lines = [line for line in csv.DictReader(file) if line["method"] == "SOPR-T"]
        for seed in sorted({int(line["seed"]) for line in lines}):
            tests = {
                line["test_set"]: {name: float(line[name]) for name in ("spearman", "kendall", "regret@1", "regret@3")}
                for line in lines
                if int(line["seed"]) == seed
            }
            rows.append(Record(task, setting, "sopr-t", seed, tests, "", None, {}))
    return rows


@dataclass(frozen=True)
class Mean:
    """Mean over tasks of means over seeds.

    Attributes:
        value: The mean; None if no task has a number.
        error: Its standard error over tasks; None for fewer than two.
        deviation: Standard deviation over seeds, averaged over the tasks with several; None if there are none.
        tasks: Number of tasks with a number.
        wanted: Number of tasks wanted.
        by_task: Mean over seeds by task.
    """

    value: float | None
    error: float | None
    deviation: float | None
    tasks: int
    wanted: int
    by_task: dict[str, float]

    def __str__(self) -> str:
        return self.format(2)

    def format(self, digits: int) -> str:
        """Return "mean ± standard error (tasks)"; the number of tasks only where some are missing."""
        if self.value is None:
            return "—"
        error = "" if self.error is None else f" ± {self.error:.{digits}f}"
        part = "" if self.tasks == self.wanted else f" ({self.tasks} of {self.wanted} tasks)"
        return f"{number(self.value, digits)}{error}{part}"


def mean(rows: Sequence[Record], value: Callable[[Record], float | None]) -> Mean:
    """Return the mean over tasks of the means over seeds; records without the number are left out."""
    by_task: dict[str, list[float]] = {}
    for row in rows:
        measured = None if row.gap else value(row)
        by_task.setdefault(row.task, [])
        if measured is not None:
            by_task[row.task].append(measured)
    means = {task: fmean(values) for task, values in by_task.items() if values}
    spreads = [stdev(values) for values in by_task.values() if len(values) > 1]
    return Mean(
        fmean(means.values()) if means else None,
        stdev(means.values()) / len(means) ** 0.5 if len(means) > 1 else None,
        fmean(spreads) if spreads else None,
        len(means),
        len(by_task),
        means,
    )


def measure(test: str, name: str) -> Callable[[Record], float | None]:
    """Return the function from a record to one of its numbers, None where it has none."""
    return lambda row: row.tests.get(test, {}).get(name)


def difference(
    rows: Sequence[Record], base: Sequence[Record], value: Callable[[Record], float | None], test: str | None = None
) -> Mean:
    """Return the mean over tasks of paired differences, over runs of equal task and seed that both have numbers.

    Args:
        rows: Records to subtract from.
        base: Records to subtract.
        value: The number of a record.
        test: Test set whose policies both runs must have ranked, or None.
    """
    of_base = {(row.task, row.seed): row for row in base if not row.gap}

    def gain(row: Record) -> float | None:
        twin = of_base.get((row.task, row.seed))
        if twin is None or (test is not None and not _ranked_the_same(row, twin, test)):
            return None
        own, other = value(row), value(twin)
        return None if own is None or other is None else own - other

    return mean(rows, gain)


def _ranked_the_same(one: Record, other: Record, test: str) -> bool:
    """Return whether the returns are equal; those of the stage `scores` are not known."""
    returns = [row.tests.get(test, {}).get("returns") for row in (one, other)]
    return None in returns or returns[0] == returns[1]


def gaps(rows: Sequence[Record]) -> Counter[tuple[str, str]]:
    """Count the gaps by setting and reason, and those of single test sets."""
    of_tests = (
        (f"{row.setting}, test set {name}", gap)
        for row in rows
        for name, gap in row.result.get("test_gaps", {}).items()
    )
    return Counter((row.setting, row.gap) for row in rows if row.gap) + Counter(of_tests)


def number(value: float, digits: int) -> str:
    """Return a number with a true minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")
