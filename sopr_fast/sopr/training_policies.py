"""Training policies as a ranker remembers them, and how unlike them a candidate acts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from ..metrics import policy_distance, policy_distances
from ..policies import ArrayPolicy, Layout, Policy, collect

_FOREIGN = 2.0
_SAME = 1e-10  # of the mean squared action: float32 rounding in batches of other sizes


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

    def nearest(
        self, policies: list[Policy], layout: Layout, *, batch_size: int, same_log: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each policy's action distance to the nearest training policy (Eq. 3) and that one's index, (P,).

        Args:
            policies: P policies.
            layout: What the model reads of a policy.
            batch_size: Largest number of states shown to a policy at once.
            same_log: Whether arrays of actions belong to the training log; otherwise their distance is NaN and their
                index -1.
        """
        distances, indices = np.full(len(policies), np.nan), np.full(len(policies), -1)
        comparable = [i for i, policy in enumerate(policies) if same_log or not isinstance(policy, ArrayPolicy)]
        if comparable:
            columns = collect(
                [policies[i] for i in comparable], self.states, self.source, layout, batch_size=batch_size
            )
            distances[comparable], indices[comparable] = policy_distance(self.columns.numpy(), columns.numpy())
        return distances, indices

    @property
    def distance_limit(self) -> float:
        """Twice the upper quartile of the distances from a training policy to its nearest other, repeats left out.

        Not the largest of them: the first snapshot of a training run is far from all others.
        """
        return _FOREIGN * float(np.quantile(self._leave_one_out, 0.75))

    def shrinkage(self, distances: np.ndarray) -> np.ndarray:
        """Return the weight of the nearest training policy's score: distance / (distance + median distance).

        The median is over the distances from each training policy to its nearest other, repeats left out. The weight
        is 0 where the distance is NaN, and everywhere if all training policies act alike.
        """
        typical = float(np.median(self._leave_one_out))
        if not typical > 0:
            return np.zeros(len(distances))
        return np.where(np.isnan(distances), 0.0, distances / (distances + typical))

    def are_same(self, distances: np.ndarray, nearest: np.ndarray) -> list[bool]:
        """Return (P,) whether policies at these distances act as the nearest training policy does, up to rounding."""
        magnitude = self.columns.double().square().sum(2).mean(1).numpy()[nearest]
        return (distances <= _SAME * magnitude).tolist()

    @cached_property
    def _leave_one_out(self) -> np.ndarray:
        """Distance from each distinct policy to its nearest other; 0 if all act alike."""
        columns = self.columns.numpy()
        between = policy_distances(columns, columns)
        first = (between == 0).argmax(1) == np.arange(len(between))
        between = between[np.ix_(first, first)]
        np.fill_diagonal(between, np.inf if len(between) > 1 else 0)
        return between.min(1)
