"""Tables of the studies, as text and as CSV. Every cell is computed from result files."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev

from sopr_fast.ranking.metrics import regret_at_k
from sopr_fast.runtime.files import atomic_path

from . import frontier_choice, plans, published
from .cells import TASKS, TEST_SETS
from .frontier_choice import HALVES
from .methods import LABELS
from .records import Mean, Record, difference, gaps, mean, measure, number, records, stage_records

MEASURES = ("spearman", "regret@1", "regret@3")


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: One line.
        header: Names of the columns.
        rows: Texts of the cells.
        note: Sentences below it, or "".
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """Return the table with its title and note."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"**{self.title}**\n\n{body}" + (f"\n\n{self.note}" if self.note else "")


@dataclass(frozen=True)
class Study:
    """Tables of a study and its gaps.

    Attributes:
        tables: The tables.
        missing: How many runs have no numbers, by setting and reason; and those without a test set.
        done: Number of runs with numbers.
    """

    tables: list[Table]
    missing: Counter[tuple[str, str]] = field(default_factory=Counter)
    done: int = 0


@dataclass(frozen=True)
class Source:
    """Where the tables read from.

    Attributes:
        scale: Scale.
        results: Folder of the results at this scale.
        sets: Folder of the games at this scale.
    """

    scale: str
    results: Path
    sets: Path

    @property
    def sizes(self) -> plans.Sizes:
        """Sizes of the studies."""
        return plans.SIZES[self.scale]

    def records(self, study: str) -> list[Record]:
        """Return the records of a study's cells."""
        return records(self.results, plans.PLANS[study](self.scale))


def build(study: str, source: Source) -> Study:
    """Return the tables of a study."""
    rows = source.records(study)
    missing, done = gaps(rows), sum(not row.gap for row in rows)
    for test in TEST_SETS:
        if done and not any(test in row.tests for row in rows):
            missing[title(test), "no run has it"] = done
    return Study(_BUILDERS[study](rows, source) if done else [], missing, done)


def write(study: str, built: Study, folder: Path) -> None:
    """Write `STUDY.md`, with all tables and gaps, and `STUDY.csv`, with the cells of all tables."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / f"{study}.md") as temporary:
        temporary.write_text(markdown(built) + "\n")
    with atomic_path(folder / f"{study}.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for table in built.tables:
            writer.writerows([[table.title], table.header, *table.rows, []])


def markdown(built: Study) -> str:
    """Return all tables and the gaps."""
    blocks = [table.markdown() for table in built.tables]
    if built.missing:
        lines = [f"| {setting} | {count} | {reason} |" for (setting, reason), count in sorted(built.missing.items())]
        head = ["| setting | runs | reason |", "| --- | --- | --- |"]
        blocks.append(f"**Gaps** ({built.done} runs have numbers)\n\n" + "\n".join([*head, *lines]))
    return "\n\n".join(blocks)


def group_by_setting(rows: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records by setting, in order."""
    groups: dict[str, list[Record]] = {}
    for row in rows:
        groups.setdefault(row.setting, []).append(row)
    return groups


def label(rows: Sequence[Record]) -> str:
    setting = rows[0].setting.removeprefix(rows[0].method).strip(".").replace(".", ", ").replace("=", " ")
    return LABELS[rows[0].method] + (f" ({setting})" if setting else "")


def _main(rows: list[Record], source: Source) -> list[Table]:
    groups = group_by_setting(rows)
    stage = stage_records(source.sets, "stage scores", source.sizes.tasks)
    tables = []
    tests = tests_of(rows)
    sopr = next(own for own in groups.values() if own[0].method == "sopr-t")
    for test in tests:
        lines = []
        leads = {name: _leaders(groups, test, name) for name in ("spearman", "regret@3")}
        for setting, own in groups.items():
            means = [mean(own, measure(test, name)) for name in MEASURES]
            negative = sorted(task for task, value in means[0].by_task.items() if value < 0)
            led = [f"{leads[name][setting]}" if means[0].tasks else "—" for name in leads]
            ahead = "" if own is sopr else str(difference(sopr, own, measure(test, "spearman"), test))
            lines.append([label(own), *map(str, means), ahead, _deviation(means[0]), *led, ", ".join(negative)])
        chance = [str(mean(rows, _regret_by_chance(test, k))) for k in (1, 3)]
        lines.append(["random order (expected)", number(0, 2), *chance, *[""] * 5])
        if test in published.LEADS:
            means = [mean(stage, measure(test, name)) for name in MEASURES]
            lines.append(["SOPR-T of the stage `scores`", *map(str, means), "", _deviation(means[0]), "", "", ""])
            theirs = published.LEADS[test]
            led = [str(theirs["spearman"]), str(theirs["regret@3"])]
            lines.append(
                ["the paper's SOPR-T, of 5 methods and 12 tasks", *["figure only"] * 3, "", "figure only", *led, "none"]
            )
        head = ["method", "Spearman", "regret@1", "regret@3", "SOPR-T minus it, Spearman"]
        head += ["deviation over seeds", "tasks led, Spearman", "tasks led, regret@3", "negative Spearman"]
        tables.append(Table(title(test), head, lines))
    return [*tables, *(_by_task(groups, test, source) for test in tests)]


def tests_of(rows: Sequence[Record]) -> list[str]:
    """Return the test sets on which there are numbers."""
    return [test for test in TEST_SETS if any(test in row.tests for row in rows)]


def title(test: str) -> str:
    return {"foreign": "Policies of other authors", "competent": "Competent policies"}.get(test, f"Test Set {test}")


def _regret_by_chance(test: str, k: int) -> Callable[[Record], float | None]:
    """Return the function from a record to the mean regret@k over all orders of its test policies."""

    def value(row: Record) -> float | None:
        returns = row.tests.get(test, {}).get("returns")
        return None if returns is None else regret_at_k(returns=returns, scores=[0] * len(returns), k=k)

    return value


def _deviation(value: Mean) -> str:
    return "—" if value.deviation is None else f"{value.deviation:.2f}"


def _leaders(groups: dict[str, list[Record]], test: str, name: str) -> Counter[str]:
    """Count the tasks on which each setting is best or shares the best place, among tasks with several settings."""
    sign = 1 if name == "spearman" else -1
    values = {setting: mean(own, measure(test, name)).by_task for setting, own in groups.items()}
    counts: Counter[str] = Counter()
    for task in TASKS:
        here = {setting: sign * of_task[task] for setting, of_task in values.items() if task in of_task}
        if len(here) > 1:
            best = max(here.values())
            counts.update(setting for setting, value in here.items() if value >= best - 1e-9)
    return counts


def _by_task(groups: dict[str, list[Record]], test: str, source: Source) -> Table:
    means = {setting: mean(own, measure(test, "spearman")).by_task for setting, own in groups.items()}
    means = {setting: values for setting, values in means.items() if values}
    lines = [
        [task, *(number(values[task], 2) if task in values else "—" for values in means.values())]
        for task in source.sizes.tasks
    ]
    for game in dict.fromkeys(task.split("-")[0] for task in source.sizes.tasks):
        own = [[value for task, value in values.items() if task.startswith(game)] for values in means.values()]
        lines.append([f"mean of {game}", *(number(fmean(values), 2) if values else "—" for values in own)])
    return Table(f"Spearman by task, {title(test)}", ["task", *(label(groups[key]) for key in means)], lines)


def _encoder(rows: list[Record], source: Source) -> list[Table]:
    transformer = [row for row in rows if row.method == "sopr-t"]
    mlp = [row for row in rows if row.method == "sopr-mlp"]
    lines = []
    for test in tests_of(rows):
        both = [mean(group, measure(test, "spearman")) for group in (transformer, mlp)]
        gain = difference(transformer, mlp, measure(test, "spearman"), test)
        wins = sum(value > 0 for value in gain.by_task.values())
        regrets = [mean(group, measure(test, "regret@3")) for group in (transformer, mlp)]
        theirs = f"{published.BEATS_MLP[test]} of 12" if test in published.BEATS_MLP else ""
        lines.append([title(test), *map(str, both), str(gain), f"{wins} of {gain.tasks}", theirs, *map(str, regrets)])
    head = [
        "",
        "SOPR-T",
        "SOPR-MLP",
        "difference",
        "SOPR-T higher on",
        "in the paper on",
        "regret@3, T",
        "regret@3, MLP",
    ]
    seconds = [mean(group, lambda row: row.cpu("fit")) for group in (transformer, mlp)]
    note = f"Training takes {seconds[0].format(0)} s of one core for SOPR-T and {seconds[1].format(0)} for SOPR-MLP."
    return [Table("Spearman of SOPR-T and SOPR-MLP", head, lines, note if seconds[0].tasks else "")]


def _subsets(rows: list[Record], source: Source) -> list[Table]:
    def of_repeats(test: str, count: str, name: str, statistic: Callable) -> Callable[[Record], float | None]:
        def value(row: Record) -> float | None:
            repeats = [one[name] for one in row.tests.get(test, {}).get("prefixes", {}).get(count, [])]
            return statistic(repeats) if len(repeats) > 1 and None not in repeats else None

        return value

    counts = [str(count) for count in (1, 5, 10, 50, 100, 200) if count <= source.sizes.subsets]
    tables = []
    for test in ("I", "II"):
        lines = [
            [count]
            + [
                mean(rows, of_repeats(test, count, name, statistic)).format(3)
                for name in ("spearman", "regret@3")
                for statistic in (fmean, stdev)
            ]
            for count in counts
        ]
        head = ["subsets", "Spearman", "deviation over repeats", "regret@3", "deviation over repeats"]
        tables.append(Table(f"{title(test)}, five repeats", head, lines))
    return tables


def _data_size(rows: list[Record], source: Source) -> list[Table]:
    tables = []
    for test in ("I", "II"):
        lines = []
        for method in dict.fromkeys(row.method for row in rows):
            own = [row for row in rows if row.method == method]
            means = [
                mean([row for row in own if row.rows == count], measure(test, "spearman"))
                for count in source.sizes.rows
            ]
            cells = list(map(str, means))
            lines.append([LABELS[method], *cells])
        tables.append(
            Table(f"Spearman, {title(test)}", ["method", *(f"{count:,} rows" for count in source.sizes.rows)], lines)
        )
    return tables


def _distance(rows: list[Record], source: Source) -> list[Table]:
    lines = []
    for task in source.sizes.tasks:
        own = [row for row in rows if row.task == task]
        cells = []
        for test in tests_of(rows):
            for name in ("distance", "spearman"):
                value = mean(own, measure(test, name)).value
                cells.append("—" if value is None else number(value, 2))
        lines.append([task, *cells])
    head = ["task", *(f"{title(test)}, {name}" for test in tests_of(rows) for name in ("distance", "Spearman"))]
    return [Table("Distance to the training policies (Eq. 3) and Spearman of SOPR-T", head, lines)]


def _time(rows: list[Record], source: Source) -> list[Table]:
    lines = []
    for own in group_by_setting(rows).values():
        method = own[0].method
        ours = [mean(own, lambda row, stage=stage: row.cpu(stage)) for stage in ("fit", "rank")]
        theirs = []
        for seconds in (published.training_seconds, published.inference_seconds):
            values = [seconds(method, i) for i in range(len(TASKS))]
            known = [value for value in values if value is not None]
            theirs.append(f"{sum(known) / len(known):,.0f}" if known else "—")
        lines.append([label(own), *(value.format(1) for value in ours), *theirs])
    head = [
        "method",
        "training, s of one core",
        "ranking, s of one core",
        "paper's training, s",
        "paper's inference, s",
    ]
    note = (
        "Mean over tasks, CPU seconds with one thread. Ranking covers all test policies on five subsets. Training "
        "covers both for methods that train on the test policies. The paper's: one Tesla P100, mean of 12 tasks, "
        "inference on the ten policies of Test Set II and, of SOPR-T, 200 subsets."
    )
    tables = [Table("Seconds", head, lines, note)]
    sopr = [row for row in rows if row.method == "sopr-t"]
    by_task = [mean(sopr, lambda row, stage=stage: row.cpu(stage)).by_task for stage in ("fit", "rank")]
    lines = [
        [
            task,
            *(f"{values[task]:.1f}" if task in values else "—" for values in by_task),
            f"{published.training_seconds('sopr-t', TASKS.index(task)):,.0f}",
            f"{published.inference_seconds('sopr-t', TASKS.index(task)):,.0f}",
        ]
        for task in source.sizes.tasks
    ]
    return [*tables, Table("Seconds of SOPR-T by task", ["task", *head[1:]], lines)]


def _future(rows: list[Record], source: Source) -> list[Table]:
    base = [row for row in source.records("main") if row.method == "sopr-t" and row.seed == 0]
    lines = []
    for own in [base, *group_by_setting(rows).values()]:
        cells = [label(own)]
        for test in tests_of(rows):
            cells.append(str(mean(own, measure(test, "spearman"))))
            cells.append("" if own is base else str(difference(own, base, measure(test, "spearman"), test)))
        lines.append(cells)
    head = ["variant", *(f"{title(test)}{what}" for test in tests_of(rows) for what in ("", ": difference"))]
    note = (
        "Differences to the first row, paired by task; seed 0. `known poor-10`: ten training policies of lowest return."
    )
    return [Table("Spearman of variants", head, lines, note)]


def _frontier(rows: list[Record], source: Source) -> list[Table]:
    groups = group_by_setting(rows)
    stage = stage_records(source.sets, "stage scores", source.sizes.tasks)
    points = frontier_choice.points(groups, stage)
    return [_costs(points, tests_of(rows)), *_against_paper(points, tests_of(rows)), *_variants(groups)]


def _costs(points: Sequence[frontier_choice.Point], tests: Sequence[str]) -> Table:
    head = ["point", "training, s of one core", "ranking, s of one core", *map(title, tests), "regret@3, II"]
    lines = [
        [
            point.name,
            point.fit.format(0),
            point.rank.format(1),
            *(str(point.spearman[test]) for test in tests),
            str(point.regret_ii),
        ]
        for point in points
    ]
    return Table("Spearman against cost: subset size x clusters x steps", head, lines)


def _against_paper(points: Sequence[frontier_choice.Point], tests: Sequence[str]) -> list[Table]:
    """Return tables of Spearman and regret@3 minus those of the paper's point, on all tasks and on halves."""
    what, note, every = "minus that of the paper's point", frontier_choice.verdict(points), frontier_choice.ALL
    compared = [point for point in points if any(gain.tasks for gain in point.spearman_gain[every].values())]
    spearman = {part: {point.name: point.spearman_gain[part] for point in compared} for part in (every, *HALVES)}
    regret = {point.name: point.regret_gain for point in compared}
    return [
        _differences(f"Spearman {what}", spearman[every], tests, note),
        _differences(f"regret@3 {what}", regret, tests),
        *(_differences(f"Spearman {what}, {half}", spearman[half], frontier_choice.RANKED) for half in HALVES),
    ]


def _differences(what: str, points: dict[str, dict[str, Mean]], tests: Sequence[str], note: str = "") -> Table:
    lines = [[name, *(str(means[test]) for test in tests)] for name, means in points.items()]
    return Table(what, ["point", *map(title, tests)], lines, note)


def _variants(groups: dict[str, list[Record]]) -> list[Table]:
    """Return a table of early stopping and of training without validation, beside the same runs as usual; or none."""
    lines = []
    for setting, own in groups.items():
        usual = next((setting.partition(f".{name}")[0] for name in ("patience", "validation") if name in setting), "")
        whole = groups.get(usual, [])
        if usual and any(not row.gap for row in own):
            gains = [difference(own, whole, measure(test, "spearman"), test) for test in frontier_choice.RANKED]
            seconds = difference(own, whole, lambda row: row.cpu("fit"))
            steps = mean(own, lambda row: row.result["last_step"])
            lines.append([setting, steps.format(0), seconds.format(0), *map(str, gains)])
    head = ["setting", "steps taken", "training, s of one core, difference"]
    head += [f"Spearman, {title(test)}, difference" for test in frontier_choice.RANKED]
    return [Table("Early stopping and training without validation, minus the usual runs", head, lines)] if lines else []


_BUILDERS: dict[str, Callable[[list[Record], Source], list[Table]]] = {
    "main": _main,
    "data-size": _data_size,
    "encoder": _encoder,
    "subsets": _subsets,
    "distance": _distance,
    "time": _time,
    "future": _future,
    "frontier": _frontier,
}
