"""The training loss of scores (paper section 3.2)."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..runtime.arrays import as_numbers

_PAIRS = 1 << 18  # pairs at once


class _PairwiseLoss(torch.autograd.Function):
    """Equation 1; the gradient is computed with the loss, so that nothing of the size of all pairs is kept."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, targets: Tensor) -> Tensor:
        total = scores.new_zeros((), dtype=torch.float64)
        count = scores.new_zeros((), dtype=torch.int64)
        slopes = torch.zeros_like(scores, dtype=torch.float64)
        at_once = max(1, _PAIRS // len(targets))
        for first in range(0, len(targets), at_once):
            rows = slice(first, first + at_once)
            labels = targets[rows]
            if targets.dim() == 1:
                labels = ((labels[:, None] - targets).sign().float() + 1) / 2
            known = torch.ones(labels.shape, dtype=torch.bool, device=labels.device).triu(1 + first) & ~labels.isnan()
            labels, difference = labels.nan_to_num(0.0), scores[rows, None] - scores
            loss = functional.softplus(difference) - labels * difference
            total += torch.where(known, loss, 0.0).sum(dtype=torch.float64)
            slope = torch.where(known, difference.sigmoid() - labels, 0.0)
            slopes[rows] += slope.sum(1, dtype=torch.float64)
            slopes -= slope.sum(0, dtype=torch.float64)
            count += known.sum()
        ctx.save_for_backward((slopes / count).to(scores.dtype))
        return (total / count).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * gradients[0], None


def pairwise(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean binary cross-entropy of sigmoid(score_i - score_j) over known pairs i < j (Eq. 1).

    Targets of scores (M,) are returns (M,), or labels (M, M): 1 if i is better, 0 if it is worse, 0.5 for a tie, NaN
    for unknown pairs.
    """
    return cast(Tensor, _PairwiseLoss.apply(scores, targets))


def check_preferences(preferences: Any, names: list[str]) -> Tensor:
    """Return labels of all pairs, (M, M), with the unknown half of a pair filled in from the known one.

    See `sopr_fast.fit` for the preferences; masked ones are unknown, too. They must not contradict each other, and one
    policy must be better than another.
    """
    if hasattr(preferences, "index") and hasattr(preferences, "columns"):
        for kind, labels in {"row": preferences.index, "column": preferences.columns}.items():
            if missing := [name for name in names if name not in labels]:
                raise ValueError(f"preferences hold no {kind} for policy {missing[0]!r}; index both by name")
        preferences = preferences.loc[names, names]
    try:
        y = np.array(as_numbers(preferences), np.float32)
    except (TypeError, ValueError) as error:
        raise TypeError(f"preferences must be numbers, a row and a column for each policy: {error}") from error
    count = len(names)
    if y.shape != (count, count):
        raise ValueError(f"preferences must have shape ({count}, {count}), got {y.shape}")
    np.fill_diagonal(y, np.nan)
    known = ~np.isnan(y)
    wrong = known & ~np.isin(y, (0, 0.5, 1))
    contradicting = known & known.T & (y + y.T != 1)
    for bad, complaint in ((wrong, "is not 0, 0.5, 1 or NaN"), (contradicting, "contradicts its mirror image")):
        if bad.any():
            i, j = np.argwhere(bad)[0]
            raise ValueError(f"preferences[{i}, {j}] = {y[i, j]} ({names[i]!r} over {names[j]!r}) {complaint}")
    if not (y[known] != 0.5).any():
        raise ValueError("preferences hold no pair in which one policy is better: write 1 where the row is better")
    return torch.from_numpy(np.where(known, y, 1 - y.T))
