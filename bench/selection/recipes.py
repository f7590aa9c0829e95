"""Recipes of `sopr_fast.selection.predict`: chosen on some games, judged on another."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from sopr_fast.ranking.metrics import spearman
from sopr_fast.selection import posterior as posterior_module
from sopr_fast.selection.blend import Recipe, blend
from sopr_fast.selection.groups import place
from sopr_fast.selection.panel import Panel
from sopr_fast.selection.posterior import fit_posterior
from sopr_fast.selection.predict import _random_folds

from .tables import table

Case = dict[str, Any]


WEIGHTINGS: dict[str, dict[str, float]] = {
    "power 2, caution 2": {"lone": 0},
    "power 2, caution 2, uniform with one group": {"lone": 1},
    "half uniform": {"lone": 0, "uniform": 0.5},
    "power 1": {"lone": 0, "power": 1, "caution": 0},
    "power 4": {"lone": 0, "power": 4, "caution": 0},
    "uniform": {"uniform": 1},
}
LENGTHS = {"near copies": (0.1, 0.3), "neighbours": (2.0, 1.0)}  # priors of the length of the local term


def grid() -> dict[str, tuple[Recipe, str]]:
    """List the recipes among which games choose, each with the policies that share a local term."""
    return {
        f"{label}, agreement {agreement}, local term of {shared}": (Recipe(**options, agreement=agreement), shared)
        for label, options in WEIGHTINGS.items()
        for agreement in (0, 1)
        for shared in LENGTHS
    }


def orders(panel: Panel) -> dict[str, np.ndarray]:
    """Return the predictions of the candidates by every recipe."""
    placement = place(panel)
    result = {}
    for name, (recipe, shared) in grid().items():
        with mock.patch.dict(posterior_module._PRIOR, {"length": LENGTHS[shared]}):
            design, _ = blend(placement, recipe)
            result[name] = fit_posterior(design, panel.returns, panel.return_errors).mean[~panel.known]
    return result


def inside(panel: Panel) -> dict[str, np.ndarray]:
    """Return the predictions of the candidates by ways to weigh columns near known policies.

    The package fits the variance of the effects of columns by marginal likelihood. Here random folds of the known
    policies choose it, or a single column.
    """
    placement, known = place(panel), panel.known
    recipe = Recipe()
    trials = {}
    for variance in (0.002, 0.01, 0.05, 0.2, 1.0):
        with mock.patch.dict(posterior_module._PRIOR, {"weights": (variance, 0.01)}):
            design, _ = blend(placement, recipe)
            posterior = fit_posterior(design, panel.returns, panel.return_errors)
            left_out = _random_folds(placement, recipe, posterior.variances, 5, 0)
            success = spearman(left_out.predicted, left_out.returns) if left_out else 0.0
            trials[variance] = success, posterior.mean[~known]
    rho = {name: spearman(values[known], panel.returns[known]) for name, values in panel.columns.items()}
    return {
        "variance of columns' effects chosen by random folds": max(trials.values(), key=lambda trial: trial[0])[1],
        "best column by random folds": panel.columns[max(rho, key=lambda name: np.nan_to_num(rho[name]))][~known],
    }


def rotations(cases: list[Case], kinds: tuple[str, ...]) -> str:
    """Let all games but one choose a recipe and a single method, and judge them on that one."""
    games = list(dict.fromkeys(case["game"] for case in cases))
    if len(games) < 2:
        return ""
    methods = sorted({name for case in cases for name in case["methods"]})
    rows = []
    for game in games:
        others = [case for case in cases if case["game"] != game]
        own = [case for case in cases if case["game"] == game]
        recipe = max(grid(), key=lambda name: _quality(others, kinds, name))
        single = max(methods, key=lambda name: _quality(others, kinds[1:], name))
        best = max(grid(), key=lambda name: _quality(own, kinds, name))
        for label, name in (
            ("chosen recipe", recipe),
            ("default", "this posterior"),
            ("uniform panel", "uniform panel"),
            ("chosen single method", single),
            ("best recipe, with hindsight", best),
        ):
            cells = [f"{_quality(own, (kind,), name):.2f}" for kind in kinds]
            rows.append([game, label if label == "default" else f"{label}: {name}", *cells])
    for label in ("chosen recipe", "default", "uniform panel", "chosen single method", "best recipe, with hindsight"):
        part = [row for row in rows if row[1].startswith(label)]
        means = [np.nanmean([float(row[2 + k]) for row in part]) for k in range(len(kinds))]
        rows.append(["mean", label, *(f"{mean:.2f}" for mean in means)])
    title = "Recipes chosen on the other games, judged on one (mean of Spearman and gap accuracy)"
    return table(title, ["judged on", "way", *kinds], rows)


def every(cases: list[Case], kinds: tuple[str, ...]) -> str:
    """Compare all recipes on all games."""
    rows = [[name, *(f"{_quality(cases, (kind,), name):.2f}" for kind in kinds)] for name in grid()]
    return table("All recipes (mean of Spearman and gap accuracy)", ["recipe", *kinds], rows)


def _quality(cases: list[Case], kinds: tuple[str, ...], way: str) -> float:
    """Return the mean of Spearman and gap accuracy: over the cases of a set, over sets, over kinds."""
    means = []
    for kind in kinds:
        values: dict[str, list[float]] = {}
        for case in cases:
            if case["kind"] == kind and way in case["orders"]:
                measures = case["orders"][way]
                values.setdefault(case["set"], []).append((measures["rho"] + measures["gap"]) / 2)
        if values:
            means.append(np.mean([np.mean(each) for each in values.values()]))
    return float(np.mean(means)) if means else float("nan")
