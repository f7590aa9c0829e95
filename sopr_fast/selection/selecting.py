"""Which candidate to deploy, and whether the evidence allows to say so."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..policies import Policy, as_policies
from ..ranking import figure_class
from ..runtime.options import integer, number
from .columns import Columns, compute_columns
from .evaluation import read_groups
from .folds import FEWEST_KNOWN, Fold, group_folds, random_folds
from .known_returns import are_ranks, read_known
from .measure import leaders, measure_next, probability_beats, probability_best
from .methods import read_methods
from .panel import Panel
from .predict import Prediction, predict
from .verdict import DEPLOY, Verdict, judge
from .workspace import ROWS, Workspace

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas

_FOREIGN = 0.5  # gate from which a candidate is flagged
_SURE = 0.2  # probability of being exceeded, below which a measured candidate is deployed


def select(
    candidates: Any,
    log: Any,
    *,
    known: Any,
    returns: Any,
    groups: Mapping[str, str] | Sequence[str] | None = None,
    incumbent: str | None = None,
    discount: float = 0.99,
    methods: Any = None,
    folds: int = 5,
    seed: int = 0,
    return_errors: Any = None,
    rollouts: Any = None,
    action_count: int | None = None,
    rows: int = ROWS,
    checkpoints: str | os.PathLike | None = None,
    time_limit: float | None = None,
    device: Any = "cpu",
    progress: bool = True,
) -> Selection:
    """Predict the returns of candidates from a panel of methods, and judge whether one can be deployed.

    Every method values known policies and candidates alike; methods that learn from known returns value a known policy
    by models that have not seen it. The known returns tell which methods to believe, near the known policies and
    away from them, and how far predictions err.

    Args:
        candidates: Policies to choose from, see `sopr_fast.policies.as_policies`. A candidate that is itself known
            (same name, same actions) is left out.
        log: Logged transitions, see `sopr_fast.data.load`; or states alone, which only methods that need no rewards
            can use.
        known: M policies with known returns, at least four.
        returns: Their returns: (M,) numbers, a mapping from name, or for each policy the returns of its rollouts.
        groups: Group of each known policy, by name or in order: training run, algorithm or author. None finds them: by
            name, else by action distance. A mapping may also hold candidates.
        incumbent: Name of the known policy to beat.
        discount: Discount factor γ.
        methods: Names (see `sopr_fast.selection.METHODS`), estimators, or a mapping from label to either; None for
            the default panel.
        folds: Random folds of the known policies; fewer if there are fewer than two policies for each.
        seed: Seed of everything random.
        return_errors: Standard errors of the returns: one number, (M,) or by name.
        rollouts: Number of rollouts behind each return; then `return_errors` are standard deviations over rollouts.
        action_count: Number of discrete actions, where policies return indices.
        rows: Transitions to use; a larger log is thinned to evenly spaced episodes.
        checkpoints: Folder to keep finished columns in and to resume from.
        time_limit: Seconds that each method may take; a method that exceeds it is dropped.
        device: Device of networks and data.
        progress: Whether to show progress bars.

    Returns:
        Predicted returns, intervals, probabilities and a verdict.

    Raises:
        TypeError: A policy, a return, a method or the log is of the wrong type.
        ValueError: There are fewer than four known policies, a candidate has the name of another known policy, every
            candidate is known, every method failed, or an argument is invalid.
        RuntimeError: A policy raised an error.
        OSError: A file cannot be read or written.
    """
    discount, seed = number(below=1)("discount", discount), integer(0)("seed", seed)
    chosen = read_methods(methods)
    everyone, count, notes = _join(known, candidates, action_count)
    workspace = Workspace.build(everyone, log, rows=rows, action_count=action_count, progress=progress)
    workspace, repeats = _without_repeats(workspace, count)
    names = workspace.names
    if repeats:
        notes.append(f"candidates that are known already were left out: {', '.join(repeats)}")
    if len(names) == count:
        raise ValueError("every candidate is a known policy: there is nothing to select")
    if incumbent is not None and incumbent not in names[:count]:
        raise ValueError(f"the incumbent {incumbent!r} is none of the known policies; pass the name of one")
    if count < FEWEST_KNOWN:
        raise ValueError(f"select needs at least {FEWEST_KNOWN} policies with known returns, got {count}")
    means, errors = read_known(returns, names[:count], return_errors, rollouts)
    if np.ptp(means) == 0:
        raise ValueError("the returns of all known policies are equal: they tell no method from another")
    labels, _ = read_groups(
        {name: groups[name] for name in names[:count] if name in groups} if isinstance(groups, Mapping) else groups,
        names[:count],
        workspace.distances[:count, :count],
    )
    claims = [str(groups[name]) if isinstance(groups, Mapping) and name in groups else "" for name in names[count:]]
    splits = [*random_folds(count, min(folds, count // 2), seed), *group_folds(labels)]
    splits.append(Fold("candidates", "", np.arange(count), np.arange(count, len(names))))
    values = np.append(means, np.full(len(names) - count, np.nan))
    columns = compute_columns(
        workspace,
        chosen,
        values,
        splits,
        discount=discount,
        seed=seed,
        folder=None if checkpoints is None else Path(checkpoints),
        time_limit=time_limit,
        device=device,
        progress=progress,
    )
    if not workspace.has_rewards:
        notes.append("the log holds no rewards, so only methods that need none were used")
    if len(set(labels)) == 1:
        notes.append("the known policies form one group, so nothing shows how well foreign candidates are ranked")
    if are_ranks(means):
        notes.append("the returns look like ranks, so predictions and intervals are ranks too")
    panel = assemble(names, values, errors, labels + claims, columns, workspace.distances)
    return Selection.of(predict(panel, seed=seed), incumbent=incumbent, clipped=columns.clipped, notes=notes)


def assemble(
    names: list[str],
    returns: np.ndarray,
    return_errors: np.ndarray,
    groups: list[str],
    columns: Columns,
    distances: np.ndarray,
) -> Panel:
    """Put columns together into a panel.

    Args:
        names: P names, known policies first.
        returns: (P,) returns; NaN for candidates.
        return_errors: (M,) standard errors of the known returns.
        groups: P groups; "" for candidates without one.
        columns: Values by random folds, by groups that are left out, and of the candidates.
        distances: (P, P) action distances.
    """
    count = len(names)
    pooled, grouped = {}, {}
    for method in columns.values:
        pooled[method] = columns.column(method, count, "random", "candidates")
        left_out = columns.column(method, count, "group", "candidates")
        grouped[method] = np.where(np.isnan(left_out), pooled[method], left_out)
    return Panel.build(
        names,
        returns,
        pooled,
        grouped_columns=grouped,
        groups=groups,
        return_errors=np.append(return_errors, np.zeros(count - len(return_errors))),
        errors=columns.errors,
        distances=distances,
        dropped=columns.dropped,
        seconds=columns.seconds,
    )


def _join(known: Any, candidates: Any, action_count: int | None) -> tuple[list[Policy], int, list[str]]:
    """Return known policies followed by candidates, the number of known ones, and notes.

    Raises:
        ValueError: A candidate has the name of a known policy that is another object and no array.
    """
    first = as_policies(known, action_count=action_count)
    second = as_policies(candidates, action_count=action_count)
    names = {policy.name: policy for policy in first}
    same = [policy.name for policy in second if policy.name in names and policy.is_same(names[policy.name])]
    clashing = [policy.name for policy in second if policy.name in names and policy.name not in same]
    if clashing:
        raise ValueError(
            f"a known policy and a candidate are both named {clashing[0]!r}, but are different objects; "
            "rename one in a dict"
        )
    notes = [f"candidates that are known already were left out: {', '.join(same)}"] if same else []
    return first + [policy for policy in second if policy.name not in same], len(first), notes


def _without_repeats(workspace: Workspace, count: int) -> tuple[Workspace, list[str]]:
    """Return the workspace without candidates that act as a known policy does, and what was left out."""
    distances = workspace.distances[count:, :count]
    repeats = np.flatnonzero((distances == 0).any(1)) + count
    said = [f"{workspace.names[i]} (acts as {workspace.names[int(distances[i - count].argmin())]})" for i in repeats]
    kept = np.setdiff1d(np.arange(len(workspace.policies)), repeats)
    return workspace.reorder(kept), said


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """Known policies and candidates in one table, and what the evidence allows to say.

    Attributes:
        prediction: The posterior of the returns and what it rests on.
        verdict: "deploy", "undecided", "measure first" or "cannot rank these", with the reason.
        incumbent: Name of the known policy to beat, or None.
        clipped: Method -> policies whose values exceeded what the rewards allow.
        notes: What limits the evidence.
    """

    prediction: Prediction
    verdict: Verdict
    incumbent: str | None = None
    clipped: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        prediction: Prediction,
        *,
        incumbent: str | None = None,
        clipped: dict[str, list[str]] | None = None,
        notes: Sequence[str] = (),
    ) -> Selection:
        """Judge a prediction."""
        return cls(prediction, _judge(prediction), incumbent, dict(clipped or {}), list(notes))

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
        """(P,) predicted returns; of known policies their return."""
        return np.where(self.panel.known, self.panel.returns, self.prediction.posterior.mean)

    def intervals(self, level: float = 0.8) -> np.ndarray:
        """Return (P, 2) lower and upper ends of intervals of the returns.

        Args:
            level: Nominal coverage.
        """
        return self.prediction.intervals(level)

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
            if not self.panel.known[i] and self.prediction.placement.gate[i] >= _FOREIGN:
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
            k: How many; fewer if there are fewer candidates.
        """
        return measure_next(self.prediction, k)

    def update(self, returns: Mapping[str, float], errors: Mapping[str, float] | None = None) -> Selection:
        """Return the selection after candidates were measured; nothing is trained again.

        Args:
            returns: Name -> measured return.
            errors: Name -> standard error of the return.

        Raises:
            ValueError: A name is unknown, or a return is not finite.
        """
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
        """Return verdict, policies, weights and notes as text."""
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
        return "\n".join(lines + self.notes)

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
        """Return the table as a data frame, the highest predicted return first.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install 'sopr_fast[pandas]'") from error
        return pandas.DataFrame(self.columns()).set_index("policy")

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
        ax.set_yticks(places, table["policy"])
        ax.set(xlabel="return (80 % interval)", title=str(self.verdict).split(". ")[0])
        ax.grid(axis="x", alpha=0.3)
        ax.legend()
        return ax


def _judge(prediction: Prediction) -> Verdict:
    """Judge a prediction; a measured candidate that no other is likely to exceed is to be deployed."""
    verdict = judge(prediction)
    panel = prediction.panel
    measured = {name: float(panel.returns[panel.names.index(name)]) for name in prediction.measured}
    if not measured:
        return verdict
    best = max(measured, key=lambda name: measured[name])
    others = ~panel.known
    risk = float(probability_beats(prediction, best)[others].max()) if others.any() else 0.0
    if risk >= _SURE:
        return verdict
    reason = f"It was measured at {measured[best]:,.6g}, and no other candidate exceeds it with probability {_SURE}."
    return replace(verdict, kind=DEPLOY, policies=(best,), reason=reason, probability_best=1 - risk)


def _by_weight(item: tuple[str, float]) -> float:
    return -item[1]


def _text(column: str, value: Any) -> str:
    if isinstance(value, bool):
        return "known" if value else ""
    if isinstance(value, str):
        return value
    if np.isnan(value):
        return ""
    return f"{value:.2f}" if column in ("best", "beats incumbent") else f"{value:,.5g}"
