"""Warnings about candidates whose scores say little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..runtime.warn import warn

if TYPE_CHECKING:
    import numpy as np

COMPARABLE = "the distance of an array of actions is known only on the training log and on the subsets of the model"
_LISTED = 5


class ForeignPolicyWarning(UserWarning):
    """A candidate's score is an extrapolation: it acts unlike every training policy."""


class TrainingPolicyWarning(UserWarning):
    """A candidate or validation policy was a training policy, so its score is no test of the model."""


def warn_of_candidates(
    names: Sequence[str],
    distances: np.ndarray | None,
    distance_limit: float | None,
    in_training: Sequence[bool] | None,
) -> None:
    """Warn of foreign candidates, of those whose distance is unknown, and of those that were in training.

    Args:
        names: (P,) names of the candidates.
        distances: (P,) action distances to the nearest training policy, NaN where unknown; or None.
        distance_limit: Distance beyond which a candidate is foreign, or None.
        in_training: (P,) whether each candidate acts exactly as a training policy does, or None.
    """
    if distances is not None and distance_limit is not None:
        rows = list(zip(names, distances.tolist(), strict=True))
        if foreign := [f"{name!r} ({distance:.3g})" for name, distance in rows if distance > distance_limit]:
            warn(
                f"unlike any training policy: {join_some(foreign)}; their mean squared action distance to the nearest "
                f"one exceeds {distance_limit:.3g}, twice the upper quartile of those among the training policies. "
                "Their scores are extrapolations",
                ForeignPolicyWarning,
            )
        if unknown := [repr(name) for name, distance in rows if math.isnan(distance)]:
            warn(
                f"unknown distance to the training policies: {join_some(unknown)}; {COMPARABLE}. Their scores may be "
                "extrapolations",
                ForeignPolicyWarning,
            )
    if known := [repr(name) for name, is_known in zip(names, in_training or (), strict=False) if is_known]:
        warn(
            "the model was trained on candidates, or on policies that act exactly like them: "
            f"{join_some(known)}. Their scores are no test of the model",
            TrainingPolicyWarning,
        )


def join_some(texts: list[str]) -> str:
    """Return the first few texts, and how many more there are."""
    more = len(texts) - _LISTED
    return ", ".join(texts[:_LISTED]) + (f" and {more} more" if more > 0 else "")
