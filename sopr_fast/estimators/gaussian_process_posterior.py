"""A Gaussian process of returns over action distance, whose mean is linear in another method's values.

The return of policy p is a + b h(p) + f(p) + e(p): h is the value that a simulator (or SOPR-T) gives it, f is a
Gaussian process over action distance with a Matérn 1/2 kernel, e is independent between policies. A known return is
that plus the error of its measurement. Priors, in units of the spread of returns (of the known ones, and of h over all
policies, which counts as three degrees of freedom): b is 1 ± 1, a is 0 ± 10, log(sd of f) is log(1/2) ± 1, and length
and sd of e are uniform on a grid. The posterior is the mean over the grid, weighted by marginal likelihood. One model
serves for any number of known returns, including none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

_LENGTHS = 2.0 ** np.arange(-1, 10)  # in units of the typical distance to the nearest policy
_SPREADS = np.array([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])  # sd of f
_OWN = np.array([0.01, 0.03, 0.1, 0.3, 1.0])  # sd of e
_OFFSET, _OFFSET_UNKNOWN, _SLOPE = 10.0, 0.5, 1.0  # prior sd of a, of a without known returns, and of b
_PRIOR_DEGREES = 3.0  # degrees of freedom that the spread of h over all policies counts as
Point = tuple[float, float, float]  # length, sd of f, sd of e
_LEAST_WEIGHT = 1e-3  # of a point of the grid, relative to the best


@dataclass(frozen=True, eq=False)
class Posterior:
    """Joint normal distribution of the returns of P policies.

    Attributes:
        mean: (P,) expected returns.
        covariance: (P, P) covariance of the returns.
        slope: Expected b: how far the other method's values are followed; NaN without such values.
        unit: Unit of the priors.
        left_out: Fold -> (indices, measured minus predicted returns, standard deviations of these) of known policies
            that are left out together.
    """

    mean: np.ndarray
    covariance: np.ndarray
    slope: float
    unit: float
    left_out: list[tuple[np.ndarray, np.ndarray, np.ndarray]]

    @property
    def deviation(self) -> np.ndarray:
        """(P,) standard deviations of the returns."""
        return np.sqrt(np.diagonal(self.covariance))

    def widened(self, covariance: np.ndarray) -> Posterior:
        """Return the posterior with independent errors (P, P) added."""
        return replace(self, covariance=self.covariance + covariance)


def fit(
    distances: np.ndarray,
    returns: np.ndarray,
    errors: np.ndarray,
    values: np.ndarray | None = None,
    folds: Iterable[np.ndarray] = (),
) -> Posterior:
    """Compute the posterior of the returns of all policies.

    Args:
        distances: (P, P) action distances (Eq. 3 of SOPR-T).
        returns: (P,) known returns; NaN where unknown.
        errors: (P,) standard errors of the known returns; 0 where a return is exact.
        values: (P,) values by another method, in units of returns; None for none.
        folds: Known policies, by index, to leave out together.
    """
    known = np.flatnonzero(np.isfinite(returns))
    feature = np.zeros(len(returns)) if values is None else values
    unit = _unit(returns[known], feature)
    center = feature[known].mean() if len(known) else feature.mean()
    feature = (feature - center) / unit
    level = returns[known].mean() if len(known) else center
    target, noise = (returns[known] - level) / unit, (errors[known] / unit) ** 2
    parts = [np.searchsorted(known, np.sort(fold)) for fold in folds]
    grid = _Grid(np.sqrt(distances), known, feature, target, noise, values is not None)
    weights = grid.weights()
    mean, second, slope = 0.0, 0.0, 0.0
    left_out = [np.zeros((2, len(part))) for part in parts]
    for weight, point in zip(weights, grid.points, strict=True):
        if weight == 0:
            continue
        own_mean, own_covariance, own_slope = grid.posterior(point)
        mean, slope = mean + weight * own_mean, slope + weight * own_slope
        second = second + weight * (own_covariance + np.outer(own_mean, own_mean))
        for part, moments in zip(parts, left_out, strict=True):
            error, variance = grid.leave_out(point, part)
            moments += weight * np.stack([error, variance + error**2])
    covariance = second - np.outer(mean, mean)
    covariance[np.diag_indices(len(covariance))] = np.diagonal(covariance).clip(min=0)
    return Posterior(
        level + unit * mean,
        unit**2 * covariance,
        float(slope) if values is not None else float("nan"),
        unit,
        [
            (known[part], unit * error, unit * np.sqrt(np.maximum(square - error**2, 0)))
            for part, (error, square) in zip(parts, left_out, strict=True)
        ],
    )


def _unit(returns: np.ndarray, feature: np.ndarray) -> float:
    """Return the unit of all priors: the spread of the known returns, pooled with that of the feature."""
    degrees = max(len(returns) - 1, 0)
    spread = float(returns.var(ddof=1)) if degrees > 0 else 0.0
    if feature.var() > 0:
        spread = (degrees * spread + _PRIOR_DEGREES * float(feature.var())) / (degrees + _PRIOR_DEGREES)
    return float(np.sqrt(spread)) or float(np.abs(returns).max(initial=0)) or 1.0


class _Grid:
    """The model at each point of the grid, in units of the known returns."""

    def __init__(
        self,
        roots: np.ndarray,
        known: np.ndarray,
        feature: np.ndarray,
        target: np.ndarray,
        noise: np.ndarray,
        sloped: bool,
    ) -> None:
        self._roots, self._known, self._feature, self._noise = roots, known, feature, noise
        self._error = target - feature[known]  # the prior mean of b is 1
        offset = _OFFSET if len(known) else _OFFSET_UNKNOWN
        self._linear = offset**2 + (_SLOPE**2 if sloped else 0.0) * np.outer(feature, feature)
        among = roots[np.ix_(known, known)] if len(known) > 2 else roots
        nearest = (among + np.where(np.eye(len(among), dtype=bool), np.inf, 0)).min(1)
        positive = nearest[np.isfinite(nearest) & (nearest > 0)]
        typical = float(np.median(positive)) if len(positive) else 1.0
        self.points = [(typical * length, s, e) for length in _LENGTHS for s in _SPREADS for e in _OWN]

    def _covariance(self, point: Point, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the prior covariance of the returns of policies."""
        length, spread, own = point
        at = np.ix_(rows, columns)
        return self._linear[at] + spread**2 * np.exp(-self._roots[at] / length) + own**2 * (rows[:, None] == columns)

    def _factor(self, point: Point) -> np.ndarray:
        covariance = self._covariance(point, self._known, self._known)
        return np.linalg.cholesky(covariance + np.diag(self._noise))

    def weights(self) -> np.ndarray:
        """Return the posterior probability of each point, 0 for those far from the best."""
        logs = []
        for point in self.points:
            prior = -0.5 * np.log(2 * point[1]) ** 2
            if len(self._known):
                factor = self._factor(point)
                scaled = np.linalg.solve(factor, self._error)
                prior -= 0.5 * scaled @ scaled + np.log(np.diagonal(factor)).sum()
            logs.append(prior)
        weights = np.exp(np.array(logs) - max(logs))
        weights[weights < _LEAST_WEIGHT] = 0
        return weights / weights.sum()

    def posterior(self, point: Point) -> tuple[np.ndarray, np.ndarray, float]:
        """Return mean (P,), covariance (P, P) and expected slope at a point."""
        everyone = np.arange(len(self._feature))
        prior = self._covariance(point, everyone, everyone)
        if not len(self._known):
            return self._feature, prior, 1.0
        factor = self._factor(point)
        half = np.linalg.solve(factor, prior[self._known])  # (M, P)
        scaled = np.linalg.solve(factor, self._error)
        slope = 1 + _SLOPE**2 * np.linalg.solve(factor, self._feature[self._known]) @ scaled
        return self._feature + half.T @ scaled, prior - half.T @ half, float(slope)

    def leave_out(self, point: Point, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return errors and variances of the known returns at `part` predicted from the others."""
        inverse = np.linalg.inv(self._factor(point))
        precision = inverse.T @ inverse
        block = np.linalg.inv(precision[np.ix_(part, part)])
        return block @ (precision @ self._error)[part], np.diagonal(block)
