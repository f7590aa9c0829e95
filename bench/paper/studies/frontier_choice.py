"""Choice of default settings: the cheapest point that is not worse than the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cells import TASKS, TEST_SETS
from .records import Mean, Record, difference, mean, measure

ALL = "all"
_FIRST = tuple(task for task in TASKS if task.endswith(("expert", "medium-replay")))
HALVES = {
    "expert and medium-replay logs": _FIRST,
    "medium and full-replay logs": tuple(task for task in TASKS if task not in _FIRST),
}
_TASKS = {ALL: TASKS, **HALVES}
RANKED = ("I", "II", "foreign")  # test sets on which a point must not be worse
_IN_BF16 = " in bf16"


@dataclass(frozen=True)
class Point:
    """Cost and quality at one setting.

    Attributes:
        name: Subset size x clusters x steps, and further options.
        fit: CPU seconds of training.
        rank: CPU seconds of ranking.
        quality: Test set -> Spearman.
        regret: regret@3 on Test Set II.
        gains: `ALL` or one of `HALVES` -> test set -> Spearman minus that of the paper's point on these tasks.
        regrets: Test set -> regret@3 minus that of the paper's point.
        complete: Whether all planned runs of this point and of the paper's have numbers.
    """

    name: str
    fit: Mean
    rank: Mean
    quality: dict[str, Mean]
    regret: Mean
    gains: dict[str, dict[str, Mean]]
    regrets: dict[str, Mean]
    complete: bool


def points(groups: dict[str, list[Record]], stage: Sequence[Record]) -> list[Point]:
    """Return the points of a frontier.

    Args:
        groups: Setting -> records, the paper's setting last.
        stage: Records of the stage `scores`, whose cost is unknown; shown as a further point.
    """
    reference = list(groups.values())[-1]
    named = {_name(setting): rows for setting, rows in groups.items()}
    named["stage `scores`"] = list(stage)

    def against(rows: list[Record], what: str, tasks: Sequence[str] = TASKS) -> dict[str, Mean]:
        some = [row for row in rows if row.task in tasks]
        return {test: difference(some, reference, measure(test, what), test) for test in TEST_SETS}

    return [
        Point(
            name,
            mean(rows, lambda row: row.cpu("fit")),
            mean(rows, lambda row: row.cpu("rank")),
            {test: mean(rows, measure(test, "spearman")) for test in TEST_SETS},
            mean(rows, measure("II", "regret@3")),
            {part: against(rows, "spearman", tasks) for part, tasks in _TASKS.items()},
            against(rows, "regret@3"),
            not any(row.gap for row in [*rows, *reference]),
        )
        for name, rows in named.items()
    ]


def _name(setting: str) -> str:
    bf16 = ".precision=bf16.training_precision=bf16"
    return setting.removeprefix("sopr-t.").replace(bf16, _IN_BF16).replace(".", ", ").replace("=", " ")


def choose(candidates: Sequence[Point], part: str = ALL) -> Point | None:
    """Return the cheapest point within a standard error of the paper's, or better, on all tasks or on a half.

    Points in bf16 do not count: a default must not mean something else on processors without bf16.
    """
    portable = [point for point in candidates if point.complete and not point.name.endswith(_IN_BF16)]
    good = [point for point in portable if point.fit.value is not None and holds(point, part)]
    return min(good, key=lambda point: point.fit.value or 0) if good else None


def holds(point: Point, part: str = ALL) -> bool:
    """Return whether a point is within a standard error of the paper's, or better, on all tasks or on a half."""
    gains = [point.gains[part][test] for test in RANKED]
    return all(gain.tasks == len(_TASKS[part]) and (gain.value or 0) >= -(gain.error or 0) for gain in gains)


def verdict(candidates: Sequence[Point]) -> str:
    """Return what the points say about the defaults, in sentences."""
    rule = (
        "A point in fp32 becomes the default if it is the cheapest whose Spearman on both test sets and on policies "
        "of other authors is within a standard error of the paper's point or better. "
    )
    chosen = choose(candidates)
    if chosen is None:
        return rule + f"None can be chosen before all runs of the paper's point are there, on {len(TASKS)} tasks."
    return rule + " ".join([f"Chosen on all tasks: {chosen.name}.", *(_crossed(candidates, half) for half in HALVES)])


def _crossed(candidates: Sequence[Point], half: str) -> str:
    """Say which point one half of the tasks chooses, and whether it holds on the other half."""
    [other] = set(HALVES) - {half}
    chosen = choose(candidates, half)
    if chosen is None:
        return f"Chosen on {half} alone: none."
    outcome = "holds" if holds(chosen, other) else "does not hold"
    return f"Chosen on {half} alone: {chosen.name}, which {outcome} on the others."
