"""The report of an evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..methods import SELECT
from ..ranking.metrics import spearman
from ..selection.evaluation import Evaluation
from . import figures
from .text import MISSING, Name, listed, number

_GOOD, _USELESS = 0.7, 0.3  # rank correlations
_DRAWN = 4  # methods
KINDS = {"random": "policies like the known ones", "group": "a new group of policies", "given": "given folds"}


def evaluation_context(evaluation: Evaluation) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of the template, and the settings."""
    measures = {kind: evaluation.measures(kind) for kind in evaluation.kinds}
    tied = {kind: evaluation.tied(kind) for kind in evaluation.kinds}
    decisive = evaluation.kinds[-1]
    mean = measures[decisive][tied[decisive][0]]["spearman"][0]
    order = sorted(evaluation.methods, key=lambda name: -np.nan_to_num(measures[decisive][name]["spearman"][0], nan=-2))
    context = {
        "kind": "Evaluation of methods",
        "verdict": _verdict(tied[decisive], mean, decisive),
        "tone": "good" if mean >= _GOOD else "bad" if mean < _USELESS else "open",
        "reasons": [_reason(evaluation, kind, measures[kind], tied[kind]) for kind in evaluation.kinds],
        "now": _now(tied[decisive][0], mean),
        "notes": list(evaluation.notes),
        "main": figures.methods(
            {KINDS[kind]: {name: measures[kind][name]["spearman"] for name in order} for kind in measures},
            axis="rank correlation with the known returns",
            caption="Rank correlation on policies that the methods had not learned from, with 90 % intervals. "
            "1 is the right order, 0 none.",
        ),
        "kinds": [_table(evaluation, kind, measures[kind], tied[kind]) for kind in measures],
        "dropped": [(Name(name), reason) for name, reason in evaluation.dropped.items()],
        "pictures": [_scatter(evaluation, name) for name in order[:_DRAWN]],
        "map": _map(evaluation),
    }
    return context, {"policies": len(evaluation.names), "groups": len(set(evaluation.groups)), **evaluation.settings}


def _verdict(tied: list[str], mean: float, kind: str) -> str:
    if np.isnan(mean):
        return "These policies are too few to choose the best method."
    what = f"{KINDS[kind]}: rank correlation {number(mean)}."
    if len(tied) == 1:
        return f"{tied[0]} ranks best on {what}"
    return f"{listed(tied)} rank equally well on {what}"


def _reason(evaluation: Evaluation, kind: str, measures: dict[str, Any], tied: list[str]) -> str:
    mean, low, high = measures[tied[0]]["spearman"]
    text = f"On {KINDS[kind]}, {tied[0]} has a rank correlation of {number(mean)}"
    if np.isfinite(low):
        text += f" (90 % interval {number(low)} to {number(high)})"
    others = f"; {listed(tied[1:])} {'is' if len(tied) == 2 else 'are'} as good within the error"
    return f"{text}{others if len(tied) > 1 else ''}."


def _now(best: str, mean: float) -> str:
    if np.isnan(mean):
        return "Measure more policies: at least three in a group."
    if mean >= _GOOD:
        with_it = "" if best == SELECT else f"Rank your candidates with {best}. "
        return f"{with_it}Let select say which candidate to deploy."
    if mean >= _USELESS:
        return f"Use {best} to choose which candidates to measure; do not deploy one without a measurement."
    return "Do not rank these policies from this log. Measure candidates, or log more behaviour like theirs."


def _table(evaluation: Evaluation, kind: str, measures: dict[str, Any], tied: list[str]) -> dict[str, Any]:
    rows = []
    for name in sorted(measures, key=lambda name: -np.nan_to_num(measures[name]["spearman"][0], nan=-2)):
        mean, low, high = measures[name]["spearman"]
        rows.append(
            {
                "name": Name(name),
                "tied": name in tied,
                "mean": mean,
                "low": low,
                "interval": f"{number(low)} to {number(high)}" if np.isfinite(low) else MISSING,
                "regret": measures[name]["regret@1"][0],
                "seconds": evaluation.seconds.get(name, float("nan")),
            }
        )
    count = sum(fold.kind == kind for fold in evaluation.folds)
    return {"title": f"On {KINDS[kind]}: {count} folds of {len(evaluation.names)} policies", "rows": rows}


def _scatter(evaluation: Evaluation, method: str) -> figures.Picture:
    """Return a figure of the known returns over the values of a method in the first kind of folds."""
    parts = [
        (fold.test, values)
        for fold, values in zip(evaluation.folds, evaluation.values[method], strict=True)
        if fold.kind == evaluation.kinds[0]
    ]
    tested, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    returns = evaluation.returns[tested]
    return figures.scatter(
        values,
        returns,
        axes=(f"value by {method}", "known return"),
        caption=f"{method}: rank correlation {number(spearman(values, returns))} over all folds.",
    )


def _map(evaluation: Evaluation) -> figures.Picture | None:
    if evaluation.distances is None:
        return None
    groups, best = evaluation.groups, np.argsort(-evaluation.returns, kind="stable")
    first = [groups.index(group) for group in dict.fromkeys(groups)] if len(set(groups)) > 1 else []
    labels = {i: groups[i] for i in first[:8]} or {int(i): evaluation.names[i] for i in best[:3]}
    return figures.policy_map(
        evaluation.distances,
        ["known"] * len(groups),
        [labels.get(i, "") for i in range(len(groups))],
        caption="Policies that act alike stand close together. "
        + ("A policy of each group carries its name." if first else "The three best are named."),
    )
