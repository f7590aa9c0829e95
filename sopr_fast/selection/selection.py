"""The result of `select`: predicted returns of all policies, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..estimators.gaussian_process_posterior import Posterior, fit, likeness
from ..estimators.log_support import agreement_in_words, is_unsupported, unsupported_in_words
from ..estimators.unbiased_posterior import combine
from ..inputs.accepted import ReturnsLike
from ..results.metrics import agreement, spearman
from ..results.result import Result
from ..results.tables import to_text, wrapped
from ..runtime.checks import integer, number
from ..runtime.text import list_names
from .compared import FEWEST_KNOWN, distance_ratios
from .measured import Measured
from .training_progress import add_trend, trend
from .verdict import DEPLOY, EPISODES, MEASURE, Standing, Verdict, judge, numbers, probability_beats
from .verdict import number as shown
from .widening import widening

if TYPE_CHECKING:
    import pandas

LIMIT = 1.4  # distance ratio above which a candidate cannot be ranked from the log
LEVEL = 0.8
LEAST_ORDER = 0.8  # rank correlation of the simulator with known returns
_REVERSED = -0.5  # such a correlation, below which returns may be costs
_SURPRISE = 3.0  # standard errors between a known return and its unbiased estimate
_OTHER_SCALE = 5  # times larger or smaller values, from which returns may be means, or discounted
_LISTED = 5  # policies


@dataclass(frozen=True, eq=False, repr=False)
class Selection(Result):
    """Known policies and candidates, their predicted returns, and what to do.

    P policies act differently: policies that act alike in every state count as one, and their returns are pooled.

    Attributes:
        measured: Names, copies and measured returns of all policies.
        distances: (P, P) float64 action distances (Eq. 3 of the paper).
        values: (P,) float64 values by `method`, in units of returns; None without such a method.
        method: Method whose values count as noisy measurements, such as "simulator"; "" without one.
        bounds: Least and largest return that the logged rewards and episode lengths allow.
        seed: Seed of the draws.
        episodes: Episodes by which the verdict lets policies be measured.
        notes: What the log and the policies leave open.
        settings: What the run rests on, as plain text and numbers.
        outside: (P,) float64 share of the simulated steps that leave the log's range; None if unknown.
        members: (P, M) float64 values by each member of a simulator; None without several.
        unsupported: (P,) float64 share of each policy's decisions that the log does not support; None if unknown.
        progress: (P,) float64 how far each policy was trained, see `trained_shares`; None if unknown.
        logged_spread: Standard deviation of the returns of the log's episodes; 0 if unknown.
        covariance: (P, P) float64 covariance of the errors of unbiased `values`, NaN for policies that the log hardly
            covers; None if the known returns have to show these errors.
        learns_returns: Whether `values` depend on the known returns.
        are_costs: Whether returns are the negative of costs, which verdict, table and report then show.
    """

    measured: Measured
    distances: np.ndarray
    values: np.ndarray | None = None
    method: str = ""
    bounds: tuple[float, float] = (-np.inf, np.inf)
    seed: int = 0
    episodes: int = EPISODES
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    outside: np.ndarray | None = None
    logged_spread: float = 0.0
    members: np.ndarray | None = None
    unsupported: np.ndarray | None = None
    progress: np.ndarray | None = None
    covariance: np.ndarray | None = None
    learns_returns: bool = False
    are_costs: bool = False

    def __post_init__(self) -> None:
        """Refuse costs that are given as returns where the log tells them apart."""
        above = np.flatnonzero(self.returns > self.bounds[1] + 1e-3 * abs(self.bounds[1]))
        if self.are_costs and len(above):
            name, value = self.names[above[0]], shown(self.returns[above[0]])
            raise ValueError(
                f"the return of policy {name!r} is {value}, but returns are the negative of the log's costs, at most "
                f"{shown(self.bounds[1])}: if it is a cost, say so, {{{name!r}: {{'cost': {value}}}}}"
            )

    @cached_property
    def names(self) -> list[str]:
        """P names; of copies that of the incumbent, else of the first that was measured, else of the first."""
        return self.measured.representatives

    @property
    def headline(self) -> str:
        """The verdict and its reason."""
        return str(self.verdict)

    @property
    def incumbent(self) -> str | None:
        """Name of the policy in use, or None."""
        return self.measured.incumbent

    @cached_property
    def _pooled(self) -> tuple[np.ndarray, np.ndarray]:
        return self.measured.pooled()

    @property
    def returns(self) -> np.ndarray:
        """(P,) float64 measured returns; NaN for candidates."""
        return self._pooled[0]

    @property
    def return_errors(self) -> np.ndarray:
        """(P,) float64 standard errors of the returns, 0 where unknown."""
        return self._pooled[1]

    @cached_property
    def known(self) -> np.ndarray:
        """(P,) bool, whether a policy has a return."""
        return np.isfinite(self.returns)

    @property
    def candidates(self) -> list[str]:
        """Names of the policies without a return, the highest predicted return first."""
        return [self.names[i] for i in np.argsort(-self.predicted, kind="stable") if not self.known[i]]

    @cached_property
    def posterior(self) -> Posterior:
        """Joint distribution of the returns; mean and covariance are those without limits."""
        if self._believed is not None and self.covariance is not None:
            believed, returns = self._believed, (self.returns, self.return_errors)
            return replace(combine(believed, self.covariance, *returns, self.logged_spread), limits=self._limits)
        values, members, slope = self._believed, None, trend(self.progress, len(self.names))
        if values is not None and self.members is not None:
            members = add_trend(self.members, slope).clip(*self.bounds)
        known_and_valued = self.distances, self.returns, self.return_errors, values
        posterior = fit(*known_and_valued, self.logged_spread, members, slope)
        if self.unsupported is not None:
            alike = likeness(self.distances, self.known)
            posterior.covariance[...] += widening(self.unsupported, self.known, alike, posterior.unit)
        return replace(posterior, limits=self._limits)

    @cached_property
    def _believed(self) -> np.ndarray | None:
        """Values (P,) within the bounds, with the trend of training; None if known returns contradict them."""
        known = self.known
        if self.values is None or known.all():
            return None
        values = add_trend(self.values, trend(self.progress, len(known)))
        is_contradicted = (
            self.covariance is None and known.sum() >= FEWEST_KNOWN and spearman(self.returns[known], values[known]) < 0
        )
        return None if is_contradicted else values.clip(*self.bounds)

    @property
    def agreement(self) -> float:
        """How alike the simulator's members order the policies: their mean Spearman correlation; NaN if unknown."""
        return float("nan") if self.members is None else agreement(self.members)

    @property
    def support(self) -> list[str]:
        """What tells without any known return how far the values can be trusted, in words."""
        return agreement_in_words(self.agreement) + unsupported_in_words(self.names, self.unsupported, self.known)

    @cached_property
    def _limits(self) -> tuple[float, float]:
        """Bounds, widened to the known returns."""
        known = self.returns[self.known]
        return known.min(initial=self.bounds[0]), known.max(initial=self.bounds[1])

    @cached_property
    def predicted(self) -> np.ndarray:
        """(P,) float64 expected returns, in the units of the known returns; of known policies the measured return."""
        return np.where(self.known, self.returns, self.posterior.mean.clip(*self._limits))

    def intervals(self, level: float = LEVEL) -> np.ndarray:
        """Return (P, 2) float64 lower and upper ends of intervals of the returns.

        Args:
            level: Nominal coverage, between 0 and 1.

        Raises:
            ValueError: The level is not between 0 and 1.
        """
        from scipy.stats import norm

        width = norm.ppf((1 + number(above=0, below=1)("level", level)) / 2)
        deviation = np.where(self.known, self.return_errors, self.posterior.deviation)
        center = np.where(self.known, self.returns, self.posterior.mean)
        ends = np.stack([center - width * deviation, center + width * deviation], 1)
        return np.where(self.known[:, None], ends, ends.clip(*self._limits))

    def lower_bound(self, risk: float = 0.05) -> np.ndarray:
        """Return (P,) float64 returns below which policies fall with a probability of `risk`; order by it to be safe.

        Raises:
            ValueError: The risk is not between 0 and 0.5.
        """
        return self.intervals(1 - 2 * number(above=0, below=0.5)("risk", risk))[:, 0]

    @cached_property
    def probability_best(self) -> np.ndarray:
        """(P,) float64 probability of having the highest return of all policies."""
        return self._standing.probability_best

    def probability_beats(self, name: str) -> np.ndarray:
        """Return (P,) float64 probabilities of a higher return than the named policy.

        Raises:
            ValueError: There is no such policy.
        """
        return probability_beats(self.posterior, self._place(name))

    def probability_better(self, a: str, b: str) -> float:
        """Return the probability that policy `a` has a higher return than policy `b`.

        Raises:
            ValueError: There is no such policy.
        """
        return float(self.probability_beats(b)[self._place(a)])

    def _place(self, name: str) -> int:
        if name not in self.measured.names:
            raise ValueError(f"no policy {name!r}; choose from {list_names(self.names)}")
        return self.measured.place(name)

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        return distance_ratios(self.distances, np.flatnonzero(self.known))

    @property
    def distance_ratio(self) -> np.ndarray:
        """(P,) float64 action distance to the nearest other known policy, over the median between two known ones."""
        return self._places[0]

    @property
    def rankable(self) -> np.ndarray:
        """(P,) bool, False for candidates of which this log says too little: they act too unlike all known policies."""
        if self.covariance is not None:
            return self.known | np.isfinite(np.diagonal(self.covariance))
        return self.known | ~(self.distance_ratio > LIMIT)

    @property
    def rival(self) -> str | None:
        """Name of the policy to beat: the incumbent, else the best known policy; None if no return is known."""
        return None if self._standing.rival is None else self.names[self._standing.rival]

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
    def doubts(self) -> list[str]:
        """What the known returns leave open."""
        doubts = [*self._impossible_returns(), *self._evidence_doubts()]
        low, high = self.bounds
        if low < high:
            return doubts
        equal = f"By the logged rewards every policy returns {shown(low)}"
        return [f"{equal}: check that the log's rewards are the right ones", *doubts]

    def _impossible_returns(self) -> list[str]:
        """Return a note on known returns that exceed the bounds; none if there are none."""
        low, high = self.bounds
        outside = np.flatnonzero((self.returns < low - 1e-3 * abs(low)) | (self.returns > high + 1e-3 * abs(high)))
        if not len(outside):
            return []
        first = outside[0]
        side, most, bound = ("below", "lowest", low) if self.returns[first] < low else ("above", "highest", high)
        others = f" (others out of range: {len(outside) - 1})" if len(outside) > 1 else ""
        return [
            f"The return of {self.names[first]}, {shown(self.returns[first])}, is {side} {shown(bound)}, the {most} "
            f"that the logged rewards and episode lengths allow{others}: check that returns and log are of one "
            "environment, with the same rewards; if they are, the log lacks what this policy does"
        ]

    @property
    def _the_method(self) -> str:
        return f"the {self.method}" if self.method in ("simulator", "SARSA critic") else self.method

    def _evidence_doubts(self) -> list[str]:
        count = int(self.known.sum())
        if not count:
            return [f"No return is known: the order is by {self._the_method}"]
        if self.known.all():
            return []
        if self.covariance is not None:
            return self._other_units() or self._surprises()
        if count < FEWEST_KNOWN:
            returns = "return is" if count == 1 else "returns are"
            basis = f"{self._the_method} and on assumptions" if self.method else "assumptions"
            return [f"Only {count} {returns} known: predictions and intervals rest on {basis}"]
        doubts = self._other_units()
        if not self._is_tested:
            doubts.insert(0, "The known returns do not predict each other, so the verdict does not rest on predictions")
        order = self._order
        remedy = "do not rely on its values"
        if self._is_reversed:
            remedy = "if returns or logged rewards are costs, name them so (`costs`, `cost`), and deploy nothing before"
        elif self.method == "simulator":
            remedy = "train it longer (Simulator(updates=20000), --set updates=20000); if that does not help, these "
            remedy += "policies leave the log"
        doubt = (
            f"Values of {self._the_method} order the known policies with a rank correlation of {order:.2f}: {remedy}"
        )
        return [doubt] * (order < LEAST_ORDER) + doubts

    @property
    def _order(self) -> float:
        """Rank correlation of the method's values with the known returns; 1 if they were learned from these."""
        return 1.0 if self.learns_returns else self.evidence.get(self.method, 1.0)

    @property
    def _is_tested(self) -> bool:
        """Whether known returns support the predictions, so that a policy may be deployed without a measurement."""
        if self.covariance is not None:
            return bool(self.known.any())
        return self.known.sum() >= FEWEST_KNOWN and not self.evidence["left out"] < 0

    @property
    def _is_reversed(self) -> bool:
        """Whether the method orders the known policies the other way round, as if returns were costs."""
        return self.known.sum() >= FEWEST_KNOWN and not self.known.all() and self._order < _REVERSED

    def _surprises(self) -> list[str]:
        """Return a note on the known return that unbiased values contradict most; none if they do not."""
        assert self.values is not None and self.covariance is not None
        errors = np.hypot(np.sqrt(np.diagonal(self.covariance)), self.return_errors)
        gaps = np.nan_to_num(np.abs(self.returns - self.values) / errors)
        most = int(gaps.argmax())
        if gaps[most] < _SURPRISE:
            return []
        return [
            f"The return of {self.names[most]} is {gaps[most]:.1f} standard errors away from {self._the_method}: check "
            "the log's probabilities, and whether log and returns are of the same users"
        ]

    def _other_units(self) -> list[str]:
        """Return a note on known returns that are far smaller or larger than the values; none if they are not."""
        if self.learns_returns or self.values is None:
            return []
        sizes = [(np.median(np.abs(x[self.known])), np.std(x[self.known])) for x in (self.returns, self.values)]
        ratios = [measured / simulated if simulated else 1.0 for measured, simulated in zip(*sizes, strict=True)]
        if min(ratios) <= _OTHER_SCALE and max(ratios) >= 1 / _OTHER_SCALE:
            return []
        return [
            f"The known returns are {shown(float(ratios[0]))} times the values of {self._the_method}: give sums of an "
            "episode's rewards in the units of the log, neither means nor discounted sums"
        ]

    @cached_property
    def _standing(self) -> Standing:
        return Standing(
            self.names,
            self.posterior,
            self.returns,
            self.return_errors,
            self.predicted,
            self.intervals(),
            self.rankable,
            None if self.incumbent is None else self.measured.place(self.incumbent),
            self.seed,
            self.episodes,
            self._is_tested,
            self.are_costs,
        )

    @cached_property
    def verdict(self) -> Verdict:
        """What to do: "deploy", "keep" or "measure", as one imperative with its reason."""
        verdict = judge(self._standing)
        if verdict.kind != DEPLOY or not self._is_reversed:
            return verdict
        text = f"Measure {', '.join(verdict.policies)}, {self.episodes:,} episodes"
        reason = f"Values of {self._the_method} order the known policies in reverse, as if returns were costs."
        return Verdict(MEASURE, verdict.policies, text, reason)

    @property
    def equally_good(self) -> list[int]:
        """Indices of the policies that may well be as good as the one to deploy or to keep, with that; else none."""
        verdict = self.verdict
        chosen = [] if verdict.kind == MEASURE else [self.measured.place(name) for name in verdict.policies]
        return [int(i) for place in chosen for i in self._standing.as_good(place)]

    def measure_next(self, k: int = 1) -> list[str]:
        """Return the policies whose measurement is expected to gain most, the first to measure first.

        Args:
            k: How many, 1 or more; fewer if fewer may be better than what is known.

        Raises:
            ValueError: `k` is not a whole number of 1 or more.
        """
        return [self.names[i] for i in self._standing.measure_next(integer(1)("k", k))]

    def update(self, returns: ReturnsLike) -> Selection:
        """Return the selection after policies were measured, as `select` with all returns does; nothing is trained.

        Args:
            returns: Returns by name, as for `select`. They replace earlier ones of the same name. Names that are not in
                the selection are ignored in files.

        Raises:
            TypeError: Returns have no names.
            ValueError: A name is unknown, a return is not finite, or a method has learned from the known returns.
        """
        if self.learns_returns:
            raise ValueError(
                f"{self.method or 'SOPR-T'} has learned from the known returns: call select again, with all returns"
            )
        names = self.measured.names
        if isinstance(returns, Mapping) and (strangers := [name for name in returns if name not in names]):
            raise ValueError(f"no policy {strangers[0]!r} in the selection; its policies are {list_names(names)}")
        if not (hasattr(returns, "keys") or isinstance(returns, str) or hasattr(returns, "__fspath__")):
            raise TypeError(f"returns must be by name, or a file or data frame, got {type(returns).__name__}")
        return replace(self, measured=self.measured.update(returns))

    @property
    def unit(self) -> str:
        """What verdict, table and report show, "return" or "cost"."""
        return "cost" if self.are_costs else "return"

    @property
    def shown(self) -> np.ndarray:
        """(3, P) float64 predicted or measured values, and lower and upper ends of their intervals, in `unit`."""
        low, high = self.intervals().T
        return np.stack([-self.predicted, -high, -low] if self.are_costs else [self.predicted, low, high])

    @property
    def flags(self) -> list[str]:
        """P remarks: "incumbent", "measured", "cannot be ranked", "not in the log", "3 copies", several, or ""."""
        unsupported = np.where(is_unsupported(self.unsupported, self.known), "not in the log", "")
        flags = np.where(self.known, "measured", np.where(self.rankable, unsupported, "cannot be ranked")).tolist()
        flags = ["incumbent" if name == self.incumbent else flag for name, flag in zip(self.names, flags, strict=True)]
        counts = [f"{len(own)} copies" if len(own) > 1 else "" for own in self.measured.copies]
        return [", ".join(filter(None, pair)) for pair in zip(flags, counts, strict=True)]

    @property
    def remarks(self) -> list[str]:
        """What to bear in mind, one sentence for each kind, without full stops."""
        unsupported = unsupported_in_words(self.names, self.unsupported, self.known)
        return [*self.unrankable(), *unsupported, *self.doubts, *self.notes, *self.measured.note()]

    def columns(self) -> dict[str, list[Any]]:
        """Return one list for each column of the table, the highest return first."""
        order = np.argsort(-self.predicted, kind="stable")
        low, high = self.intervals().T
        table = {
            "policy": self.names,
            "return": self.predicted.tolist(),
            "low": low.tolist(),
            "high": high.tolist(),
            "best": self.probability_best.tolist(),
            "known": self.known.tolist(),
            "note": self.flags,
            "nearest": ["" if i < 0 else self.names[i] for i in self._places[1]],
            "distance": self.distance_ratio.tolist(),
            "copies": self.measured.copies,
        }
        for name, shares in (("outside", self.outside), ("unsupported", self.unsupported)):
            if shares is not None:
                table[name] = shares.tolist()
        if self.values is not None:
            table[self.method] = self.values.tolist()
        return {name: [column[i] for i in order] for name, column in table.items()}

    def table(self, rows: int | None = None) -> str:
        """Return verdict, policies and notes as text of 80 columns.

        Args:
            rows: Number of policies beyond which only the first and the last five are shown; None for all.
        """
        columns = self.columns()
        cells = {"policy": columns["policy"]}
        heads, order = (self.unit, "low", "high"), np.argsort(-self.predicted, kind="stable")
        rounded = numbers(self.shown[:, order])
        cells |= {head: [shown(value) for value in row] for head, row in zip(heads, rounded, strict=True)}
        cells["best"] = [f"{best:.2f}" for best in columns["best"]]
        legend = "low, high: 80 % interval; best: probability of being the best policy"
        if self.outside is not None:
            cells["outside"] = ["" if np.isnan(share) else f"{share:.0%}" for share in columns["outside"]]
            legend += "; outside: simulated steps that leave the log"
        cells[""] = columns["note"]
        verdict = [*map(wrapped, (f"{self.verdict.text}.", self.verdict.reason, *agreement_in_words(self.agreement)))]
        shortened = rows is not None and len(self.names) > rows
        below = [legend + ("; all rows: --json, to_pandas()" if shortened else ""), *self.remarks]
        return "\n".join([*verdict, "", to_text(cells, left=("policy", ""), rows=rows), "", *map(wrapped, below)])

    def unrankable(self) -> list[str]:
        """Return a note on candidates that cannot be ranked from this log; none if there are none."""
        names = [self.names[i] for i in np.argsort(-self.predicted, kind="stable") if not self.rankable[i]]
        why = f"{'it acts' if len(names) == 1 else 'they act'} unlike every known policy"
        if self.covariance is not None:
            why = "it hardly takes their actions"
        return [f"This log says nothing of {list_names(names, _LISTED)}: {why}"] if names else []

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, ready for JSON (NaN where a number is undefined)."""
        verdict = self.verdict
        return {
            "verdict": verdict.kind,
            "policies": list(verdict.policies),
            "text": verdict.text,
            "reason": verdict.reason,
            "table": self.columns(),
            "evidence": self.evidence,
            "incumbent": self.incumbent,
            "notes": [*agreement_in_words(self.agreement), *self.remarks],
        }

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a data frame, the highest return first."""
        import pandas

        columns = self.columns()
        names = pandas.Index(columns.pop("policy"), dtype=object, name="policy")  # a `str` of pandas must be UTF-8
        return pandas.DataFrame(columns, index=names)
