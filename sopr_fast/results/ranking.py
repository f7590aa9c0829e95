"""The result of ranking: scores, their order and their standard errors."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np

from ..argument_types import ReturnsLike
from ..inputs.returns import check_returns
from ..runtime.text import counted, list_names
from . import metrics
from .numbers import Numbers
from .result import Result
from .tables import Column, column, plain
from .warnings import ForeignPolicyWarning


@dataclass(frozen=True, eq=False, repr=False)
class Ranking(Result):
    """Candidates ordered by score.

    Attributes:
        names: (P,) names of the candidates, in input order.
        scores: (P,) float64; larger is better.
        standard_errors: (P,) float64 standard errors of the scores, by default the standard deviation of the
            replicates; NaN if unknown. Those of a trained model measure the noise of drawing only subsets: for a
            foreign candidate they say nothing of how wrong its score is, and tables and plots leave them out.
        subset_scores: (P, S) float64 scores on each subset, whose mean is the score (paper section 3.2), or None.
        replicates: (P, R) float64 joint replicates of the scores (subsets, episodes, members), or None.
        distances: (P,) action distance to the nearest training policy (Eq. 3), NaN if unknown, or None.
        distance_limit: Distance beyond which a candidate is foreign, or None.
        history: How training of the model went, see `Ranker.history`; None without a model.
        settings: What the ranking rests on, as plain text and numbers.
    """

    names: list[str]
    scores: np.ndarray
    standard_errors: np.ndarray = None  # type: ignore[assignment]  # `__post_init__` fills it in
    _: KW_ONLY
    subset_scores: np.ndarray | None = None
    replicates: np.ndarray | None = None
    distances: np.ndarray | None = None
    distance_limit: float | None = None
    history: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.standard_errors is None:
            errors = np.full(len(self), np.nan)
            if self.replicates is not None and self.replicates.shape[1] > 1:
                errors = self.replicates.std(1, ddof=1)
            object.__setattr__(self, "standard_errors", errors)

    @classmethod
    def from_subsets(cls, names: list[str], subset_scores: np.ndarray, **fields: Any) -> Ranking:
        """Return the ranking by the mean of scores (P, S) over subsets; `fields` are its other attributes."""
        mean = subset_scores.mean(1)
        replicates = mean[:, None] + (subset_scores - mean[:, None]) / np.sqrt(subset_scores.shape[1])
        return cls(names, mean, subset_scores=subset_scores, replicates=replicates, **fields)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def headline(self) -> str:
        """The candidate with the highest score, in one sentence."""
        if len(self) < 2:
            return f"{self.order[0]} is the only candidate" if len(self) else "no candidates"
        return f"{self.best} has the highest score of {counted(len(self), 'candidate')}"

    @property
    def places(self) -> np.ndarray:
        """(P,) positions in `names`, best first; ties in input order."""
        return np.argsort(-self.scores, kind="stable")

    @property
    def order(self) -> list[str]:
        """Names, best first; ties in input order."""
        return [self.names[i] for i in self.places]

    @property
    def best(self) -> str:
        """Name of the candidate with the highest score."""
        return self.order[0]

    @property
    def ranks(self) -> np.ndarray:
        """(P,) int64 ranks, 1 for the best."""
        return np.argsort(self.places) + 1

    @property
    def win_probability(self) -> np.ndarray:
        """(P, P) probability that candidate i scores above candidate j.

        It is the distribution function of Student's t, with one degree of freedom less than there are replicates, at
        difference / standard error of the paired differences; 0.5 if all of them are 0 up to rounding.
        For a trained model it covers the noise of drawing subsets, not whether scores order policies as their
        returns do. NaN for fewer than two replicates, and for a foreign candidate, whose error is unknown.
        """
        from scipy.special import stdtr

        wins = np.full((len(self), len(self)), np.nan)
        if self.replicates is None or self.replicates.shape[1] < 2:
            return wins
        largest = np.abs(self.replicates).max(1)
        for i, replicates in enumerate(self.replicates):
            mean, error = self.scores[i] - self.scores, (replicates - self.replicates).std(1, ddof=1)
            floor = 1e-12 * np.maximum(largest[i], largest)  # differences of equal scores, by rounding
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where((np.abs(mean) <= floor) & (error <= floor), 0.0, mean / error)
            wins[i] = stdtr(self.replicates.shape[1] - 1, ratio)
        wins[self.foreign] = wins[:, self.foreign] = np.nan
        return wins

    @property
    def foreign(self) -> np.ndarray:
        """(P,) bool, whether each candidate is farther than the limit; False if its distance is unknown."""
        if self.distances is None or self.distance_limit is None:
            return np.zeros(len(self), bool)
        return self.distances > self.distance_limit

    @property
    def doubts(self) -> list[tuple[str, type[Warning]]]:
        """What to know of candidates that are foreign or of unknown distance, with its warning."""
        found: list[tuple[str, type[Warning]]] = []
        distances = np.zeros(len(self)) if self.distances is None else self.distances
        if foreign := [f"{self.names[i]!r} ({distances[i]:.3g})" for i in np.flatnonzero(self.foreign)]:
            text = (
                f"unlike every known policy: {list_names(foreign, 5)}; scores of candidates farther than "
                f"{self.distance_limit:.3g} from the nearest one are extrapolations: measure them"
            )
            found.append((text, ForeignPolicyWarning))
        if unknown := [repr(self.names[i]) for i in np.flatnonzero(np.isnan(distances))]:
            text = (
                f"unknown distance to the training policies: {list_names(unknown, 5)}; their scores may be "
                "extrapolations. Rank arrays of actions on the training log, or without states, to know it"
            )
            found.append((text, ForeignPolicyWarning))
        return found

    def spearman(self, returns: ReturnsLike) -> float:
        """Return Spearman's rank correlation of scores and returns, see `sopr_fast.metrics.spearman`.

        Args:
            returns: Mapping from name to return, path of a file, or (P,) numbers in the order of `names`.

        Raises:
            TypeError, ValueError: A candidate has no return, or returns are not finite numbers.
        """
        return metrics.spearman(check_returns(returns, self.names), self.scores)

    def regret(self, returns: ReturnsLike, k: int = 1) -> float:
        """Return the normalised regret@k of the scores, see `sopr_fast.metrics.regret_at_k`.

        Args:
            returns: See `spearman`.
            k: Number of best-scored candidates among which the best return counts; 1 to P.

        Raises:
            TypeError, ValueError: See `spearman`; or `k` is out of range.
        """
        return metrics.regret_at_k(returns=check_returns(returns, self.names), scores=self.scores, k=k)

    def columns(self) -> dict[str, Any]:
        """Return the columns of the table, best first; distance and foreign if they are known."""
        columns = {"rank": self.ranks, "policy": np.array(self.names, object), "score": self.scores}
        columns["standard_error"] = self.standard_errors
        if self.distances is not None:
            columns |= {"distance": self.distances, "foreign": self.foreign}
        return {head: column[self.places] for head, column in columns.items()}

    def cells(self) -> list[Column]:
        """Return the columns of text and report, best first.

        For a foreign candidate "foreign" replaces the standard error. Numbers have as many decimals as distinguish
        those of their column, scores as many as their errors need.
        """
        columns, foreign = self.columns(), self.foreign[self.places]
        show = Numbers(self.scores, self.standard_errors)
        cells = [column("rank", columns["rank"], "{:.0f}".format), Column("policy", columns["policy"])]
        cells.append(column("score", columns["score"], show))
        errors = column("± error", np.where(foreign, np.nan, columns["standard_error"]), show)
        if not np.isnan(self.standard_errors).all():
            cells.append(replace(errors, texts=np.where(foreign, "foreign", errors.texts).tolist()))
        for head in ("distance", "unsupported"):
            if head in columns:
                cells.append(column(head, columns[head], Numbers(columns[head])))
        return cells

    def to_dict(self) -> dict[str, Any]:
        """Return lists and numbers ready for JSON; candidates in the order of `names`, NaN if a value is undefined."""
        shown = ("order", "names", "ranks", "scores", "standard_errors", "subset_scores", "distances", "distance_limit")
        return plain({name: getattr(self, name) for name in (*shown, "foreign")})
