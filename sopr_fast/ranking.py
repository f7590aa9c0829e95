"""The result of ranking: scores over subsets, the order, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .returns import check_returns

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    import pandas


@dataclass(frozen=True, eq=False)
class Ranking:
    """Candidates ranked by their mean score over subsets of the logged states (paper section 3.2).

    Attributes:
        names: (P,) in the order they were given.
        subset_scores: (P, S) float64; larger is better.
        shrinkage: (P,) shares of the nearest training policy's score in them; None without.
        distances: (P,) to the nearest training policy (Eq. 3), nan where unknown, or None.
        distance_limit: beyond it a candidate counts as foreign to the training policies, or None.
        timings: seconds by stage.
    """

    names: list[str]
    subset_scores: np.ndarray
    shrinkage: np.ndarray | None = None
    distances: np.ndarray | None = None
    distance_limit: float | None = None
    timings: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def scores(self) -> np.ndarray:
        """(P,) mean over subsets."""
        return self.subset_scores.mean(1)

    @property
    def standard_errors(self) -> np.ndarray:
        """(P,) of the mean over subsets; nan for a single subset."""
        count = self.subset_scores.shape[1]
        if count == 1:
            return np.full(len(self), np.nan)
        return self.subset_scores.std(1, ddof=1) / np.sqrt(count)

    @property
    def order(self) -> list[str]:
        """Names, best first; ties in input order."""
        return [self.names[i] for i in self._order()]

    @property
    def best(self) -> str:
        return self.order[0]

    @property
    def ranks(self) -> np.ndarray:
        """(P,) int64, 1 for the best."""
        ranks = np.empty(len(self), np.int64)
        ranks[self._order()] = np.arange(1, len(self) + 1)
        return ranks

    @property
    def win_probability(self) -> np.ndarray:
        """(P, P): probability that i truly scores above j, given the noise of drawing subsets, and that noise alone.

        Whether the scores order policies as their returns do is another question, which this does not answer.
        It is the normal distribution function of mean / standard error of the paired differences over subsets;
        0.5 for equal scores, nan for a single subset.
        """
        count = self.subset_scores.shape[1]
        if count == 1:
            return np.full((len(self), len(self)), np.nan)
        mean, error = np.empty((2, len(self), len(self)))
        for i, own in enumerate(self.subset_scores):  # all differences at once would take P² S numbers
            difference = own - self.subset_scores
            mean[i], error[i] = difference.mean(1), difference.std(1, ddof=1) / np.sqrt(count)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(mean == 0, 0.0, mean / error)
        return torch.special.ndtr(torch.from_numpy(ratio)).numpy()

    @property
    def foreign(self) -> list[bool | None] | None:
        """(P,) whether each is further than the limit from the training policies, None where its distance is unknown;
        or None where no distances are."""
        if self.distances is None or self.distance_limit is None:
            return None
        return [None if np.isnan(distance) else bool(distance > self.distance_limit) for distance in self.distances]

    def columns(self) -> dict[str, np.ndarray]:
        """(P,) each: score, standard_error, and where there are such shrinkage and distance."""
        columns = {"score": self.scores, "standard_error": self.standard_errors}
        if self.shrinkage is not None:
            columns["shrinkage"] = self.shrinkage
        if self.distances is not None:
            columns["distance"] = self.distances
        return columns

    def table(self) -> str:
        """The ranking as text, best first."""
        width = max(6, *(len(name) for name in self.names))
        columns, foreign = self.columns(), self.foreign
        heads = (name.replace("standard_", "± ") for name in columns)
        lines = ["  ".join([f"{'rank':>4}", f"{'policy':<{width}}", *(f"{head:>9}" for head in heads)])]
        for rank, i in enumerate(self._order(), 1):
            line = "  ".join([f"{rank:>4}", f"{self.names[i]:<{width}}", *(f"{x[i]:>9.4f}" for x in columns.values())])
            lines.append(line + ("  foreign" if foreign and foreign[i] else ""))
        return "\n".join(lines)

    __repr__ = table

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, ready for JSON (nan where a value is undefined); policies as in `names`."""
        return {
            "order": self.order,
            "names": list(self.names),
            "ranks": self.ranks.tolist(),
            "scores": self.scores.tolist(),
            "standard_errors": self.standard_errors.tolist(),
            "win_probability": self.win_probability.tolist(),
            "subset_scores": self.subset_scores.tolist(),
            "shrinkage": None if self.shrinkage is None else self.shrinkage.tolist(),
            "distances": None if self.distances is None else self.distances.tolist(),
            "distance_limit": self.distance_limit,
            "foreign": self.foreign,
            "timings": dict(self.timings),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame, best first, indexed by rank: policy, `columns` and `foreign`, where there are distances.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install 'sopr_fast[pandas]'") from error
        columns = {"policy": self.names, **self.columns()}
        if self.foreign is not None:
            columns["foreign"] = pandas.array(self.foreign, dtype="boolean")
        frame = pandas.DataFrame(columns, index=pandas.Index(self.ranks, name="rank"))
        return frame.sort_index()

    def plot(self, returns: Any = None, ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """Scores with their standard errors, best on top; true returns, where given, on the right.

        Args:
            returns: (P,) numbers or a mapping from name to number.
            ax: axes to draw on, by default those of a new figure.

        Raises:
            ImportError: matplotlib is not installed.
            TypeError, ValueError: returns that are missing, of another number, or not finite (whose).
        """
        true = None if returns is None else check_returns(returns, self.names)
        if ax is None:
            ax = figure_class()(figsize=(6.4, 1.2 + 0.3 * len(self)), layout="constrained").add_subplot()
        places, order = np.arange(len(self)), self._order()[::-1]
        errors = np.nan_to_num(self.standard_errors)
        ax.errorbar(self.scores[order], places, xerr=errors[order], fmt="o", capsize=2)
        ax.set_yticks(places, [self.names[i] for i in order])
        ax.set(xlabel="score (± standard error over subsets)")
        ax.grid(axis="y", alpha=0.3)
        if true is not None:
            right = ax.twinx()
            right.set_ylim(ax.get_ylim())
            right.set_yticks(places, [f"{true[i]:,.6g}" for i in order])
            right.set_ylabel("true return")
        return ax

    def _order(self) -> np.ndarray:
        return np.argsort(-self.scores, kind="stable")


def figure_class() -> type[matplotlib.figure.Figure]:
    """matplotlib's, without a window.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install 'sopr_fast[plot]'") from error
    return Figure
