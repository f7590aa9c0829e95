"""Fitted Q evaluation of all policies at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .critics import CriticEstimator


@dataclass(frozen=True)
class FQE(CriticEstimator):
    """Fitted Q evaluation (Le et al., 2019) with the target networks and normalisation of Kostrikov & Nachum (2020).

    The networks of all policies are trained together, on the same mini-batches and from the same initial weights. So
    the estimate of a policy does not depend on the other policies. The value is the discounted return from the initial
    states. After terminals the value is 0; after timeouts an episode continues from its next state.

    Attributes:
        updates: Number of gradient steps.
        batch_size: Transitions per step.
        hidden: Widths of the hidden layers; () for linear functions.
        learning_rate: Learning rate of Adam.
        target_rate: Weight of the critic in each update of its target network. None for 5 / (updates (1 - γ)), but at
            least 0.005 and at most 0.1. See `lag` below.
        ensemble: Networks per policy. Two or more learn from bootstrap samples of the episodes, and the standard
            deviation of their values is the standard error.

    Diagnostics:
        uncovered: (P,) share of logged states in which the policy acts unlike the actions logged in similar states.
        lag: Share of the way to their fixed point that values have left, about exp(-updates target_rate (1 - γ)).
        curve: Updates and loss at each record.

    Warns:
        UncertainEstimateWarning: A policy is uncovered in over 90 % of the states, the lag exceeds 0.1, or a value lies
            outside what rewards allow.
    """

    shared: ClassVar[bool] = False
    description: ClassVar[str] = "FQE"
