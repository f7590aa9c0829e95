"""Training policies as a ranker remembers them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from ..results.metrics import policy_distances

_FOREIGN = 2.0


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
