"""A Gaussian process of returns over action distance, of which a simulator's values are noisy measurements.

Returns and values are seen on a scale that is linear near their median and logarithmic far from it, since returns of
policies that survive longer and longer differ by factors. There the return of policy p is a + b s(p) + g(p) + e(p),
where s is how far p was trained, and the value that a simulator (or SOPR-T) gives it is that return plus an error
c + f(p) + t(p). Both g and f are Gaussian processes over action distance with a Matérn 1/2 kernel of one length; e and
t are independent between policies. A known return is the return plus the error of its measurement. So policies that
act alike have like returns and like errors of the simulator, and known returns show which to believe. Among six or more
known ones, a value that errs nine times as much as usual counts as no measurement: there the simulator fails in another
way, such as by leaving the log.

Priors, in units of the spread of returns (of the known ones, and of the values over all policies, which counts as three
degrees of freedom): a and c are 0 ± 10, b is 1.5 ± 0.5, log(sd of g) is 0 ± 1, log(sd of f) is log(1/2) ± 1; length, sd
of e and sd of t are uniform on a grid. The posterior is the mean over the grid, weighted by marginal likelihood: over
points that lie evenly in the sum of the weights, the fewer the more policies there are.

If no return is known, the values are believed, and c is 0 ± 1/2; if s is known, the sd of g is 2 and that of e 0.3. If
the simulator has several members, their values show its errors: f is larger for policies of which they disagree, and
without known returns their covariance is that of f, the smaller the more they agree on the order, with c 0 ± 1/5.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.linalg.blas import dsyrk

from .member_errors import member_errors, relative_errors

_LENGTHS = 2.0 ** np.arange(-1, 10, 2)  # in units of the typical distance to the nearest policy
_RETURN_SPREADS, _RETURN_OWN = np.array([0.25, 0.5, 1, 2]), np.array([0.02, 0.1, 0.3, 1])  # sd of g and of e
_ERROR_SPREADS, _ERROR_OWN = np.array([0.05, 0.2, 0.8]), np.array([0.02, 0.06, 0.2, 0.6, 1.8])  # sd of f and of t
_USUAL_ERROR = 0.5  # median of the prior of the sd of f
_SLOPE, _SLOPE_ERROR = 1.5, 0.5  # prior mean and sd of b
_SPREAD_UNKNOWN, _OWN_UNKNOWN = 2.0, 0.3  # sd of g and of e without known returns, if s is known
_OFFSET, _OFFSET_UNKNOWN = 10.0, 0.5  # prior sd of a and c, and of c without known returns
_OFFSET_AGREED = 0.2  # the last if members show errors
_FEW = 2.0  # so many known returns show half of the variance, as with Student's t
_PRIOR_DEGREES = 3.0  # degrees of freedom that the spread of the values over all policies counts as
_FEWEST_JUDGED, _MOST_ERROR, _LEAST_ERROR = 6, 9.0, 0.03  # known returns; median errors; units
_MOST_POINTS, _FEWEST_POINTS = 64, 3  # of the grid that count
_WORK = 12_000  # number of such points times that of policies, if there are more than 187 of these
_MOST_WEIGHING, _MOST_KNOWN_WEIGHING = 128, 96  # policies whose likelihood weighs the grid; known ones among them

_Unseen: TypeAlias = tuple[np.ndarray | float, np.ndarray | float]
_Point: TypeAlias = tuple[float, tuple[float, float], tuple[float, float]]  # length, sd of g and e, sd of f and t


@dataclass(frozen=True, eq=False)
class Posterior:
    """Joint normal distribution of the returns of P policies."""

    mean: np.ndarray  # (P,)
    covariance: np.ndarray  # (P, P)
    unit: float  # spread of the returns and values, from which the priors take their unit
    left_out: np.ndarray  # (2, P) expectation and deviation of each known return without itself; NaN for candidates
    limits: tuple[float, float] = (-np.inf, np.inf)  # least and largest possible return, to which draws are clipped

    @property
    def deviation(self) -> np.ndarray:
        """(P,) standard deviations of the returns."""
        return np.sqrt(np.diagonal(self.covariance))


def fit(
    distances: np.ndarray,  # (P, P) action distances (Eq. 3 of SOPR-T)
    returns: np.ndarray,  # (P,) known returns; NaN where unknown
    errors: np.ndarray,  # (P,) standard errors of the known returns; 0 where a return is exact
    values: np.ndarray | None = None,  # (P,) values by a simulator, in units of returns
    logged_spread: float = 0.0,  # least unit of the priors if no return is known
    members: np.ndarray | None = None,  # (P, M) values by each member of the simulator, if it has several
    progress: np.ndarray | None = None,  # (P,) how far policies were trained, in standard deviations; NaN if unknown
    unseen: Callable[[float, np.ndarray], _Unseen] = lambda unit, alike: (0.0, 0.0),
) -> Posterior:
    """Compute the posterior of the returns of all policies.

    `unseen` returns two covariances (P, P), given the unit of the returns and how alike policies act, see `likeness`:
    of errors where the log does not show what policies do, and where known returns do not show what members do. Both
    are errors of the values of policies with progress, so training counts for more; the second widens all returns.
    """
    known, count = np.isfinite(returns), len(returns)
    unit, left_out, alike = _unit(returns[known], values), np.full((2, count), np.nan), likeness(distances, known)
    progress = np.full(count, np.nan) if progress is None else progress
    trained, is_told = np.nan_to_num(progress), np.isfinite(progress)
    if not known.any():
        values, unit_of_errors = np.zeros(count) if values is None else values, max(unit, logged_spread)
        mean, covariance = values.copy(), _errors_without_returns(alike, unit_of_errors, members)
        covariance += unseen(unit_of_errors, alike)[0]
        if is_told.any():
            mean, covariance = _with_training(alike, values, covariance, unit, trained)
        return Posterior(mean, covariance, unit_of_errors, left_out)
    scale = _Scale.of(returns[known], values)
    target, feature = scale.to(returns[known]), np.full(count, np.nan)
    if values is not None:
        feature = scale.to(values)
        feature -= feature[known].mean()
        feature[known] = _credible(feature[known], target)
    sizes, expected = np.ones(count), _SLOPE * trained
    if members is not None:
        sizes = relative_errors(scale.to(members), alike, np.flatnonzero(known))
    noise = (errors[known] / scale.slope(target)) ** 2
    own_target = target - expected[known]
    (by_log, by_known), doubts = unseen(unit, alike), None
    if values is not None and is_told.any():
        told, slope = np.outer(is_told, is_told), scale.slope(scale.to(values))
        doubts = np.where(told, by_log + by_known, 0) / np.outer(slope, slope)
        by_log = np.where(is_told | is_told[:, None], 0, by_log)
    own_feature = feature - expected
    evidence = _Evidence(distances, np.flatnonzero(known), own_target, noise, own_feature, sizes, trained, doubts)
    mean, covariance, without = evidence.posterior()
    mean += expected
    without[0] += expected[known]
    if members is not None:
        covariance *= 1 + _FEW / len(target)
    slope = scale.slope(mean)
    covariance *= slope
    covariance *= slope[:, None]
    covariance += by_log
    covariance += by_known
    left_out[:, known] = scale.back(without[0]), scale.slope(without[0]) * without[1]
    return Posterior(scale.back(mean), covariance, unit, left_out)


def likeness(distances: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return how alike policies act (P, P), from 0 to 1, given distances (P, P) and which policies (P,) are known."""
    lengths = _lengths(distances, np.flatnonzero(known))
    total = np.zeros_like(distances)
    for length in lengths:
        total += _kernel(distances, length)
    total /= len(lengths)
    return total


@dataclass(frozen=True)
class _Scale:
    """asinh of what is over the center, in units of the size; that over its level, in units of all priors."""

    center: float
    size: float
    level: float = 0.0
    unit: float = 1.0

    @classmethod
    def of(cls, returns: np.ndarray, values: np.ndarray | None) -> _Scale:
        """Return the scale of the median and of the mean distance to it; the level is the mean of the returns."""
        everything = returns if values is None else np.concatenate([returns, values])
        center = float(np.median(everything))
        first = cls(center, float(np.abs(everything - center).mean()) or abs(center) or 1.0)
        own = first.to(returns)
        return replace(first, level=own.mean(), unit=_unit(own, None if values is None else first.to(values)))

    def to(self, values: np.ndarray) -> np.ndarray:
        return (np.arcsinh((values - self.center) / self.size) - self.level) / self.unit

    def back(self, scaled: np.ndarray) -> np.ndarray:
        return self.center + self.size * np.sinh(self.level + self.unit * scaled)

    def slope(self, scaled: np.ndarray) -> np.ndarray:
        """Return the derivative of `back`."""
        return self.size * self.unit * np.cosh(self.level + self.unit * scaled)


@dataclass(frozen=True, eq=False)
class _Evidence:
    """What tells of P returns, of which M are known, on the scale of the model."""

    distances: np.ndarray  # (P, P) action distances
    known: np.ndarray  # (M,) indices of the known policies
    target: np.ndarray  # (M,) known returns, over what training lets expect
    noise: np.ndarray  # (M,) variances of their errors
    feature: np.ndarray  # (P,) values, over that and over their mean among known ones; NaN where they do not count
    sizes: np.ndarray  # (P,) relative deviations of f
    trained: np.ndarray  # (P,) how far policies were trained
    doubts: np.ndarray | None  # (P, P) covariance of further errors of the values; None without any

    def posterior(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean (P,) and covariance (P, P), and mean and deviation (2, M) of known returns without themselves."""
        count = len(self.distances)
        means, left_out = [], np.zeros((2, len(self.known)))
        covariance = np.zeros((count, count), order="F")
        weighed = self.weighed(min(_MOST_POINTS, max(_FEWEST_POINTS, _WORK // count)))
        for weight, point in weighed:
            covariance, mean, (without, variance) = self.add(covariance, weight, point)
            means.append(mean)
            left_out += weight * np.stack([without, variance + without**2])
        weights = np.array([weight for weight, _ in weighed])
        mean = weights @ means
        between = np.sqrt(weights)[:, None] * (np.array(means) - mean)
        covariance = np.triu(_add_square(covariance, np.asfortranarray(between), 1.0))
        covariance += np.triu(covariance, 1).T
        covariance[np.diag_indices(count)] = np.diagonal(covariance).clip(min=0)
        left_out[1] = np.sqrt(np.maximum(left_out[1] - left_out[0] ** 2, 0))
        return mean, covariance, left_out

    def weighed(self, count: int) -> list[tuple[float, _Point]]:
        """Return points of the grid at `count` even places of the sum of their probabilities, with their shares.

        They are the probabilities of known returns and values together; of many policies, some count.
        """
        shown = _even(np.arange(len(self.known)), _MOST_KNOWN_WEIGHING)
        others = np.setdiff1d(np.arange(len(self.distances)), self.known)
        valued = np.concatenate([self.known[shown], _even(others, _MOST_WEIGHING - len(shown))])
        valued = valued[np.isfinite(self.feature[valued])]
        seen = np.concatenate([self.known[shown], valued])  # known returns, then values
        observed = np.concatenate([self.target[shown], self.feature[valued]])
        is_value, same = np.arange(len(seen)) >= len(shown), seen == seen[:, None]
        noise = np.concatenate([self.noise[shown], np.zeros(len(valued))])
        sizes, trained = self.sizes[seen] * is_value, self.trained[seen]
        common = _OFFSET**2 * (1.0 + np.outer(is_value, is_value)) + np.diag(noise)
        common += _SLOPE_ERROR**2 * np.outer(trained, trained)
        if self.doubts is not None:
            common[len(shown) :, len(shown) :] += self.doubts[np.ix_(valued, valued)]
        errors = [*itertools.product(_ERROR_SPREADS.tolist(), _ERROR_OWN.tolist())] if len(valued) else [(0.0, 0.0)]
        points, logs = [], []
        for length in _lengths(self.distances, self.known):
            kernel = _kernel(self.distances[np.ix_(seen, seen)], length)
            of_errors = np.outer(sizes, sizes) * kernel
            for spread, own in itertools.product(_RETURN_SPREADS.tolist(), _RETURN_OWN.tolist()):
                of_returns = common + spread**2 * kernel + own**2 * same
                for error_spread, error_own in errors:
                    covariance = of_returns + error_spread**2 * of_errors + np.diag(error_own**2 * is_value)
                    prior = np.log(spread) ** 2 + (np.log(error_spread / _USUAL_ERROR) ** 2 if len(valued) else 0)
                    points.append((length, (spread, own), (error_spread, error_own)))
                    logs.append(_log_likelihood(covariance, observed) - 0.5 * prior)
        sums = np.exp(np.array(logs) - max(logs)).cumsum()
        places = np.searchsorted(sums, (np.arange(count) + 0.5) / count * sums[-1])
        return [(number / count, points[i]) for i, number in Counter(places.tolist()).items()]

    def add(
        self, covariance: np.ndarray, weight: float, point: _Point
    ) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Add the covariance (P, P) of the returns at one point, given values and known returns, times its weight.

        Return the sum, of which only the upper triangle is right, mean returns (P,), and mean and variance (M,) of
        known returns without themselves.
        """
        length, (spread, own), (error_spread, error_own) = point
        known, shown = self.known, np.flatnonzero(np.isfinite(self.feature))
        prior = _kernel(self.distances, length)
        prior *= spread**2
        prior += _OFFSET**2
        if self.trained.any():
            prior += _SLOPE_ERROR**2 * np.outer(self.trained, self.trained)
        prior[np.diag_indices(len(prior))] += own**2
        covariance += weight * prior
        mean, of_known = np.zeros(len(prior)), prior[known]  # (M, P) covariance, later that given the values
        if len(shown):
            among = slice(None) if len(shown) == len(prior) else np.ix_(shown, shown)
            of_values = _kernel(self.distances[among], length)
            of_values *= error_spread**2 * self.sizes[shown, None]
            of_values *= self.sizes[shown]
            of_values += prior[among]
            if self.doubts is not None:
                of_values += self.doubts[among]
            of_values += _OFFSET**2
            of_values[np.diag_indices(len(shown))] += error_own**2
            factor = _factor(of_values)
            gain = _solve(factor, prior.T if len(shown) == len(prior) else prior[:, shown].T)
            mean = _solve(factor, self.feature[shown]) @ gain
            of_known = of_known - gain[:, known].T @ gain
            covariance = _add_square(covariance, gain, -weight)
        factor = _factor(of_known[:, known] + np.diag(self.noise))
        gain, missing = _solve(factor, np.asfortranarray(of_known)), _solve(factor, self.target - mean[known])
        inverse = _solve(factor, np.eye(len(known), order="F"))
        variance = 1 / np.square(inverse).sum(0)
        without = self.target - variance * (missing @ inverse), variance
        return _add_square(covariance, gain, -weight), mean + missing @ gain, without


def _factor(covariance: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor; the argument is overwritten."""
    return cholesky(covariance.T, lower=True, overwrite_a=True, check_finite=False)


def _solve(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the inverse of a lower factor times `right`, which is overwritten if it is in Fortran's order."""
    return solve_triangular(factor, right, lower=True, overwrite_b=right.ndim > 1, check_finite=False)


def _add_square(covariance: np.ndarray, rows: np.ndarray, weight: float) -> np.ndarray:
    """Return `covariance` + weight * rows.T @ rows, in place, of which only the upper triangle is right."""
    return dsyrk(weight, rows, 1.0, covariance, trans=True, overwrite_c=True)


def _unit(returns: np.ndarray, values: np.ndarray | None) -> float:
    """Return the unit of all priors: the spread of the known returns, pooled with that of the values."""
    degrees = max(len(returns) - 1, 0)
    spread = float(returns.var(ddof=1)) if degrees > 0 else 0.0
    if values is not None and values.var() > 0:
        spread = (degrees * spread + _PRIOR_DEGREES * float(values.var())) / (degrees + _PRIOR_DEGREES)
    return float(np.sqrt(spread)) or float(np.abs(returns).max(initial=0)) or 1.0


def _credible(feature: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the values (M,) of known policies, NaN where the error is many times the usual one."""
    if len(target) < _FEWEST_JUDGED:
        return feature
    error = feature - target
    error = np.abs(error - np.median(error))
    return np.where(error > _MOST_ERROR * max(float(np.median(error)), _LEAST_ERROR), np.nan, feature)


def _log_likelihood(covariance: np.ndarray, observed: np.ndarray) -> float:
    """Return the log density, but for a constant; the covariance is overwritten."""
    factor = _factor(covariance)
    scaled = _solve(factor, observed)
    return float(-0.5 * scaled @ scaled - np.log(np.diagonal(factor)).sum())


def _even(items: np.ndarray, most: int) -> np.ndarray:
    """Return at most so many items, evenly spread."""
    return items[np.linspace(0, len(items) - 1, min(len(items), most)).astype(int)]


def _kernel(distances: np.ndarray, length: float) -> np.ndarray:
    """Return the Matérn 1/2 kernel of distances (P, P), which are squares."""
    kernel = np.sqrt(distances)
    kernel /= -length
    return np.exp(kernel, out=kernel)


def _lengths(distances: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the lengths of the grid, in units of the median distance to the nearest policy that acts otherwise.

    It is that among the known policies if there are three.
    """
    among = distances[np.ix_(known, known)] if len(known) > 2 else distances
    nearest = among.min(1, where=among > 0, initial=np.inf)
    nearest = np.sqrt(nearest[np.isfinite(nearest)])
    return _LENGTHS * (float(np.median(nearest)) if len(nearest) else 1.0)


def _errors_without_returns(alike: np.ndarray, unit: float, members: np.ndarray | None) -> np.ndarray:
    """Return the covariance (P, P) of the errors of values if no return is known."""
    if members is not None:
        return member_errors(members, alike) + unit**2 * (_OFFSET_AGREED**2 + _LEAST_ERROR**2 * alike)
    weights = np.exp(-0.5 * np.log(_ERROR_SPREADS / _USUAL_ERROR) ** 2)
    spread = weights @ _ERROR_SPREADS**2 / weights.sum()
    own = np.square(_ERROR_OWN).mean() * np.eye(len(alike))
    return unit**2 * (_OFFSET_UNKNOWN**2 + spread * alike + own)


def _with_training(
    alike: np.ndarray, values: np.ndarray, errors: np.ndarray, unit: float, trained: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (P,) and covariance (P, P) of returns that training foretells, given values with errors (P, P)."""
    prior = _OFFSET**2 + _SLOPE_ERROR**2 * np.outer(trained, trained) + _SPREAD_UNKNOWN**2 * alike
    prior = unit**2 * (prior + _OWN_UNKNOWN**2 * np.eye(len(alike)))
    expected = values.mean() + _SLOPE * unit * trained
    factor = _factor(prior + errors)
    gain = _solve(factor, prior.copy(order="F"))
    return expected + _solve(factor, values - expected) @ gain, prior - gain.T @ gain
