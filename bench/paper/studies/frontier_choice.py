"""Choice of default settings: the cheapest point that is not worse than the paper's, on tasks it was not chosen on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cells import TASKS, TEST_SETS
from .records import Mean, Record, difference, mean, measure

CHOOSING = tuple(task for task in TASKS if task.endswith(("expert", "medium-replay")))
ENOUGH = len(CHOOSING)  # tasks with numbers of both points, on either half, below which nothing is chosen


@dataclass(frozen=True)
class Point:
    """Cost and quality at one setting.

    Attributes:
        name: Subset size x clusters x steps, and further options.
        fit: CPU seconds of training.
        rank: CPU seconds of ranking.
        quality: Test set -> Spearman.
        regret: regret@3 on Test Set II.
        against_reference: Spearman on Test Set II minus that of the paper's point, on the choosing tasks.
        judged: The same on the other tasks.
    """

    name: str
    fit: Mean
    rank: Mean
    quality: dict[str, Mean]
    regret: Mean
    against_reference: Mean
    judged: Mean


def points(groups: dict[str, list[Record]], stage: Sequence[Record]) -> list[Point]:
    """Return the points of a frontier.

    Args:
        groups: Setting -> records, the paper's setting last.
        stage: Records of the stage `scores`, whose cost is unknown; shown as a further point.
    """
    reference = list(groups.values())[-1]
    named = {setting.removeprefix("sopr-t."): rows for setting, rows in groups.items()}
    named["stage `scores`"] = list(stage)
    value = measure("II", "spearman")
    return [
        Point(
            name,
            mean(rows, lambda row: row.cpu("fit")),
            mean(rows, lambda row: row.cpu("rank")),
            {test: mean(rows, measure(test, "spearman")) for test in TEST_SETS},
            mean(rows, measure("II", "regret@3")),
            difference([row for row in rows if row.task in CHOOSING], reference, value, "II"),
            difference([row for row in rows if row.task not in CHOOSING], reference, value, "II"),
        )
        for name, rows in named.items()
    ]


def choose(candidates: Sequence[Point]) -> Point | None:
    """Return the cheapest point within a standard error of the paper's, or better, on the choosing tasks."""
    fit = [
        point
        for point in candidates
        if point.fit.value is not None
        and point.against_reference.value is not None
        and point.against_reference.tasks >= ENOUGH
        and point.against_reference.value >= -(point.against_reference.error or 0)
    ]
    return min(fit, key=lambda point: point.fit.value or 0) if fit else None


def verdict(candidates: Sequence[Point], paper: tuple[int, int, int]) -> str:
    """Return what the points say about the defaults, in sentences."""
    name = "x".join(map(str, paper))
    rule = (
        "A point becomes the default if it is the cheapest whose Spearman on Test Set II is, on the choosing tasks "
        f"({', '.join(CHOOSING)}), "
        "within a standard error of the paper's point or better, and if the same holds on the other tasks. "
    )
    chosen = choose(candidates)
    if chosen is None:
        return rule + (
            f"No point can be chosen: the paper's point {name} has numbers on too few tasks. "
            "`Config()` stays `Config.paper()`."
        )
    holds = chosen.judged.value is not None and chosen.judged.value >= -(chosen.judged.error or 0)
    return (
        rule + f"Chosen: {chosen.name}. On the judging tasks it is {'' if holds else 'not '}within a standard error or "
        "better."
    )
