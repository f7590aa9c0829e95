"""Estimated values of policies, and warnings about them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from ..runtime.checks import number
from ..runtime.text import counted
from .metrics import agreement as mean_agreement
from .ranking import Ranking
from .tables import plain, wrapped


class UncertainEstimateWarning(UserWarning):
    """Warning that the log holds so little evidence about a policy that its estimate is nearly a guess."""


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

    def intervals(self, level: float = 0.95) -> np.ndarray:
        """Return (P, 2) float64 ends of intervals of the values, NaN where the error is unknown.

        Args:
            level: Nominal coverage, between 0 and 1.

        Raises:
            ValueError: The level is not between 0 and 1.
        """
        from scipy.special import ndtri

        half = ndtri((1 + number(above=0, below=1)("level", level)) / 2) * self.standard_errors
        return self.values[:, None] + half[:, None] * [-1, 1]

    def columns(self) -> dict[str, Any]:
        """Return the columns of the table, see `Ranking.columns`, and the share of unsupported decisions if known."""
        found = self.diagnostics.get("unsupported")
        return super().columns() | ({} if found is None else {"unsupported": np.asarray(found)[self.places]})

    def table(self, rows: int | None = None) -> str:
        """Return the method and the ranking as text of 80 columns, see `Ranking.table`."""
        title = f"Estimates of {counted(len(self), 'policy')} by {self.method or 'an unnamed method'}"
        return "\n".join([title, super().table(rows), *map(wrapped, self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, ready for JSON; critics and other callables are left out."""
        shown = ("method", "values", "diagnostics", "notes")
        return super().to_dict() | plain({name: getattr(self, name) for name in shown})
