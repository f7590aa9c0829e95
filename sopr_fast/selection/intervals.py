"""Conformal calibration of the posterior on policies that were left out."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

FEWEST_LEFT_OUT = 4  # policies left out at random, of which the largest score covers 80 %
GROUPS_NEEDED = 5  # for a nominal 80 % that holds for a new group


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Predictions for known policies that were left out.

    Attributes:
        names: (n,) names.
        returns: (n,) measured returns.
        predicted: (n,) predicted returns.
        deviation: (n,) standard deviations of the posterior and the measurement together, not calibrated.
    """

    names: list[str]
    returns: np.ndarray
    predicted: np.ndarray
    deviation: np.ndarray

    @property
    def scores(self) -> np.ndarray:
        """(n,) conformity scores."""
        return np.abs(self.returns - self.predicted) / np.maximum(self.deviation, np.finfo(float).tiny)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Conformity scores of policies that were left out: absolute errors over standard deviations.

    Attributes:
        inside: Scores of policies left out at random.
        outside: Group -> scores of its policies when the whole group was left out.
    """

    inside: np.ndarray
    outside: dict[str, np.ndarray]

    @property
    def calibrated_outside(self) -> bool:
        """Whether there are enough groups to calibrate intervals of foreign candidates."""
        return len(self.outside) >= GROUPS_NEEDED

    def factors(self, level: float, gate: np.ndarray) -> np.ndarray:
        """Compute the half widths of intervals, in standard deviations.

        Args:
            level: Nominal coverage, such as 0.8.
            gate: (P,) from 0 (like the known policies) to 1 (foreign).

        Returns:
            (P,) factors: inside, the quantile of the random folds; outside, the largest quantile of any group, never
            less than inside; between, a mixture by the gate. Where n policies are too few for the level, the largest
            score, which covers n / (n + 1), grows as the half widths of a normal distribution do.
        """
        count, normal = len(self.inside), _half_width(level)
        inside = conformal_quantile(self.inside, level) if count >= FEWEST_LEFT_OUT else normal
        if level > count / (count + 1) and count >= FEWEST_LEFT_OUT:
            inside *= normal / _half_width(count / (count + 1))
        groups = [conformal_quantile(scores, level) for scores in self.outside.values() if len(scores)]
        outside = max([inside, *groups]) if groups else max(inside, normal)
        return (1 - gate) * inside + gate * outside


def _half_width(level: float) -> float:
    """Return the half width of the central interval of a standard normal distribution."""
    return NormalDist().inv_cdf((1 + level) / 2)


def conformal_quantile(scores: np.ndarray, level: float) -> float:
    """Return the smallest score that covers a new one with the given probability, the largest if none does.

    Args:
        scores: (n,) scores, exchangeable with the new one.
        level: Nominal coverage.
    """
    scores = np.sort(scores)
    return float(scores[min(int(np.ceil((len(scores) + 1) * level)), len(scores)) - 1])
