"""How well a ranking agrees with true returns, and how far policies are from each other.

Sequences are compared by position: `[returns[name] for name in ranking.names]`. Two pandas series must have the
same index.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_ROWS = 1024  # states that a distance takes into float64 at a time


def spearman(a: Any, b: Any) -> float:
    """Spearman's rank correlation of two sequences of n numbers, average ranks on ties.

    nan where it is not defined: n < 2, or all of `a` or of `b` equal.

    Raises:
        ValueError: sequences of different lengths or indexes, nan or infinite numbers.
    """
    a, b = _pair("spearman", a, b)
    if len(a) < 2:
        return float("nan")
    a, b = (_average_ranks(x) - (len(x) - 1) / 2 for x in (a, b))
    norm = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / norm) if norm > 0 else float("nan")


def kendall(a: Any, b: Any) -> float:
    """Kendall's rank correlation τ-b of two sequences of n numbers: tied pairs count in neither direction.

    nan where it is not defined: n < 2, or all of `a` or of `b` equal. Time grows as n², memory as n.

    Raises:
        ValueError: sequences of different lengths or indexes, nan or infinite numbers.
    """
    a, b = _pair("kendall", a, b)
    agreement = untied_a = untied_b = 0
    for i in range(1, len(a)):
        sign_a, sign_b = np.sign(a[i] - a[:i]), np.sign(b[i] - b[:i])
        agreement += int(sign_a @ sign_b)
        untied_a += np.count_nonzero(sign_a)
        untied_b += np.count_nonzero(sign_b)
    norm = float(np.sqrt(float(untied_a) * untied_b))
    return agreement / norm if norm > 0 else float("nan")


def regret_at_k(*, returns: Any, scores: Any, k: int) -> float:
    """Normalised regret@k: what the best of the k highest-scored policies lacks to the best of all (paper,
    section 4.1).

    (max of all returns - max of the chosen ones) / (max - min of all returns), from 0 to 1; 0 if all returns
    are equal. Equal scores are taken in input order.

    Args:
        returns, scores: (n,) numbers, in any order.
        k: 1 to n.

    Raises:
        ValueError: k outside 1 to n, different lengths or indexes, nan or infinite numbers.
    """
    returns, scores = _pair("regret_at_k", returns, scores)
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= len(returns):
        raise ValueError(f"k must be an integer from 1 to the number of policies, {len(returns)}, got {k!r}")
    chosen = np.argsort(-scores, kind="stable")[:k]
    best, worst = returns.max(), returns.min()
    return float((best - returns[chosen].max()) / (best - worst)) if best > worst else 0.0


def policy_distance(train_columns: Any, test_columns: Any) -> tuple[np.ndarray, np.ndarray]:
    """Distance of every test policy to the nearest training policy (the terms of Eq. 3's sum), and which that
    is.

    The distance of two policies is the mean over states of the squared Euclidean distance of their columns.

    Args:
        train_columns: (M, N, d) what M training policies do in N states, array or tensor.
        test_columns: (M', N, d) what M' test policies do in the same states.

    Returns:
        (M',) float64 distances and (M',) int64 indices of the nearest training policies, ties to the first.
        Eq. 3 itself is the mean of the distances.

    Raises:
        ValueError: shapes that do not agree, empty sets.
    """
    distances = policy_distances(test_columns, train_columns)
    nearest = distances.argmin(1)
    return np.take_along_axis(distances, nearest[:, None], 1)[:, 0], nearest


def policy_distances(a_columns: Any, b_columns: Any) -> np.ndarray:
    """(A, B) float64: distances of policies (A, N, d) to policies (B, N, d), see `policy_distance`.

    Raises:
        ValueError: shapes that do not agree, empty sets.
    """
    a, b = _numbers(a_columns), _numbers(b_columns)
    if a.ndim != 3 or b.ndim != 3 or a.shape[1:] != b.shape[1:] or 0 in (*a.shape, len(b)):
        raise ValueError(f"columns must be (policies, states, width) of the same states, got {a.shape} and {b.shape}")
    total = np.zeros((len(a), len(b)))
    for first in range(0, a.shape[1], _ROWS):
        x, y = (part[:, first : first + _ROWS].astype(np.float64) for part in (a, b))
        for row, policy in zip(total, x, strict=True):  # one by one, so that none depends on who else is asked
            difference = y - policy
            row += np.einsum("bnd,bnd->b", difference, difference)
    return total / a.shape[1]


def _average_ranks(x: np.ndarray) -> np.ndarray:
    """Ranks from 0; equal numbers share the mean of theirs."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return (last - (counts + 1) / 2)[inverse]


def _pair(function: str, a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    indexes = [x.index for x in (a, b) if hasattr(x, "index") and not callable(x.index)]
    a, b = (_numbers(x).astype(np.float64) for x in (a, b))
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"expected two sequences of one length, got shapes {a.shape} and {b.shape}")
    if len(indexes) == 2 and not indexes[0].equals(indexes[1]):
        raise ValueError(
            f"{function} goes by position, but the two indexes differ; "
            "put one in the other's order, or pass .to_numpy() of each"
        )
    for x in (a, b):
        if not np.isfinite(x).all():
            at = int(np.flatnonzero(~np.isfinite(x))[0])
            raise ValueError(f"expected finite numbers, got {x[at]} at position {at}")
    return a, b


def _numbers(x: Any) -> np.ndarray:
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        x = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    return np.asarray(x)
