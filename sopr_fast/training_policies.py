"""What a ranker remembers of its training policies, and how unlike them a candidate acts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from .metrics import policy_distance, policy_distances
from .policies import ArrayPolicy, Layout, Policy, collect

_FOREIGN = 3.0
_TYPICAL_SHARE = 0.9


@dataclass(frozen=True, eq=False)
class TrainingPolicies:
    """M training policies as they act on a sample of states.

    Attributes:
        names: (M,). states, source: (R, dim_s) and their index in the log. columns: (M, R, dim_c).
        scores: (M,) float64 that the trained model gives them.
    """

    names: list[str]
    states: Tensor
    source: Tensor
    columns: Tensor
    scores: Tensor

    def distances(self, policies: list[Policy], layout: Layout, *, batch_size: int, same_log: bool) -> np.ndarray:
        """Eq. 3 for each policy; nan for arrays of actions on another log than the training's."""
        distances = np.full(len(policies), np.nan)
        able = [i for i, policy in enumerate(policies) if same_log or not isinstance(policy, ArrayPolicy)]
        if able:
            columns = collect([policies[i] for i in able], self.states, self.source, layout, batch_size=batch_size)
            distances[able], _ = policy_distance(self.columns.numpy(), columns.numpy())
        return distances

    @property
    def distance_limit(self) -> float:
        """Three times the largest distance from one of them to its nearest other (Eq. 3)."""
        return _FOREIGN * float(self._apart.max())

    def penalties(self, distances: np.ndarray) -> np.ndarray:
        """What pessimism 1 takes off the scores of policies at these distances (nan where that is).

        It is σ ln(1 + distance / d): σ is the standard deviation of the training policies' scores, d the distance
        within which nine in ten of them have their nearest other.
        """
        typical = float(np.quantile(self._apart, _TYPICAL_SHARE))
        if typical == 0:
            return np.zeros(len(distances))
        spread = float(self.scores.std(correction=0))
        return spread * np.log1p(distances / typical)

    @cached_property
    def _apart(self) -> np.ndarray:
        """(M,) distance from each to its nearest other."""
        columns = self.columns.numpy()
        between = policy_distances(columns, columns)
        np.fill_diagonal(between, np.inf)
        return between.min(1)
