"""The report of a selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..selection.selection import Selection
from ..selection.verdict import DEPLOY
from . import figures
from .page import Cell, Column, Figure, Page, Paragraph, Section, Table
from .parts import chance_cell, finite, map_figure, name_cell, number_cell
from .settings import settings_section
from .svg import StyleSheet
from .text import MISSING, Name, Numbers, capital, interval, sentence

_CALL = [
    "selection = sopr_fast.select(candidates, log, policies, returns)",
    'sopr_fast.report(selection, "report.html")',
]


def selection_page(selection: Selection, *, command: str | None, date: str | None) -> Page:
    """Return the page of a selection.

    Args:
        selection: The selection.
        command: Command that makes the report again, or None.
        date: Date to print, or None.
    """
    styles = StyleSheet()
    verdict = selection.verdict
    return Page(
        title="Selection of policies",
        verdict=sentence("{}.", verdict.text),
        tone="good" if verdict.kind == DEPLOY else "open",
        reason=verdict.reason,
        facts=[
            ("candidates", str(len(selection.candidates))),
            ("known returns", str(int(selection.known.sum()))),
        ],
        sections=[
            Section("order", "All policies", [_figure(selection, styles), _table(selection)]),
            Section("evidence", "Why to believe it", _evidence(selection, styles)),
            settings_section(selection.settings, command, _CALL),
        ],
        styles=styles,
        date=date,
        notes=[capital(note) for note in [*selection.unrankable(), *selection.notes]],
    )


def _figure(selection: Selection, styles: StyleSheet) -> Figure:
    order = np.argsort(-selection.predicted, kind="stable")[: figures.MOST_ROWS]
    ends = selection.intervals()
    dots = [
        figures.Dot(
            selection.names[i], selection.predicted[i], ends[i, 0], ends[i, 1], doubtful=not selection.rankable[i]
        )
        for i in order
    ]
    drawing = figures.intervals(dots, styles, title="Returns of policies, with 80 % intervals", axis="return")
    return Figure(
        drawing, "Measured and predicted returns with 80 % intervals. Hollow: cannot be ranked from this log."
    )


def _table(selection: Selection) -> Table:
    table = selection.columns()
    numbers = Numbers(np.append(table["low"], table["high"]))
    rows = [
        [
            name_cell(name),
            Cell(numbers(table["return"][i]), table["return"][i]),
            Cell(interval(table["low"][i], table["high"][i], numbers), finite(table["low"][i])),
            chance_cell(table["best"][i]),
            Cell(Name(table["note"][i]), table["note"][i]),
            Cell(Name(table["nearest"][i]) if table["nearest"][i] else MISSING, table["nearest"][i]),
            number_cell(table["distance"][i]),
        ]
        for i, name in enumerate(table["policy"])
    ]
    columns = [
        Column("policy", numeric=False),
        Column("return", help="Measured or predicted."),
        Column("80 % interval"),
        Column("best", help="Probability of being the best policy."),
        Column("note", numeric=False),
        Column("nearest known policy", numeric=False),
        Column("distance", help="Action distance to it, over the median between two known policies."),
    ]
    return Table(
        "All policies, the highest return first", columns, rows, ["known" if k else "" for k in table["known"]]
    )


def _evidence(selection: Selection, styles: StyleSheet) -> list[Any]:
    blocks: list[Any] = []
    evidence = {name: rho for name, rho in selection.evidence.items() if np.isfinite(rho)}
    if "left out" in evidence:
        text = "Known policies, each predicted without its own return, are ordered with a rank correlation of {}."
        blocks.append(Paragraph(sentence(text, f"{evidence['left out']:.2f}")))
    if selection.method in evidence:
        text = "The {} alone orders the known policies with a rank correlation of {}."
        blocks.append(Paragraph(sentence(text, selection.method, f"{evidence[selection.method]:.2f}")))
    places = {name: place for place, name in enumerate(selection.candidates, 1)}
    figure = map_figure(
        selection.distances,
        selection.known,
        ~selection.rankable,
        [places.get(name, 0) for name in selection.names],
        selection.groups,
        styles,
    )
    return blocks + ([] if figure is None else [figure])
