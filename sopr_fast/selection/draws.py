"""Possible joint returns of policies: draws, probabilities, and whose measurement gains most."""

from __future__ import annotations

import numpy as np

from ..estimators.gaussian_process_posterior import Posterior

_DRAWS = 4096
_EQUAL = 1e-4  # returns that differ by less, in units of their spread, are equal


def draw_returns(posterior: Posterior, seed: int) -> np.ndarray:
    """Draw possible joint returns (draws, P), equal whatever the order of policies and the unit of returns."""
    from scipy.linalg.blas import dtrmm

    order = np.argsort(-posterior.mean, kind="stable")
    noise = np.random.default_rng([seed, 9]).standard_normal((_DRAWS, len(order)))
    draws = dtrmm(1.0, _root(posterior.covariance, order), noise.T, lower=1, overwrite_b=1).T
    draws += posterior.mean[order]
    draws = draws[:, np.argsort(order)]
    return draws.clip(*posterior.limits, out=draws)


def _root(covariance: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return a lower factor of a covariance in another order, to whose diagonal as little is added as it takes."""
    from scipy.linalg import LinAlgError, cholesky

    added = 1e-10 * (float(np.diagonal(covariance).mean()) or 1.0)
    while True:
        ordered = covariance[np.ix_(order, order)]
        ordered[np.diag_indices(len(order))] += added
        try:
            return cholesky(ordered.T, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            added *= 100


def probability_best(posterior: Posterior, draws: np.ndarray) -> np.ndarray:
    """Return each policy's probability (P,) of having the highest return, which equal policies share."""
    winners = draws >= draws.max(1, keepdims=True) - _EQUAL * posterior.unit
    return (winners / winners.sum(1, keepdims=True)).mean(0)


def probability_beats(posterior: Posterior, other: int) -> np.ndarray:
    """Return each policy's probability (P,) of a higher return than policy `other`; 0.5 for certainly equal returns."""
    from scipy.special import ndtr

    mean, covariance = posterior.mean, posterior.covariance
    variance = np.diagonal(covariance) + covariance[other, other] - 2 * covariance[other]
    gap = mean - mean[other]
    certain = variance <= 1e-12 * np.abs(covariance).max()
    return np.where(certain, 0.5 * (1 + np.sign(gap)), ndtr(gap / np.sqrt(np.where(certain, 1, variance))))


def best_to_measure(draws: np.ndarray, mean: np.ndarray, floor: np.ndarray, k: int) -> tuple[list[int], float]:
    """Return the k of Q policies whose measurement is expected to gain most, and what the first gains, 0 without any.

    Policies join one by one: each raises the expected maximum of what is there, the floor (draws,), and of the chosen
    ones most (parallel expected improvement). So several whose returns are strongly correlated are not chosen together.
    Between equal gains in the draws (draws, Q), the expected returns (Q,) decide.
    """
    best, chosen, gain = floor, list[int](), 0.0
    for _ in range(min(k, len(mean))):
        value = np.maximum(draws, best[:, None]).mean(0)
        value[chosen] = -np.inf
        pick = int(np.lexsort((mean, value))[-1])
        gain = gain if chosen else float(value[pick] - floor.mean())
        best = np.maximum(best, draws[:, pick])
        chosen.append(pick)
    return chosen, gain
