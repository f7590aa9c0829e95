"""Ways to order candidates from a panel without a posterior."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sopr_fast.selection.blend import Recipe, outside_weights, ranks, within_correlations
from sopr_fast.selection.panel import Panel

Scores = Callable[[Panel], np.ndarray]

RIDGE_PENALTY = 1.0


def grid() -> dict[str, Recipe]:
    """List the recipes among which some tasks choose for the others."""
    return {
        f"power {power}, caution {caution}, agreement {agreement}": Recipe(power, caution, agreement)
        for power in (1, 2, 4, 8)
        for caution in (0, 1, 2)
        for agreement in (0, 1, 2)
    }


def contenders(estimators: list[str]) -> dict[str, Scores]:
    """List every way to order candidates; each maps a panel to scores of its candidates."""
    table: dict[str, Scores] = {name: _single(name) for name in estimators}
    table["uniform mean of all"] = lambda panel: _ranks(panel)[~panel.known].mean(1)
    for power in (1, 2, 4, 8):
        table[f"within groups^{power}"] = _by_recipe(Recipe(power, 0, 0))
    table["pooled^4"] = _by_recipe(Recipe(4, 0, 0), pooled=True)
    table["ridge on ranks"] = _ridge
    table["best single column within groups"] = _best_single
    table["best single unless the blend wins by a standard error"] = _fall_back
    return table | {name: _by_recipe(recipe) for name, recipe in grid().items()}


def best_of(panel: Panel, returns: np.ndarray, score: Callable[[np.ndarray, np.ndarray], float]) -> float:
    """Return the best score that any single column reaches on the candidates."""
    columns = _ranks(panel)[~panel.known]
    return max(score(column, returns) for column in columns.T)


def _ranks(panel: Panel) -> np.ndarray:
    return ranks(np.array(list(panel.columns.values())).T)


def _groups(panel: Panel) -> list[str]:
    return [group for group, known in zip(panel.groups, panel.known, strict=True) if known]


def _correlations(panel: Panel, pooled: bool = False) -> np.ndarray:
    known = panel.known
    groups = ["all"] * int(known.sum()) if pooled else _groups(panel)
    return within_correlations(_ranks(panel)[known], panel.returns[known], groups, 4)


def _single(name: str) -> Scores:
    return lambda panel: panel.columns[name][~panel.known]


def _by_recipe(recipe: Recipe, pooled: bool = False) -> Scores:
    def scores(panel: Panel) -> np.ndarray:
        candidates = _ranks(panel)[~panel.known]
        weights, _ = outside_weights(_correlations(panel, pooled), candidates, recipe)
        return candidates @ weights

    return scores


def _best_single(panel: Panel) -> np.ndarray:
    return _ranks(panel)[~panel.known][:, _correlations(panel)[:, :-1].mean(0).argmax()]


def _ridge(panel: Panel) -> np.ndarray:
    columns, known = _ranks(panel) * np.sqrt(12), panel.known
    center = columns[known].mean(0)
    target = ranks(panel.returns[known, None])[:, 0]
    inputs = columns[known] - center
    penalty = RIDGE_PENALTY * np.eye(inputs.shape[1])
    weights = np.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ (target - target.mean()))
    return (columns[~known] - center) @ weights


def _fall_back(panel: Panel) -> np.ndarray:
    """Score by the blend if it beats the best single column on the known groups by more than a standard error."""
    known = panel.known
    table = _correlations(panel)
    columns = _ranks(panel)
    weights, _ = outside_weights(table, columns[~known], Recipe())
    best = table[:, :-1].mean(0).argmax()
    blended = within_correlations((columns[known] @ weights)[:, None], panel.returns[known], _groups(panel), 4)
    gain = blended[:, 0] - table[:, best]
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.inf
    return columns[~known] @ weights if gain.mean() > error else columns[~known][:, best]
