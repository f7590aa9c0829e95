"""The report of a selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..selection.selection import Selection
from . import figures
from .text import Name, Numbers, listed, number

_MAPPED = 60  # policies on the map
_ANSWERS = {
    "deploy": "Deploy it, and measure it in use.",
    "keep": "Change nothing. Train other candidates, or log other behaviour.",
}


def selection_context(selection: Selection) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of the template, and the settings."""
    verdict, known = selection.verdict, selection.known
    order = np.argsort(-selection.predicted, kind="stable")
    kinds = np.where(known, "known", np.where(selection.rankable, "candidate", "foreign"))
    context = {
        "kind": "Selection of policies",
        "verdict": f"{verdict.text}.",
        "tone": {"deploy": "good", "keep": "", "measure": "open"}[verdict.kind],
        "reasons": [verdict.reason],
        "now": _now(selection),
        "notes": [*_unrankable(selection), *selection.doubts, *selection.notes],
        "main": _main(selection, order, kinds),
        "returns": Numbers(selection.predicted),
        "rows": _rows(selection, order, kinds),
        "rival": selection.rival and ("the incumbent" if selection.incumbent else "the best known"),
        "evidence": _evidence(selection),
        "pictures": _left_out(selection),
        "map": _map(selection, order, kinds),
    }
    return context, selection.settings


def _now(selection: Selection) -> str:
    verdict = selection.verdict
    if verdict.kind != "measure":
        return _ANSWERS[verdict.kind]
    return "Run these policies, add their returns to the known ones, and select again: nothing is trained anew."


def _unrankable(selection: Selection) -> list[str]:
    names = [selection.names[i] for i in np.flatnonzero(~selection.rankable)]
    return [f"This log cannot rank these, which act unlike every known policy: {listed(names)}."] if names else []


def _main(selection: Selection, order: np.ndarray, kinds: np.ndarray) -> figures.Picture:
    low, high = selection.intervals().T
    shown = order[: figures.MOST_ROWS]
    rows = [
        figures.Row(selection.names[i], float(selection.predicted[i]), float(low[i]), float(high[i]), kinds[i])
        for i in shown
    ]
    caption = "Returns with 80 % intervals. Grey: measured. Blue: predicted."
    if (kinds[shown] == "foreign").any():
        caption += " Hollow: candidates that this log cannot rank."
    if len(shown) < len(order):
        caption += f" The best {len(shown)} of {len(order):,}."
    mark = None
    if selection.incumbent is not None:
        mark = float(selection.predicted[selection.names.index(selection.incumbent)]), "incumbent"
    return figures.intervals(rows, axis="return", caption=caption, mark=mark)


def _rows(selection: Selection, order: np.ndarray, kinds: np.ndarray) -> list[dict[str, Any]]:
    low, high = selection.intervals().T
    returns, best, flags = Numbers(selection.predicted), selection.probability_best, selection.flags
    beats, ratios = np.full(len(order), np.nan), selection.distance_ratio
    if selection.rival is not None:
        beats = selection.probability_beats(selection.rival)
        beats[selection.names.index(selection.rival)] = np.nan
    return [
        {
            "name": Name(selection.names[i]),
            "kind": kinds[i],
            "chosen": selection.names[i] in selection.verdict.policies,
            "value": float(selection.predicted[i]),
            "low": float(low[i]),
            "interval": returns.interval(low[i], high[i]) if high[i] > low[i] else "",
            "best": float(best[i]),
            "beats": float(beats[i]),
            "distance": float("nan") if kinds[i] == "known" else float(ratios[i]),
            "remark": flags[i],
        }
        for i in order.tolist()
    ]


def _evidence(selection: Selection) -> list[str]:
    found = {name: value for name, value in selection.evidence.items() if np.isfinite(value)}
    texts = []
    if "left out" in found:
        texts.append(
            "Predicted without their own returns, the known policies are in an order that has a rank correlation of "
            f"{number(found.pop('left out'))} with the measured one."
        )
    texts += [f"The {name} by itself reaches {number(value)}." for name, value in found.items()]
    return texts or ["Fewer than three returns are known, so nothing here tests the predictions."]


def _left_out(selection: Selection) -> list[figures.Picture]:
    known = selection.known
    if known.sum() < 3:
        return []
    predicted, deviation = (selection.left_out[key][known] for key in ("predicted", "deviation"))
    half, returns = 1.2816 * deviation, selection.returns[known]  # 80 % of a normal distribution
    inside = int((np.abs(predicted - returns) <= half).sum())
    return [
        figures.scatter(
            predicted,
            returns,
            axes=("return predicted without its measurement", "measured return"),
            caption=f"Known policies, each predicted without its own return. {inside} of {len(returns)} lie inside of "
            "their 80 % intervals; those outside are hollow.",
            half=half,
            diagonal=True,
        )
    ]


def _map(selection: Selection, order: np.ndarray, kinds: np.ndarray) -> figures.Picture | None:
    candidates = order[kinds[order] != "known"]
    if not len(candidates) or len(candidates) == len(order):
        return None
    farthest = candidates[np.argsort(-selection.distance_ratio[candidates], kind="stable")]
    rows = np.unique(np.concatenate([order[:_MAPPED], farthest[: figures.MOST_ROWS // 2]]))
    named = {*candidates[:3].tolist(), *(i for i in farthest[:3].tolist() if kinds[i] == "foreign"), int(order[0])}
    return figures.policy_map(
        selection.distances[np.ix_(rows, rows)],
        kinds[rows].tolist(),
        [selection.names[i] if i in named else "" for i in rows.tolist()],
        caption="Policies that act alike stand close together. Grey: known policies. Named: the best, the first three "
        "candidates" + (" and those that cannot be ranked." if (kinds[rows] == "foreign").any() else "."),
    )
