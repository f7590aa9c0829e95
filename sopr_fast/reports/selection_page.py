"""The report of a selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..estimators.log_support import agreement_in_words
from ..results.numbers import chance, number
from ..results.tables import column
from ..selection.selection import Selection
from . import figures
from .page import Table
from .plots import plot_selection

_MEASURED = "measured.csv"


def selection_page(selection: Selection, command: str = "") -> dict[str, Any]:
    """Return what the report says; `command` is the one that made the selection, if one did."""
    verdict, known = selection.verdict, selection.known
    distance = "; distance: of actions to the nearest known policy, 1 as far as known ones usually are from each other"
    return dict(
        kind="Selection of policies",
        headline=f"{verdict.text}.",
        tone={"deploy": "good", "keep": "", "measure": "open"}[verdict.kind],
        reasons=[verdict.reason],
        now=_now(selection, command),
        again=f"{command} --returns {_MEASURED}" if command and verdict.kind == "measure" else "",
        notes=selection.remarks,
        main=_main(selection),
        title="All policies",
        tables=[_table(selection)],
        legend=f"{selection.legend}{distance if known.any() and not known.all() else ''}.",
        evidence=[*(f"{each}." for each in agreement_in_words(selection.agreement)), *_evidence(selection)],
        pictures=_left_out(selection),
        settings={**selection.settings, f"known {selection.unit}s": int(known.sum())},
    )


def _now(selection: Selection, command: str) -> str:
    """Return what to do, in words."""
    kind = selection.verdict.kind
    if kind == "deploy":
        return "Deploy it, and compare its returns in use with this one."
    if kind == "keep":
        return "Change nothing. Train other candidates, or log other behaviour."
    many = len(selection.verdict.policies) > 1
    run, unit = f"Run {'these policies' if many else 'this policy'}", selection.unit
    pair = f'{{"cost": {unit}}}' if selection.are_costs else unit
    if command:
        trained = " Nothing is trained anew." if selection.settings.get("kept in") else ""
        return f"{run}, write {_MEASURED} with columns name and {unit}, and select again.{trained}"
    return f"{run}, then ask selection.update({{name: {pair}}}), which trains nothing."


def _main(selection: Selection) -> figures.Picture:
    shown = min(figures.ROWS, len(selection.names))
    caption = f"{selection.unit.capitalize()}s with 80 % intervals: measured for known policies, predicted for others"
    foreign = not selection.rankable[selection.order[:shown]].all()
    caption += ", where foreign ones cannot be ranked." if foreign else "."
    if shown < len(selection.names):
        caption += f" The best {shown} of {len(selection.names):,}."
    return figures.draw(lambda ax: plot_selection(selection, ax, figures.ROWS), caption)


def _table(selection: Selection) -> Table:
    order, known, chosen = selection.order, selection.known, selection.verdict.policies
    columns, names = selection.cells(), [selection.names[i] for i in order]
    if selection.rival is not None:
        beats = selection.probability_beats(selection.rival)
        beats[selection.names.index(selection.rival)] = np.nan
        who = "the incumbent" if selection.incumbent else "the best known"
        columns.append(column(f"better than {who}", beats[order], chance))
    columns.append(column("distance", np.where(known, np.nan, selection.distance_ratio)[order]))
    kinds = np.where(known, "known", np.where(selection.rankable, "candidate", "foreign"))[order]
    predicted = ": measured for known policies, predicted for candidates" if selection.candidates else ", all measured"
    return Table(
        f"{selection.unit.capitalize()}s{predicted}",
        columns,
        [f"{kind} chosen" if name in chosen else kind for name, kind in zip(names, kinds, strict=True)],
        [[name for name in selection.measured.copies[i] if name != selection.names[i]] for i in order],
    )


def _evidence(selection: Selection) -> list[str]:
    found = {name: value for name, value in selection.evidence.items() if np.isfinite(value)}
    if not found:
        return [f"Fewer than three {selection.unit}s are known, so nothing here tests the predictions."]
    order, units = found.pop("left out"), f"{selection.unit}s"
    tested = (
        f"Predicted without their own {units}, the known policies are in an order that has a rank correlation of "
        f"{number(order)} with the measured one."
    )
    alone = [f"By {name} alone the rank correlation is {number(value)}." for name, value in found.items()]
    return [tested, *alone] if order >= 0 else alone  # else a note says that the verdict does not rest on predictions


def _left_out(selection: Selection) -> list[figures.Picture]:
    known = selection.known
    if known.sum() < 3:
        return []
    predicted, deviation = selection.posterior.left_out[:, known]
    half, returns = 1.2816 * deviation, selection.returns[known]  # 80 % of a normal distribution
    sign, unit = (-1 if selection.are_costs else 1), selection.unit
    inside = int((np.abs(predicted - returns) <= half).sum())
    return [
        figures.scatter(
            sign * predicted,
            sign * returns,
            axes=(f"{unit} predicted without its measurement", f"measured {unit}"),
            caption=f"Known policies, each predicted without its own {unit}. {inside} of {len(returns)} lie inside of "
            "their 80 % intervals; those outside are hollow.",
            half=half,
        )
    ]
