"""Choice of default settings: the cheapest point that is not worse than the paper's, on tasks it was not chosen on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cells import TASKS, TEST_SETS
from .records import Mean, Record, difference, mean, measure

CHOOSING = tuple(task for task in TASKS if task.endswith(("expert", "medium-replay")))
ENOUGH = len(CHOOSING)  # tasks with numbers of both points, on either half, below which nothing is chosen or judged
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
        chosen_by: Test set -> Spearman minus that of the paper's point, on the choosing tasks.
        judged_by: The same on the other tasks.
        missing: Planned runs without numbers.
    """

    name: str
    fit: Mean
    rank: Mean
    quality: dict[str, Mean]
    regret: Mean
    chosen_by: dict[str, Mean]
    judged_by: dict[str, Mean]
    missing: int


def points(groups: dict[str, list[Record]], stage: Sequence[Record]) -> list[Point]:
    """Return the points of a frontier.

    Args:
        groups: Setting -> records, the paper's setting last.
        stage: Records of the stage `scores`, whose cost is unknown; shown as a further point.
    """
    reference = list(groups.values())[-1]
    named = {_name(setting): rows for setting, rows in groups.items()}
    named["stage `scores`"] = list(stage)

    def gains(rows: list[Record], choosing: bool) -> dict[str, Mean]:
        half = [row for row in rows if (row.task in CHOOSING) == choosing]
        return {test: difference(half, reference, measure(test, "spearman"), test) for test in RANKED}

    return [
        Point(
            name,
            mean(rows, lambda row: row.cpu("fit")),
            mean(rows, lambda row: row.cpu("rank")),
            {test: mean(rows, measure(test, "spearman")) for test in TEST_SETS},
            mean(rows, measure("II", "regret@3")),
            gains(rows, choosing=True),
            gains(rows, choosing=False),
            sum(bool(row.gap) for row in rows),
        )
        for name, rows in named.items()
    ]


def _name(setting: str) -> str:
    bf16 = ".precision=bf16.training_precision=bf16"
    return setting.removeprefix("sopr-t.").replace(bf16, _IN_BF16).replace(".", ", ").replace("=", " ")


def choose(candidates: Sequence[Point]) -> Point | None:
    """Return the cheapest point within a standard error of the paper's, or better, on the choosing tasks.

    Points in bf16 do not count: a default must not mean something else on processors without bf16.
    """
    portable = [point for point in candidates if not point.missing and not point.name.endswith(_IN_BF16)]
    fit = [point for point in portable if point.fit.value is not None and _holds(point.chosen_by)]
    return min(fit, key=lambda point: point.fit.value or 0) if fit else None


def _holds(gains: dict[str, Mean]) -> bool:
    return _tasks(gains) >= ENOUGH and all((gain.value or 0) >= -(gain.error or 0) for gain in gains.values())


def _tasks(gains: dict[str, Mean]) -> int:
    return min(gain.tasks for gain in gains.values())


def verdict(candidates: Sequence[Point], paper: tuple[int, int, int]) -> str:
    """Return what the points say about the defaults, in sentences."""
    name = "x".join(map(str, paper))
    rule = (
        "A point in fp32 becomes the default if it is the cheapest whose Spearman on both test sets and on policies "
        f"of other authors is, on the choosing tasks ({', '.join(CHOOSING)}), within a standard error of the paper's "
        "point or better, and if the same holds on the other tasks. "
    )
    if missing := sum(point.missing for point in candidates if point.name == name):
        return rule + (
            f"Runs of the paper's point {name} are missing ({missing}). Nothing is chosen before they are there, since "
            "a choice that is made anew after every run passes sooner or later. `Config()` stays `Config.paper()`."
        )
    chosen = choose(candidates)
    if chosen is None:
        return rule + (
            f"No point can be chosen: none is as good, or the paper's point {name} has numbers on too few tasks. "
            "`Config()` stays `Config.paper()`."
        )
    if chosen.name == name:
        return rule + "No cheaper point is as good on the choosing tasks: `Config()` stays `Config.paper()`."
    if (judged := _tasks(chosen.judged_by)) < ENOUGH:
        return rule + (
            f"Chosen: {chosen.name}. It is to be judged on {ENOUGH} other tasks; both points have numbers on {judged} "
            "of them. Until then `Config()` stays `Config.paper()`."
        )
    verdict = "passes." if _holds(chosen.judged_by) else "does not pass: `Config()` stays `Config.paper()`."
    return rule + f"Chosen: {chosen.name}. On the judging tasks it {verdict}"
