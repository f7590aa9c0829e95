"""The return of the nearest known policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ranking.estimates import Estimates
from .action_distance import ActionDistanceEstimator
from .estimator import Request


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

    def _evaluate(self, request: Request) -> Estimates:
        distances = self._compare(request)[2]
        least = distances.min(1)
        return Estimates(
            request.names,
            np.array([request.returns[row == own].mean() for row, own in zip(distances, least, strict=True)]),
            method=self.name,
            diagnostics={
                "nearest": [request.known[i].name for i in distances.argmin(1)],
                "distances": least,
            },
        )
