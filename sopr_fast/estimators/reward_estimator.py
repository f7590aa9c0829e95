"""What estimators that learn from logged rewards share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..inputs.policies import ArrayPolicy, Layout, Policy
from ..ranking.estimates import Estimates, warn_about
from ..runtime.checkpoints import check_checkpoint
from ..runtime.fields import number, option
from .critics import decay
from .estimator import Estimator, Request
from .learning import CHECKPOINT
from .log import Log, read
from .policy_actions import PolicyActions

_ROUNDING = 0.01  # of the range of possible values


@dataclass(frozen=True)
class Problem:
    """P policies to evaluate on a log, both checked.

    Attributes:
        policies: Policies to evaluate.
        layout: Columns that the policies give.
        log: Logged transitions.
        request: The other arguments of the call.
    """

    policies: list[Policy]
    layout: Layout
    log: Log
    request: Request

    @property
    def names(self) -> list[str]:
        """(P,) names of the policies."""
        return [policy.name for policy in self.policies]

    def actions(self, *, draws: int, memory: float) -> PolicyActions:
        """Return what the policies do in the states of the log, see `PolicyActions`; raise if that is unknown."""
        array = next((policy for policy in self.policies if isinstance(policy, ArrayPolicy)), None)
        if array is not None and not self.log.followed.any():
            raise ValueError(
                f"policy {array.name!r} is an array of actions, but no row of the log is followed by another row of "
                "its episode, so its next actions are unknown; pass the policy itself"
            )
        with self.request.timings.stage("policies"):
            return PolicyActions(
                self.policies,
                self.layout,
                self.log,
                draws=draws,
                seed=self.request.seed,
                memory=memory,
            )


@dataclass(frozen=True)
class RewardEstimator(Estimator):
    """Base of estimators that learn from logged rewards, not from known returns.

    Standard errors need two episodes or more: bootstrap samples of a single one are all alike.

    Attributes:
        discount: Discount factor γ, from 0 to 1; 1, the undiscounted return, needs episodes that end in terminals.

    Diagnostics:
        allowed: (2,) smallest and largest discounted sum of rewards that lie within the range of the logged ones.

    Warns:
        UncertainEstimateWarning: A value lies outside `allowed`.
    """

    discount: float = option(0.99, number(most=1))

    def _estimate(self, request: Request) -> Estimates:
        check_checkpoint(request.checkpoint, CHECKPOINT)
        with request.timings.stage("policies"):
            policies, layout, log = read(request.policies, request.log)
        decay(log.transitions, self.discount)  # raises where discount=1 has no meaning
        problem = Problem(policies, layout, log, request)
        values, replicates, diagnostics = self._evaluate(problem)
        has_errors = replicates is not None and replicates.shape[1] > 1 and len(log.transitions.episodes) > 2
        diagnostics["allowed"] = _check_allowed(problem, values, self.discount)
        return Estimates(
            problem.names,
            values,
            replicates=replicates if has_errors else None,
            method=self.name,
            diagnostics=diagnostics,
            timings=dict(request.timings),
        )

    @abstractmethod
    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        """Return (P,) values, (P, R) replicates or None, and diagnostics; standard errors need R > 1."""


def _check_allowed(problem: Problem, values: np.ndarray, discount: float) -> np.ndarray:
    """Return the range (2,) of values that rewards allow, and warn about values outside it."""
    rewards = problem.log.transitions.rewards.astype(np.float64)
    rate = decay(problem.log.transitions, discount)
    low, high = min(0.0, float(rewards.min())) / rate, max(0.0, float(rewards.max())) / rate
    margin = _ROUNDING * (high - low) or 1e-6
    outside = np.flatnonzero((values < low - margin) | (values > high + margin))
    warn_about(
        {problem.names[i]: f"{values[i]:.4g}" for i in outside},
        f"values of {{}} lie outside what rewards allow, {low:.4g} to {high:.4g}, so the estimator extrapolates; rely "
        "on another one for these policies",
    )
    return np.array([low, high])
