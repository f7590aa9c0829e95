"""The posterior of unbiased values, and what widens others where neither the log nor known returns show policies."""

from __future__ import annotations

import numpy as np

from ..estimators.gaussian_process_posterior import Posterior
from ..estimators.log_support import MOST_UNSUPPORTED
from ..estimators.member_errors import HONEST

_JITTER = 1e-9  # of the mean variance, so that equal policies with exact returns can be inverted
_WIDENED = 1.5  # deviation where the log does not show what a policy does, in units of the returns
_UNLIVED = 2.5  # that in units of what policies would earn after the ends that a simulator guesses
_FULLY = 0.5  # share of decisions from which it is as large as that
_COMMON = 0.5  # share of this variance that is common to such policies, whatever they do


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


def widening(
    shares: np.ndarray,  # (P,) shares of decisions that the log does not support
    unlike: np.ndarray,  # (P,) from 0 where a known policy acts the same to 1 where none acts alike
    alike: np.ndarray,  # (P, P) how alike policies act, from 0 to 1
    unit: float,  # of the returns
    unlived: np.ndarray | float = 0.0,  # (P,) what policies would earn from the simulated ends of episodes on
) -> np.ndarray:
    """Return the covariance (P, P) of errors where neither the log nor known returns show what policies do.

    The deviation grows from 0 where 40 % of the decisions are not supported to its whole at 50 %: 1.5 units of the
    returns, or 2.5 times what is not lived if that is more. Half of the variance is common to all such policies, the
    other half is alike where policies act alike.
    """
    reached = ((shares - MOST_UNSUPPORTED) / (_FULLY - MOST_UNSUPPORTED)).clip(0, 1)
    sizes = reached * np.sqrt(unlike) * np.maximum(_WIDENED * unit, _UNLIVED * unlived)
    return _scaled(_COMMON + (1 - _COMMON) * alike, sizes)


def errors_far_from_known(members: np.ndarray, unlike: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """Return the covariance (P, P) of errors that known returns do not show, which members (P, M) do.

    Known returns show how a simulator errs for policies that act like them. The variance is a share of that of the
    members; for `unlike` and `alike` see `widening`.
    """
    sizes = HONEST * members.std(1, ddof=1) * np.sqrt(unlike)
    return _scaled(alike.copy(), sizes)


def _scaled(correlations: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """Return the covariance (P, P), in place of its correlations, of which there may be millions."""
    correlations *= deviations
    correlations *= deviations[:, None]
    return correlations
