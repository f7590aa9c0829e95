"""A critic of the logged behaviour, evaluated at the actions of every policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..runtime.checks import integer, option
from .critics import CriticEstimator


@dataclass(frozen=True)
class BehaviourQ(CriticEstimator):
    """Mean over logged states of a SARSA critic at the policy's actions; one critic serves all policies.

    The value is what follows when the policy's action is taken once and the logged behaviour goes on from there. It is
    not the return of the policy, but ranks policies well at little cost. It is the mean over at most 65,536 logged
    states, evenly spaced. A checkpoint of a run with other policies can be resumed.

    Attributes:
        updates: See `FQE`.
        batch_size: See `FQE`.
        hidden: See `FQE`.
        learning_rate: See `FQE`.
        target_rate: See `FQE`.
        ensemble: Number of critics. Two or more learn from bootstrap samples of the episodes, and the standard
            deviation of their values is the standard error.

    Diagnostics and warnings are those of `FQE`.
    """

    shared: ClassVar[bool] = True
    description: ClassVar[str] = "SARSA critic"

    updates: int = option(10000, integer(1))
