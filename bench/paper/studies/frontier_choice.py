"""Choice of default settings: the cheapest size whose rankings are within a standard error of the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cells import TASKS, TEST_SETS
from .records import Mean, Record, difference, mean, measure

ALL = "all tasks"
HALVES = ("expert and medium-replay logs", "medium and full-replay logs")
_FIRST_HALF = tuple(task for task in TASKS if task.endswith(("expert", "medium-replay")))
_PARTS = {ALL: TASKS, HALVES[0]: _FIRST_HALF, HALVES[1]: tuple(task for task in TASKS if task not in _FIRST_HALF)}
RANKED = ("I", "II", "foreign")  # test sets that choose
_VARIANTS = {".precision=bf16.training_precision=bf16": " in bf16", ".validation=False": ", no validation"}


@dataclass(frozen=True, kw_only=True)
class Point:
    """Cost and quality at one setting.

    Attributes:
        name: Subset size x clusters x steps, and further options.
        eligible: Whether it may become the default: it has no further options, and all planned runs of it and of the
            paper's point have numbers on all sets of `RANKED`.
        fit: CPU seconds of training.
        rank: CPU seconds of ranking.
        spearman: Test set -> Spearman.
        regret_ii: regret@3 on Test Set II.
        spearman_gain: `ALL` or one of `HALVES` -> test set -> Spearman minus that of the paper's point on these tasks.
        regret_gain: Test set -> regret@3 minus that of the paper's point.
    """

    name: str
    eligible: bool
    fit: Mean
    rank: Mean
    spearman: dict[str, Mean]
    regret_ii: Mean
    spearman_gain: dict[str, dict[str, Mean]]
    regret_gain: dict[str, Mean]


def points(groups: dict[str, list[Record]], stage: Sequence[Record]) -> list[Point]:
    """Return the points of a frontier.

    Args:
        groups: Setting -> records, the paper's setting last.
        stage: Records of the stage `scores`, whose cost is unknown; shown as a further point.
    """
    reference = list(groups.values())[-1]

    def gain(rows: Sequence[Record], what: str, tasks: Sequence[str]) -> dict[str, Mean]:
        some = [row for row in rows if row.task in tasks]
        return {test: difference(some, reference, measure(test, what), test) for test in TEST_SETS}

    def point(name: str, rows: Sequence[Record], plain: bool) -> Point:
        return Point(
            name=name,
            eligible=plain and _complete(rows) and _complete(reference),
            fit=mean(rows, lambda row: row.cpu("fit")),
            rank=mean(rows, lambda row: row.cpu("rank")),
            spearman={test: mean(rows, measure(test, "spearman")) for test in TEST_SETS},
            regret_ii=mean(rows, measure("II", "regret@3")),
            spearman_gain={part: gain(rows, "spearman", tasks) for part, tasks in _PARTS.items()},
            regret_gain=gain(rows, "regret@3", TASKS),
        )

    sizes = {setting: setting.removeprefix("sopr-t.") for setting in groups}
    shown = [point(_name(size), groups[setting], "." not in size) for setting, size in sizes.items()]
    return [*shown, point("stage `scores`", stage, False)]


def _complete(rows: Sequence[Record]) -> bool:
    return all(set(RANKED) <= row.tests.keys() for row in rows)


def _name(size: str) -> str:
    for variant, words in _VARIANTS.items():
        size = size.replace(variant, words)
    return size.replace(".", ", ").replace("=", " ")


def choose(candidates: Sequence[Point], part: str = ALL) -> Point | None:
    """Return the cheapest eligible point that holds on a part of the tasks, or None."""
    good = [point for point in candidates if point.eligible and holds(point, part)]
    return min(good, key=lambda point: point.fit.value or 0) if good else None


def holds(point: Point, part: str) -> bool:
    """Return whether a point's Spearman is above the paper's minus a standard error, on all sets of `RANKED`."""
    gains = [point.spearman_gain[part][test] for test in RANKED]
    return all(
        gain.tasks == len(_PARTS[part])
        and gain.value is not None
        and gain.error is not None
        and gain.value >= -gain.error
        for gain in gains
    )


def verdict(candidates: Sequence[Point]) -> str:
    """Return what the points say about the defaults, in sentences."""
    rule = (
        "The default is the cheapest size whose Spearman on both test sets and on policies of other authors is above "
        "that of the paper's point minus a standard error, over all tasks. "
    )
    chosen = choose(candidates)
    if chosen is None:  # the paper's point holds against itself once it is eligible
        return rule + f"It can be chosen when the paper's point has all its runs, on {len(TASKS)} tasks."
    first, second = HALVES
    crossed = [_crossed(candidates, first, second), _crossed(candidates, second, first)]
    return rule + " ".join([f"This is {chosen.name}.", *crossed])


def _crossed(candidates: Sequence[Point], half: str, other: str) -> str:
    """Say which point one half of the tasks chooses, and whether it passes on the other half."""
    chosen = choose(candidates, half)
    if chosen is None:
        return f"On {half} alone none would be chosen."
    outcome = "passes" if holds(chosen, other) else "fails"
    return f"On {half} alone {chosen.name} would be chosen, which {outcome} the same test on {other}."
