"""The return of the nearest known policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ranking.estimates import Estimates
from .action_distance import ActionDistanceEstimator
from .supervised import SupervisedProblem


@dataclass(frozen=True)
class NearestPolicy(ActionDistanceEstimator):
    """Return of the nearest known policy by action distance (Eq. 3 of SOPR-T); of several at one distance, their mean.

    The simplest supervised estimator, and so the bar for SOPR-T. It needs no rewards, discount, seed or device. A known
    policy gets the return of the nearest other known policy.

    Attributes:
        rows: Number of logged states on which policies are compared, evenly spaced.

    Diagnostics:
        nearest: (P,) names of the nearest known policies, the first of several.
        distances: (P,) float64 action distances to them.

    Raises:
        ValueError: The only known policy is to be evaluated.
    """

    def _evaluate(self, problem: SupervisedProblem) -> Estimates:
        columns, known_columns = self._columns(problem)
        with problem.request.timings.stage("evaluation"):
            distances = self._distances(problem, columns, known_columns)
        nearest = distances.argmin(1)
        tied = distances == distances.min(1, keepdims=True)
        return Estimates(
            [policy.name for policy in problem.policies],
            np.array([problem.returns[row].mean() for row in tied]),
            method=self.name,
            diagnostics={
                "nearest": [problem.known[i].name for i in nearest],
                "distances": np.take_along_axis(distances, nearest[:, None], 1)[:, 0],
            },
            timings=dict(problem.request.timings),
        )
