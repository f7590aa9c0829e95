"""What was measured of policies: returns as they were given, and those of copies pooled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..inputs.returns import find_returns

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class Measured:
    """Returns of P policies, of which G act differently; policies that act alike everywhere are copies."""

    names: list[str]
    first: np.ndarray  # (P,) int64 index of the first policy that acts alike; its own without one
    table: pandas.DataFrame  # columns return, error and rollouts of the P policies as they were given, NaN if unknown
    incumbent: str | None = None
    states: int = 0  # in which copies act alike
    noise: float = 0.0  # standard deviation of the return of one episode, by the log; 0 if unknown

    @cached_property
    def firsts(self) -> np.ndarray:
        """(G,) int64 index of the first policy of each group."""
        return np.unique(self.first)

    @cached_property
    def groups(self) -> list[list[int]]:
        """G lists of indices of policies that act alike."""
        return [np.flatnonzero(self.first == first).tolist() for first in self.firsts]

    @property
    def representatives(self) -> list[str]:
        """G names: of each group the incumbent, else the first that was measured, else the first."""
        known = self.table["return"].notna().to_numpy()
        places = [min(group, key=lambda i: (self.names[i] != self.incumbent, not known[i], i)) for group in self.groups]
        return [self.names[i] for i in places]

    @property
    def copies(self) -> list[list[str]]:
        """G lists of all names of the policies that act alike."""
        return [[self.names[i] for i in group] for group in self.groups]

    def place(self, name: str) -> int:
        """Return the index of the group of a policy; ValueError is raised if there is none of this name."""
        return int(np.searchsorted(self.firsts, self.first[self.names.index(name)]))

    def update(self, returns: Any) -> Measured:
        """Return this with further returns by name, which replace earlier ones of the same name."""
        new = find_returns(returns, self.names)
        return replace(self, table=self.table.where(new["return"].isna(), new))

    @cached_property
    def pooled(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns (G,) of groups, NaN where unknown, and their standard errors (G,), 0 where unknown.

        Returns of copies count as further rollouts of one policy: their difference is noise. A single rollout, or
        several equal ones, get the standard deviation that rollouts of other policies have in common, or that of the
        log's; so does a plain number among copies.
        """
        columns = [self.table[part].to_numpy(np.float64) for part in ("return", "error", "rollouts")]
        cells = np.array([_pool(*(column[group] for column in columns)) for group in self.groups])
        returns, errors, counts, is_plain = cells.T
        for kind in (0, 1):
            own = is_plain == kind
            equal, several = own & (counts > 0) & ~(errors > 0), own & (counts > 1) & (errors > 0)
            variance = 0.0 if kind else self.noise**2
            if several.any():
                weights = counts[several] - 1
                variance = (weights * counts[several] * errors[several] ** 2).sum() / weights.sum()
            errors[equal] = np.sqrt(variance / counts[equal])
        return returns, np.nan_to_num(errors)

    def note(self) -> list[str]:
        """Return notes on copies, and on returns of rollouts, if there are any."""
        count, rollouts = len(self.names) - len(self.groups), self.table["rollouts"].dropna()
        notes = []
        if count:
            act = "1 policy is a copy: it acts" if count == 1 else f"{count:,} policies are copies: they act"
            notes.append(f"{act} as another one in all {self.states:,} states, so they share row and return")
        if (most := rollouts.max()) > 1:
            notes.append(f"Returns are means of up to {most:g} rollouts: of a learning curve, give its last evaluation")
        return notes


def _pool(returns: np.ndarray, errors: np.ndarray, rollouts: np.ndarray) -> tuple[float, float, float, bool]:
    """Return the pooled return of copies, its standard error, the number of rollouts, and whether that is of returns.

    The last is True if returns lack numbers of rollouts: then each counts as one measurement.
    """
    known = np.isfinite(returns)
    if not known.any():
        return np.nan, np.nan, np.nan, False
    returns, errors, rollouts = returns[known], errors[known], rollouts[known]
    is_plain = bool(np.isnan(rollouts).any())
    counts = np.ones(len(returns)) if is_plain else rollouts
    total = float(counts.sum())
    if len(returns) == 1:
        return float(returns[0]), float(errors[0]), total, is_plain and not errors[0] > 0
    mean = float(counts @ returns) / total
    if is_plain and (errors > 0).all():
        return mean, float(np.linalg.norm(errors)) / total, np.nan, False
    between = counts @ (returns - mean) ** 2
    within = 0.0 if is_plain else float(((counts - 1) * counts * np.nan_to_num(errors) ** 2).sum())
    return mean, float(np.sqrt((between + within) / (total - 1) / total)), total, is_plain
