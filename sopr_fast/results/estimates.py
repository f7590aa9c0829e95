"""Estimated values of policies, and warnings about them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from ..runtime.text import list_names
from ..runtime.warn import warn
from .metrics import agreement as mean_agreement
from .ranking import Ranking
from .tables import plain, wrapped


class UncertainEstimateWarning(UserWarning):
    """Warning that the log holds so little evidence about a policy that its estimate is nearly a guess."""


def warn_about(reasons: dict[str, str], text: str) -> None:
    """Warn about policies or columns, if there are any, with {} of the text replaced by their names and reasons."""
    if reasons:
        listed = list_names([f"{name!r} ({reason})" for name, reason in reasons.items()], 5)
        warn(text.format(listed), UncertainEstimateWarning)


@dataclass(frozen=True, eq=False, repr=False)
class Estimates(Ranking):
    """Ranking of P policies by estimated values; see `Ranking` for what both have.

    Win probabilities compare replicates; they are NaN without any, and for policies whose standard error is NaN.

    Attributes:
        scores: (P,) float64 values; larger is better. Discounted returns from initial states unless the estimator says
            otherwise.
        method: Name of the estimator.
        diagnostics: Loss curves, effective sample sizes, errors of models; see each estimator.
        notes: Facts about the policies next to the log that a reader should see.
    """

    _: KW_ONLY
    method: str = ""
    diagnostics: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method:
            self.settings.setdefault("method", self.method)

    @property
    def agreement(self) -> float:
        """How alike the replicates order the policies: their mean Spearman correlation, from -1 to 1.

        NaN without two replicates that order three policies.
        """
        return float("nan") if self.replicates is None else mean_agreement(self.replicates)

    @property
    def values(self) -> np.ndarray:
        """(P,) float64 values, the scores."""
        return self.scores

    def table(self, rows: int | None = None) -> str:
        """Return the method and the ranking as text of 80 columns, see `Ranking.table`."""
        count = f"{len(self)} polic{'y' if len(self) == 1 else 'ies'}"
        title = f"Estimates of {count} by {self.method or 'an unnamed method'}"
        return "\n".join([title, super().table(rows), *map(wrapped, self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, ready for JSON; critics and other callables are left out."""
        shown = ("method", "names", "values", "standard_errors", "diagnostics", "notes")
        return plain({name: getattr(self, name) for name in shown})
