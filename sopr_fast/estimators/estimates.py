"""What an off-policy evaluation says of a set of policies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ranking import Ranking
from ..runtime.warn import warn


class UncertainEstimateWarning(UserWarning):
    """The log says too little about a policy: its estimate is hardly more than a guess."""


def warn_of(said: dict[str, str], text: str) -> None:
    """Warns in `text` of the policies, {} in it, with what is said of each; of none, not at all."""
    if said:
        listed = ", ".join(f"{name!r} ({what})" for name, what in list(said.items())[:5])
        more = f" and {len(said) - 5} more" if len(said) > 5 else ""
        warn(text.format(listed + more), UncertainEstimateWarning)


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimated values of P policies.

    Attributes:
        names: (P,) in the order they were given.
        values: (P,) float64, larger is better: discounted return from the initial states, unless the method says
            otherwise.
        replicates: (P, R) float64 estimates whose spread is the error (bootstrap, ensemble), or None.
        method: which estimator.
        diagnostics: how it went, see each method; loss curves, effective sample sizes, model errors.
        timings: seconds by stage.
    """

    names: list[str]
    values: np.ndarray
    replicates: np.ndarray | None = None
    method: str = ""
    diagnostics: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def standard_errors(self) -> np.ndarray:
        """(P,) standard deviation of the replicates; nan where there are none."""
        if self.replicates is None or self.replicates.shape[1] < 2:
            return np.full(len(self), np.nan)
        return self.replicates.std(1, ddof=1)

    def ranking(self) -> Ranking:
        """Return the same as a `Ranking`: equal scores, standard errors and order."""
        return Ranking(
            list(self.names), self.values, self.standard_errors, replicates=self.replicates, timings=dict(self.timings)
        )

    def table(self) -> str:
        """The estimates as text, best first: value as the score, standard error beside it."""
        return self.ranking().table()

    __str__ = table

    def __repr__(self) -> str:
        return f"Estimates of {len(self)} policies by {self.method or 'an unnamed method'}\n{self.table()}"

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, ready for JSON (nan where a value is undefined); without critics and ratios."""
        return {
            "method": self.method,
            "names": list(self.names),
            "values": self.values.tolist(),
            "standard_errors": self.standard_errors.tolist(),
            "diagnostics": _plain(self.diagnostics),
            "timings": dict(self.timings),
        }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if not callable(item)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
