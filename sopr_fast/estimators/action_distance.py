"""What estimators that compare the actions of policies share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..inputs.policies import Policy, probe
from ..ranking.metrics import policy_distances
from ..runtime.checks import integer, option
from ..runtime.distributed import share_policies
from ..sopr.acting import collect_shared
from .estimator import Request
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
        layout = probe(adapted, compared, rows)
        columns = collect_shared(adapted, compared, rows, layout)
        return as_arrays(adapted, columns, layout), compared

    def _compare(self, request: Request) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Let policies act and compare them.

        Returns:
            (P, rows, dim_c) columns of the policies to value; (M, rows, dim_c) columns of the known ones; (P, M) action
            distances between them, infinity between a policy and itself.

        Raises:
            ValueError: The only known policy is to be valued.
        """
        policies, known = request.policies, request.known
        rows, states = spread(request.log, self.rows)
        layout = probe([*known, *policies], states, rows)
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


def shared_distances(a_columns: np.ndarray, b_columns: np.ndarray) -> np.ndarray:
    """Return all action distances (A, B) as `policy_distances` does; processes share the rows."""
    return share_policies(
        len(a_columns), lambda part: torch.from_numpy(policy_distances(a_columns[part], b_columns))
    ).numpy()
