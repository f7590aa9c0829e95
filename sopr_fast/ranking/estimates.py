"""Estimated values of policies, and warnings about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..runtime.text import join_some
from ..runtime.warn import warn
from .ranking import Ranking, errors_of
from .tables import SHORTENED, plain


class UncertainEstimateWarning(UserWarning):
    """Warning that the log holds so little evidence about a policy that its estimate is nearly a guess."""


def warn_about(reasons: dict[str, str], text: str) -> None:
    """Warn about policies or columns, if there are any.

    Args:
        reasons: Reason for the warning by name of the policy or column.
        text: Message, with {} in place of the names and reasons.
    """
    if reasons:
        listed = join_some([f"{name!r} ({reason})" for name, reason in reasons.items()])
        warn(text.format(listed), UncertainEstimateWarning)


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimated values of P policies.

    Attributes:
        names: (P,) names of the policies, in input order.
        values: (P,) float64; larger is better. Discounted returns from initial states unless the estimator says
            otherwise.
        standard_errors: (P,) float64; NaN if unknown. By default the standard deviation of the replicates.
        replicates: (P, R) float64 estimates by bootstrap samples or members of an ensemble, or None.
        method: Name of the estimator.
        diagnostics: Loss curves, effective sample sizes, errors of models; see each estimator.
    """

    names: list[str]
    values: np.ndarray
    standard_errors: np.ndarray = None  # type: ignore[assignment]  # `__post_init__` fills it in
    replicates: np.ndarray | None = None
    method: str = ""
    diagnostics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.standard_errors is None:
            object.__setattr__(self, "standard_errors", errors_of(self.replicates, len(self)))

    def __len__(self) -> int:
        return len(self.names)

    def ranking(self) -> Ranking:
        """Return the ranking of the policies by value, for tables, frames and plots.

        Win probabilities compare replicates; they are NaN without any, and for policies whose standard error is NaN.
        """
        return Ranking(
            list(self.names),
            self.values,
            self.standard_errors,
            replicates=self.replicates,
            settings={"method": self.method} if self.method else {},
        )

    def table(self, rows: int | None = None) -> str:
        """Return the ranking as text of 80 columns, see `Ranking.table`.

        Args:
            rows: Number of policies beyond which only the first and the last five are shown; None for all.
        """
        count = f"{len(self)} polic{'y' if len(self) == 1 else 'ies'}"
        return f"Estimates of {count} by {self.method or 'an unnamed method'}\n{self.ranking().table(rows)}"

    def __repr__(self) -> str:
        return self.table(SHORTENED)

    def _repr_html_(self) -> str:
        return self.ranking()._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, ready for JSON; critics and other callables are left out."""
        shown = ("method", "names", "values", "standard_errors", "diagnostics")
        return plain({name: getattr(self, name) for name in shown})
