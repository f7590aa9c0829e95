"""Estimators that know policies only by how differently they act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..inputs.policies import Policy, collect_shared, probe
from ..results.estimates import Estimates
from ..results.metrics import policy_distances
from ..runtime.checks import integer, option
from ..runtime.distributed import share_policies
from .estimator import Request
from .gaussian_process_posterior import fit
from .supervised import SupervisedEstimator, as_arrays, read, spread


@dataclass(frozen=True)
class ActionDistanceEstimator(SupervisedEstimator):
    """Base of estimators that know policies only by their action distances (Eq. 3 of SOPR-T).

    Such estimators need no rewards, discount, seed or device. A policy that is itself known is valued by the other
    known policies, so that its value does not reveal its return. A policy is itself known if it has the name of a known
    policy and is the same object, or acts equally in all compared states. An equal name is not enough.

    Attributes:
        rows: Number of logged states on which policies are compared, evenly spaced.
    """

    rows: int = option(4096, integer(1))

    def prepare(self, policies: Any, log: Any, *, seed: int = 0) -> tuple[list[Policy], Any]:
        """Collect the actions of all policies in the states on which they are compared; see `Estimator.prepare`."""
        states, (adapted,) = read(log, policies)
        rows, compared = spread(states, self.rows)
        layout = probe(adapted, compared, rows, logged=getattr(states, "actions", None))
        columns = collect_shared(adapted, compared, rows, layout)
        return as_arrays(adapted, columns, layout), compared

    def _compare(self, request: Request) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Let policies act and compare them; ValueError is raised if the only known policy is to be valued.

        Returns:
            (P, rows, dim_c) columns of the policies to value; (M, rows, dim_c) columns of the known ones; (P, M) action
            distances between them, infinity between a policy and itself.
        """
        policies, known = request.policies, request.known
        rows, states = spread(request.log, self.rows)
        layout = probe([*known, *policies], states, rows, logged=getattr(request.log, "actions", None))
        columns, known_columns = (collect_shared(group, states, rows, layout).numpy() for group in (policies, known))
        distances = shared_distances(columns, known_columns)
        for i, policy in enumerate(policies):
            for j, other in enumerate(known):
                if policy.name == other.name and (distances[i, j] == 0 or policy.is_same(other)):
                    distances[i, j] = np.inf
        if np.isinf(distances).all(1).any():
            raise ValueError(
                f"policy {known[0].name!r} is the only known policy, so it has no other to be compared with; pass more "
                "known policies"
            )
        return columns, known_columns, distances


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


def shared_distances(a_columns: np.ndarray, b_columns: np.ndarray) -> np.ndarray:
    """Return all action distances (A, B) as `policy_distances` does; processes share the rows."""
    return share_policies(
        len(a_columns), lambda part: torch.from_numpy(policy_distances(a_columns[part], b_columns))
    ).numpy()
