"""What training minimises, from the scores of the training policies (paper section 3.2)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    import pandas


def pair_targets(returns: np.ndarray, tie_margin: float = 0.0) -> Tensor:
    """The paper's labels y: (M, M) of 1 where policy i is better than j, 0 where worse, 0.5 where they tie.

    Args:
        returns: (M,). tie_margin: largest difference, in return units, that counts as a tie.
    """
    difference = returns[:, None] - returns[None, :]
    return torch.from_numpy(np.where(np.abs(difference) <= tie_margin, 0.5, difference > 0).astype(np.float32))


def check_preferences(preferences: object, names: list[str]) -> Tensor:
    """Labels given by the user: (M, M) of 0, 0.5, 1, or nan for a pair that is unknown.

    Raises:
        TypeError: not numbers.
        ValueError: wrong shape or value, a policy that a frame lacks, both directions given and contradicting, or no
            pair at all.
    """
    if hasattr(preferences, "index") and hasattr(preferences, "columns"):
        preferences = _by_name(preferences, names)
    try:
        y = np.array(preferences, np.float32)
    except (TypeError, ValueError) as error:
        raise TypeError(f"preferences must be numbers: {error}") from error
    count = len(names)
    if y.shape != (count, count):
        raise ValueError(f"preferences must have shape ({count}, {count}), got {y.shape}")
    np.fill_diagonal(y, np.nan)
    known = ~np.isnan(y)
    wrong = known & ~np.isin(y, (0, 0.5, 1))
    contradicting = known & known.T & (y + y.T != 1)
    for bad, complaint in (
        (wrong, "is not 0, 0.5, 1 or nan"),
        (contradicting, "contradicts its mirror image"),
    ):
        if bad.any():
            i, j = np.argwhere(bad)[0]
            raise ValueError(f"preferences[{i}, {j}] = {y[i, j]} ({names[i]!r} over {names[j]!r}) {complaint}")
    if not (y[known] != 0.5).any():
        raise ValueError("preferences hold no pair in which one policy is better")
    return torch.from_numpy(np.where(known, y, 1 - y.T))


def _by_name(frame: pandas.DataFrame, names: list[str]) -> pandas.DataFrame:
    """In the order of the names, where the frame has names at all."""
    axes = {"row": frame.index, "column": frame.columns}
    if not any(isinstance(label, str) for labels in axes.values() for label in labels):
        return frame
    for kind, labels in axes.items():
        if missing := [name for name in names if name not in labels]:
            raise ValueError(f"preferences hold no {kind} for policy {missing[0]!r}")
    return frame.loc[names, names]


def pairwise(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean binary cross-entropy of sigmoid(score_i - score_j) over the known pairs i < j (Eq. 1).

    Args:
        scores: (M,). targets: (M, M), nan for unknown pairs.
    """
    i, j = torch.triu_indices(len(scores), len(scores), 1, device="cpu")
    y = targets[i, j]
    known = ~y.isnan()
    difference = (scores[i] - scores[j])[known]
    return functional.binary_cross_entropy_with_logits(difference, y[known])


def pairwise_floor(targets: Tensor) -> float:
    """The pairwise loss of scores that are all equal is ln 2; ties hold even a perfect model above this."""
    i, j = torch.triu_indices(len(targets), len(targets), 1, device="cpu")
    y = targets[i, j]
    return math.log(2) * float((y[~y.isnan()] == 0.5).double().mean())


def listwise(scores: Tensor, returns: Tensor) -> Tensor:
    """ListNet: cross-entropy between the top-one distributions of standardised returns and of scores, both (M,)."""
    return -(returns.softmax(0) * scores.log_softmax(0)).sum()


def mean_squared_error(scores: Tensor, returns: Tensor) -> Tensor:
    """Supervised off-policy evaluation (section 3.3): squared gap to standardised returns, both (M,).

    The offset of all scores together is free, as in the other losses: the best one is known in closed form.
    """
    gap = scores - returns
    return (gap - gap.mean()).square().mean()
