"""A Gaussian process of returns over action distance, as an estimator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ranking.estimates import Estimates
from .action_distance import ActionDistanceEstimator, shared_distances
from .estimator import Request
from .gaussian_process_posterior import fit


@dataclass(frozen=True)
class GaussianProcess(ActionDistanceEstimator):
    """Gaussian process of the return, with a Matérn 1/2 kernel of the root of the action distance (Eq. 3 of SOPR-T).

    Policies that act alike have like returns; far from all known policies the value is the mean of the process. It is
    the model of active offline policy selection (Konyushkova et al. 2021) without its estimates, and that of
    `sopr_fast.select` without a simulator; `gaussian_process_posterior` states its priors. It needs no rewards,
    discount, seed or device. A known policy gets its value from the other known policies.

    Attributes:
        rows: Number of logged states on which policies are compared, evenly spaced.

    Standard errors are those of the process.

    Raises:
        ValueError: The only known policy is to be evaluated.
    """

    def _evaluate(self, request: Request) -> Estimates:
        columns, known_columns, distances = self._compare(request)
        own = np.isinf(distances)  # a policy and itself
        everyone, count = np.concatenate([columns, known_columns]), len(columns)
        returns = np.concatenate([np.full(count, np.nan), request.returns])
        posterior = fit(shared_distances(everyone, everyone), returns, np.zeros(len(everyone)))
        values, errors = posterior.mean[:count].copy(), posterior.deviation[:count].copy()
        for i in np.flatnonzero(own.any(1)):
            values[i], errors[i] = posterior.left_out[:, count + own[i].argmax()]
        return Estimates(request.names, values, errors, method=self.name)
