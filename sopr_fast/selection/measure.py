"""Decisions under the posterior: who may be best, and whom to measure next."""

from __future__ import annotations

from math import erf, sqrt

import numpy as np

from .predict import Prediction

_DRAWS = 4096
_UNDECIDED = 0.2  # least probability of beating the leader to stay in its group


def draw_returns(prediction: Prediction, policies: np.ndarray, draws: int = _DRAWS) -> np.ndarray:
    """Draw joint returns of some policies from the posterior.

    Args:
        prediction: The prediction.
        policies: (Q,) indices.
        draws: Number of draws.

    Returns:
        (draws, Q) returns, equal for equal seeds, whatever the order of the policies and the unit of the returns.
    """
    mean, covariance = prediction.posterior.mean[policies], prediction.posterior.covariance[np.ix_(policies, policies)]
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T  # the only symmetric root, unlike the eigenvectors
    noise = np.random.default_rng(prediction.seed).standard_normal((draws, len(policies)))
    places = np.argsort(np.argsort(-mean, kind="stable"))
    return mean + noise[:, places] @ root


def probability_best(prediction: Prediction) -> np.ndarray:
    """Compute each candidate's probability of having the highest return of all candidates.

    Returns:
        (P,) probabilities that sum to 1 over the candidates; 0 for known policies.
    """
    candidates = np.flatnonzero(~prediction.panel.known)
    result = np.zeros(len(prediction.panel))
    if len(candidates):
        winners = draw_returns(prediction, candidates).argmax(1)
        result[candidates] = np.bincount(winners, minlength=len(candidates)) / _DRAWS
    return result


def probability_beats(prediction: Prediction, name: str) -> np.ndarray:
    """Compute each policy's probability of having a higher return than the named one.

    Args:
        prediction: The prediction.
        name: A known policy, such as the incumbent, or a candidate.

    Returns:
        (P,) probabilities; 0.5 where two returns are certainly equal, and for the policy itself.
    """
    other = prediction.panel.names.index(name)
    mean, covariance = prediction.posterior.mean, prediction.posterior.covariance
    variance = np.diagonal(covariance) + covariance[other, other] - 2 * covariance[other]
    floor = 1e-12 * np.abs(covariance).max()
    return np.array([_beats(gap, v, floor) for gap, v in zip(mean - mean[other], variance, strict=True)])


def _beats(gap: float, variance: float, floor: float) -> float:
    if variance <= floor:
        return 0.5 * (1 + float(np.sign(gap)))
    return 0.5 * (1 + erf(gap / sqrt(2 * variance)))


def leaders(prediction: Prediction) -> list[str]:
    """List the candidate with the highest expected return, then those that cannot be told apart from it.

    A candidate stays with the leader if it beats it with a probability of at least 0.2.
    """
    candidates = np.flatnonzero(~prediction.panel.known)
    if not len(candidates):
        return []
    order = candidates[np.argsort(-prediction.posterior.mean[candidates], kind="stable")]
    beats = probability_beats(prediction, prediction.panel.names[order[0]])
    return [prediction.panel.names[i] for i in order if i == order[0] or beats[i] >= _UNDECIDED]


def regret_draws(prediction: Prediction, name: str) -> np.ndarray:
    """Draw the normalised regret of deploying a candidate instead of another one or the rival.

    Returns:
        (draws,) from 0 (it is the best of them) to 1 (the worst).
    """
    names = prediction.panel.names
    options = np.flatnonzero(~prediction.panel.known)
    if prediction.rival is not None:
        options = np.append(options, names.index(prediction.rival))
    draws = draw_returns(prediction, options)
    chosen = draws[:, int(np.flatnonzero(options == names.index(name))[0])]
    spread = np.ptp(draws, axis=1)
    return (draws.max(1) - chosen) / np.where(spread > 0, spread, 1)


def measure_next(prediction: Prediction, k: int = 1, floor: float | None = None) -> list[str]:
    """Choose the candidates whose measurement is expected to gain most.

    Candidates join the batch one by one: each raises the expected maximum of the batch (parallel expected improvement)
    most, so that a batch does not hold several candidates whose returns are strongly correlated. Thompson sampling
    would draw a batch at random; expected improvement gives the same batch for the same evidence.

    Args:
        prediction: The prediction.
        k: Size of the batch; fewer if there are fewer candidates.
        floor: Return that must be exceeded; by default the expected one of the incumbent or of the best candidate
            measured so far, whichever is higher.

    Returns:
        Names, the first to measure first.
    """
    candidates = np.flatnonzero(~prediction.panel.known)
    if not len(candidates):
        return []
    draws = draw_returns(prediction, candidates)
    if floor is None:
        rival, mean = prediction.rival, prediction.posterior.mean
        floor = -np.inf if rival is None else float(mean[prediction.panel.names.index(rival)])
    best = np.full(len(draws), floor)
    chosen: list[int] = []
    for _ in range(min(k, len(candidates))):
        value = np.maximum(draws, best[:, None]).mean(0)
        # Candidates without any gain in the draws follow in the order of their expected returns.
        order = np.lexsort((prediction.posterior.mean[candidates], value))
        pick = next(int(i) for i in order[::-1] if i not in chosen)
        chosen.append(pick)
        best = np.maximum(best, draws[:, pick])
    return [prediction.panel.names[candidates[i]] for i in chosen]
