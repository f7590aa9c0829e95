"""What predicts success on real policies, and limits chosen on half of the sets and judged on the other half."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from sopr_fast.selection.metrics import risk_coverage

from .real_tables import BLEND, FOREIGN, NEW, OFFLINE, UNSEEN, Case, number
from .tables import SURE, TRUST, deployed, deployment, table, usefulness

SIGNALS = {
    "success on left-out groups": "success",
    "trust": "trust",
    "agreement": "agreement",
    "correlation over random folds": "inside correlation",
}
GOOD = 0.5  # gap accuracy of an order that helps


def trust(cases: list[Case]) -> str:
    """Write all tables."""
    return "\n\n".join(part for part in (signals(cases), limits(cases), deploying(cases), verdicts(cases)) if part)


def signals(cases: list[Case]) -> str:
    """Correlate what is known beforehand with success."""
    tried = [case for case in cases if np.isfinite(number(case, "success")) and case["kind"] != OFFLINE]
    rows = []
    for name, key in SIGNALS.items():
        cells = []
        for kinds in ((FOREIGN, NEW), (UNSEEN, FOREIGN, NEW)):
            part = [case for case in tried if case["kind"] in kinds and np.isfinite(number(case, key))]
            signal, gap = _signal_and_gap(part, key)
            regret = np.array([case["orders"][BLEND]["regret@1"] for case in part])
            if len(part) > 2 and np.ptp(signal) > 0:
                area = risk_coverage(signal, regret)[2]
                cells.append(f"{np.corrcoef(signal, gap)[0, 1]:.2f} ({len(part)}), {area:.3f} of {regret.mean():.3f}")
            else:
                cells.append("–")
        rows.append([name, *cells])
    header = ["signal", "foreign sets: correlation with gap accuracy (cases), area under risk-coverage", "all sets"]
    return table("What predicts success", header, rows)


def limits(cases: list[Case]) -> str:
    """Choose a limit of each signal on half of the sets, and judge it on the others."""
    part = [case for case in cases if case["kind"] in (FOREIGN, NEW)]
    rows = []
    for name, key in SIGNALS.items():
        own = [case for case in part if np.isfinite(number(case, key))]
        right, good, total = 0, 0, 0
        for choosing, judging in _halves(own):
            signal, gap = _signal_and_gap(choosing, key)
            limit = max([-np.inf, *np.sort(signal)], key=lambda t: np.mean((signal >= t) == (gap >= GOOD)))
            signal, gap = _signal_and_gap(judging, key)
            right += int(np.sum((signal >= limit) == (gap >= GOOD)))
            good += int(np.sum(gap >= GOOD))
            total += len(judging)
        if total:
            often = max(good, total - good) / total
            rows.append([name, str(len(own)), f"{right / total:.2f}", f"{often:.2f}"])
    title = f"Foreign sets of a gap accuracy of at least {GOOD}: limits chosen on half the sets, judged on the others"
    return table(title, ["signal", "cases", "answers that are right", "always the same answer"], rows) if rows else ""


def deploying(cases: list[Case]) -> str:
    """Choose the limits of "deploy" on half of the sets, and judge them on the others."""
    rows = []
    for title, kinds in (("all candidates", (UNSEEN, FOREIGN, NEW, OFFLINE)), ("unseen snapshots", (UNSEEN,))):
        own = [case for case in cases if case["kind"] in kinds]
        answers, total = [], 0
        for choosing, judging in _halves(own):
            flat = _flat(choosing)
            best = max(itertools.product(TRUST, SURE), key=lambda pair, flat=flat: usefulness(flat, *pair))
            answers += deployed(_flat(judging), *best)
            total += len(judging)
        if total:
            rows.append(deployment(f"{title}: chosen on half the sets, judged on the others", answers, total))
            answers = deployed(_flat(own), 0.7, 0.9)
            rows.append(deployment(f"{title}: trust ≥ 0.7, probability ≥ 0.9", answers, len(own)))
    header = ["limits", "share deployed", "of these, regret@1 ≤ 0.05", "their mean regret"]
    return table("Deploying the leader on real policies", header, rows) if rows else ""


def verdicts(cases: list[Case]) -> str:
    """Count verdicts and the regret behind them."""
    counts: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        regret = case["evidence"]["regret of the verdict"]
        leader = case["orders"][BLEND]["regret@1"]
        counts.setdefault((case["evidence"]["verdict"], case["kind"]), []).append(leader if regret is None else regret)
    rows = [
        [verdict, kind, str(len(each)), f"{np.mean(each):.3f}", f"{np.mean(np.array(each) <= 0.05):.2f}"]
        for (verdict, kind), each in sorted(counts.items())
    ]
    header = ["verdict", "candidates", "cases", "mean regret of the best policy named", "share with at most 0.05"]
    return table("Verdicts", header, rows)


def _signal_and_gap(cases: list[Case], key: str) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([number(case, key) for case in cases]),
        np.array([case["orders"][BLEND]["gap"] for case in cases]),
    )


def _halves(cases: list[Case]) -> list[tuple[list[Case], list[Case]]]:
    """Split the cases by sets into halves, in every way."""
    sets = list(dict.fromkeys(case["set"] for case in cases))
    return [
        ([case for case in cases if case["set"] in half], [case for case in cases if case["set"] not in half])
        for half in itertools.combinations(sets, len(sets) // 2)
        if half
    ]


def _flat(cases: list[Case]) -> list[dict[str, Any]]:
    return [
        {
            "regret@1": case["orders"][BLEND]["regret@1"],
            "trust": number(case, "trust"),
            "probability of a small regret": number(case, "probability of a small regret"),
        }
        for case in cases
    ]
