"""The report of an evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
from markupsafe import Markup

from ..selection.evaluation import Evaluation
from .page import Cell, Column, Page, Paragraph, Section, Table
from .parts import (
    KINDS,
    all_measures,
    left_out_groups,
    left_out_values,
    map_figure,
    name_cell,
    number_cell,
    order_of_methods,
    tried_methods,
    values_and_returns,
)
from .settings import settings_section
from .svg import StyleSheet
from .text import Name, Numbers, capital, number, sentence

_GOOD, _USELESS = 0.7, 0.3  # rank correlations


def evaluation_page(evaluation: Evaluation, *, command: str | None, date: str | None) -> Page:
    """Return the page of an evaluation.

    Args:
        evaluation: The evaluation.
        command: Command that makes the report again, or None.
        date: Date to print, or None.
    """
    styles = StyleSheet()
    by_kind = all_measures(evaluation)
    best = {kind: _best(measures) for kind, measures in by_kind.items()}
    decisive = best[evaluation.kinds[-1]][1]
    sections = [
        Section("methods", "How well each method ranks", tried_methods(evaluation, by_kind, styles, {})),
        Section(
            "policies", "What each method says of each policy", _policies(evaluation, order_of_methods(by_kind), styles)
        ),
        Section("distance", "How the policies differ", _distances(evaluation, styles)),
        settings_section(
            evaluation.settings,
            command,
            ["evaluation = sopr_fast.evaluate(log, policies, returns)", 'sopr_fast.report(evaluation, "report.html")'],
        ),
    ]
    return Page(
        title="Evaluation of methods",
        verdict=_head(best),
        tone="good" if decisive >= _GOOD else "open" if decisive >= _USELESS else "bad",
        reason=_reason(evaluation, best),
        facts=[
            ("policies with known returns", str(len(evaluation.names))),
            ("groups", str(len(set(evaluation.groups)))),
            ("methods", str(len(evaluation.methods))),
            ("dropped methods", str(len(evaluation.dropped))),
        ],
        sections=sections,
        styles=styles,
        date=date,
        notes=[*map(capital, evaluation.notes)],
    )


def _best(measures: dict[str, dict[str, tuple[float, float, float]]]) -> tuple[str, float, float, float]:
    """Return the method with the highest rank correlation, and that with its interval."""
    method = max(measures, key=lambda name: np.nan_to_num(measures[name]["spearman"][0], nan=-2))
    return method, *measures[method]["spearman"]


def _head(best: dict[str, tuple[str, float, float, float]]) -> Markup:
    method, mean, _, _ = next(iter(best.values()))
    if "group" not in best:
        return sentence("{} ranks policies it has not seen best: rank correlation {}.", Name(method), number(mean))
    foreign, on_foreign, _, _ = best["group"]
    return sentence(
        "Best on policies like the known ones: {}, rank correlation {}. Best on a new group: {}, {}.",
        *(Name(method), number(mean), Name(foreign), number(on_foreign)),
    )


def _reason(evaluation: Evaluation, best: dict[str, tuple[str, float, float, float]]) -> Markup:
    ends = [number(end) for kind in best.values() for end in kind[2:]]
    if "group" not in best:
        return sentence("Its 90 % interval is {} to {}.", *ends)
    return sentence(
        "The 90 % intervals are {} to {}, and {} to {}. The groups are {}.", *ends, left_out_groups(evaluation)
    )


def _policies(evaluation: Evaluation, order: list[str], styles: StyleSheet) -> list[Any]:
    numbers = Numbers(evaluation.returns)
    columns = [Column("policy", numeric=False), Column("group", numeric=False), Column("return"), Column("true rank")]
    columns += [Column(f"rank by {method}") for method in order]
    true, places = _places(evaluation.returns), {}
    for method in order:
        values = left_out_values(evaluation, method)
        tested = np.isfinite(values)
        places[method] = np.full(len(values), np.nan)
        places[method][tested] = _places(values[tested])
    rows = []
    for i in np.argsort(-evaluation.returns, kind="stable"):
        value = float(evaluation.returns[i])
        rows.append(
            [
                name_cell(evaluation.names[i]),
                Cell(Name(evaluation.groups[i]), evaluation.groups[i]),
                Cell(numbers(value), value),
                Cell(str(true[i]), int(true[i])),
                *(number_cell(places[method][i], 0) for method in order),
            ]
        )
    return [
        values_and_returns(evaluation, order, styles),
        Table(f"Ranks by known return and by each method, {KINDS[evaluation.kinds[0]]}", columns, rows),
    ]


def _places(values: np.ndarray) -> np.ndarray:
    """Return places, 1 for the largest value; ties in order."""
    places = np.empty(len(values), int)
    places[np.argsort(-values, kind="stable")] = np.arange(1, len(values) + 1)
    return places


def _distances(evaluation: Evaluation, styles: StyleSheet) -> list[Any]:
    count = len(evaluation.names)
    if evaluation.distances is None:
        return [Paragraph("The action distances of these policies are unknown.")]
    everyone = np.ones(count, bool)
    figure = map_figure(evaluation.distances, everyone, ~everyone, [0] * count, evaluation.groups, styles)
    apart = np.where(np.eye(count, dtype=bool), np.nan, evaluation.distances)
    roots = np.sqrt(apart)
    typical = float(np.nanmedian(roots)) or 1.0
    rows = []
    for i, name in enumerate(evaluation.names):
        nearest = int(np.nanargmin(apart[i]))
        rows.append(
            [
                name_cell(name),
                name_cell(evaluation.names[nearest]),
                number_cell(roots[i, nearest] / typical),
            ]
        )
    columns = [
        Column("policy", numeric=False),
        Column("nearest other policy", numeric=False),
        Column("distance"),
    ]
    note = Paragraph(
        "Distance is the root of the mean squared distance of actions, over the median of the same between two "
        "policies.",
        note=True,
    )
    return [*([figure] if figure else []), Table("Policies and those nearest to them", columns, rows), note]
