"""The result of an evaluation: measures of every method, with intervals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ranking.metrics import kendall, regret_at_k, spearman
from ..runtime.plotting import figure_class
from ..runtime.text import NAME_WIDTH, printable, tick_label
from .folds import Fold
from .metrics import gap_accuracy

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas

MEASURES = ("spearman", "kendall", "gap accuracy", "regret@1", "regret@3")
_REPLICATES = 200
_LEVEL = 0.9


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Measures of methods on policies that they have not learned from.

    Attributes:
        names: M names of policies.
        returns: (M,) float64 returns, in the units in which they were given.
        return_errors: (M,) float64 standard errors of the returns.
        groups: M groups.
        group_source: "given", "names", "action distance" or "none".
        folds: Random folds, then one fold for each group; or the folds that were given.
        values: Method -> for each fold the (T,) float64 values of its test policies, in the method's own units.
        dropped: Method -> reason why it has no values.
        seconds: Method -> seconds spent.
        notes: What limits the evidence.
        seed: Seed of the bootstrap.
        distances: (M, M) float64 action distances (Eq. 3), or None.
        coverage: (M,) float64 share of logged states in which each policy acts as the log does; NaN where unknown; or
            None.
        settings: What the run rests on, as plain text and numbers.
    """

    names: list[str]
    returns: np.ndarray
    return_errors: np.ndarray
    groups: list[str]
    group_source: str
    folds: list[Fold]
    values: dict[str, list[np.ndarray]]
    dropped: dict[str, str]
    seconds: dict[str, float]
    notes: list[str] = field(default_factory=list)
    seed: int = 0
    distances: np.ndarray | None = None
    coverage: np.ndarray | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def methods(self) -> list[str]:
        """Methods that have values."""
        return list(self.values)

    @property
    def kinds(self) -> list[str]:
        """Kinds of folds: "random", and "group" where there are several groups; or "given"."""
        return list(dict.fromkeys(fold.kind for fold in self.folds))

    def measures(
        self, kind: str | None = None, fold: str | None = None
    ) -> dict[str, dict[str, tuple[float, float, float]]]:
        """Compute every measure of every method.

        Each measure is the mean over folds of the measure among the fold's test policies. Intervals are bootstrapped:
        folds are resampled, and policies within them.

        Args:
            kind: One of `kinds`; None for the first.
            fold: Name of the fold, such as a group, to measure alone; None for all of the kind.

        Returns:
            Method -> measure -> mean, lower and upper end of the 90 % interval; NaN where undefined.

        Raises:
            ValueError: There is no such fold.
        """
        kind = self.kinds[0] if kind is None else kind
        places = [k for k, one in enumerate(self.folds) if one.kind == kind and fold in (None, one.name)]
        if not places:
            names = ", ".join(f"{one.kind} {one.name!r}" for one in self.folds)
            raise ValueError(f"no fold {kind!r}{'' if fold is None else f' {fold!r}'}; choose from {names}")
        samples = self._samples(places)
        result = {}
        for method, values in self.values.items():
            means = self._mean([(self.folds[k].test, values[k]) for k in places])
            replicates = np.array(
                [
                    self._mean([(self.folds[k].test[picks], values[k][picks]) for k, picks in sample])
                    for sample in samples
                ]
            )
            with np.errstate(invalid="ignore"):
                low, high = _quantiles(replicates, (1 - _LEVEL) / 2), _quantiles(replicates, (1 + _LEVEL) / 2)
            result[method] = {name: (float(means[m]), float(low[m]), float(high[m])) for m, name in enumerate(MEASURES)}
        return result

    def _samples(self, places: list[int]) -> list[list[tuple[int, np.ndarray]]]:
        random = np.random.default_rng([self.seed, 8])
        samples = []
        for _ in range(_REPLICATES):
            chosen = random.choice(places, len(places))
            samples.append(
                [(int(k), random.integers(len(self.folds[k].test), size=len(self.folds[k].test))) for k in chosen]
            )
        return samples

    def _mean(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Return (measures,) means over folds in which they are defined."""
        table = [
            _measure(self.returns[test], values, self.return_errors[test], len(np.unique(test)))
            for test, values in parts
        ]
        return _nan_mean(np.array(table).reshape(-1, len(MEASURES)))

    def table(self) -> str:
        """Return the measures as text, methods with the best Spearman correlation first; names are escaped."""
        blocks = []
        for kind in self.kinds:
            count = sum(fold.kind == kind for fold in self.folds)
            title = {
                "random": f"Candidates like the known policies: {count} random folds of {len(self.names)} policies",
                "group": f"Foreign candidates: one of {count} groups left out ({_origin(self.group_source)})",
                "given": f"{count} given fold{'s' if count > 1 else ''} of {len(self.names)} policies",
            }[kind]
            blocks.append(f"{title}\n{self._block(kind)}")
        lines = [f"{method} was dropped: {reason}" for method, reason in self.dropped.items()]
        notes = "\n".join(map(printable, lines + self.notes))
        return "\n\n".join([*blocks, notes] if notes else blocks)

    def _block(self, kind: str) -> str:
        measures = self.measures(kind)
        names = {method: printable(method, NAME_WIDTH) for method in measures}
        width = max(6, *map(len, names.values()))
        head = f"{'method':<{width}}" + "".join(f"  {name:>22}" for name in MEASURES) + f"  {'seconds':>8}"
        lines = [head]
        for method in sorted(measures, key=lambda name: -np.nan_to_num(measures[name]["spearman"][0], nan=-2)):
            cells = "".join(f"  {_cell(*measures[method][name]):>22}" for name in MEASURES)
            lines.append(f"{names[method]:<{width}}{cells}  {self.seconds[method]:>8.1f}")
        return "\n".join(lines)

    __str__ = table

    def __repr__(self) -> str:
        return self.table()

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, ready for JSON (NaN where a measure is undefined)."""
        return {
            "names": list(self.names),
            "returns": self.returns.tolist(),
            "return_errors": self.return_errors.tolist(),
            "groups": list(self.groups),
            "group_source": self.group_source,
            "measures": {
                kind: {
                    method: {name: {"mean": mean, "low": low, "high": high} for name, (mean, low, high) in each.items()}
                    for method, each in self.measures(kind).items()
                }
                for kind in self.kinds
            },
            "folds": [
                {
                    "kind": fold.kind,
                    "name": fold.name,
                    "policies": [self.names[i] for i in fold.test],
                    "values": {method: values[k].tolist() for method, values in self.values.items()},
                }
                for k, fold in enumerate(self.folds)
            ],
            "dropped": dict(self.dropped),
            "seconds": dict(self.seconds),
            "notes": list(self.notes),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with one row for each kind of folds, method and measure."""
        import pandas

        rows = [
            (kind, method, name, *interval)
            for kind in self.kinds
            for method, each in self.measures(kind).items()
            for name, interval in each.items()
        ]
        columns = ["folds", "method", "measure", "mean", "low", "high"]
        frame = pandas.DataFrame(rows, columns=columns, dtype=object)  # a `str` of pandas must be UTF-8
        return frame.astype(dict.fromkeys(columns[3:], float))

    def plot(self, measure: str = "spearman", ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """Plot a measure of every method with its interval, one colour for each kind of folds.

        Args:
            measure: One of `MEASURES`.
            ax: Axes to plot on; those of a new figure by default.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: The measure is unknown.
        """
        if measure not in MEASURES:
            raise ValueError(f"no measure {measure!r}; choose from {', '.join(MEASURES)}")
        if ax is None:
            ax = figure_class()(figsize=(6.4, 1.4 + 0.4 * len(self.values)), layout="constrained").add_subplot()
        methods = self.methods[::-1]
        labels = {"random": "random folds", "group": "one group left out", "given": "given folds"}
        for shift, kind in enumerate(self.kinds):
            found = self.measures(kind)
            mean, low, high = np.array([found[method][measure] for method in methods]).T
            places = np.arange(len(methods)) + 0.18 * (0.5 - shift) * (len(self.kinds) - 1) * 2
            error = np.abs(np.stack([mean - low, high - mean]))
            ax.errorbar(mean, places, xerr=error, fmt="o", capsize=2, label=labels[kind])
        ax.set_yticks(range(len(methods)), map(tick_label, methods))
        ax.set(xlabel=f"{measure} (90 % interval)")
        ax.grid(axis="x", alpha=0.3)
        ax.legend()
        return ax


def _measure(returns: np.ndarray, values: np.ndarray, errors: np.ndarray, distinct: int) -> list[float]:
    """Return the measures; `distinct` is the number of different policies, of which a resample repeats some."""

    def regret(k: int) -> float:
        defined = distinct > k and np.ptp(returns) > 0
        return regret_at_k(scores=values, returns=returns, k=k) if defined else np.nan

    return [
        spearman(returns, values),
        kendall(returns, values),
        gap_accuracy(returns, values, errors),
        regret(1),
        regret(3),
    ]


def _nan_mean(table: np.ndarray) -> np.ndarray:
    counted = np.isfinite(table).sum(0)
    return np.where(counted > 0, np.nansum(table, 0) / np.maximum(counted, 1), np.nan)


def _quantiles(replicates: np.ndarray, level: float) -> np.ndarray:
    """Return (measures,) quantiles over replicates in which a measure is defined."""
    if not len(replicates):
        return np.full(len(MEASURES), np.nan)
    return np.array([np.quantile(x[np.isfinite(x)], level) if np.isfinite(x).any() else np.nan for x in replicates.T])


def _cell(mean: float, low: float, high: float) -> str:
    return "undefined" if np.isnan(mean) else f"{mean:.2f} ({low:.2f} to {high:.2f})"


def _origin(source: str) -> str:
    return {"given": "as given", "names": "found by name", "action distance": "found by action distance"}.get(
        source, source
    )
