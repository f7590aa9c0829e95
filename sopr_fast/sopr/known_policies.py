"""Known policies: those that train and those that choose the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..inputs.policies import Policies, Policy, load
from ..inputs.returns import check_ordered, with_returns
from ..runtime.tensor_files import fingerprint
from ..runtime.warn import warn
from . import losses
from .config import Config
from .losses import Objective

_ENOUGH = 12  # policies


@dataclass(frozen=True)
class Group:
    """M policies that train, or choose the weights, together.

    Attributes:
        policies: The policies.
        labels: (M,) float64 returns, or (M, M) preferences.
        objective: Loss of their scores.
    """

    policies: list[Policy]
    labels: np.ndarray
    objective: Objective

    def __len__(self) -> int:
        return len(self.policies)

    @property
    def names(self) -> list[str]:
        return [policy.name for policy in self.policies]


@dataclass(frozen=True)
class Known:
    """Training and validation policies.

    Attributes:
        training: Training policies.
        validation: Validation policies, or None.
        mean: Mean by which returns are standardised.
        scale: Standard deviation by which returns are standardised.
    """

    training: Group
    validation: Group | None
    mean: float
    scale: float

    @property
    def policies(self) -> list[Policy]:
        """Training, then validation policies."""
        return self.training.policies + (self.validation.policies if self.validation else [])

    def fingerprint(self, config: Config, seed: int) -> str:
        """Return a hash of all that is known of a run before any policy acts."""
        validation = (self.validation.names, self.validation.labels) if self.validation else ()
        return fingerprint(config.to_dict(), seed, self.training.names, self.training.labels, *validation)


def read_known(
    policies: Any,
    returns: Any,
    preferences: Any,
    validation: tuple[Any, Any] | None,
    *,
    states_count: int,
    config: Config,
) -> Known:
    """Return the known policies that were passed to `sopr_fast.fit`, checked.

    Args:
        policies: See `sopr_fast.fit`.
        returns: See `sopr_fast.fit`.
        preferences: See `sopr_fast.fit`.
        validation: See `sopr_fast.fit`.
        states_count: Rows of the logged states.
        config: Options of the training.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value; the message names the policy or option.

    Warns:
        UserWarning: There are few training policies, or some policies have no return.
    """
    mean, scale = 0.0, 1.0
    everyone = load(policies).for_log(states_count)
    if preferences is None:
        trained, labels = _read_returns("training", everyone, returns)
        if (spread := _spread(labels)) <= config.tie_margin:
            lower = (
                f" within {spread:g}, which is no more than tie_margin={config.tie_margin:g}; lower it"
                if spread
                else ""
            )
            raise ValueError(f"the returns of all training policies are equal{lower}: there is no order to learn")
        if config.loss != "pairwise":
            mean, scale = _mean_and_deviation(labels, config)
        objective = Objective.from_returns(config, labels, mean, scale)
    elif returns is not None:
        raise ValueError("give returns or preferences, not both")
    elif config.loss != "pairwise":
        raise ValueError(f"preferences need loss='pairwise', got {config.loss!r}")
    elif config.tie_margin and validation is None:  # of validation policies there are returns
        raise ValueError(
            f"preferences are not returns, so tie_margin={config.tie_margin:g} has no use: mark ties by 0.5 in them"
        )
    else:
        check_ordered("preferences", preferences, everyone)
        trained = _at_least_two("training", everyone)
        targets = losses.check_preferences(preferences, list(everyone))
        labels, objective = targets.numpy(), Objective.from_preferences(targets)
    training = Group(trained, labels, objective)
    if len(trained) < _ENOUGH:
        warn(
            f"only {len(trained)} training policies: about a dozen or more with known returns are needed to learn an "
            "order that holds for others"
        )
    held_out = None if validation is None else _read_validation(validation, states_count, config, mean, scale)
    return Known(training, held_out, mean, scale)


def _read_returns(kind: str, policies: Policies, returns: Any) -> tuple[list[Policy], np.ndarray]:
    """Return the policies that have a return, and their returns."""
    known, table = with_returns(policies, returns)
    return _at_least_two(kind, known), table["return"].to_numpy(np.float64, copy=True)


def _at_least_two(kind: str, policies: Policies) -> list[Policy]:
    if len(policies) < 2:
        raise ValueError(f"at least two {kind} policies are needed, got {len(policies)}")
    return list(policies.values())


def _spread(returns: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return float(returns.max() - returns.min())


def _mean_and_deviation(returns: np.ndarray, config: Config) -> tuple[float, float]:
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = float(returns.mean()), float(returns.std())
    if not 0 < scale < np.inf:
        raise ValueError(
            f"the standard deviation of the returns is {scale:g}, by which loss={config.loss!r} divides: rescale the "
            "returns, or choose loss='pairwise'"
        )
    return mean, scale


def _read_validation(
    validation: tuple[Any, Any], states_count: int, config: Config, mean: float, scale: float
) -> Group:
    try:
        policies, returns = validation
    except (TypeError, ValueError):
        raise TypeError("validation must be a pair (policies, returns)") from None
    policies, returns = _read_returns("validation", load(policies).for_log(states_count), returns)
    margin = config.tie_margin if config.validation_metric == "loss" else 0.0
    if _spread(returns) <= margin:
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
