"""What is known of the training and validation policies before any of them acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from ..policies import Policy, as_policies
from ..returns import check_returns
from ..runtime.checkpoints import fingerprint
from . import losses
from .config import Config
from .features import read_features
from .objective import Objective


@dataclass(frozen=True)
class Group:
    """M policies that train, or choose the weights, together.

    Attributes:
        labels: (M,) float64 returns, or (M, M) preferences.
        features: (M, F) float32, or None.
    """

    policies: list[Policy]
    labels: np.ndarray
    objective: Objective
    features: Tensor | None = None

    def __len__(self) -> int:
        return len(self.policies)

    @property
    def names(self) -> list[str]:
        return [policy.name for policy in self.policies]


@dataclass(frozen=True)
class Known:
    """The groups, and what their returns are standardised by."""

    training: Group
    validation: Group | None
    mean: float
    scale: float

    @property
    def policies(self) -> list[Policy]:
        """Of training, then of validation."""
        return self.training.policies + (self.validation.policies if self.validation else [])

    def fingerprint(self, config: Config, seed: int) -> str:
        """Tells one training run from another by all that is known before any policy acts."""
        validation = (self.validation.names, self.validation.labels) if self.validation else ()
        return fingerprint(config.to_dict(), seed, self.training.names, self.training.labels, *validation)


def read_known(
    policies: Any,
    returns: Any,
    preferences: Any,
    validation: tuple[Any, Any] | None,
    features: Mapping[str, Any] | None,
    *,
    states_count: int,
    config: Config,
) -> Known:
    """See `sopr_fast.fit`.

    Raises:
        TypeError, ValueError: names the policy or option at fault.
    """
    trained = as_policies(policies, states_count=states_count, action_count=config.action_count)
    if len(trained) < 2:
        raise ValueError(f"at least two training policies are needed, got {len(trained)}")
    names = [policy.name for policy in trained]
    mean, scale = 0.0, 1.0
    if preferences is None:
        labels = _read_returns(returns, names, config)
        if config.loss != "pairwise":
            mean, scale = _mean_and_deviation(labels, config)
        objective = Objective.from_returns(config, labels, mean, scale)
    elif returns is not None:
        raise ValueError("give returns or preferences, not both")
    elif config.loss != "pairwise":
        raise ValueError(f"preferences need loss='pairwise', got {config.loss!r}")
    else:
        targets = losses.check_preferences(preferences, names)
        labels, objective = targets.numpy(), Objective.from_pairs(targets)
    training = Group(trained, labels, objective)
    chosen_by = None if validation is None else _read_validation(validation, states_count, config, mean, scale)
    if features is not None:
        training, chosen_by = _with_features(features, training, chosen_by)
    return Known(training, chosen_by, mean, scale)


def _read_returns(returns: Any, names: list[str], config: Config) -> np.ndarray:
    found = check_returns(returns, names)
    if found.max() - found.min() <= config.tie_margin:
        raise ValueError("the returns of all training policies are equal: there is no order to learn")
    return found


def _mean_and_deviation(returns: np.ndarray, config: Config) -> tuple[float, float]:
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = float(returns.mean()), float(returns.std())
    if not 0 < scale < np.inf:
        raise ValueError(
            f"the returns' standard deviation comes to {scale:g}, which loss={config.loss!r} divides by: "
            "give them on another scale, or choose loss='pairwise'"
        )
    return mean, scale


def _read_validation(
    validation: tuple[Any, Any], states_count: int, config: Config, mean: float, scale: float
) -> Group:
    try:
        policies, returns = validation
    except (TypeError, ValueError):
        raise TypeError("validation must be a pair (policies, returns)") from None
    policies = as_policies(policies, states_count=states_count, action_count=config.action_count)
    if len(policies) < 2:
        raise ValueError(f"at least two validation policies are needed, got {len(policies)}")
    returns = check_returns(returns, [policy.name for policy in policies])
    margin = config.tie_margin if config.validation_metric == "loss" else 0.0
    if returns.max() - returns.min() <= margin:
        within = ", or within tie_margin" if margin else ""
        raise ValueError(
            f"the returns of all validation policies are equal{within}: they cannot choose between weights"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        objective = Objective.from_returns(config, returns, mean, scale)
    if not np.isfinite([objective.flat, objective.floor]).all():
        raise ValueError(
            f"validation returns from {returns.min():g} to {returns.max():g} are too far from those of the training "
            f"policies ({mean:g} ± {scale:g}) for loss={config.loss!r}"
        )
    return Group(policies, returns, objective)


def _with_features(
    features: Mapping[str, Any], training: Group, validation: Group | None
) -> tuple[Group, Group | None]:
    training = replace(training, features=read_features(features, training.names))
    if validation is None:
        return training, None
    _check_names(training, validation)
    validation = replace(validation, features=read_features(features, validation.names))
    counts = [group.features.shape[1] for group in (validation, training)]
    if counts[0] != counts[1]:
        raise ValueError(f"validation policies have {counts[0]} features each, training policies {counts[1]}")
    return training, validation


def _check_names(training: Group, validation: Group) -> None:
    """Raises where one name stands for two policies, which features by name cannot tell apart."""
    by_name = {policy.name: policy for policy in training.policies}
    for policy in validation.policies:
        if policy.name in by_name and not policy.is_same(by_name[policy.name]):
            raise ValueError(
                f"a training and a validation policy are both named {policy.name!r}, so features by name cannot tell "
                "them apart; name them in dicts"
            )
