"""Known policies with their labels and the loss of their scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..inputs.policies import Policies, load
from ..inputs.returns import check_ordered, with_returns
from ..runtime.warn import warn
from .config import Config
from .losses import Objective, check_preferences

_ENOUGH = 12  # policies


class KnownPolicies(NamedTuple):
    """M policies that train, or that choose the weights.

    Attributes:
        policies: The policies.
        labels: (M,) float64 returns, or (M, M) preferences.
        objective: Loss of their scores.
    """

    policies: Policies
    labels: np.ndarray
    objective: Objective


def with_preferences(policies: Any, returns: Any, preferences: Any, config: Config) -> KnownPolicies:
    """Return the training policies with preferences; see `sopr_fast.fit` for the arguments and errors."""
    if returns is not None:
        raise ValueError("give returns or preferences, not both")
    if config.loss != "pairwise":
        raise ValueError(f"preferences need loss='pairwise', got {config.loss!r}")
    if config.tie_margin:
        raise ValueError(f"tie_margin={config.tie_margin:g} is for returns: mark ties by 0.5 in preferences")
    loaded = load(policies)
    check_ordered("preferences", preferences, loaded)
    _check_count("training", loaded)
    targets = check_preferences(preferences, list(loaded))
    return KnownPolicies(loaded, targets.numpy(), Objective.of_pairs(targets))


def with_known_returns(
    kind: str, policies: Any, returns: Any, config: Config, standard: Objective | None = None
) -> KnownPolicies:
    """Return the "training" or "validation" policies that have a return, see `sopr_fast.fit`.

    Args:
        kind: Which of the two, for messages.
        policies: See there, as `returns` and `config`.
        standard: Objective whose mean and scale standardise the returns; by default they are those of the returns.
    """
    known, table = with_returns(load(policies), returns)
    _check_count(kind, known)
    labels = table["return"].to_numpy(np.float64, copy=True)
    with np.errstate(all="ignore"):
        if labels.max() - labels.min() <= config.tie_margin:
            within = f" within tie_margin={config.tie_margin:g}; lower it" if config.tie_margin else ""
            raise ValueError(f"the returns of all {kind} policies are equal{within}")
        mean, scale = (standard.mean, standard.scale) if standard else (float(labels.mean()), float(labels.std()))
        objective = Objective.from_returns(config, labels, mean, scale)
    if not np.isfinite([objective.scale, objective.flat, objective.floor]).all():
        raise ValueError(
            f"loss={config.loss!r} cannot standardise the returns of the {kind} policies by {mean:g} ± {scale:g}: "
            "rescale all returns, or choose loss='pairwise'"
        )
    return KnownPolicies(known, labels, objective)


def _check_count(kind: str, policies: Policies) -> None:
    if len(policies) < 2:
        raise ValueError(f"at least two {kind} policies are needed, got {len(policies)}")
    if kind == "training" and len(policies) < _ENOUGH:
        warn(
            f"only {len(policies)} training policies: about a dozen or more with known returns are needed to learn an "
            "order that holds for others"
        )
