"""Markdown tables and a plot of the panels on real policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .studies import MEASUREMENTS
from .tables import CALIBRATIONS, table

LABELS = {  # columns of the panel
    "sopr-t": "SOPR-T",
    "nearest-policy": "nearest policy",
    "gaussian-process": "Gaussian process",
    "sarsa-critic": "SARSA critic",
    "fqe": "FQE",
    "model-based": "model-based",
    "importance-weighting": "importance weighting",
}
CHOSE = (  # sets in sight when the recipe was chosen
    "halfcheetah replay",
    "hopper full-replay",
    "walker2d full-replay",
    "hopper medium-replay",
    "walker2d medium-replay",
)
VARIANTS = {  # compared alone
    "lstdq": "LSTDQ",
    "lstdq-logged-starts": "LSTDQ, logged starts",
    "fqe-layer-norm": "FQE layer norm",
    "model-based-closed": "model-based closed",
    "model-based-closed-logged-starts": "model-based closed, logged starts",
}
UNSEEN, FOREIGN, NEW, OFFLINE = "unseen snapshots", "foreign", "foreign, one family known", "offline, Test Set I"
MEASURES = ("rho", "gap", "regret@1", "regret@3")
UNIFORM, BLEND = "uniform panel", "this posterior"
KNOWN_ALONE = f"{BLEND} with columns from known returns alone"
REWARDS_ALONE = f"{BLEND} with columns from rewards alone"
Case = dict[str, Any]


def _mean(cases: list[Case], kind: str, way: str, measure: str, **match: str) -> float:
    """Return the mean over sets of the mean over a set's cases."""
    values: dict[str, list[float]] = {}
    for case in cases:
        if case["kind"] == kind and way in case["orders"] and all(case[key] == value for key, value in match.items()):
            values.setdefault(case["set"], []).append(case["orders"][way][measure])
    return float(np.mean([np.nanmean(each) for each in values.values()])) if values else float("nan")


def ordering(cases: list[Case]) -> str:
    """Format the order of every method on every set."""
    parts = []
    ways = [*LABELS.values(), UNIFORM, BLEND]
    sets = list(dict.fromkeys(case["set"] for case in cases))
    for kind in (UNSEEN, FOREIGN, NEW, OFFLINE):
        rows = []
        for way in ways:
            cells = [_numbers(cases, kind, way, MEASURES[:2], set=name) for name in sets]
            rows.append([way, *cells, _with_errors(cases, kind, way)])
        title = (
            f"{kind}: Spearman / gap accuracy of each set; means ± standard error over sets, with regret@1 / regret@3"
        )
        parts.append(table(title, ["", *sets, "mean"], rows))
    return "\n\n".join(parts)


def _numbers(cases: list[Case], kind: str, way: str, measures: tuple[str, ...] = MEASURES, **match: str) -> str:
    values = [_mean(cases, kind, way, measure, **match) for measure in measures]
    return "–" if np.isnan(values).all() else " / ".join(f"{value:.2f}" for value in values)


def _with_errors(cases: list[Case], kind: str, way: str) -> str:
    """Format means over sets with their standard errors over sets."""
    sets = list(dict.fromkeys(case["set"] for case in cases))
    cells = []
    for measure in MEASURES:
        values = np.array([_mean(cases, kind, way, measure, set=name) for name in sets])
        values = values[np.isfinite(values)]
        if not len(values):
            return "–"
        error = f" ± {values.std(ddof=1) / np.sqrt(len(values)):.2f}" if len(values) > 1 else ""
        cells.append(f"{values.mean():.2f}{error}")
    return " / ".join(cells)


def known_families(cases: list[Case]) -> str:
    """Format weights, gate and verdict of every foreign set of the first split."""
    rows = []
    for case in cases:
        if case["kind"] in (FOREIGN, NEW) and case["scenario"].endswith("split 0"):
            evidence = case["evidence"]
            weights = ", ".join(f"{name} {weight:.2f}" for name, weight in case["weights"].items() if weight >= 0.01)
            numbers = [
                f"{evidence[key]:.2f}" if evidence[key] is not None else "–" for key in ("rho", "gap", "regret@1")
            ]
            said = f"{evidence['verdict']} (trust {evidence['trust']:.2f})"
            rows.append([case["set"], case["scenario"], f"{case['gate']:.2f}", weights or "none", *numbers, said])
    header = ["set", "known", "gate", "weights", "Spearman", "gap", "regret@1", "verdict"]
    return table("Foreign sets of the first split, one by one", header, rows)


def ablation(cases: list[Case]) -> str:
    """Format what each column adds, and the weighting near known policies."""
    ways = [BLEND, *(f"{BLEND} without {part}" for part in LABELS.values()), KNOWN_ALONE, REWARDS_ALONE]
    ways += ["variance of columns' effects chosen by random folds", "best column by random folds"]
    kinds = (UNSEEN, FOREIGN, NEW)
    rows = [[way, *(_numbers(cases, kind, way) for kind in kinds)] for way in ways]
    return table(
        "What each column and the inside weights add: Spearman / gap / regret@1 / regret@3", ["", *kinds], rows
    )


def intervals(cases: list[Case]) -> str:
    """Format the coverage of nominal 80 % intervals."""
    rows = []
    for way in CALIBRATIONS:
        row = [way]
        for kind in (UNSEEN, FOREIGN, NEW):
            by_game = _by_game(cases, kind, f"coverage, {way}")
            width = _by_game(cases, kind, f"width, {way}")
            if by_game:
                means, widths = np.array(list(by_game.values())), np.array(list(width.values()))
                row.append(f"{means.mean():.2f} (worst game {means.min():.2f}), {widths.mean():.2f}")
            else:
                row.append("–")
        rows.append(row)
    return table(
        "Coverage of nominal 80 % intervals, width over the range of returns", ["", UNSEEN, FOREIGN, NEW], rows
    )


def _by_game(cases: list[Case], kind: str, key: str) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for case in cases:
        if case["kind"] == kind and case["evidence"].get(key) is not None:
            values.setdefault(case["game"], []).append(case["evidence"][key])
    return {game: float(np.mean(each)) for game, each in values.items()}


def number(case: Case, key: str) -> float:
    """Return a number of the evidence; NaN where there is none."""
    value = case["evidence"].get(key)
    return float("nan") if value is None else float(value)


def measuring(cases: list[Case]) -> str:
    """Format the regret after measurements on foreign sets."""
    parts = []
    for kinds, title in (
        ((FOREIGN,), "snapshots known"),
        ((NEW,), "a foreign family known too"),
        ((FOREIGN, NEW), "all"),
    ):
        part = [case for case in cases if case["kind"] in kinds and "measuring" in case]
        if not part:
            continue
        rows = []
        for way in part[0]["measuring"]:
            cells = []
            for count in MEASUREMENTS:
                values: dict[str, list[float]] = {}
                for case in part:
                    values.setdefault(case["set"], []).append(case["measuring"][way][str(count)])
                cells.append(f"{np.mean([np.mean(each) for each in values.values()]):.2f}")
            rows.append([way, *cells])
        header = ["way", *(str(count) for count in MEASUREMENTS)]
        parts.append(table(f"Regret of the best candidate after n measurements, {title}", header, rows))
    return "\n\n".join(parts)


def variants(cases: list[Case]) -> str:
    """Format variants of methods beside the methods themselves, on the sets that have both."""
    rows = []
    for variant in VARIANTS.values():
        part = [case for case in cases if variant in case["orders"]]
        if not part:
            continue
        method = next((base for base in ("FQE", "model-based") if variant.startswith(base)), "SARSA critic")
        sets = len({case["set"] for case in part})
        for way in (variant, method):
            cells = [_numbers(part, kind, way, MEASURES[:2]) for kind in (UNSEEN, FOREIGN, NEW, OFFLINE)]
            rows.append([way if way == variant else f"… beside: {way}", str(sets), *cells])
    header = ["method", "sets", UNSEEN, FOREIGN, NEW, OFFLINE]
    return table("Variants: Spearman / gap accuracy", header, rows) if rows else ""


def all_targets(cases: list[Case]) -> str:
    """Format targets on all sets, and on those that chose nothing."""
    later = [case for case in cases if case["set"] not in CHOSE]
    parts = [targets(cases, "Targets, all sets")]
    if later:
        names = ", ".join(dict.fromkeys(case["set"] for case in later))
        parts.append(targets(later, f"Targets, sets computed after the recipe was fixed ({names})"))
    return "\n\n".join(parts)


def targets(cases: list[Case], title: str) -> str:
    """Format what was asked for and what was reached."""
    rows = [*_ordering_targets(cases), *_evidence_targets(cases), *_measuring_targets(cases)]
    return table(title, ["target", "reached", "met"], rows)


def _ordering_targets(cases: list[Case]) -> list[list[str]]:
    behind = []
    for name in dict.fromkeys(case["set"] for case in cases):
        best = max(_mean(cases, UNSEEN, way, "rho", set=name) for way in LABELS.values())
        behind.append(best - _mean(cases, UNSEEN, BLEND, "rho", set=name))
    rows = [
        [
            "unseen snapshots: behind the best single method of each set by at most 0.01 in the mean, 0.03 at worst",
            f"{np.mean(behind):.3f} in the mean, {np.max(behind):.3f} at worst",
            _met(np.mean(behind) <= 0.01 and np.max(behind) <= 0.03),
        ],
        _at_most("unseen snapshots: regret@3 at most 0.01", _mean(cases, UNSEEN, BLEND, "regret@3"), 0.01),
    ]
    for kind in (FOREIGN, NEW):
        rows += [_above_methods(cases, kind, [kind], measure) for measure in ("gap", "rho")]
        rows.append(_at_most(f"{kind}: regret@3 at most 0.05", _mean(cases, kind, BLEND, "regret@3"), 0.05))
    rows += [_above_methods(cases, "both kinds of foreign candidates", [FOREIGN, NEW], each) for each in ("gap", "rho")]
    return rows


def _above_methods(cases: list[Case], which: str, kinds: list[str], measure: str) -> list[str]:
    means = {
        way: float(np.nanmean([_mean(cases, kind, way, measure) for kind in kinds]))
        for way in (BLEND, *LABELS.values())
    }
    own = means.pop(BLEND)
    best = max(means, key=lambda way: np.nan_to_num(means[way], nan=-9))
    text = f"{which}: {measure} 0.05 above the best fixed method"
    return [text, f"{own:.2f}, {best} {means[best]:.2f}", _met(own >= means[best] + 0.05)]


def _evidence_targets(cases: list[Case]) -> list[list[str]]:
    foreign = [case for case in cases if case["kind"] in (FOREIGN, NEW)]
    wrong = [
        c for c in foreign if c["orders"][BLEND]["rho"] < 0 and c["evidence"]["verdict"] in ("deploy", "undecided")
    ]
    rows = [["foreign sets below 0 without a warning: none", f"{len(wrong)} of {len(foreign)}", _met(not wrong)]]
    tried = [case for case in foreign if np.isfinite(number(case, "success"))]
    if len(tried) > 2:
        signal = [number(case, "success") for case in tried]
        correlation = float(np.corrcoef(signal, [case["orders"][BLEND]["gap"] for case in tried])[0, 1])
        text = "success on left-out groups predicts success on foreign sets: correlation at least 0.6"
        rows.append([text, f"{correlation:.2f} over {len(tried)} cases", _met(correlation >= 0.6)])
    for kind, low, high in ((UNSEEN, 0.75, 0.85), (FOREIGN, 0.75, 1.0), (NEW, 0.75, 1.0)):
        by_game = list(_by_game(cases, kind, "coverage, as delivered").values())
        if by_game:
            text = f"{kind}: coverage of 80 % intervals {low:.2f} to {high:.2f}, per game at least 0.60"
            reached = f"{np.mean(by_game):.2f}, worst game {np.min(by_game):.2f}"
            rows.append([text, reached, _met(low <= np.mean(by_game) <= high and np.min(by_game) >= 0.6)])
    deployed = [case["orders"][BLEND]["regret@1"] for case in cases if case["evidence"]["verdict"] == "deploy"]
    if deployed:
        share = float(np.mean(np.array(deployed) <= 0.05))
        text = "deploy: regret@1 at most 0.05 in 9 of 10 cases"
        rows.append([text, f"{share:.2f} of {len(deployed)}", _met(share >= 0.9)])
    return rows


def _measuring_targets(cases: list[Case]) -> list[list[str]]:
    rows = []
    for count, limit in ((2, 0.10), (3, 0.05)):
        values: dict[str, list[float]] = {}
        for case in cases:
            if case["kind"] in (FOREIGN, NEW):
                values.setdefault(case["set"], []).append(case["measuring"]["measure_next"][str(count)])
        if values:
            reached = float(np.mean([np.mean(each) for each in values.values()]))
            rows.append(_at_most(f"regret after {count} measurements at most {limit}", reached, limit))
    return rows


def _at_most(text: str, value: float, limit: float) -> list[str]:
    return [text, f"{value:.3f}", _met(value <= limit)]


def _met(yes: bool) -> str:
    return "yes" if yes else "no"


def plot(cases: list[Case], out: Path) -> None:
    """Plot success on left-out groups against success on candidates, and regret after measurements."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, kind in enumerate((UNSEEN, FOREIGN, NEW)):
        part = [case for case in cases if case["kind"] == kind]
        success, gap = [number(case, "success") for case in part], [case["orders"][BLEND]["gap"] for case in part]
        left.plot(success, gap, "o", color=f"C{place}", alpha=0.7, label=kind)
    left.set(xlabel="success on policies that were left out", ylabel="gap accuracy on the candidates")
    left.legend(fontsize="small")
    part = [case for case in cases if "measuring" in case]
    for way in part[0]["measuring"] if part else ():
        means = [np.mean([case["measuring"][way][str(count)] for case in part]) for count in MEASUREMENTS]
        right.plot(MEASUREMENTS, means, "o-", label=way)
    right.set(xlabel="foreign candidates measured", ylabel="regret of the best one")
    right.legend(fontsize="small")
    for ax in (left, right):
        ax.grid(alpha=0.3)
    figure.savefig(out / "real-sets.png", dpi=130)
