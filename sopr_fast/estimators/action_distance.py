"""What estimators that compare the actions of policies share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..inputs.policies import Policy, probe
from ..ranking.metrics import policy_distances
from ..runtime.context import current
from ..runtime.options import integer, option
from ..runtime.shares import share_policies
from ..sopr.columns import collect_shared
from .supervised import SupervisedEstimator, SupervisedProblem, as_arrays, read, spread

FARTHEST = 1.4  # ratio of `distance_ratios`, chosen on five logs after their results were seen


@dataclass(frozen=True)
class ActionDistanceEstimator(SupervisedEstimator):
    """Base of estimators that know policies by their action distances (Eq. 3 of SOPR-T) alone.

    Such estimators need no rewards, discount, seed or device. A policy that is itself known is valued by the other
    known policies, so that its value does not reveal its return. A policy is itself known if it has the name of a known
    policy and is the same object, or acts equally in all compared states. An equal name is not enough.

    Attributes:
        rows: Number of logged states on which policies are compared, evenly spaced.
    """

    leaves_one_out: ClassVar[bool] = True

    rows: int = option(4096, integer(1), "logged states on which policies are compared")

    def prepare(self, policies: Any, log: Any, *, seed: int = 0) -> tuple[list[Policy], Any]:
        """Collect the actions of all policies in the states on which they are compared; see `Estimator.prepare`."""
        states, (adapted,) = read(log, policies)
        rows, compared = spread(states, self.rows)
        layout = probe(adapted, compared, rows, batch_size=current().batch_size)
        columns = collect_shared(adapted, compared, rows, layout)
        return as_arrays(adapted, columns, layout), compared

    def _columns(self, problem: SupervisedProblem) -> tuple[np.ndarray, np.ndarray]:
        """Let policies act.

        Returns:
            (P, rows, dim_c) columns of the policies to value; (M, rows, dim_c) columns of the known ones.
        """
        policies, known, request = problem.policies, problem.known, problem.request
        with request.timings.stage("policies"):
            rows, states = spread(problem.states, self.rows)
            layout = probe([*known, *policies], states, rows, batch_size=current().batch_size)
            both = [collect_shared(group, states, rows, layout) for group in (policies, known)]
        return both[0].numpy(), both[1].numpy()

    @staticmethod
    def _distances(problem: SupervisedProblem, columns: np.ndarray, known_columns: np.ndarray) -> np.ndarray:
        """Return (P, M) action distances; infinity between a policy and itself.

        Raises:
            ValueError: The only known policy is to be valued.
        """
        distances = shared_distances(columns, known_columns)
        for i, policy in enumerate(problem.policies):
            for j, other in enumerate(problem.known):
                if policy.name == other.name and (distances[i, j] == 0 or policy.is_same(other)):
                    distances[i, j] = np.inf
        if np.isinf(distances).all(1).any():
            raise ValueError(
                f"policy {problem.known[0].name!r} is the only known policy, so it has no other to be compared with; "
                "pass more known policies"
            )
        return distances


def shared_distances(a_columns: np.ndarray, b_columns: np.ndarray) -> np.ndarray:
    """Return all action distances (A, B) as `policy_distances` does; processes share the rows."""

    def distances(part: slice) -> Tensor:
        return torch.from_numpy(policy_distances(a_columns[part], b_columns))

    return share_policies(len(a_columns), distances).numpy()


def distance_ratios(to_known: np.ndarray, between_known: np.ndarray) -> np.ndarray:
    """Return how far policies are from the known ones: the nearest distance over the median one between known policies.

    Beyond `FARTHEST` the log does not tell how good a policy is. On five logs of three games unseen snapshots of the
    known run had ratios of 0.1 to 0.3 (medians), policies of offline RL on the log 0.6 to 1.2, foreign ones 1.6 to 6.9.

    Args:
        to_known: (P, M) action distances (Eq. 3 of SOPR-T); infinity to leave out a known policy.
        between_known: (M, M) action distances.

    Returns:
        (P,) float64; NaN for fewer than two known policies, and infinity where known policies act alike and others not.
    """
    if len(between_known) < 2:
        return np.full(len(to_known), np.nan)
    usual = np.median(between_known[np.triu_indices(len(between_known), 1)])
    nearest = to_known.min(1)
    with np.errstate(divide="ignore"):
        return np.where(nearest > 0, nearest / usual, 0.0)
