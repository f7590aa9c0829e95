"""Known policies with their labels and the loss of their scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..inputs.policies import Policies, load
from ..inputs.returns import check_ordered, with_returns
from ..runtime.warn import warn
from . import losses
from .config import Config
from .losses import Objective

_ENOUGH = 12  # policies


@dataclass(frozen=True)
class KnownPolicies:
    """M policies that train, or that choose the weights.

    Attributes:
        policies: The policies.
        labels: (M,) float64 returns, or (M, M) preferences.
        objective: Loss of their scores.
        mean: Mean by which returns are standardised.
        scale: Standard deviation by which returns are standardised.
    """

    policies: Policies
    labels: np.ndarray
    objective: Objective
    mean: float = 0.0
    scale: float = 1.0

    @property
    def names(self) -> list[str]:
        return list(self.policies)


def read_training(policies: Any, returns: Any, preferences: Any, config: Config) -> KnownPolicies:
    """Return the training policies, see `sopr_fast.fit` for the arguments and errors.

    Warns:
        UserWarning: There are few policies, or some have no return.
    """
    loaded = load(policies)
    if preferences is not None:
        if returns is not None:
            raise ValueError("give returns or preferences, not both")
        known = _with_preferences(loaded, preferences, config)
    else:
        known = _with_returns("training", loaded, returns, config)
    if len(known.policies) < _ENOUGH:
        warn(
            f"only {len(known.policies)} training policies: about a dozen or more with known returns are needed to "
            "learn an order that holds for others"
        )
    return known


def read_validation(validation: Any, training: KnownPolicies, config: Config) -> KnownPolicies:
    """Return the validation policies, whose returns are standardised as those of the training policies."""
    try:
        policies, returns = validation
    except (TypeError, ValueError):
        raise TypeError("validation must be a pair (policies, returns)") from None
    return _with_returns("validation", load(policies), returns, config, (training.mean, training.scale))


def _with_preferences(policies: Policies, preferences: Any, config: Config) -> KnownPolicies:
    if config.loss != "pairwise":
        raise ValueError(f"preferences need loss='pairwise', got {config.loss!r}")
    if config.tie_margin:
        raise ValueError(f"tie_margin={config.tie_margin:g} is for returns: mark ties by 0.5 in preferences")
    check_ordered("preferences", preferences, policies)
    _check_count("training", policies)
    targets = losses.check_preferences(preferences, list(policies))
    return KnownPolicies(policies, targets.numpy(), Objective.from_preferences(targets))


def _with_returns(
    kind: str, policies: Policies, returns: Any, config: Config, moments: tuple[float, float] | None = None
) -> KnownPolicies:
    """Return the policies that have a return; `moments` standardise the returns, by default their own."""
    known, table = with_returns(policies, returns)
    _check_count(kind, known)
    labels = table["return"].to_numpy(np.float64, copy=True)
    with np.errstate(all="ignore"):
        if labels.max() - labels.min() <= config.tie_margin:
            within = f" within tie_margin={config.tie_margin:g}; lower it" if config.tie_margin else ""
            raise ValueError(f"the returns of all {kind} policies are equal{within}")
        standardises = config.loss != "pairwise"
        mean, scale = moments or ((float(labels.mean()), float(labels.std())) if standardises else (0.0, 1.0))
        objective = Objective.from_returns(config, labels, mean, scale)
    if not np.isfinite([scale, objective.flat, objective.floor]).all():
        raise ValueError(
            f"loss={config.loss!r} cannot standardise the returns of the {kind} policies by {mean:g} ± {scale:g}: "
            "rescale all returns, or choose loss='pairwise'"
        )
    return KnownPolicies(known, labels, objective, mean, scale)


def _check_count(kind: str, policies: Policies) -> None:
    if len(policies) < 2:
        raise ValueError(f"at least two {kind} policies are needed, got {len(policies)}")
