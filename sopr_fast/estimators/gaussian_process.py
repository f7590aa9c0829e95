"""A Gaussian process of returns over action distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..ranking.estimates import Estimates
from ..runtime.shares import share_policies
from .action_distance import ActionDistanceEstimator, shared_distances
from .supervised import SupervisedProblem

_LENGTHS = 2.0 ** np.arange(-1, 10)  # in units of the typical distance to the nearest policy
_NOISES = np.array([3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001])  # over the variance of the process; of equals, the first
_GAIN = 1e-6  # of the logarithm of the likelihood, from which a later choice is better


@dataclass(frozen=True)
class GaussianProcess(ActionDistanceEstimator):
    """Gaussian process of the return, with a Matérn 1/2 kernel of the root of the action distance (Eq. 3 of SOPR-T).

    Policies that act alike have like returns; far from all known policies the value is the mean of the process. It is
    the model of active offline policy selection (Konyushkova et al. 2021) without its estimates. It needs no rewards,
    discount, seed or device. Length, noise and variance maximise the restricted likelihood of the known returns over a
    grid. A known policy gets its value from the other known policies, with the length and noise of all.

    Attributes:
        rows: Number of logged states on which policies are compared, evenly spaced.

    Standard errors are those of the process; NaN with fewer than three known policies.

    Diagnostics:
        length: Length of the kernel, in units of the root of the action distance.
        noise: Variance of the noise over that of the process.

    Raises:
        ValueError: The only known policy is to be evaluated.
    """

    def _evaluate(self, problem: SupervisedProblem) -> Estimates:
        columns, known_columns = self._columns(problem)
        with problem.request.timings.stage("evaluation"):
            roots = np.sqrt(self._distances(problem, columns, known_columns))
            between = np.sqrt(shared_distances(known_columns, known_columns))
            center = problem.returns.mean()
            unit = float(np.abs(problem.returns - center).max()) or 1.0
            process = _Process.fit(between, (problem.returns - center) / unit)
            values, errors = share_policies(len(roots), lambda part: process.predict(roots[part])).numpy().T
        return Estimates(
            [policy.name for policy in problem.policies],
            center + unit * values,
            unit * errors,
            method=self.name,
            diagnostics={"length": process.length, "noise": process.noise},
            timings=dict(problem.request.timings),
        )


@dataclass(frozen=True, eq=False)
class _Process:
    """A process fitted to M known returns.

    Attributes:
        length: Length of the kernel.
        noise: Variance of the noise over that of the process.
        variance: Variance of the process.
        precision: (M, M) inverse of the covariance over the variance.
        returns: (M,) known returns.
    """

    length: float
    noise: float
    variance: float
    precision: np.ndarray
    returns: np.ndarray

    @classmethod
    def fit(cls, roots: np.ndarray, returns: np.ndarray) -> _Process:
        """Choose length, noise and variance by restricted likelihood.

        Args:
            roots: (M, M) roots of action distances.
            returns: (M,) known returns.
        """
        count = len(returns)
        nearest = (roots + np.where(np.eye(count, dtype=bool), np.inf, 0)).min(1)
        positive = nearest[np.isfinite(nearest) & (nearest > 0)]
        unit = float(np.median(positive)) if len(positive) else 1.0
        best, chosen = -np.inf, None
        for length in unit * _LENGTHS:
            kernel = np.exp(-roots / length)
            for noise in _NOISES:
                factor = np.linalg.cholesky(kernel + noise * np.eye(count))
                whole = np.linalg.inv(factor)
                precision = whole.T @ whole
                total = precision.sum()
                centered = returns - (precision @ returns).sum() / total
                variance = float(centered @ precision @ centered) / max(count - 1, 1)
                logs = 2 * np.log(np.diagonal(factor)).sum() + np.log(total)
                likelihood = -0.5 * ((count - 1) * np.log(max(variance, np.finfo(float).tiny)) + logs)
                if likelihood > best + _GAIN:
                    best, chosen = likelihood, cls(float(length), float(noise), variance, precision, returns)
        assert chosen is not None
        return chosen

    def predict(self, roots: np.ndarray) -> Tensor:
        """Return values and standard errors of P policies, (P, 2) float64.

        Args:
            roots: (P, M) roots of action distances; infinity between a policy and itself, which leaves its return out.
        """
        values, errors = np.zeros(len(roots)), np.full(len(roots), np.nan)
        everyone = np.arange(len(self.returns))
        for i, row in enumerate(roots):
            rest = everyone[np.isfinite(row)]
            precision = _without(self.precision, everyone[np.isinf(row)], rest)
            kernel, total = np.exp(-row[rest] / self.length), precision.sum()
            mean = (precision @ self.returns[rest]).sum() / total
            weights = precision @ kernel
            values[i] = mean + weights @ (self.returns[rest] - mean)
            if len(everyone) > 2:
                share = 1 + self.noise - weights @ kernel + (1 - weights.sum()) ** 2 / total
                errors[i] = np.sqrt(self.variance * max(share, 0.0))
        return torch.from_numpy(np.stack([values, errors], 1))


def _without(precision: np.ndarray, left_out: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Return the inverse of a covariance without some rows, from the inverse of the whole (a Schur complement)."""
    if not len(left_out):
        return precision
    cross = precision[np.ix_(rest, left_out)]
    return precision[np.ix_(rest, rest)] - cross @ np.linalg.solve(precision[np.ix_(left_out, left_out)], cross.T)
