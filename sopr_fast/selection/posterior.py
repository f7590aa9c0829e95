"""Joint Gaussian posterior of the returns of known policies and candidates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

# Prior of the variances, in units of the variance of the known returns: (median, standard deviation of the logarithm).
_PRIOR = {
    "offset": (1.0, 1.0),  # of a group
    "slope": (0.1, 1.5),  # of the score within a group
    "weights": (0.05, 1.5),  # of each column's own effect, near known policies only
    "local": (0.2, 1.5),  # of what similar actions share beyond that
    "length": (2.0, 1.0),  # of the local term, in units of the typical distance to the nearest policy
    "noise": (0.1, 1.5),
}
_MEAN_VARIANCE = 4.0
_SLOPE_VARIANCE = 0.1  # of the standardised returns on the standardised score
_STEPS = np.log(10) * np.array([-1.0, -0.5, -0.25, 0.25, 0.5, 1.0])


@dataclass(frozen=True, eq=False)
class Design:
    """What the posterior knows of the policies beside their returns.

    Attributes:
        score: (P,) standardised score of the outside weights.
        columns: (P, m) standardised columns.
        gate: (P,) from 0 (like known policies) to 1 (foreign).
        membership: (P, G) square roots of the shares by which policies belong to groups; rows have norm 1.
        distances: (P, P) action distances over the typical distance to the nearest policy, or None.
        slope: Expected slope of the standardised returns on the score.
    """

    score: np.ndarray
    columns: np.ndarray
    gate: np.ndarray
    membership: np.ndarray
    distances: np.ndarray | None
    slope: float = 0.5


@dataclass(frozen=True, eq=False)
class Posterior:
    """Gaussian over the returns of all policies.

    Attributes:
        mean: (P,) expected returns.
        covariance: (P, P) covariance of the returns.
        variances: Term -> variance (see `_PRIOR`), in units of the variance of the known returns.
    """

    mean: np.ndarray
    covariance: np.ndarray
    variances: dict[str, float]

    @property
    def deviation(self) -> np.ndarray:
        """(P,) standard deviations of the returns."""
        return np.sqrt(np.maximum(np.diagonal(self.covariance), 0))

    def scaled(self, factors: np.ndarray) -> Posterior:
        """Return the posterior with each policy's standard deviation multiplied by its factor."""
        return replace(self, covariance=self.covariance * np.outer(factors, factors))


class _Terms:
    """Covariance of the returns as a sum of fixed matrices times variances."""

    def __init__(self, design: Design) -> None:
        score = np.outer(design.score, design.score)
        near = (1 - design.gate)[:, None] * design.columns
        same = design.membership @ design.membership.T
        self.fixed = _MEAN_VARIANCE + _SLOPE_VARIANCE * score
        self.linear = {"offset": same, "slope": same * score, "weights": near @ near.T}
        self.distances = design.distances

    def covariance(self, variances: dict[str, float]) -> np.ndarray:
        total = self.fixed + sum(variances[name] * matrix for name, matrix in self.linear.items())
        if self.distances is not None:
            total = total + variances["local"] * np.exp(-self.distances / (2 * variances["length"]))
        return total


def fit_posterior(
    design: Design,
    returns: np.ndarray,
    errors: np.ndarray,
    *,
    sweeps: int = 3,
    start: dict[str, float] | None = None,
    scale: float | None = None,
) -> Posterior:
    """Fit the variances to the known returns and condition on them.

    The return of a policy is modelled as a constant, plus a slope times its score, plus an offset and a slope of its
    group, plus effects of single columns that fade with the gate, plus a local term that fades with action distance,
    plus noise. The variances maximise the marginal likelihood times a log-normal prior, by coordinate search.

    Args:
        design: What is known of the policies.
        returns: (P,) returns, NaN for candidates; at least two are finite.
        errors: (P,) standard errors of the returns.
        sweeps: Number of passes over the variances; 0 keeps the start.
        start: Variances to start from; the prior's medians by default.
        scale: Unit of the returns; their standard deviation by default.

    Returns:
        The posterior of the returns that a long evaluation would measure. Noise of the model is part of the
        covariance of candidates, not of known policies.
    """
    known = np.flatnonzero(np.isfinite(returns))
    center = returns[known].mean()
    scale = scale or returns[known].std() or 1.0
    y = (returns[known] - center) / scale - design.slope * design.score[known]
    y_variance = (errors[known] / scale) ** 2
    terms = _Terms(design)
    known_terms = _Terms(_take(design, known))
    variances = {name: median for name, (median, _) in _PRIOR.items()} | (start or {})
    best = _log_posterior(known_terms, variances, y, y_variance)
    names = [name for name in _PRIOR if design.distances is not None or name not in ("local", "length")]
    for _ in range(sweeps):
        for name in names:
            for step in _STEPS:
                proposal = variances | {name: variances[name] * np.exp(step)}
                value = _log_posterior(known_terms, proposal, y, y_variance)
                if value > best + 1e-9:
                    best, chosen = value, proposal
                    variances = chosen
    prior = terms.covariance(variances)
    latent = prior + variances["noise"] * np.eye(len(returns))
    observed = latent[np.ix_(known, known)] + np.diag(y_variance + 1e-8)
    gain = np.linalg.solve(observed, latent[known]).T  # (P, K)
    mean = center + scale * (design.slope * design.score + gain @ y)
    certain = known[errors[known] == 0]
    mean[certain] = returns[certain]  # rounding must not decide between equal returns
    covariance = latent - gain @ latent[known]
    covariance = (covariance + covariance.T) / 2
    return Posterior(mean, scale**2 * covariance, variances)


def _take(design: Design, policies: np.ndarray) -> Design:
    distances = None if design.distances is None else design.distances[np.ix_(policies, policies)]
    return replace(
        design,
        score=design.score[policies],
        columns=design.columns[policies],
        gate=design.gate[policies],
        membership=design.membership[policies],
        distances=distances,
    )


def _log_posterior(terms: _Terms, variances: dict[str, float], y: np.ndarray, y_variance: np.ndarray) -> float:
    observed = terms.covariance(variances) + np.diag(variances["noise"] + y_variance + 1e-8)
    try:
        factor = np.linalg.cholesky(observed)
    except np.linalg.LinAlgError:
        return -np.inf
    white = np.linalg.solve(factor, y)
    value = -0.5 * white @ white - np.log(np.diagonal(factor)).sum()
    for name, (median, width) in _PRIOR.items():
        value -= 0.5 * (np.log(variances[name] / median) / width) ** 2
    return float(value)
