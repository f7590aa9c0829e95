"""The panel: what every estimator says of every policy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True, eq=False)
class Panel:
    """One column of values per estimator, for known policies and candidates alike.

    P is the number of policies. A policy is known if its return is finite. `Panel.build` fills in every
    argument that has a default; the constructor takes complete arrays.

    Attributes:
        names: (P,) names, known policies first.
        returns: (P,) float64 returns; NaN for candidates.
        return_errors: (P,) float64 standard errors of the returns; 0 where unknown.
        groups: (P,) group of each known policy, "" where unknown; for candidates the group they claim, or "".
        columns: Estimator -> (P,) float64 values. Supervised estimators are cross-fitted by random folds on
            known policies.
        grouped_columns: Estimator -> (P,) float64 values. Supervised estimators are cross-fitted by leaving one
            group out; the others equal those in `columns`.
        errors: Estimator -> (P,) float64 standard errors of the values; NaN where unknown.
        distances: (P, P) float64 action distances (Eq. 3 of the paper); NaN where unknown.
        dropped: Estimator -> reason why it has no column.
        seconds: Estimator -> time spent, in seconds.
        supervised: Estimators that learn from the known returns.
    """

    names: list[str]
    returns: np.ndarray
    return_errors: np.ndarray
    groups: list[str]
    columns: dict[str, np.ndarray]
    grouped_columns: dict[str, np.ndarray]
    errors: dict[str, np.ndarray]
    distances: np.ndarray
    dropped: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    supervised: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        count = len(self.names)
        if len(set(self.names)) != count:
            repeated = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"policy name {repeated!r} occurs twice in the panel; give every policy its own name")
        expected: list[tuple[str, np.ndarray, tuple[int, ...]]] = [
            ("returns", self.returns, (count,)),
            ("return_errors", self.return_errors, (count,)),
            ("groups", np.asarray(self.groups, dtype=object), (count,)),
            ("distances", self.distances, (count, count)),
        ]
        tables = {"columns": self.columns, "grouped_columns": self.grouped_columns, "errors": self.errors}
        for kind, table in tables.items():
            expected += [(f"{kind}[{name!r}]", values, (count,)) for name, values in table.items()]
        for name, values, shape in expected:
            if values.shape != shape:
                raise ValueError(f"{name} of the panel has shape {values.shape}, expected {shape}")
        if np.any(~self.known[:-1] & self.known[1:]):
            raise ValueError("the panel lists a candidate before a known policy; put known policies first")
        for name in self.columns.keys() ^ self.grouped_columns.keys():
            raise ValueError(f"estimator {name!r} is in only one of columns and grouped_columns; put it in both")

    @classmethod
    def build(
        cls,
        names: Sequence[str],
        returns: np.ndarray,
        columns: dict[str, np.ndarray],
        *,
        grouped_columns: dict[str, np.ndarray] | None = None,
        groups: Sequence[str] | None = None,
        return_errors: np.ndarray | None = None,
        errors: dict[str, np.ndarray] | None = None,
        distances: np.ndarray | None = None,
        dropped: dict[str, str] | None = None,
        seconds: dict[str, float] | None = None,
        supervised: Collection[str] = (),
    ) -> Panel:
        """Build a panel from what is at hand.

        Args:
            names: P names, known policies first.
            returns: (P,) returns; NaN for candidates.
            columns: Estimator -> (P,) values.
            grouped_columns: Estimator -> (P,) values cross-fitted by group; those missing equal `columns`.
            groups: P groups; all unknown ("") by default.
            return_errors: (P,) standard errors of the returns; 0 by default.
            errors: Estimator -> (P,) standard errors of the values; those missing are NaN.
            distances: (P, P) action distances; NaN by default.
            dropped: Estimator -> reason why it has no column.
            seconds: Estimator -> time spent, in seconds.
            supervised: Estimators that learn from the known returns.

        Returns:
            The panel, its arrays in float64.

        Raises:
            ValueError: A name occurs twice, a shape does not fit, or a candidate stands before a known policy.
        """
        count = len(names)
        values = {name: np.asarray(column, np.float64) for name, column in columns.items()}
        grouped = {name: np.asarray(column, np.float64) for name, column in (grouped_columns or {}).items()}
        spread = {name: np.asarray(column, np.float64) for name, column in (errors or {}).items()}
        return cls(
            names=list(names),
            returns=np.asarray(returns, np.float64),
            return_errors=np.zeros(count) if return_errors is None else np.asarray(return_errors, np.float64),
            groups=[""] * count if groups is None else list(groups),
            columns=values,
            grouped_columns=values | grouped,
            errors={name: spread.get(name, np.full(count, np.nan)) for name in values},
            distances=np.full((count, count), np.nan) if distances is None else np.asarray(distances, np.float64),
            dropped=dict(dropped or {}),
            seconds=dict(seconds or {}),
            supervised=frozenset(supervised),
        )

    @property
    def known(self) -> np.ndarray:
        """(P,) bool: whether the return of a policy is known."""
        return np.isfinite(self.returns)

    @property
    def methods(self) -> list[str]:
        """Names of the estimators that have a column."""
        return list(self.columns)

    def __len__(self) -> int:
        return len(self.names)

    def take(self, policies: np.ndarray) -> Panel:
        """Return the panel of some policies.

        Args:
            policies: (Q,) indices, or (P,) bool.

        Raises:
            ValueError: A candidate would stand before a known policy, or a policy twice.
        """
        order = np.arange(len(self))[policies]
        return replace(
            self,
            names=[self.names[i] for i in order],
            returns=self.returns[order],
            return_errors=self.return_errors[order],
            groups=[self.groups[i] for i in order],
            columns={name: values[order] for name, values in self.columns.items()},
            grouped_columns={name: values[order] for name, values in self.grouped_columns.items()},
            errors={name: values[order] for name, values in self.errors.items()},
            distances=self.distances[np.ix_(order, order)],
        )

    def with_returns(self, returns: np.ndarray, errors: np.ndarray | None = None) -> Panel:
        """Return the panel with other returns, its policies reordered so that known ones come first.

        The columns stay as they are: nothing is trained again.

        Args:
            returns: (P,) returns; NaN for candidates.
            errors: (P,) standard errors of the returns; as before by default.

        Returns:
            A panel whose known policies and whose candidates each keep their order.
        """
        returns = np.asarray(returns, np.float64)
        order = np.argsort(~np.isfinite(returns), kind="stable")
        errors = self.return_errors if errors is None else np.asarray(errors, np.float64)
        hidden = replace(self, returns=np.full(len(self), np.nan)).take(order)
        return replace(hidden, returns=returns[order], return_errors=errors[order])
