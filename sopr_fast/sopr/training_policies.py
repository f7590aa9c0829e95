"""What a ranker remembers of its training policies, and how unlike them a candidate acts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from ..metrics import policy_distance, policy_distances
from ..policies import ArrayPolicy, Layout, Policy, collect

_FOREIGN = 2.0
_SAME = 1e-10  # of the mean squared action: equal actions up to float32 rounding in batches of other sizes


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

    def nearest(
        self, policies: list[Policy], layout: Layout, *, batch_size: int, same_log: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of each policy the distance to the nearest (Eq. 3) and which that is; nan and -1 for arrays of actions on
        another log than the training's."""
        distances, indices = np.full(len(policies), np.nan), np.full(len(policies), -1)
        able = [i for i, policy in enumerate(policies) if same_log or not isinstance(policy, ArrayPolicy)]
        if able:
            columns = collect([policies[i] for i in able], self.states, self.source, layout, batch_size=batch_size)
            distances[able], indices[able] = policy_distance(self.columns.numpy(), columns.numpy())
        return distances, indices

    @property
    def distance_limit(self) -> float:
        """Twice the upper quartile of the distances from each of them to its nearest other (Eq. 3), repeats left out.

        Not the largest: the first snapshot of a training run is far from all others, and would excuse everything.
        """
        return _FOREIGN * float(np.quantile(self._apart, 0.75))

    def shrinkage(self, distances: np.ndarray) -> np.ndarray:
        """Return the weight of the nearest training policy's score: distance / (distance + median distance).

        The median is over the distances from each training policy to its nearest other, repeats left out. The weight
        is 0 where the distance is NaN, and everywhere if all training policies act alike.
        """
        typical = float(np.median(self._apart))
        if not typical > 0:
            return np.zeros(len(distances))
        return np.where(np.isnan(distances), 0.0, distances / (distances + typical))

    def are_same(self, distances: np.ndarray, nearest: np.ndarray) -> list[bool]:
        """(P,) whether policies at these distances act as the nearest training policy does, up to rounding."""
        magnitude = self.columns.double().square().sum(2).mean(1).numpy()[nearest]
        return (distances <= _SAME * magnitude).tolist()

    @cached_property
    def _apart(self) -> np.ndarray:
        """(distinct,) distance from each to its nearest other, repeats left out; 0 where all act alike."""
        columns = self.columns.numpy()
        between = policy_distances(columns, columns)
        first = (between == 0).argmax(1) == np.arange(len(between))
        between = between[np.ix_(first, first)]
        np.fill_diagonal(between, np.inf if len(between) > 1 else 0)
        return between.min(1)
