"""Decisions under a joint distribution of returns: who may be best, whom to measure next."""

from __future__ import annotations

import numpy as np

from ..estimators.gaussian_process_posterior import Posterior

_DRAWS = 4096


def draw_returns(posterior: Posterior, policies: np.ndarray, seed: int) -> np.ndarray:
    """Draw possible joint returns (draws, Q) of some policies, equal whatever their order and the unit of returns."""
    mean, covariance = posterior.mean[policies], posterior.covariance[np.ix_(policies, policies)]
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T  # the only symmetric root, unlike the eigenvectors
    noise = np.random.default_rng([seed, 9]).standard_normal((_DRAWS, len(policies)))
    places = np.argsort(np.argsort(-mean, kind="stable"))
    return (mean + noise[:, places] @ root).clip(*posterior.limits)


def probability_best(posterior: Posterior, seed: int) -> np.ndarray:
    """Return each policy's probability (P,) of having the highest return, which certainly equal policies share."""
    everyone = np.arange(len(posterior.mean))
    draws = draw_returns(posterior, everyone, seed)
    winners = draws >= draws.max(1, keepdims=True)
    return (winners / winners.sum(1, keepdims=True)).mean(0)


def probability_beats(posterior: Posterior, other: int) -> np.ndarray:
    """Return each policy's probability (P,) of a higher return than policy `other`; 0.5 for certainly equal returns."""
    from scipy.special import ndtr

    mean, covariance = posterior.mean, posterior.covariance
    variance = np.diagonal(covariance) + covariance[other, other] - 2 * covariance[other]
    gap = mean - mean[other]
    certain = variance <= 1e-12 * np.abs(covariance).max()
    return np.where(certain, 0.5 * (1 + np.sign(gap)), ndtr(gap / np.sqrt(np.where(certain, 1, variance))))


def best_to_measure(posterior: Posterior, policies: np.ndarray, floor: float, k: int, seed: int) -> list[int]:
    """Choose the k of Q policies whose measurement is expected to gain most over a return that is there, the floor.

    Policies join one by one: each raises the expected maximum of `floor` and the chosen ones most (parallel expected
    improvement), so that several whose returns are strongly correlated are not chosen together.
    """
    draws = draw_returns(posterior, policies, seed)
    best = np.full(len(draws), floor)
    chosen: list[int] = []
    for _ in range(min(k, len(policies))):
        value = np.maximum(draws, best[:, None]).mean(0)
        order = np.lexsort((posterior.mean[policies], value))  # by gain, then by expected return
        pick = next(int(i) for i in order[::-1] if i not in chosen)
        chosen.append(pick)
        best = np.maximum(best, draws[:, pick])
    return [int(policies[i]) for i in chosen]
