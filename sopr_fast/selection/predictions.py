"""What a log, the values of a method and the known returns tell together of the returns of policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..estimators.gaussian_process_posterior import Posterior, fit
from ..inputs.logs import Transitions
from ..results.metrics import agreement, spearman
from ..runtime.checks import number
from ..runtime.text import list_names
from .compared import FEWEST_KNOWN, distance_ratios
from .draws import draw_returns, probability_beats, probability_best
from .measured import Measured
from .unbiased import combine
from .widening import errors_far_from_known, widening

LIMIT = 1.4  # distance ratio above which only assumptions tie known returns to a candidate
LEVEL = 0.8
EPISODES, SHORT_EPISODES = 20, 1000  # to measure by; the latter if each is one step
_REVERSED = -0.5  # rank correlation of values with known returns, below which returns may be costs


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """Known policies and candidates, and their predicted returns.

    P policies act differently: policies that act alike in every state count as one, and their returns are pooled.

    Attributes:
        measured: Names, copies and measured returns of all policies.
        distances: (P, P) float64 action distances (Eq. 3 of the paper).
        values: (P,) float64 values by `method`, in units of returns; None without such a method.
        method: Method whose values count as noisy measurements, such as "Simulator"; "" without one.
        bounds: Least and largest return that the logged rewards and episode lengths allow.
        seed: Seed of the draws.
        episodes: Episodes by which the verdict lets policies be measured.
        facts: What the log and the policies leave open.
        settings: What the run rests on, as plain text and numbers.
        outside: (P,) float64 share of the simulated steps that leave the log's range; None if unknown.
        state_error: Share of the change of state that a simulator misses on held-out rows; 0 if unknown.
        members: (P, M) float64 values by each member of a simulator; None without several.
        unsupported: (P,) float64 share of each policy's decisions that the log does not support; None if unknown.
        unlived: (P,) float64 what each policy would earn from the simulated ends of its episodes to the horizon, by the
            log's mean reward; None if unknown.
        progress: (P,) float64 how far each policy was trained, in standard deviations, NaN if unknown; None for all.
        logged_spread: Standard deviation of the returns of the log's episodes; 0 if unknown.
        covariance: (P, P) float64 covariance of the errors of unbiased `values`, NaN for policies that the log hardly
            covers; None if the known returns have to show these errors.
        tune: Function of further `Transitions`: the fields that a simulator tells anew after it has learned from them
            too; None without a simulator.
        are_costs: Whether returns are the negative of costs, which verdict, table and report then show.
    """

    measured: Measured
    distances: np.ndarray
    values: np.ndarray | None = None
    method: str = ""
    bounds: tuple[float, float] = (-np.inf, np.inf)
    seed: int = 0
    episodes: int = EPISODES
    facts: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    outside: np.ndarray | None = None
    logged_spread: float = 0.0
    state_error: float = 0.0
    members: np.ndarray | None = None
    unsupported: np.ndarray | None = None
    unlived: np.ndarray | None = None
    progress: np.ndarray | None = None
    covariance: np.ndarray | None = None
    tune: Callable[[Transitions], dict[str, Any]] | None = None
    are_costs: bool = False

    @cached_property
    def names(self) -> list[str]:
        """P names; of copies that of the incumbent, else of the first that was measured, else of the first."""
        return self.measured.representatives

    @property
    def incumbent(self) -> str | None:
        """Name of the policy in use, or None."""
        return self.measured.incumbent

    @property
    def returns(self) -> np.ndarray:
        """(P,) float64 measured returns; NaN for candidates."""
        return self.measured.pooled[0]

    @property
    def return_errors(self) -> np.ndarray:
        """(P,) float64 standard errors of the returns, 0 where unknown."""
        return self.measured.pooled[1]

    @cached_property
    def known(self) -> np.ndarray:
        """(P,) bool, whether a policy has a return."""
        return np.isfinite(self.returns)

    @cached_property
    def posterior(self) -> Posterior:
        """Joint distribution of the returns; mean and covariance are those without limits."""
        if self._believed is not None and self.covariance is not None:
            believed, returns = self._believed, (self.returns, self.return_errors)
            return replace(combine(believed, self.covariance, *returns, self.logged_spread), limits=self._limits)
        values, members = self._believed, None
        if values is not None and self.members is not None:
            members = self.members.clip(*self.bounds)
        farness = (self.distance_ratio / LIMIT).clip(0, 1)
        unlike = np.where(self.known, 0.0, farness if self.known.any() else 1.0)

        def unseen(unit: float, alike: np.ndarray) -> tuple[np.ndarray | float, np.ndarray | float]:
            by_log: np.ndarray | float = 0.0
            if self.unsupported is not None:
                unlived = 0.0 if self.unlived is None else self.unlived
                by_log = widening(self.unsupported, unlike, alike, unit, unlived)
            if members is None or not self.known.any():
                return by_log, 0.0
            return by_log, errors_far_from_known(members, unlike, alike)

        known = self.distances, self.returns, self.return_errors
        posterior = fit(*known, values, self.logged_spread, members, self.progress, unseen)
        return replace(posterior, limits=self._limits)

    @cached_property
    def _believed(self) -> np.ndarray | None:
        """Values (P,) within the bounds; None if known returns contradict them."""
        known, values = self.known, self.values
        if values is None or known.all():
            return None
        is_contradicted = (
            self.covariance is None and known.sum() >= FEWEST_KNOWN and spearman(self.returns[known], values[known]) < 0
        )
        return None if is_contradicted else values.clip(*self.bounds)

    @property
    def agreement(self) -> float:
        """How alike the simulator's members order the policies: their mean Spearman correlation; NaN if unknown."""
        return float("nan") if self.members is None else agreement(self.members)

    @cached_property
    def _limits(self) -> tuple[float, float]:
        """Bounds, widened to the known returns."""
        known = self.returns[self.known]
        return known.min(initial=self.bounds[0]), known.max(initial=self.bounds[1])

    @cached_property
    def predicted(self) -> np.ndarray:
        """(P,) float64 expected returns, in the units of the known returns; of known policies the measured return."""
        return np.where(self.known, self.returns, self.posterior.mean.clip(*self._limits))

    @cached_property
    def expected(self) -> np.ndarray:
        """(P,) float64 `predicted`, but the posterior mean of policies whose returns were measured with an error."""
        return np.where(self.return_errors > 0, self.posterior.mean.clip(*self._limits), self.predicted)

    @cached_property
    def order(self) -> np.ndarray:
        """(P,) int64 indices of the policies, the highest predicted return first."""
        return np.argsort(-self.predicted, kind="stable")

    def intervals(self, level: float = LEVEL) -> np.ndarray:
        """Return (P, 2) float64 lower and upper ends of intervals of the returns.

        Args:
            level: Nominal coverage, between 0 and 1.

        Raises:
            ValueError: The level is not between 0 and 1.
        """
        from scipy.special import ndtri

        width = ndtri((1 + number(above=0, below=1)("level", level)) / 2)
        deviation = np.where(self.known, self.return_errors, self.posterior.deviation)
        center = np.where(self.known, self.returns, self.posterior.mean)
        ends = np.stack([center - width * deviation, center + width * deviation], 1)
        return np.where(self.known[:, None], ends, ends.clip(*self._limits))

    @cached_property
    def draws(self) -> np.ndarray:
        """(4096, P) float64 possible joint returns."""
        return draw_returns(self.posterior, self.seed)

    @cached_property
    def probability_best(self) -> np.ndarray:
        """(P,) float64 probability of having the highest return of all policies."""
        return probability_best(self.posterior, self.draws)

    def probability_better(self, a: str, b: str) -> float:
        """Return the probability that policy `a` has a higher return than policy `b`.

        Raises:
            ValueError: There is no such policy.
        """
        return float(probability_beats(self.posterior, self.place(b))[self.place(a)])

    def place(self, name: str) -> int:
        """Return the index of a policy, or of the one that it is a copy of; raise ValueError if there is none."""
        if name not in self.measured.names:
            raise ValueError(f"no policy {name!r}; choose from {list_names(self.names)}")
        return self.measured.place(name)

    @cached_property
    def distance_ratio(self) -> np.ndarray:
        """(P,) float64 action distance to the nearest other known policy, over a usual one, see `distance_ratios`."""
        return distance_ratios(self.distances, np.flatnonzero(self.known))

    @property
    def rankable(self) -> np.ndarray:
        """(P,) bool, False for candidates too unlike all known policies, or of which a bandit's log says little."""
        if self.covariance is not None:
            return self.known | np.isfinite(np.diagonal(self.covariance))
        return self.known | ~(self.distance_ratio > LIMIT)

    @property
    def evidence(self) -> dict[str, float]:
        """How well known policies are ordered, as Spearman correlations; NaN with fewer than three known policies.

        Returns:
            "left out": by the model without their own return. The name of `method`: only by that method.
        """
        known = self.known
        found = {"left out": self.posterior.left_out[0, known]}
        if self.values is not None:
            found[self.method] = self.values[known]
        few = known.sum() < 3
        return {name: float("nan") if few else spearman(self.returns[known], each) for name, each in found.items()}

    @property
    def method_order(self) -> float:
        """Rank correlation of the method's values with the known returns; 1 without values."""
        return self.evidence.get(self.method, 1.0)

    @property
    def is_tested(self) -> bool:
        """Whether known returns support the predictions, so that a policy may be deployed without a measurement."""
        if self.covariance is not None:
            return bool(self.known.any())
        return self.known.sum() >= FEWEST_KNOWN and not self.evidence["left out"] < 0

    @property
    def is_reversed(self) -> bool:
        """Whether the method orders the known policies the other way round, as if returns were costs."""
        return self.known.sum() >= FEWEST_KNOWN and self.method_order < _REVERSED

    @property
    def impossible(self) -> np.ndarray:
        """(P,) bool, whether a known return exceeds the bounds."""
        (low, high), returns = self.bounds, self.returns
        return (returns < low - 1e-3 * abs(low)) | (returns > high + 1e-3 * abs(high))

    @property
    def unit(self) -> str:
        """What verdict, table and report show, "return" or "cost"."""
        return "cost" if self.are_costs else "return"

    @cached_property
    def shown(self) -> np.ndarray:
        """(3, P) float64 predicted or measured values, and lower and upper ends of their intervals, in `unit`."""
        low, high = self.intervals().T
        return np.stack([-self.predicted, -high, -low] if self.are_costs else [self.predicted, low, high])
