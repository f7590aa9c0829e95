"""The result of `select`: one table of known policies and candidates, and what the evidence allows to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..inputs.logs.keys import list_names
from ..inputs.returns import Returns, is_source, read_returns
from ..runtime.options import integer, number
from ..runtime.plotting import figure_class
from ..runtime.text import NAME_WIDTH, printable, tick_label
from .columns import NO_REWARDS
from .groups import FOREIGN
from .measure import leaders, measure_next, probability_beats, probability_best
from .panel import Panel
from .predict import Prediction
from .verdict import Verdict, judge

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas

    from .evaluation import Evaluation


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """Known policies and candidates in one table, and what the evidence allows to say.

    Attributes:
        prediction: The posterior of the returns and what it rests on.
        verdict: "deploy", "keep" (the incumbent), "undecided", "measure first" or "cannot rank these", with the reason.
        clipped: Method -> policies whose values exceeded what the rewards allow.
        notes: What limits the evidence.
        evaluation: What every method made of known policies that it had not learned from, or None.
        coverage: Policy -> share of logged states in which it acts as the log does; NaN where unknown.
        settings: What the run rests on, as plain text and numbers.
    """

    prediction: Prediction
    verdict: Verdict
    clipped: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    evaluation: Evaluation | None = None
    coverage: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        prediction: Prediction,
        *,
        incumbent: str | None = None,
        clipped: dict[str, list[str]] | None = None,
        notes: Sequence[str] = (),
        **fields: Any,
    ) -> Selection:
        """Judge a prediction.

        Args:
            prediction: The posterior of the returns and what it rests on.
            incumbent: Name of the known policy to beat, or None.
            clipped: Method -> policies whose values exceeded what the rewards allow.
            notes: What limits the evidence.
            fields: Further attributes of the selection.
        """
        prediction = replace(prediction, incumbent=incumbent)
        return cls(prediction, _judge(prediction), dict(clipped or {}), list(notes), **fields)

    @property
    def incumbent(self) -> str | None:
        """Name of the known policy to beat, or None."""
        return self.prediction.incumbent

    @property
    def panel(self) -> Panel:
        """What every method says of every policy."""
        return self.prediction.panel

    @property
    def names(self) -> list[str]:
        """P names, known policies first."""
        return self.panel.names

    @property
    def candidates(self) -> list[str]:
        """Names of the policies whose return is unknown, the highest predicted return first."""
        order = np.argsort(-self.predicted, kind="stable")
        return [self.names[i] for i in order if not self.panel.known[i]]

    @property
    def predicted(self) -> np.ndarray:
        """(P,) float64 predicted returns, in the units of the known returns; of known policies their return."""
        return np.where(self.panel.known, self.panel.returns, self.prediction.posterior.mean)

    def intervals(self, level: float = 0.8) -> np.ndarray:
        """Return (P, 2) float64 lower and upper ends of intervals of the returns.

        Args:
            level: Nominal coverage, between 0 and 1.

        Raises:
            ValueError: The level is not between 0 and 1.
        """
        return self.prediction.intervals(number(above=0, below=1)("level", level))

    @property
    def calibrated(self) -> bool:
        """Whether there are enough known groups to calibrate the intervals of foreign candidates."""
        return self.prediction.calibration.calibrated_outside

    @property
    def probability_best(self) -> dict[str, float]:
        """Each candidate's probability of being the best candidate."""
        return self._of_candidates(probability_best(self.prediction))

    @property
    def beats_incumbent(self) -> dict[str, float]:
        """Each candidate's probability of having a higher return than the incumbent.

        Raises:
            ValueError: There is no incumbent.
        """
        if self.incumbent is None:
            raise ValueError("no incumbent: pass incumbent= to select")
        return self._of_candidates(probability_beats(self.prediction, self.incumbent))

    def _of_candidates(self, values: np.ndarray) -> dict[str, float]:
        return {name: float(values[self.names.index(name)]) for name in self.candidates}

    @property
    def undecided(self) -> list[str]:
        """Candidates that cannot be told apart from the one with the highest predicted return, that one first."""
        return leaders(self.prediction)

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each method's column for foreign candidates."""
        weights = self.prediction.weights
        return dict(zip(weights.methods, weights.outside.tolist(), strict=True))

    @property
    def agreement(self) -> dict[str, float]:
        """Correlation of each column with the weighted mean of the others on the candidates."""
        weights = self.prediction.weights
        return dict(zip(weights.methods, weights.agreement.tolist(), strict=True))

    @property
    def flags(self) -> dict[str, list[str]]:
        """Warnings by policy."""
        flags: dict[str, list[str]] = {name: [] for name in self.names}
        for i, name in enumerate(self.names):
            if not self.panel.known[i] and self.prediction.placement.gate[i] >= FOREIGN:
                flags[name].append("foreign")
            if name == self.incumbent:
                flags[name].append("incumbent")
            if name in self.prediction.measured:
                flags[name].append("measured")
        for method, policies in self.clipped.items():
            for name in policies:
                flags[name].append(f"{method} clipped")
        return flags

    def measure_next(self, k: int = 1) -> list[str]:
        """Return the candidates whose measurement is expected to gain most, the first to measure first.

        Args:
            k: How many, 1 or more; fewer if there are fewer candidates.

        Raises:
            ValueError: `k` is not a whole number of 1 or more.
        """
        return measure_next(self.prediction, integer(1)("k", k))

    def update(self, returns: Any, errors: Mapping[str, float] | None = None) -> Selection:
        """Return the selection after candidates were measured; nothing is trained again.

        Args:
            returns: Name -> measured return, or a file or data frame with names (see
                `sopr_fast.load_returns`), of which policies that are not in the selection are ignored.
            errors: Name -> standard error of the return; None for those that a file or data frame has. Known policies
                without one keep theirs; that of others is 0.

        Raises:
            TypeError: Returns have no names.
            ValueError: A name is unknown, a return is not finite, or an error is not finite, negative or that of a
                policy without a return.
        """
        if is_source(returns):
            returns = read_returns(returns, self.names, by_name=True)
            of_names = ({name: part[name] for name in self.names if name in part} for part in (returns, returns.errors))
            returns = Returns(*of_names)
            if not returns:
                raise ValueError(f"no policy of the selection has a return; its policies are {list_names(self.names)}")
        elif not hasattr(returns, "keys"):
            raise TypeError(f"returns must be by name, or a file or data frame, got {type(returns).__name__}")
        if errors is None and isinstance(returns, Returns):
            errors = returns.errors
        prediction = self.prediction.update(dict(returns), None if errors is None else dict(errors))
        return replace(self, prediction=prediction, verdict=_judge(prediction))

    def columns(self) -> dict[str, list[Any]]:
        """Return one list for each column of the table, policies with the highest predicted return first."""
        order = np.argsort(-self.predicted, kind="stable")
        low, high = self.intervals().T
        best = probability_best(self.prediction)
        known = self.panel.known
        table: dict[str, list[Any]] = {
            "policy": [self.names[i] for i in order],
            "return": [float(self.predicted[i]) for i in order],
            "low": [float(low[i]) for i in order],
            "high": [float(high[i]) for i in order],
            "known": [bool(known[i]) for i in order],
            "group": [self.panel.groups[i] for i in order],
            "best": [float("nan") if known[i] else float(best[i]) for i in order],
        }
        if self.incumbent is not None:
            beats = probability_beats(self.prediction, self.incumbent)
            table["beats incumbent"] = [float("nan") if known[i] else float(beats[i]) for i in order]
        flags = self.flags
        table["flags"] = [", ".join(flags[self.names[i]]) for i in order]
        return table

    def table(self) -> str:
        """Return verdict, policies, weights and notes as text; names are escaped and cut to 48 characters."""
        columns = self.columns()
        cells = {name: [_text(name, value) for value in values] for name, values in columns.items()}
        widths = {name: max(len(name), *(len(cell) for cell in column)) for name, column in cells.items()}
        left = {"policy", "group", "flags"}
        lines = [str(self.verdict), ""]
        for row in [list(cells), *zip(*cells.values(), strict=True)]:
            padded = [
                cell.ljust(widths[name]) if name in left else cell.rjust(widths[name])
                for name, cell in zip(cells, row, strict=True)
            ]
            lines.append("  ".join(padded).rstrip())
        lines.append("")
        nominal = "80 % intervals" + ("" if self.calibrated else ", not calibrated for foreign candidates")
        lines.append(f"low, high: {nominal}; best: probability of being the best candidate")
        weights = ", ".join(f"{name} {weight:.2f}" for name, weight in sorted(self.weights.items(), key=_by_weight))
        lines.append(f"weights for foreign candidates: {weights or 'none'}")
        unused = self.panel.dropped | self.prediction.weights.unused
        lines += [f"{method} was dropped: {reason}" for method, reason in unused.items()]
        return "\n".join(map(printable, lines + self.notes))

    __str__ = table

    def __repr__(self) -> str:
        return self.table()

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, ready for JSON (NaN where a number is undefined)."""
        verdict = self.verdict
        return {
            "verdict": verdict.kind,
            "policies": list(verdict.policies),
            "reason": verdict.reason,
            "evidence": {
                "expected_regret": verdict.expected_regret,
                "sure": verdict.sure,
                "trust": verdict.trust,
                "success": verdict.success,
                "agreement": verdict.agreement,
                "probability_best": verdict.probability_best,
            },
            "table": self.columns(),
            "undecided": self.undecided,
            "calibrated": self.calibrated,
            "weights": self.weights,
            "agreement": self.agreement,
            "panel": {name: values.tolist() for name, values in self.panel.columns.items()},
            "names": list(self.names),
            "dropped": self.panel.dropped | self.prediction.weights.unused,
            "seconds": dict(self.panel.seconds),
            "incumbent": self.incumbent,
            "notes": list(self.notes),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a data frame, the highest predicted return first."""
        import pandas

        columns = self.columns()
        names = pandas.Index(columns.pop("policy"), dtype=object, name="policy")  # a `str` of pandas must be UTF-8
        return pandas.DataFrame(columns, index=names)

    def plot(self, ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """Plot predicted returns with their intervals, candidates and known policies in two colours.

        Args:
            ax: Axes to plot on; those of a new figure by default.

        Raises:
            ImportError: matplotlib is not installed.
        """
        table = self.columns()
        count = len(table["policy"])
        if ax is None:
            ax = figure_class()(figsize=(6.4, 1.4 + 0.22 * count), layout="constrained").add_subplot()
        known = np.array(table["known"])
        center, low, high = (np.array(table[name]) for name in ("return", "low", "high"))
        places = np.arange(count)[::-1]
        for rows, label in ((~known, "candidate"), (known, "known")):
            error = np.stack([center[rows] - low[rows], high[rows] - center[rows]])
            ax.errorbar(center[rows], places[rows], xerr=error, fmt="o", capsize=2, label=label)
        ax.set_yticks(places, map(tick_label, table["policy"]))
        ax.set(xlabel="return (80 % interval)", title=str(self.verdict).split(". ")[0].replace("$", r"\$"))
        ax.grid(axis="x", alpha=0.3)
        ax.legend()
        return ax


def _judge(prediction: Prediction) -> Verdict:
    verdict = judge(prediction)
    if NO_REWARDS in prediction.panel.dropped.values():
        return replace(verdict, reason=f"{verdict.reason} The log holds no rewards, so no method used any.")
    return verdict


def _by_weight(item: tuple[str, float]) -> float:
    return -item[1]


def _text(column: str, value: Any) -> str:
    if isinstance(value, bool):
        return "known" if value else ""
    if isinstance(value, str):
        return printable(value, NAME_WIDTH)
    if np.isnan(value):
        return ""
    return f"{value:.2f}" if column in ("best", "beats incumbent") else f"{value:,.5g}"
