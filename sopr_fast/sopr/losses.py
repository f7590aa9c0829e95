"""Training losses of scores (paper section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .config import Config

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Objective:
    """A loss of scores with the values that bound training.

    Attributes:
        loss: Function from scores (M,) to the loss.
        flat: Loss of equal scores.
        floor: Smallest possible loss.
    """

    loss: Callable[[Tensor], Tensor]
    flat: float
    floor: float

    @classmethod
    def from_pairs(cls, targets: Tensor) -> Objective:
        """Return the pairwise objective.

        Args:
            targets: (M, M) labels, see `pair_targets`.
        """
        return cls(lambda scores: pairwise(scores, targets), math.log(2), pairwise_floor(targets))

    @classmethod
    def from_returns(cls, config: Config, returns: np.ndarray, mean: float, scale: float) -> Objective:
        """Return the objective that the config names.

        Args:
            config: Options of the training.
            returns: (M,) returns.
            mean: Mean by which returns are standardised.
            scale: Standard deviation by which returns are standardised.
        """
        if config.loss == "pairwise":
            return cls.from_pairs(pair_targets(returns, config.tie_margin))
        standard = torch.from_numpy((returns - mean) / scale).float()
        if config.loss == "listwise":
            entropy = listwise(standard, standard)
            return cls(lambda scores: listwise(scores, standard), math.log(len(returns)), float(entropy))
        flat = mean_squared_error(torch.zeros_like(standard), standard)
        return cls(lambda scores: mean_squared_error(scores, standard), float(flat), 0.0)


def pairwise(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean binary cross-entropy of sigmoid(score_i - score_j) over known pairs i < j (Eq. 1).

    Args:
        scores: (M,) scores.
        targets: (M, M) labels, NaN for unknown pairs.
    """
    i, j = torch.triu_indices(len(scores), len(scores), 1, device="cpu")
    y = targets[i, j]
    known = ~y.isnan()
    difference = (scores[i] - scores[j])[known]
    return functional.binary_cross_entropy_with_logits(difference, y[known])


def pairwise_floor(targets: Tensor) -> float:
    """Return the smallest pairwise loss: ln 2 for each tie, 0 for every other pair, on average."""
    i, j = torch.triu_indices(len(targets), len(targets), 1, device="cpu")
    y = targets[i, j]
    return math.log(2) * float((y[~y.isnan()] == 0.5).double().mean())


def listwise(scores: Tensor, returns: Tensor) -> Tensor:
    """Return the ListNet loss: cross-entropy between the top-one distributions of returns and of scores.

    Args:
        scores: (M,) scores.
        returns: (M,) standardised returns.
    """
    return -(returns.softmax(0) * scores.log_softmax(0)).sum()


def mean_squared_error(scores: Tensor, returns: Tensor) -> Tensor:
    """Return the mean squared difference of scores and returns, each minus its mean (paper section 3.3).

    Args:
        scores: (M,) scores; a constant added to all of them does not change the loss.
        returns: (M,) standardised returns.
    """
    gap = scores - returns
    return (gap - gap.mean()).square().mean()


def pair_targets(returns: np.ndarray, tie_margin: float = 0.0) -> Tensor:
    """Return the paper's labels y, (M, M): 1 where policy i is better than j, 0 where worse, 0.5 for a tie.

    Args:
        returns: (M,) returns.
        tie_margin: Largest difference that counts as a tie, in return units.
    """
    difference = returns[:, None] - returns[None, :]
    return torch.from_numpy(np.where(np.abs(difference) <= tie_margin, 0.5, difference > 0).astype(np.float32))


def check_preferences(preferences: object, names: list[str]) -> Tensor:
    """Return labels of all pairs, (M, M), with the unknown half of a pair filled in from the known one.

    Args:
        preferences: (M, M) of 0, 0.5, 1 or NaN (unknown); a pandas frame is read by policy names.
        names: (M,) names of the policies.

    Raises:
        TypeError: Preferences are not numbers.
        ValueError: The shape or a value is wrong, a frame lacks a policy, the two directions of a pair contradict each
            other, or no pair has a better policy.
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
        (wrong, "is not 0, 0.5, 1 or NaN"),
        (contradicting, "contradicts its mirror image"),
    ):
        if bad.any():
            i, j = np.argwhere(bad)[0]
            raise ValueError(f"preferences[{i}, {j}] = {y[i, j]} ({names[i]!r} over {names[j]!r}) {complaint}")
    if not (y[known] != 0.5).any():
        raise ValueError("preferences hold no pair in which one policy is better")
    return torch.from_numpy(np.where(known, y, 1 - y.T))


def _by_name(frame: pandas.DataFrame, names: list[str]) -> pandas.DataFrame:
    """Return the frame in the order of the names, if it has names at all."""
    axes = {"row": frame.index, "column": frame.columns}
    if not any(isinstance(label, str) for labels in axes.values() for label in labels):
        return frame
    for kind, labels in axes.items():
        if missing := [name for name in names if name not in labels]:
            raise ValueError(f"preferences hold no {kind} for policy {missing[0]!r}")
    return frame.loc[names, names]
