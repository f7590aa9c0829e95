"""Markdown tables of the studies on public scores. Means are over tasks, ± is their standard error over tasks."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np

from sopr_fast.selection.metrics import risk_coverage

from .contenders import grid

Rows = list[dict[str, Any]]
KNOWN = ("1 known", "2 known", "3 known")
DEFAULT = "power 2, caution 2, agreement 1"
TRUST = (0.5, 0.6, 0.7, 0.8)
CALIBRATIONS = (
    "uncalibrated",
    "random folds",
    "groups left out, pooled",
    "groups left out, largest quantile",
    "as delivered",
)
SURE = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def write(results: dict[str, Rows]) -> str:
    """Write all tables of the studies that are done."""
    studies = (ordering, choice, inside, intervals, priors, trust, verdicts, measuring, distances, snapshots)
    return "\n\n".join(part for study in studies if (part := study(results))) + "\n"


def by_task(results: dict[str, Rows], study: str) -> dict[str, Rows]:
    """Return the rows of a study per task."""
    return {key.split("/", 1)[1]: rows for key, rows in results.items() if key.startswith(f"{study}/")}


def table(title: str, header: list[str], lines: list[list[str]]) -> str:
    """Format a Markdown table."""
    rows = [header, ["---"] * len(header), *lines]
    return f"### {title}\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in rows)


def task_means(tasks: dict[str, Rows], kind: str, column: str, **match: Any) -> np.ndarray:
    """Return the mean of a column over the rows of a kind, per task."""
    means = []
    for rows in tasks.values():
        values = [
            row[column]
            for row in rows
            if row["kind"] == kind and row.get(column) is not None and all(row[k] == v for k, v in match.items())
        ]
        if values:
            means.append(float(np.mean(values)))
    return np.array(means)


def cell(means: np.ndarray, digits: int = 2) -> str:
    """Format a mean over tasks and its standard error."""
    if not len(means):
        return "–"
    text = f"{means.mean():.{digits}f}"
    return text + (f" ± {means.std(ddof=1) / np.sqrt(len(means)):.{digits}f}" if len(means) > 1 else "")


def ordering(results: dict[str, Rows]) -> str:
    tasks = by_task(results, "ordering")
    if not tasks:
        return ""
    names = [name for name in next(iter(tasks.values()))[0] if name not in ("kind", *grid())]
    ablations = {
        "this recipe (power 2, caution 2, agreement 1)": DEFAULT,
        "… without caution": "power 2, caution 0, agreement 1",
        "… without agreement": "power 2, caution 2, agreement 0",
        "… without either": "power 2, caution 0, agreement 0",
    }
    kinds = [*KNOWN, "random"]
    lines = [[name, *(cell(task_means(tasks, kind, name), 3) for kind in kinds)] for name in names]
    lines += [[name, *(cell(task_means(tasks, kind, key), 3) for kind in kinds)] for name, key in ablations.items()]
    pairs = {
        "this recipe − within groups^4": (DEFAULT, "within groups^4"),
        "caution": (DEFAULT, "power 2, caution 0, agreement 1"),
        "agreement": (DEFAULT, "power 2, caution 2, agreement 0"),
    }
    gains = []
    for name, (first, second) in pairs.items():
        both = [(task_means(tasks, kind, first), task_means(tasks, kind, second)) for kind in kinds]
        gains.append([name, *(cell(a - b, 3) for a, b in both)])
    text = table("Spearman on a new algorithm and on a random half", ["way", *kinds], lines)
    return text + "\n\n" + table("Gains, paired by task", ["part", *kinds], gains)


def choice(results: dict[str, Rows]) -> str:
    """Choose a recipe on three tasks and judge it on the other three, for every split of the six."""
    tasks = by_task(results, "ordering")
    if len(tasks) < 6:
        return ""
    names = list(tasks)
    value = {
        recipe: np.array([task_means(tasks, kind, recipe) for kind in KNOWN])  # (kinds, tasks)
        for recipe in grid()
    }
    judged, fixed, hindsight, chosen = [], [], [], Counter()
    for choosing in itertools.combinations(range(6), 3):
        judging = [i for i in range(6) if i not in choosing]
        best = max(value, key=lambda recipe: value[recipe][:, list(choosing)].mean())
        chosen[best] += 1
        judged.append(value[best][:, judging].mean(1))
        fixed.append(value["power 4, caution 0, agreement 0"][:, judging].mean(1))
        hindsight.append(max((value[r][:, judging].mean(1) for r in value), key=np.mean))
    lines = [
        [name, *(f"{number:.3f}" for number in np.mean(part, axis=0))]
        for name, part in (
            ("recipe chosen on three tasks, judged on the others", judged),
            ("within groups^4, judged on the same", fixed),
            ("best recipe of the judging tasks, with hindsight", hindsight),
        )
    ]
    often = "; ".join(f"{name}: {count}" for name, count in chosen.most_common(5))
    spread = np.std(np.mean(judged, axis=1))
    text = table("Recipe chosen on three tasks and judged on the other three", ["", *KNOWN], lines)
    splits = f"Mean over the 20 splits of {', '.join(names)} (standard deviation over splits {spread:.3f})."
    return f"{text}\n\n{splits} Chosen: {often}."


def inside(results: dict[str, Rows]) -> str:
    tasks = by_task(results, "prediction")
    if not tasks:
        return ""
    kinds = [*KNOWN, "1 known, runs as groups", "random", "random, one group"]
    columns = ["rho", "gap", "regret@1", "regret@3"]
    lines = [[kind, *(cell(task_means(tasks, kind, column), 3) for column in columns)] for kind in kinds]
    return table("Predictions of the whole procedure", ["candidates", "Spearman", "gap", "regret@1", "regret@3"], lines)


def intervals(results: dict[str, Rows]) -> str:
    tasks = by_task(results, "prediction")
    if not tasks:
        return ""
    kinds = [*KNOWN, "1 known, runs as groups", "random"]
    lines = []
    for way in CALIBRATIONS:
        row = [way]
        for kind in kinds:
            means = task_means(tasks, kind, f"coverage, {way}")
            width = task_means(tasks, kind, f"width, {way}")
            row.append(f"{means.mean():.2f} ({means.min():.2f}), {width.mean():.2f}" if len(means) else "–")
        lines.append(row)
    title = "Coverage of nominal 80 % intervals: mean over tasks (worst task), width over the range of the returns"
    return table(title, ["calibration", *kinds], lines)


def priors(results: dict[str, Rows]) -> str:
    tasks = by_task(results, "priors")
    if not tasks:
        return ""
    lines = []
    for median in (0.1, 0.3, 1.0, 3.0):
        row = [f"{median:g}"]
        for kind in KNOWN[1:]:
            coverage = task_means(tasks, kind, "coverage, as delivered", offset=median)
            width = task_means(tasks, kind, "width, as delivered", offset=median)
            bare = task_means(tasks, kind, "coverage, uncalibrated", offset=median)
            row.append(f"{coverage.mean():.2f} ({coverage.min():.2f}), {width.mean():.2f}; {bare.mean():.2f}")
        lines.append(row)
    title = "Prior of the variance of group offsets: coverage (worst task), width; coverage uncalibrated"
    return table(title, ["median", *KNOWN[1:]], lines)


def trust_cases(
    results: dict[str, Rows], kinds: tuple[str, ...] = ("1 known, runs as groups", *KNOWN[1:])
) -> dict[str, Rows]:
    """Return the cases with a new algorithm and at least two known groups, per task."""
    return {
        task: [row for row in rows if row["kind"] in kinds] for task, rows in by_task(results, "prediction").items()
    }


def trust(results: dict[str, Rows]) -> str:
    tasks = trust_cases(results)
    cases = [row for rows in tasks.values() for row in rows]
    if not cases:
        return ""
    signals = {
        "success on groups left out": ("success", 1),
        "correlation over random folds": ("inside correlation", 1),
        "agreement on the candidates": ("agreement", 1),
        "trust (mean of success and agreement)": ("trust", 1),
        "small expected regret": ("expected regret", -1),
        "probability of a small regret": ("probability of a small regret", 1),
        "probability of best": ("probability of best", 1),
    }
    gap, regret = (np.array([row[name] for row in cases]) for name in ("gap", "regret@1"))
    lines = []
    for name, (column, sign) in signals.items():
        signal = sign * np.array([np.nan_to_num(float(row[column] or 0)) for row in cases])
        per_task = [[np.mean([sign * (row[column] or 0) for row in rows]) for rows in tasks.values()]]
        per_task.append([np.mean([row["gap"] for row in rows]) for rows in tasks.values()])
        area = risk_coverage(signal, regret)[2]
        numbers = (
            np.corrcoef(signal, gap)[0, 1],
            np.corrcoef(per_task)[0, 1],
            np.corrcoef(signal, -regret)[0, 1],
            area,
        )
        lines.append([name, *(f"{number:.2f}" for number in numbers[:3]), f"{area:.3f}"])
    lines.append(["hindsight", "1", "1", "1", f"{risk_coverage(-regret, regret)[2]:.3f}"])
    lines.append(["nothing", "0", "0", "0", f"{regret.mean():.3f}"])
    header = [
        "signal",
        "with gap accuracy, cases",
        "the same, task means",
        "with small regret@1",
        "area under risk-coverage",
    ]
    return table(f"What predicts success on a new algorithm ({len(cases)} cases)", header, lines)


def verdicts(results: dict[str, Rows]) -> str:
    """Choose thresholds for "deploy" on three tasks and judge them on the other three; show the default's verdicts."""
    lines, counts, notes = [], [], []
    for title, kinds in (("new algorithm", None), ("random half", ("random", "random, one group"))):
        tasks = trust_cases(results, kinds) if kinds else trust_cases(results)
        if len(tasks) < 6:
            return ""
        answers, total, chosen = [], 0, Counter()
        for choosing in itertools.combinations(tasks, 3):
            cases = [row for name in choosing for row in tasks[name]]
            best = max(itertools.product(TRUST, SURE), key=lambda limits, cases=cases: usefulness(cases, *limits))
            chosen[best] += 1
            judging = [row for name in tasks if name not in choosing for row in tasks[name]]
            answers += deployed(judging, *best)
            total += len(judging)
        lines.append(deployment(f"{title}: chosen on three tasks, judged on the others (20 splits)", answers, total))
        everything = [row for rows in tasks.values() for row in rows]
        for limits in ((0.7, 0.9), (0.7, 0.7), (0.7, 0.5), (0.0, 0.5), (0.0, 0.0)):
            name = f"{title}: trust ≥ {limits[0]:g}, probability of a small regret ≥ {limits[1]:g}"
            lines.append(deployment(name, deployed(everything, *limits), len(everything)))
        often = "; ".join(f"trust ≥ {t:g}, probability ≥ {r:g}: {count}" for (t, r), count in chosen.most_common(4))
        notes.append(f"Chosen for a {title}: {often}.")
        verdict_rows: dict[str, Rows] = {}
        for row in everything:
            verdict_rows.setdefault(row["verdict"], []).append(row)
        for verdict, rows in verdict_rows.items():
            regret = np.array([row["regret@1"] for row in rows])
            best_of = [row["regret of the verdict"] for row in rows if row["regret of the verdict"] is not None]
            counts.append(
                [
                    f"{title}: {verdict}",
                    str(len(rows)),
                    f"{regret.mean():.3f}",
                    f"{np.mean(regret <= 0.05):.2f}",
                    f"{np.mean(best_of):.3f}" if best_of else "–",
                ]
            )
    header = ["thresholds", "share deployed", "of these, regret@1 ≤ 0.05", "their mean regret"]
    text = table("Deploying the leader", header, lines) + "\n\n" + " ".join(notes)
    header = [
        "verdict",
        "cases",
        "mean regret@1 of the leader",
        "share ≤ 0.05",
        "mean regret of the best policy it names",
    ]
    return text + "\n\n" + table("Verdicts with the default thresholds", header, counts)


def deployment(name: str, regrets: list[float], total: int) -> list[str]:
    """Format a row: share of answers, share of right ones, and their mean regret."""
    values = np.array(regrets)
    good = [f"{np.mean(values <= 0.05):.2f}", f"{values.mean():.3f}"] if len(values) else ["–", "–"]
    return [name, f"{len(values) / total:.2f}", *good]


def deployed(cases: Rows, trust_limit: float, sure_limit: float) -> list[float]:
    """Return the regrets of the cases that reach the limits."""
    return [
        row["regret@1"]
        for row in cases
        if row["trust"] >= trust_limit and row["probability of a small regret"] >= sure_limit
    ]


def usefulness(cases: Rows, trust_limit: float, sure_limit: float) -> tuple[float, float]:
    """Prefer nine right answers of ten, then many answers; fewer than four answers tell nothing."""
    answers = np.array(deployed(cases, trust_limit, sure_limit))
    if len(answers) < 4:
        return (0.0, trust_limit + sure_limit)
    share = float(np.mean(answers <= 0.05))
    return (1.0, len(answers)) if share >= 0.9 else (share, len(answers))


def measuring(results: dict[str, Rows]) -> str:
    tasks = by_task(results, "measuring")
    if not tasks:
        return ""
    parts = []
    cartpole = {name: rows for name, rows in tasks.items() if "actions" in name}
    scored = {name: rows for name, rows in tasks.items() if "actions" not in name}
    for part, where in ((scored, "six tasks"), (cartpole, "cartpole with actions")):
        ways = list(dict.fromkeys(row["way"] for rows in part.values() for row in rows))
        for kind in ("1 new", "2 new"):
            lines = []
            for way in ways:
                row = [way]
                for count in ("0", "1", "2", "3", "5"):
                    row.append(cell(task_means(part, kind, count, way=way)))
                lines.append(row)
            if lines:
                title = f"Regret after n measurements, {where}, {kind.split()[0]} new algorithm(s)"
                parts.append(table(title, ["way", "0", "1", "2", "3", "5"], lines))
    return "\n\n".join(parts)


def distances(results: dict[str, Rows]) -> str:
    tasks = by_task(results, "distances")
    if not tasks:
        return ""
    rows = next(iter(tasks.values()))
    names = [name for name in rows[0] if name != "kind"]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    lines = []
    for name in names:
        cells = []
        for kind in kinds:
            values = np.array([row[name] for row in rows if row["kind"] == kind])
            cells.append(f"{values.mean():.2f} ± {values.std(ddof=1) / np.sqrt(len(values)):.2f}")
        lines.append([name, *cells])
    return table("Cartpole with actions: what distance tells (± over cases)", ["", *kinds], lines)


def snapshots(results: dict[str, Rows]) -> str:
    tasks = by_task(results, "snapshots")
    if not tasks:
        return ""
    names = [name for name in next(iter(tasks.values()))[0] if name != "kind" and not name.startswith("width")]
    lines = [[name, cell(task_means(tasks, "snapshots", name))] for name in names]
    return table(f"D4RL: five snapshots of one run, six known ({len(tasks)} tasks)", ["", "mean"], lines)
