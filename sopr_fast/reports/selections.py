"""The report of a selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..selection.selection import Selection
from . import figures
from .page import Column, Name, Numbers, Table, chance, column, listed, number

_ANSWERS = {
    "deploy": "Deploy it, and compare its returns in use with this one.",
    "keep": "Change nothing. Train other candidates, or log other behaviour.",
    "measure": "Run these policies, add their returns to the known ones, and select again: nothing is trained anew.",
}


def selection_page(selection: Selection) -> dict[str, Any]:
    """Return what the report says."""
    verdict, known = selection.verdict, selection.known
    order = np.argsort(-selection.predicted, kind="stable")
    unlike = listed([selection.names[i] for i in np.flatnonzero(~selection.rankable)])
    notes = [f"This log cannot rank these, which act unlike every known policy: {unlike}."] if unlike else []
    kinds = np.where(known, "known", np.where(selection.rankable, "candidate", "foreign"))
    return dict(
        kind="Selection of policies",
        verdict=f"{verdict.text}.",
        tone={"deploy": "good", "keep": "", "measure": "open"}[verdict.kind],
        reasons=[verdict.reason],
        now=_ANSWERS[verdict.kind],
        notes=[*notes, *selection.doubts, *selection.notes, *selection.measured.note()],
        main=_main(selection, order, kinds),
        title="All policies",
        tables=[_table(selection, order, kinds)],
        legend="Distance is the mean squared distance of actions to the nearest known policy, over the median distance "
        "between two known policies."
        if known.any() and not known.all()
        else "",
        evidence=[*(f"{each}." for each in selection.support), *_evidence(selection)],
        pictures=_left_out(selection),
        settings={**selection.settings, "known returns": int(known.sum())},
    )


def _main(selection: Selection, order: np.ndarray, kinds: np.ndarray) -> figures.Picture:
    shown = order[: figures.MOST_ROWS]
    caption = "Measured returns with 80 % intervals."
    if selection.candidates:
        caption = "Blue: predicted, with 80 % intervals."
        caption += " Grey: measured." if selection.known.any() else ""
    if (kinds[shown] == "foreign").any():
        caption += " Hollow: candidates that this log cannot rank."
    if len(shown) < len(order):
        caption += f" The best {len(shown)} of {len(order):,}."
    mark = None
    if selection.incumbent is not None:
        mark = float(selection.predicted[selection.measured.place(selection.incumbent)]), "incumbent"
    return figures.intervals(
        [selection.names[i] for i in shown],
        selection.predicted[shown],
        selection.intervals()[shown],
        kinds[shown].tolist(),
        axis="return",
        caption=caption,
        mark=mark,
    )


def _table(selection: Selection, order: np.ndarray, kinds: np.ndarray) -> Table:
    returns, (low, high) = Numbers(selection.predicted), selection.intervals()[order].T
    intervals = [f"{returns(a)} to {returns(b)}" if b > a else "" for a, b in zip(low, high, strict=True)]
    columns = [
        column("return", selection.predicted[order], returns),
        Column("80 % interval", intervals, low),
        column("best of all", selection.probability_best[order], chance),
    ]
    if selection.rival is not None:
        beats = selection.probability_beats(selection.rival)
        beats[selection.names.index(selection.rival)] = np.nan
        who = "the incumbent" if selection.incumbent else "the best known"
        columns.append(column(f"better than {who}", beats[order], chance))
    columns.append(column("distance", np.where(kinds == "known", np.nan, selection.distance_ratio)[order]))
    names = [selection.names[i] for i in order]
    return Table(
        "Returns: measured for known policies, predicted for candidates"
        if selection.candidates
        else "Measured returns",
        "policy",
        [Name(name) for name in names],
        [
            f"{kind} chosen" if name in selection.verdict.policies else kind
            for name, kind in zip(names, kinds[order], strict=True)
        ],
        [each for each in columns if {*each.texts} - {"", number(np.nan)}],
        [selection.flags[i] for i in order] if any(selection.flags) else [],
    )


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
    predicted, deviation = selection.posterior.left_out[:, known]
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
