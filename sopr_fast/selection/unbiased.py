"""The posterior of unbiased values, such as those of importance weighting in bandits."""

from __future__ import annotations

import numpy as np

from ..estimators.gaussian_process_posterior import Posterior

_JITTER = 1e-9  # of the mean variance, so that equal policies with exact returns can be inverted


def combine(
    values: np.ndarray,  # (P,) estimates
    covariance: np.ndarray,  # (P, P) of their errors; NaN for policies of which the log shows too little
    returns: np.ndarray,  # (P,) known returns; NaN where unknown
    errors: np.ndarray,  # (P,) standard errors of the known returns; 0 where a return is exact
    spread: float,  # standard deviation of the logged returns
) -> Posterior:
    """Return the posterior of the returns of P policies, given those of the known ones.

    Returns of policies of which the log shows too little are the mean of the other estimates, ± `spread`.
    """
    shown = np.isfinite(np.diagonal(covariance))
    mean = np.where(shown, values, values[shown].mean() if shown.any() else np.nanmean(values))
    covariance = np.where(np.isfinite(covariance), covariance, 0.0) + np.diag(np.where(shown, 0.0, spread**2))
    known, left_out = np.flatnonzero(np.isfinite(returns)), np.full((2, len(values)), np.nan)
    unit = float(np.std(mean)) or spread or 1.0
    if not len(known):
        return Posterior(mean, covariance, unit, left_out)
    noise = errors[known] ** 2 + _JITTER * (np.trace(covariance) / len(values) or unit**2)
    precision = np.linalg.inv(covariance[np.ix_(known, known)] + np.diag(noise))
    missed, cross = returns[known] - mean[known], covariance[:, known]
    variance = 1 / np.diagonal(precision)
    left_out[:, known] = returns[known] - variance * (precision @ missed), np.sqrt(variance)
    return Posterior(mean + cross @ precision @ missed, covariance - cross @ precision @ cross.T, unit, left_out)
