"""How many subsets to score on: as many as settle the top of the order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..runtime.options import Options, integer, number, option

if TYPE_CHECKING:
    import numpy as np

_FIRST = 5


@dataclass(frozen=True, kw_only=True)
class UntilSettled(Options):
    """Rule for `Ranker.rank`: score on more subsets until the top of the order is settled, or a limit is reached.

    The order is looked at after 5, 10, 20, … subsets. At each look the doubt is a bound on the probability that more
    subsets would change the places at the top: the sum, over each place and each candidate below it, of the
    one-sided p-values of paired t-tests of subset scores (Bonferroni). The top is settled if the doubt is at most
    (1 - confidence) / L, where L is the number of looks up to the limit, so that all looks together err with
    probability 1 - confidence at most.

    This concerns the noise of drawing subsets, not whether scores order policies as their returns do.

    Attributes:
        top: Places of the order that must be settled, from the best.
        confidence: Probability with which the places are right.
        most: Largest number of subsets.

    Raises:
        ValueError: An option has a wrong value.
    """

    top: int = option(1, integer(1), "places of the order, from the best, that must be settled")
    confidence: float = option(0.95, number(above=0, below=1), "probability with which they are right")
    most: int = option(200, integer(2), "largest number of subsets")

    def counts(self, available: int | None = None) -> list[int]:
        """Return the numbers of subsets after which the order is looked at.

        Args:
            available: Subsets there are; None for no limit.
        """
        most = self.most if available is None else min(self.most, available)
        counts = [min(_FIRST, most)]
        while counts[-1] < most:
            counts.append(min(2 * counts[-1], most))
        return counts

    def is_settled(self, subset_scores: np.ndarray, looks: int) -> bool:
        """Return whether the top of the order is settled.

        Args:
            subset_scores: (P, S) scores by subset.
            looks: Number of looks that may be taken.
        """
        from ..ranking.paired_tests import doubt  # here, because --help needs this module, but not numpy

        return doubt(subset_scores, self.top) <= (1 - self.confidence) / looks


def to_rule(subsets: Any) -> UntilSettled | None:
    """Return the rule that decides how many subsets to score on, or None where they are chosen.

    Raises:
        ValueError: `subsets` is a string other than "auto".
    """
    if isinstance(subsets, str):
        if subsets != "auto":
            raise ValueError(f"subsets is {subsets!r}; give a number, 'auto', or a .safetensors file of subsets")
        return UntilSettled()
    return subsets if isinstance(subsets, UntilSettled) else None
