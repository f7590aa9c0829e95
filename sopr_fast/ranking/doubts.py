"""Warnings about candidates whose scores say little."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.warn import warn

if TYPE_CHECKING:
    from torch import Tensor

    from .ranking import Ranking

COMPARABLE = "the distance of an array of actions is known only on the training log and on the subsets of the model"
_LISTED = 5
_FAR = 10.0  # standard deviations; none of 100 numbers is farther from their mean


class ForeignPolicyWarning(UserWarning):
    """A candidate's score is an extrapolation: it acts unlike every training policy, or has features unlike theirs."""


class TrainingPolicyWarning(UserWarning):
    """A candidate or validation policy was a training policy, so its score is no test of the model."""


def warn_of_doubts(ranking: Ranking) -> None:
    """Warn of foreign candidates, of those whose distance is unknown, and of those that were in training."""
    names = [repr(name) for name in ranking.names]
    foreign = [i for i, is_foreign in enumerate(ranking.foreign or []) if is_foreign]
    unknown = [names[i] for i, is_foreign in enumerate(ranking.foreign or []) if is_foreign is None]
    in_training = [names[i] for i, was_known in enumerate(ranking.in_training or []) if was_known]
    if foreign and ranking.distances is not None:
        listed = join_some([f"{names[i]} ({ranking.distances[i]:.3g})" for i in foreign])
        warn(
            f"unlike any training policy: {listed}; their mean squared action distance to the nearest one exceeds "
            f"{ranking.distance_limit:.3g}, twice the upper quartile of those among the training policies. Their "
            "scores are extrapolations",
            ForeignPolicyWarning,
        )
    if unknown:
        warn(
            f"unknown distance to the training policies: {join_some(unknown)}; {COMPARABLE}. Their scores may be "
            "extrapolations",
            ForeignPolicyWarning,
        )
    if in_training:
        warn(
            "the model was trained on candidates, or on policies that act exactly like them: "
            f"{join_some(in_training)}. Their scores are no test of the model",
            TrainingPolicyWarning,
        )


def warn_of_features(features: Tensor, mean: Tensor, scale: Tensor, names: list[str]) -> None:
    """Warn of candidates with a feature unlike those of the training policies.

    Args:
        features: (P, F) features of the candidates.
        mean: (F,) means over the training policies.
        scale: (F,) standard deviations.
        names: (P,) names of the candidates.
    """
    distances, places = ((features - mean).abs() / scale).max(1)
    far = [
        f"{name!r} (feature {place}: {distance:.3g})"
        for name, distance, place in zip(names, distances.tolist(), places.tolist(), strict=True)
        if distance > _FAR
    ]
    if far:
        warn(
            f"features unlike those of the training policies: {join_some(far)}; these are so many standard deviations "
            "from their mean. Give features in the same unit; otherwise the scores are extrapolations",
            ForeignPolicyWarning,
        )


def join_some(texts: list[str]) -> str:
    """Return the first few texts, and how many more there are."""
    more = len(texts) - _LISTED
    return ", ".join(texts[:_LISTED]) + (f" and {more} more" if more > 0 else "")
