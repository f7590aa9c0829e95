"""Agreement of a ranking with true returns, and distances between policies.

Sequences are compared by position; `Ranking.spearman` and `Ranking.regret` go by name. Two pandas
series must have the same index.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike

from ..runtime.arrays import as_numbers

_ROWS = 1024  # states of which a distance makes float64 copies at a time


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Return Spearman's rank correlation of two sequences, with average ranks on ties.

    Args:
        a: n numbers.
        b: n numbers.

    Returns:
        The correlation; NaN if n < 2 or all numbers of a sequence are equal.

    Raises:
        ValueError: Lengths or indexes differ, or a number is not finite.
    """
    first, second = (_ranks(x) - (len(x) + 1) / 2 for x in _pair("spearman", a, b))
    norm = np.sqrt((first @ first) * (second @ second))
    return float(first @ second / norm) if norm > 0 else float("nan")


def _ranks(x: np.ndarray) -> np.ndarray:  # scipy.stats takes half a second to import
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def agreement(replicates: np.ndarray) -> float:
    """Return the mean Spearman correlation of all pairs of columns of replicates (P, R); NaN if it is undefined."""
    pairs = itertools.combinations(replicates.T, 2)
    found = [spearman(a, b) for a, b in pairs] if len(replicates) > 2 else []
    return float(np.mean(found)) if found else float("nan")


def regret_at_k(*, returns: ArrayLike, scores: ArrayLike, k: int) -> float:
    """Return the normalised regret@k (paper section 4.1): what the best of the k highest-scored policies lacks.

    (max of all returns - max of the k) / (max - min of all returns), from 0 to 1; 0 if all returns are equal. If
    equal scores leave the choice open, it is the mean over all choices.

    Args:
        returns: (n,) true returns.
        scores: (n,) scores.
        k: Number of policies chosen, 1 to n.

    Raises:
        ValueError: `k` is out of range, lengths or indexes differ, or a number is not finite.
    """
    returns, scores = _pair("regret_at_k", returns, scores)
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= len(returns):
        raise ValueError(f"k must be an integer from 1 to the number of policies, {len(returns)}, got {k!r}")
    best, worst = returns.max(), returns.min()
    if best == worst:
        return 0.0
    last = np.sort(scores)[-k]
    sure, tied = returns[scores > last], -np.sort(-returns[scores == last])
    missing = k - len(sure)  # chosen among the tied
    chosen = np.maximum(tied[: len(tied) - missing + 1], sure.max(initial=worst))
    # Number i of the tied is the best of the chosen if it is chosen, and none before it is.
    odds = missing / (len(tied) - np.arange(len(chosen)))
    shares = odds * np.cumprod(np.append(1.0, 1 - odds[:-1]))
    return float(shares @ (best - chosen) / (best - worst))


def policy_distances(a_columns: ArrayLike, b_columns: ArrayLike) -> np.ndarray:
    """Return all action distances between two sets of policies, (A, B) float64.

    The action distance of two policies is the mean over states of the squared Euclidean distance of their columns.
    Eq. 3 of the paper is the mean over candidates of their distances to the nearest training policy.

    Args:
        a_columns: (A, N, d) columns.
        b_columns: (B, N, d) columns in the same states.

    Raises:
        ValueError: Shapes do not agree, or there are no policies or states.
    """
    a, b = as_numbers(a_columns), as_numbers(b_columns)
    if a.ndim != 3 or b.ndim != 3 or a.shape[1:] != b.shape[1:] or 0 in (*a.shape, len(b)):
        raise ValueError(f"columns must be (policies, states, width) of the same states, got {a.shape} and {b.shape}")
    total = np.zeros((len(a), len(b)))
    for first in range(0, a.shape[1], _ROWS):
        x, y = (part[:, first : first + _ROWS].astype(np.float64) for part in (a, b))
        for row, policy in zip(total, x, strict=True):  # one by one, so that no distance depends on the other policies
            difference = y - policy
            row += np.einsum("bnd,bnd->b", difference, difference)
    return total / a.shape[1]


def _pair(function: str, a: ArrayLike, b: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    indexes = [x.index for x in (a, b) if hasattr(x, "index") and not callable(x.index)]
    a, b = (as_numbers(x).astype(np.float64) for x in (a, b))
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"expected two sequences of one length, got shapes {a.shape} and {b.shape}")
    if len(indexes) == 2 and not indexes[0].equals(indexes[1]):
        raise ValueError(
            f"{function} goes by position, but the two indexes differ; "
            "reindex one like the other, or pass .to_numpy() of each"
        )
    for x in (a, b):
        if not np.isfinite(x).all():
            first = int(np.flatnonzero(~np.isfinite(x))[0])
            raise ValueError(f"expected finite numbers, got {x[first]} at position {first}")
    return a, b
