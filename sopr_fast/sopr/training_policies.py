"""Training policies as a ranker remembers them, and how unlike them a candidate acts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..ranking.metrics import policy_distances

_FOREIGN = 2.0
_COMPARED_AT_ONCE = 100  # policies
_SAME = 1e-10  # of the mean square of a column: float32 rounding in batches of other sizes


@dataclass(frozen=True, eq=False)
class TrainingPolicies:
    """M training policies in a sample of R states.

    Attributes:
        names: (M,) names.
        states: (R, dim_s) sampled states.
        source: (R,) their rows in the training log.
        columns: (M, R, dim_c) columns of the policies.
        scores: (M,) float64 scores by the trained model.
    """

    names: list[str]
    states: Tensor
    source: Tensor
    columns: Tensor
    scores: Tensor

    def compare(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return action distances (Eq. 3) of policies to the training policies, and whether they are copies of one.

        Args:
            columns: (P, R, dim_c) columns of policies in the sampled states.

        Returns:
            (P, M) float64 distances; (P,) bool, whether a policy acts as the nearest training policy, see `are_same`.
        """
        distances, same = np.empty((len(columns), len(self.names))), np.empty(len(columns), bool)
        for first in range(0, len(columns), _COMPARED_AT_ONCE):
            some = slice(first, first + _COMPARED_AT_ONCE)
            distances[some] = policy_distances(columns[some], self.columns)
            same[some] = are_same(columns[some].numpy(), self.columns, distances[some].argmin(1))
        return torch.from_numpy(distances), torch.from_numpy(same)

    @cached_property
    def between(self) -> np.ndarray:
        """(M, M) float64 action distances between training policies."""
        return policy_distances(self.columns, self.columns)

    @property
    def distance_limit(self) -> float:
        """Twice the upper quartile of the distances from a training policy to its nearest other, repeats left out.

        Not the largest of them: the first snapshot of a training run is far from all others.
        """
        return _FOREIGN * float(np.quantile(self._leave_one_out, 0.75))

    @cached_property
    def _leave_one_out(self) -> np.ndarray:
        """Distance from each distinct policy to its nearest other; 0 if all act alike."""
        first = (self.between == 0).argmax(1) == np.arange(len(self.between))
        between = self.between[np.ix_(first, first)]
        np.fill_diagonal(between, np.inf if len(between) > 1 else 0)
        return between.min(1)


def are_same(columns: np.ndarray, known: Tensor, nearest: np.ndarray) -> np.ndarray:
    """Return (P,) bool, whether policies act as the nearest training policy does, up to rounding.

    Each column is judged by its own size: a large one does not hide that others differ.

    Args:
        columns: (P, R, dim_c) columns of the policies in a sample of states.
        known: (M, R, dim_c) columns of the training policies there.
        nearest: (P,) indices of the nearest training policies.
    """
    same = np.empty(len(columns), bool)
    for i, (own, place) in enumerate(zip(columns, nearest, strict=True)):
        training = known[place].double().numpy()
        same[i] = (np.square(own - training).mean(0) <= _SAME * np.square(training).mean(0)).all()
    return same
