"""Training policies as a ranker remembers them, and how unlike them a candidate acts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..results.metrics import policy_distances

_FOREIGN = 2.0
_SAME = 1e-10  # of the mean square of a column: float32 rounding in batches of other sizes


@dataclass(frozen=True, eq=False)
class TrainingPolicies:
    """M training policies in a sample of R states."""

    names: list[str]
    states: Tensor  # (R, dim_s)
    source: Tensor  # (R,) rows of the training log
    columns: Tensor  # (M, R, dim_c)
    scores: Tensor  # (M,) float64, by the trained model

    @cached_property
    def distance_limit(self) -> float:
        """Twice the upper quartile of the distances from a training policy to its nearest other, repeats left out.

        Not the largest of them: the first snapshot of a training run is far from all others.
        """
        between = policy_distances(self.columns, self.columns)
        first = (between == 0).argmax(1) == np.arange(len(between))
        between = between[np.ix_(first, first)]
        np.fill_diagonal(between, np.inf if len(between) > 1 else 0)
        return _FOREIGN * float(np.quantile(between.min(1), 0.75))


def compare(columns: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Return action distances (Eq. 3) of policies to known ones, and whether they act as the nearest of these.

    Policies act alike up to rounding. Each column is judged by its own size: a large one does not hide differences of
    others. Columns (P, R, dim_c) and (M, R, dim_c) give (P, M) float64 distances and (P,) bool.
    """
    distances, same = np.empty((len(columns), len(known))), np.empty(len(columns), bool)
    for i in range(len(columns)):
        distances[i] = policy_distances(columns[i : i + 1], known)
        nearest = known[int(distances[i].argmin())].double()
        difference = (columns[i] - nearest).square().mean(0)
        same[i] = (difference <= _SAME * nearest.square().mean(0)).all()
    return torch.from_numpy(distances), torch.from_numpy(same)
