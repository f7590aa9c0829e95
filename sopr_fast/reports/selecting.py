"""The report of a selection."""

from __future__ import annotations

from typing import Any

import numpy as np
from markupsafe import Markup

from ..selection.measure import probability_beats
from ..selection.selection import Selection
from ..selection.verdict import CANNOT, DEPLOY, KEEP, UNDECIDED
from . import figures
from .calibration import calibration_figures
from .page import Cell, Column, Figure, Page, Paragraph, Row, Section, Table
from .parts import (
    ABOUT_COVERAGE,
    COVERED,
    all_measures,
    chance_cell,
    finite,
    flag,
    map_figure,
    name_cell,
    number_cell,
    order_of_methods,
    share_cell,
    tried_methods,
    values_and_returns,
)
from .settings import call, settings_section
from .svg import StyleSheet
from .text import MISSING, Name, Numbers, capital, chance, interval, listed, number, percent, sentence


def selection_page(selection: Selection, *, command: str | None, date: str | None) -> Page:
    """Return the page of a selection.

    Args:
        selection: The selection.
        command: Command that makes the report again, or None.
        date: Date to print, or None.
    """
    styles = StyleSheet()
    tone = {DEPLOY: "good", UNDECIDED: "open", CANNOT: "bad"}.get(selection.verdict.kind, "open")
    rival, is_given = _rival(selection)
    sections = [
        Section("order", "Candidates among the known policies", _order(selection, styles)),
        Section(
            "incumbent",
            "Who beats the incumbent" if is_given else "Who beats the best known policy",
            _against(selection, rival, is_given, styles),
        ),
        Section("evidence", "Why to believe it", _evidence(selection, styles)),
        Section("distance", "How the candidates differ from the known policies", _distances(selection, styles)),
        settings_section(
            selection.settings,
            command,
            call(
                "selection",
                "candidates, log, known=known, returns=returns",
                selection.settings,
                updates=selection.prediction.updates,
                incumbent=selection.incumbent,
            ),
        ),
    ]
    return Page(
        title="Selection of policies",
        verdict=_head(selection),
        tone=tone,
        reason=selection.verdict.reason,
        facts=_facts(selection),
        sections=sections,
        styles=styles,
        date=date,
        notes=[*_doubts(selection), *map(capital, selection.notes)],
    )


def _head(selection: Selection) -> Markup:
    verdict = selection.verdict
    names = list(verdict.policies)
    if verdict.kind == DEPLOY:
        return sentence("Deploy {}.", Name(names[0]))
    if verdict.kind == KEEP:
        return sentence("Keep {}.", Name(names[0]))
    if verdict.kind == UNDECIDED:
        return sentence("{}: the evidence does not decide.", listed(names, "or"))
    if verdict.kind == CANNOT or not names:
        return sentence("These candidates cannot be ranked.")
    return sentence("Measure first: {}.", listed(names))


def _doubts(selection: Selection) -> list[Markup]:
    """Return what the probabilities leave out."""
    foreign = [name for name in selection.candidates if "foreign" in selection.flags[name]]
    if selection.calibrated or not foreign:
        return []
    return [
        sentence(
            "{} act{} unlike every known policy, and there are too few groups of known policies to calibrate their "
            "intervals: a better policy than the probabilities say may be among them. Measure one before you rely on "
            "this.",
            listed(foreign),
            "s" if len(foreign) == 1 else "",
        )
    ]


def _facts(selection: Selection) -> list[tuple[str, Any]]:
    verdict, known = selection.verdict, int(selection.panel.known.sum())
    foreign = sum("foreign" in flags for flags in selection.flags.values())
    facts: list[tuple[str, Any]] = [
        ("candidates, known policies", f"{len(selection.candidates)}, {known}"),
        ("foreign candidates", str(foreign)),
    ]
    if np.isfinite(verdict.probability_best):
        facts.append(("leader is the best candidate", chance(verdict.probability_best)))
    if np.isfinite(verdict.expected_regret):
        facts.append(("expected regret of the leader", percent(verdict.expected_regret)))
    facts.append(("trust, from 0 to 1", number(verdict.trust)))
    return facts


def _order(selection: Selection, styles: StyleSheet) -> list[Any]:
    table, panel, incumbent = _order_table(selection), selection.panel, selection.incumbent
    values, (low, high), flags = selection.predicted, selection.intervals().T, selection.flags
    dots = []
    for place, name in enumerate(selection.candidates, 1):
        i = panel.names.index(name)
        dots.append(figures.Dot(f"{place}  {name}", values[i], low[i], high[i], "foreign" in flags[name]))
    shown = dots[: figures.MOST_ROWS]
    if not shown:
        return [table]
    caption = (
        "Predicted returns of the candidates with 80 % intervals, beside the measured returns of the known policies."
    )
    if any(dot.doubtful for dot in shown):
        caption += " Hollow: foreign candidates, which act unlike every known policy."
    if len(dots) > len(shown):
        caption += f" The first {len(shown)} of {len(dots)}; the table has all."
    drawing = figures.intervals(
        shown,
        styles,
        title="Predicted returns of the candidates among those of the known policies",
        axis="return",
        rug=panel.returns[panel.known],
        rug_label=f"{int(panel.known.sum())} known policies",
        mark=None if incumbent is None else (float(panel.returns[panel.names.index(incumbent)]), "incumbent"),
    )
    return [Figure(drawing, caption), table]


def _order_table(selection: Selection) -> Table:
    table, flags = selection.columns(), selection.flags
    numbers = Numbers(np.append(table["low"], table["high"]))
    places = {name: place for place, name in enumerate(selection.candidates, 1)}
    rows, kinds = [], []
    for i, name in enumerate(table["policy"]):
        known, low, high, own = table["known"][i], table["low"][i], table["high"][i], flags[name]
        marks = Markup("").join(flag(text, warn=text == "foreign" or text.endswith("clipped")) for text in own)
        certain = known and high == low
        rows.append(
            [
                name_cell(name),
                Cell("" if known else str(places[name]), None if known else places[name]),
                Cell(numbers(table["return"][i]), table["return"][i]),
                Cell("measured" if certain else interval(low, high, numbers), finite(low)),
                Cell(MISSING if known else chance(table["best"][i]), finite(table["best"][i])),
                Cell(Name(table["group"][i]), table["group"][i]),
                Cell(marks, ", ".join(own)),
            ]
        )
        kinds.append(_kind(known, "foreign" in own, "incumbent" in own))
    columns = [
        Column("policy", numeric=False),
        Column("rank", help="1: the best candidate."),
        Column("return", help="Measured for known policies, predicted for candidates."),
        Column("80 % interval"),
        Column("best candidate", help="Probability of being the best candidate."),
        Column("group", numeric=False),
        Column("flags", numeric=False),
    ]
    return Table("All policies, the highest return first", columns, rows, kinds)


def _kind(known: bool, foreign: bool, incumbent: bool) -> str:
    if not known:
        return "foreign" if foreign else "candidate"
    return "incumbent" if incumbent else "known"


def _rival(selection: Selection) -> tuple[str, bool]:
    """Return the policy to beat, and whether it was given: the incumbent, else the best known policy."""
    if selection.incumbent is not None:
        return selection.incumbent, True
    panel = selection.panel
    return panel.names[int(np.nanargmax(panel.returns))], False


def _against(selection: Selection, rival: str, is_given: bool, styles: StyleSheet) -> list[Any]:
    beats = probability_beats(selection.prediction, rival)
    chances = {name: float(beats[selection.names.index(name)]) for name in selection.candidates}
    order = sorted(chances, key=lambda name: -chances[name])
    value = float(selection.predicted[selection.names.index(rival)])
    numbers = Numbers(selection.predicted)
    likely = [name for name in order if chances[name] >= 0.9]
    opening = (
        sentence("The incumbent {} has a return of {}.", Name(rival), numbers(value))
        if is_given
        else sentence(
            "No incumbent was named. The best known policy, {}, has a return of {}.", Name(rival), numbers(value)
        )
    )
    if not order:
        return [Paragraph(opening)]
    found = (
        sentence(" {} beat it with a probability of 90 % or more.", listed(likely))
        if len(likely) > 1
        else sentence(" {} beats it with a probability of 90 % or more.", listed(likely))
        if likely
        else sentence(" No candidate beats it with a probability of 90 % or more.")
    )
    shown = [name for i, name in enumerate(order) if i < 3 or chances[name] >= 0.01][: figures.MOST_ROWS]
    caption = "The probabilities rest on the predicted returns and on how they vary together."
    if len(order) > len(shown):
        caption += f" The table has the other {len(order) - len(shown)}."
    axis = "probability of a higher return than the " + ("incumbent" if is_given else "best known policy")
    drawing = figures.probabilities(
        shown, np.array([chances[name] for name in shown]), styles, title=f"Each candidate’s {axis}", axis=axis
    )
    gains = selection.predicted - value
    rows = [
        [name_cell(name), chance_cell(chances[name]), Cell(_signed(gains[selection.names.index(name)], numbers), gain)]
        for name in order
        for gain in [float(gains[selection.names.index(name)])]
    ]
    columns = [Column("candidate", numeric=False), Column("beats it"), Column("expected gain")]
    return [
        Paragraph(opening + found),
        Row(
            [
                Figure(drawing, caption),
                Table("Probability of a higher return", columns, rows),
            ]
        ),
    ]


def _signed(value: float, numbers: Numbers) -> str:
    return f"+{numbers(value)}" if value > 0 else numbers(value)


def _evidence(selection: Selection, styles: StyleSheet) -> list[Any]:
    blocks: list[Any] = [Paragraph(_trust(selection))]
    if calibration := calibration_figures(selection, styles):
        blocks.append(Row(calibration))
    if selection.prediction.trials:
        rows = [
            [
                name_cell(trial.group),
                Cell(str(trial.policies), trial.policies),
                number_cell(trial.gap),
                number_cell(trial.spearman),
                number_cell(trial.regret),
            ]
            for trial in selection.prediction.trials
        ]
        heads = [
            Column("group left out", numeric=False),
            Column("policies"),
            Column("gap accuracy"),
            Column("spearman"),
        ]
        blocks.append(Table("The whole procedure on each group that was left out", [*heads, Column("regret@1")], rows))
    if selection.evaluation is not None:
        weights, agreement = selection.weights, selection.agreement
        methods = selection.evaluation.methods
        extra = {
            "weight": {method: number_cell(weights.get(method, float("nan"))) for method in methods},
            "agreement": {method: number_cell(agreement.get(method, float("nan"))) for method in methods},
        }
        blocks.append(
            Paragraph(
                "Each method was tried on known policies that it had not learned from. What it earned there decides "
                "its weight for foreign candidates. Agreement is its correlation with the weighted mean of the other "
                "methods on the candidates."
            )
        )
        by_kind = all_measures(selection.evaluation)
        blocks += tried_methods(selection.evaluation, by_kind, styles, extra)
        blocks.append(values_and_returns(selection.evaluation, order_of_methods(by_kind), styles))
    return blocks


def _trust(selection: Selection) -> Markup:
    verdict, prediction = selection.verdict, selection.prediction
    text = Markup("")
    if np.isfinite(prediction.inside):
        text += sentence(
            "For known policies left out at random, the predicted returns have a rank correlation of {} with the "
            "measured ones. ",
            number(prediction.inside),
        )
    if np.isfinite(prediction.success):
        text += sentence(
            "For {} groups left out whole, the predictions have a gap accuracy of {} (1: all pairs right, −1: all "
            "wrong). ",
            str(len(prediction.trials)),
            number(prediction.success),
        )
    else:
        text += sentence("No group could be left out whole, so nothing shows how well foreign candidates are ranked. ")
    if np.isfinite(verdict.agreement):
        text += sentence("On the candidates, the methods’ median agreement is {}. ", number(verdict.agreement))
    return text + sentence("Together: a trust of {} on a scale from 0 to 1.", number(verdict.trust))


def _distances(selection: Selection, styles: StyleSheet) -> list[Any]:
    panel, placement = selection.panel, selection.prediction.placement
    known = panel.known
    places = {name: place for place, name in enumerate(selection.candidates, 1)}
    foreign = np.array(["foreign" in selection.flags[name] for name in panel.names])
    figure = map_figure(
        panel.distances,
        known,
        foreign,
        [places.get(name, 0) for name in panel.names],
        panel.groups,
        styles,
    )
    blocks: list[Any] = [] if figure is None else [figure]
    rows, kinds = [], []
    for name, place in places.items():
        i = panel.names.index(name)
        to_known = np.where(known, panel.distances[i], np.nan)
        nearest = "" if np.isnan(to_known).all() else panel.names[int(np.nanargmin(to_known))]
        covered = selection.coverage.get(name, float("nan"))
        rows.append(
            [
                name_cell(name),
                Cell(str(place), place),
                Cell(Name(nearest) if nearest else MISSING, nearest),
                number_cell(placement.nearest[i]),
                number_cell(placement.gate[i]),
                share_cell(covered),
            ]
        )
        kinds.append("foreign" if foreign[i] else "candidate")
    columns = [
        Column("candidate", numeric=False),
        Column("rank"),
        Column("nearest known policy", numeric=False),
        Column("distance", help="Root of the action distance, over the median of the same between two known policies."),
        Column("gate", help="0: acts like known policies; 1: foreign."),
        COVERED,
    ]
    blocks.append(Table("Candidates and the known policies nearest to them", columns, rows, kinds))
    blocks.append(
        Paragraph(
            "Distance is the root of the mean squared distance of actions, over the median of the same between two "
            "known policies. The gate grows from 0 (acts like known policies) to 1 (unlike any); from 0.5 on a "
            "candidate is flagged. " + ABOUT_COVERAGE,
            note=True,
        )
    )
    return blocks
