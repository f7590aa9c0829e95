"""Training policies as a ranker remembers them, and how unlike them a candidate acts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..inputs.policies import ArrayPolicy, Layout, Policy, collect
from ..ranking.metrics import policy_distances
from ..runtime import distributed

_FOREIGN = 2.0
_MAPPED = 100  # policies of which all distances are computed, for a map of them
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

    def distances(
        self, policies: list[Policy], layout: Layout, *, same_log: bool
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Return action distances (Eq. 3) to the training policies, (P, M), and among the policies, (P, P), float64.

        The latter are None for more than 100 policies, of which each process of a group asks a part. Return also
        whether each policy acts as the nearest training policy does, (P,) bool, see `are_same`.

        Args:
            policies: P policies.
            layout: What the model reads of a policy.
            same_log: Whether arrays of actions belong to the training log; otherwise their distances are NaN.
        """

        def act(part: list[Policy]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            """Return (p, M) distances, (p,) whether they act the same, and the columns of those that have distances."""
            distances, same = np.full((len(part), len(self.names)), np.nan), np.zeros(len(part), bool)
            comparable = [i for i, policy in enumerate(part) if same_log or not isinstance(policy, ArrayPolicy)]
            if not comparable:
                return distances, same, np.empty(0)
            chosen = [part[i] for i in comparable]
            columns = collect(chosen, self.states, self.source, layout).numpy()
            distances[comparable] = policy_distances(columns, self.columns.numpy())
            same[comparable] = are_same(columns, self.columns, distances[comparable].argmin(1))
            return distances, same, columns

        if len(policies) > _MAPPED:
            group = distributed.current()
            own = policies[group.part(len(policies))]
            parts = [act(own[first : first + _MAPPED])[:2] for first in range(0, len(own), _MAPPED)]
            to_training = np.concatenate([np.empty((0, len(self.names))), *(distances for distances, _ in parts)])
            same = np.concatenate([np.empty(0, bool), *(same for _, same in parts)])
            to_training, same = (group.gather(torch.from_numpy(rows)).numpy() for rows in (to_training, same))
            return to_training, None, same
        to_training, same, columns = act(policies)
        among = np.full((len(policies), len(policies)), np.nan)
        known = ~np.isnan(to_training).any(1)
        if known.any():
            among[np.ix_(known, known)] = policy_distances(columns, columns)
        return to_training, among, same

    @cached_property
    def between(self) -> np.ndarray:
        """(M, M) float64 action distances between training policies."""
        columns = self.columns.numpy()
        return policy_distances(columns, columns)

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
