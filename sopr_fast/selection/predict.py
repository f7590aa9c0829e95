"""From a panel to predicted returns, intervals and evidence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from ..inputs.returns import suggest
from ..ranking.metrics import regret_at_k, spearman
from .blend import Recipe, Weights, blend
from .folds import group_folds
from .groups import Placement, place
from .intervals import FEWEST_LEFT_OUT, Calibration, LeftOut
from .metrics import gap_accuracy
from .panel import Panel
from .posterior import Posterior, fit_posterior

_LEVEL = 0.8  # at which standard deviations are calibrated
_FEWEST_TESTED = 5  # known policies, from which a rank correlation says something


@dataclass(frozen=True)
class Trial:
    """Success of the whole procedure on a group that was left out.

    Attributes:
        group: Label of the group.
        policies: Number of its policies.
        spearman: Rank correlation of predictions and returns within the group.
        gap: Gap-weighted pair accuracy, from -1 to 1.
        regret: Normalised regret of the best prediction.
    """

    group: str
    policies: int
    spearman: float
    gap: float
    regret: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predicted returns of known policies and candidates.

    Attributes:
        placement: The panel with groups and gate.
        weights: Outside weights of the columns.
        posterior: Joint Gaussian of the returns; standard deviations of candidates are calibrated.
        calibration: Scores of policies that were left out.
        trials: Success on each group that was left out; empty with fewer than two groups.
        inside: Spearman correlation of the returns with predictions by random folds; NaN with fewer than five policies.
        seed: Seed of folds and draws.
        recipe: Settings of the outside weights.
        measured: Names of former candidates that `update` made known.
        updates: Name -> return and its standard error, of all policies that `update` was called with.
        incumbent: Name of the known policy to beat, or None.
        left_out: Predictions for policies left out at random, or None with fewer than four known policies.
        groups_left_out: Group -> predictions for its policies when the whole group was left out.
    """

    placement: Placement
    weights: Weights
    posterior: Posterior
    calibration: Calibration
    trials: list[Trial]
    inside: float
    seed: int
    recipe: Recipe
    measured: tuple[str, ...] = ()
    updates: dict[str, tuple[float, float]] = field(default_factory=dict)
    incumbent: str | None = None
    left_out: LeftOut | None = None
    groups_left_out: dict[str, LeftOut] = field(default_factory=dict)

    @property
    def panel(self) -> Panel:
        """The panel, its groups filled in."""
        return self.placement.panel

    @property
    def rival(self) -> str | None:
        """What to deploy if no candidate is: of `rivals` the one of highest expected return, given all evidence."""
        mean, names = self.posterior.mean, self.panel.names
        return max(self.rivals, key=lambda name: mean[names.index(name)], default=None)

    @property
    def rivals(self) -> list[str]:
        """The incumbent, if there is one, and the measured policies."""
        return [name for name in dict.fromkeys([self.incumbent, *self.measured]) if name is not None]

    @property
    def success(self) -> float:
        """Mean gap-weighted pair accuracy on groups that were left out; NaN if there are none."""
        gaps = [trial.gap for trial in self.trials if np.isfinite(trial.gap)]
        return float(np.mean(gaps)) if gaps else float("nan")

    def intervals(self, level: float = 0.8) -> np.ndarray:
        """Compute intervals of the returns.

        Args:
            level: Nominal coverage.

        Returns:
            (P, 2) lower and upper ends. Those of known policies come from their return's standard error alone.
        """
        gate = self.placement.gate
        raw = self.posterior.deviation / _scale(self.calibration, self.placement)
        half = self.calibration.factors(level, gate) * raw
        known = self.panel.known
        half[known] = NormalDist().inv_cdf((1 + level) / 2) * self.panel.return_errors[known]
        center = np.where(known, self.panel.returns, self.posterior.mean)
        return np.stack([center - half, center + half], axis=1)

    def update(self, returns: dict[str, float], errors: dict[str, float] | None = None) -> Prediction:
        """Return the prediction after candidates were measured. Nothing is trained again.

        Args:
            returns: Name -> measured return; known policies may be measured again.
            errors: Name -> standard error of the return. Known policies without one keep theirs; that of others is 0.

        Raises:
            ValueError: A name is not in the panel, a return is not finite, or an error is not finite, negative or that
                of a policy without a return.
        """
        values, spread = self.panel.returns.copy(), self.panel.return_errors.copy()
        updates = dict(self.updates)
        errors = errors or {}
        for name, error in errors.items():
            if name not in returns:
                raise ValueError(
                    f"errors hold policy {name!r}{suggest(name, returns)}, which has no return; pass it too"
                )
            if not 0 <= error < np.inf:
                raise ValueError(f"the error of policy {name!r} is {error}; pass a finite number that is not negative")
        for name, value in returns.items():
            if name not in self.panel.names:
                raise ValueError(
                    f"policy {name!r}{suggest(name, self.panel.names)} is not in the selection; one that was left out "
                    "as a copy is measured by the name of the policy it acts as"
                )
            if not np.isfinite(value):
                raise ValueError(f"the return of policy {name!r} is {value}; pass a finite number")
            i = self.panel.names.index(name)
            values[i], spread[i] = value, errors.get(name, spread[i])
            updates[name] = float(values[i]), float(spread[i])
        measured = [name for name in returns if not self.panel.known[self.panel.names.index(name)]]
        updated = predict(self.panel.with_returns(values, spread), recipe=self.recipe, seed=self.seed)
        return replace(
            updated,
            measured=(*self.measured, *measured),
            updates=updates,
            incumbent=self.incumbent,
        )


def predict(panel: Panel, *, recipe: Recipe | None = None, folds: int = 5, seed: int = 0) -> Prediction:
    """Predict the returns of the candidates of a panel.

    Args:
        panel: At least two known policies.
        recipe: Settings of the outside weights; the defaults of `Recipe` if None.
        folds: Random folds that calibrate intervals inside the known region.
        seed: Seed of the folds.

    Raises:
        ValueError: Fewer than two known policies.
    """
    if panel.known.sum() < 2:
        raise ValueError(f"the panel has {panel.known.sum()} known policies; at least 2 are needed")
    recipe = recipe or Recipe()
    placement = place(panel)
    design, weights = blend(placement, recipe)
    posterior = fit_posterior(design, panel.returns, panel.return_errors)
    left_out = _random_folds(placement, recipe, posterior.variances, folds, seed)
    groups, trials = _leave_groups_out(placement, recipe, posterior.variances)
    inside = np.zeros(0) if left_out is None else left_out.scores
    correlation = float("nan")
    if left_out is not None and len(left_out.names) >= _FEWEST_TESTED:
        correlation = spearman(left_out.predicted, left_out.returns)
    calibration = Calibration(inside, {group: predictions.scores for group, predictions in groups.items()})
    scaled = posterior.scaled(_scale(calibration, placement))
    return Prediction(
        placement,
        weights,
        scaled,
        calibration,
        trials,
        correlation,
        seed,
        recipe,
        left_out=left_out,
        groups_left_out=groups,
    )


def _scale(calibration: Calibration, placement: Placement) -> np.ndarray:
    """Compute by how much the posterior's standard deviations are multiplied.

    The uncertainty of known policies is that of their measured returns, of which errors of predictions say nothing.
    """
    factors = calibration.factors(_LEVEL, placement.gate) / NormalDist().inv_cdf((1 + _LEVEL) / 2)
    return np.where(placement.panel.known, 1.0, np.clip(factors, 0.25, 10))


def hold_out(placement: Placement, held: np.ndarray, *, foreign: bool) -> Placement:
    """Return the placement of the known policies alone, with some of them as candidates.

    Args:
        placement: The panel with groups and gate.
        held: Indices of known policies that become candidates.
        foreign: Whether they are foreign (their supervised values come from models that have not seen their group)
            or like the other known policies.
    """
    panel = placement.panel
    source = panel.grouped_columns if foreign else panel.columns
    columns, grouped = {}, {}
    for method in panel.columns:
        columns[method], grouped[method] = panel.columns[method].copy(), panel.grouped_columns[method].copy()
        columns[method][held] = grouped[method][held] = source[method][held]
    returns = panel.returns.copy()
    returns[held] = np.nan
    rest = np.setdiff1d(np.flatnonzero(panel.known), held)
    hidden = replace(panel, columns=columns, grouped_columns=grouped)
    hidden = hidden.take(np.concatenate([rest, held])).with_returns(returns[np.concatenate([rest, held])])
    gate = np.where(hidden.known, 0.0, 1.0 if foreign else 0.0)
    labels = np.array(hidden.groups, dtype=object)
    membership = (labels[:, None] == np.unique(labels.astype(str))[None]).astype(float)
    return Placement(hidden, gate, np.full(len(hidden), np.nan), membership, placement.source)


def _fit_held_out(
    placement: Placement, held: np.ndarray, recipe: Recipe, start: dict[str, float], foreign: bool
) -> Posterior:
    part = hold_out(placement, held, foreign=foreign)
    design, _ = blend(part, recipe)
    scale = float(placement.panel.returns[placement.panel.known].std())
    posterior = fit_posterior(design, part.panel.returns, part.panel.return_errors, sweeps=1, start=start, scale=scale)
    rows = np.arange(len(part.panel) - len(held), len(part.panel))
    return replace(posterior, mean=posterior.mean[rows], covariance=posterior.covariance[np.ix_(rows, rows)])


def _random_folds(
    placement: Placement, recipe: Recipe, start: dict[str, float], folds: int, seed: int
) -> LeftOut | None:
    known = np.flatnonzero(placement.panel.known)
    if len(known) < FEWEST_LEFT_OUT:
        return None
    folds = min(folds, len(known))
    predicted, deviation = np.zeros(len(known)), np.zeros(len(known))
    # Folds do not depend on the order of the policies, which differs where they were measured in other steps.
    names = [placement.panel.names[i] for i in known]
    ordered = np.lexsort((np.array(names), placement.panel.returns[known]))
    for rows in np.array_split(np.random.default_rng(seed).permutation(ordered), folds):
        held = known[rows]
        posterior = _fit_held_out(placement, held, recipe, start, foreign=False)
        each = _left_out(posterior, placement.panel, held)
        predicted[rows], deviation[rows] = each.predicted, each.deviation
    return LeftOut(names, placement.panel.returns[known], predicted, deviation)


def _leave_groups_out(
    placement: Placement, recipe: Recipe, start: dict[str, float]
) -> tuple[dict[str, LeftOut], list[Trial]]:
    panel = placement.panel
    known = np.flatnonzero(panel.known)
    predictions: dict[str, LeftOut] = {}
    trials: list[Trial] = []
    for fold in group_folds([panel.groups[i] for i in known]):
        group, held = fold.name, known[fold.test]
        posterior = _fit_held_out(placement, held, recipe, start, foreign=True)
        predictions[group] = _left_out(posterior, panel, held)
        if len(held) < recipe.least:  # too few for an order, but their errors count
            continue
        returns, errors = panel.returns[held], panel.return_errors[held]
        trials.append(
            Trial(
                group,
                len(held),
                spearman(posterior.mean, returns),
                gap_accuracy(returns, posterior.mean, errors),
                regret_at_k(returns=returns, scores=posterior.mean, k=1),
            )
        )
    return predictions, trials


def _left_out(posterior: Posterior, panel: Panel, held: np.ndarray) -> LeftOut:
    deviation = np.sqrt(posterior.deviation**2 + panel.return_errors[held] ** 2)
    return LeftOut([panel.names[i] for i in held], panel.returns[held], posterior.mean, deviation)
