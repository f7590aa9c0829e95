"""What estimators that learn from logged rewards share."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..inputs.logs import Transitions
from ..results.estimates import Estimates
from ..runtime.checks import number, option
from .estimator import Estimator, Request
from .log import Log, read
from .log_support import unsupported
from .policy_actions import PolicyActions

_ROUNDING = 0.02  # of the range of possible values

Evaluated: TypeAlias = tuple[np.ndarray, np.ndarray | None, dict[str, Any]]
"""(P,) values, (P, R) replicates or None, and diagnostics; standard errors need R > 1."""


@dataclass(frozen=True)
class RewardEstimator(Estimator):
    """Base of estimators of discounted returns, which learn from logged rewards, not from known returns.

    Standard errors need two episodes or more.

    Attributes:
        discount: Discount factor γ, from 0 to 1; 1, the undiscounted return, needs episodes that end in terminals.

    Diagnostics:
        unsupported: (P,) share of each policy's decisions that the log does not support, see `unsupported`.

    Warns:
        UncertainEstimateWarning: The log does not support over 40 % of a policy's decisions, or a value lies outside
            what discounted sums of logged rewards allow.
    """

    discount: float = option(0.99, number(most=1))

    def _estimate(self, request: Request) -> Estimates:
        layout, log = read(request.policies, request.transitions)
        decay(log.transitions, self.discount)  # raises if discount=1 has no meaning
        actions = PolicyActions(request.policies, layout, log, seed=request.seed)
        shares = unsupported(actions)
        values, replicates, diagnostics = self._evaluate(actions, request.checkpoint)
        _doubt_impossible(log, request.names, values, *value_range(log.transitions, self.discount))
        has_errors = replicates is not None and replicates.shape[1] > 1
        return Estimates(
            request.names,
            values,
            replicates=replicates if has_errors else None,
            method=self.name,
            diagnostics={"unsupported": shares, **diagnostics},
            notes=log.facts,
        )

    @abstractmethod
    def _evaluate(self, actions: PolicyActions, checkpoint: str | os.PathLike | None) -> Evaluated:
        """Value the policies."""


def decay(transitions: Transitions, discount: float) -> float:
    """Return 1 - γ, over which the weights of endless rewards sum up to 1; for γ = 1, over the longest logged episode.

    ValueError is raised if γ is 1 and episodes are cut.
    """
    if discount < 1:
        return 1 - discount
    if not np.isfinite(transitions.longest):
        ends = transitions.terminals[transitions.episodes[1:] - 1]
        raise ValueError(
            f"discount=1 needs episodes that end in terminal states, but {np.count_nonzero(~ends):,} of {len(ends):,} "
            "are cut; pass discount=0.99, or mark the ends as 'terminals'"
        )
    return 1 / transitions.longest


def value_range(transitions: Transitions, discount: float) -> tuple[float, float]:
    """Return the least and the largest discounted return that logged rewards allow.

    The reward of a terminal is earned once, at the end; any other one in every step.
    """
    rewards = transitions.rewards.astype(np.float64)
    last, others = rewards[transitions.terminals], rewards[~transitions.terminals]
    if discount == 1:
        before = np.append(others * (transitions.longest - 1), 0.0)
        return float(before.min() + last.min()), float(before.max() + last.max())
    bounds = np.append(others / (1 - discount), last)
    return float(bounds.min()), float(bounds.max())


def _doubt_impossible(log: Log, names: list[str], values: np.ndarray, low: float, high: float) -> None:
    """Doubt values outside the range that rewards allow, or 0, which follows an end."""
    low, high = min(0.0, low), max(0.0, high)
    margin = _ROUNDING * (high - low) or 1e-6
    outside = np.flatnonzero((values < low - margin) | (values > high + margin))
    log.doubt(
        f"values of {{}} lie outside what rewards allow, {low:.4g} to {high:.4g}, so the estimator extrapolates; rely "
        "on another one for these policies",
        {names[i]: f"{values[i]:.4g}" for i in outside},
    )
