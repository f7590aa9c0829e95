"""How well each method would have ranked policies whose returns are known."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..estimators import Estimator
from ..metrics import kendall, regret_at_k, spearman
from ..policies import as_policies
from ..ranking import figure_class
from ..returns import with_returns
from ..runtime import distributed
from ..runtime.options import integer, number
from ..runtime.text import NAME_WIDTH, printable, tick_label
from .columns import compute_columns
from .folds import FEWEST_KNOWN, Fold, group_folds, random_folds
from .groups import find_groups
from .known_returns import are_ranks, read_known
from .methods import read_methods
from .metrics import gap_accuracy
from .workspace import ROWS, Workspace

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas

MEASURES = ("spearman", "kendall", "gap accuracy", "regret@1", "regret@3")
_REPLICATES = 200
_LEVEL = 0.9


@distributed.together()
def evaluate(
    policies: Any,
    returns: Any,
    log: Any,
    *,
    methods: Any = None,
    groups: Mapping[str, str] | Sequence[str] | None = None,
    folds: int = 5,
    discount: float = 0.99,
    seed: int = 0,
    return_errors: Any = None,
    rollouts: Any = None,
    action_count: int | None = None,
    rows: int = ROWS,
    subsets: Any = None,
    checkpoints: str | os.PathLike | None = None,
    time_limit: float | None = None,
    device: Any = "cpu",
    progress: bool = True,
    trust: bool = False,
    stochastic: bool = False,
    skip: bool = False,
) -> Evaluation:
    """Measure how well each method ranks policies that it has not learned from.

    Random folds tell how well a method ranks candidates like the known policies; leaving one group out tells how well
    it ranks foreign ones. Methods that need no returns value all policies once; the others learn anew for every fold.
    Reading, acting and clustering are shared between folds.

    Args:
        policies: M policies, see `sopr_fast.policies.as_policies`.
        returns: Their returns: (M,) numbers, a mapping from name, a file, folder or data frame (see
            `sopr_fast.returns.read_returns`), or for each policy the returns of its rollouts. Policies without a
            return are left out.
        log: Logged transitions, see `sopr_fast.data.load`; or states alone, or clustered `Subsets`, which only methods
            that need no rewards can use.
        methods: Names (see `sopr_fast.selection.METHODS`), estimators, or a mapping from label to either; None for
            the default panel.
        groups: Group of each policy, by name or in order. None finds them: by name, else by action distance.
        folds: Number of random folds.
        discount: Discount factor γ.
        seed: Seed of everything random.
        return_errors: Standard errors of the returns: one number, (M,) or by name. Gaps within them are ties.
        rollouts: Number of rollouts behind each return; then `return_errors` are standard deviations over rollouts.
        action_count: Number of discrete actions, where policies return indices.
        rows: Transitions to use; a larger log is thinned to evenly spaced episodes.
        subsets: Clustered `Subsets` of the log, or their file, that SOPR-T uses again; their number, size and clusters
            then replace those of its config. None for its own.
        checkpoints: Folder to keep finished columns in and to resume from.
        time_limit: Seconds that each method may take; a method that exceeds it is dropped.
        device: Device of networks and data.
        progress: Whether to show progress bars.
        trust: Run code in files of policies where reading them needs it, see `sopr_fast.policies.load`.
        stochastic: Act by the distributions in files of policies instead of their means.
        skip: Skip files of policies that cannot be read, with a warning for each, instead of raising.

    Returns:
        Measures of every method for both kinds of folds.

    Raises:
        TypeError: A policy, a return, a method or the log is of the wrong type.
        ValueError: There are too few policies for so many folds, the returns are equal, or an argument is invalid.
        RuntimeError: A policy raised an error.
        OSError: A file cannot be read or written.
    """
    discount, seed = number(below=1)("discount", discount), integer(0)("seed", seed)
    chosen = read_methods(methods)
    known = as_policies(policies, action_count=action_count, trust=trust, stochastic=stochastic, skip=skip)
    known, returns = with_returns(known, returns)
    workspace = Workspace.build(
        known,
        log,
        rows=rows,
        action_count=action_count,
        subsets=subsets,
        needs_actions=any(method.needs_rewards for method in chosen.values()),
        progress=progress,
    )
    names = workspace.names
    values, errors = read_known(returns, names, return_errors, rollouts)
    if np.ptp(values) == 0:
        raise ValueError("the returns of all policies are equal: there is no order to evaluate")
    splits = random_folds(len(names), folds, seed)
    labels, source = read_groups(groups, names, workspace.distances)
    left_out = group_folds(labels)
    columns = compute_columns(
        workspace,
        chosen,
        values,
        splits + left_out,
        discount=discount,
        seed=seed,
        folder=None if checkpoints is None else Path(checkpoints),
        time_limit=time_limit,
        device=device,
        progress=progress,
    )
    notes = []
    if not left_out:
        alone = "no group of several leaves enough others to learn from" if len(set(labels)) > 1 else "one group"
        notes.append(f"{alone}: nothing is known about foreign candidates; pass groups= or policies of other origins")
    if are_ranks(values):
        notes.append("returns look like ranks: regret and gap accuracy count ranks, not returns")
    return Evaluation(
        names=names,
        returns=values,
        return_errors=errors,
        groups=labels,
        group_source=source,
        folds=columns.folds,
        values=columns.values,
        dropped=columns.dropped,
        seconds=columns.seconds,
        notes=notes,
        seed=seed,
        distances=workspace.distances,
        coverage=workspace.coverage(),
        settings=describe_settings(workspace, chosen, discount=discount, seed=seed, folds=folds, rows=rows),
    )


def describe_settings(workspace: Workspace, methods: dict[str, Estimator], **numbers: Any) -> dict[str, Any]:
    """Return what a run rests on, as plain text and numbers: arguments, the log, methods by label.

    Args:
        workspace: Policies and log.
        methods: Label -> estimator.
        numbers: Arguments of the run by name.
    """
    return {
        **numbers,
        "action_count": workspace.action_count,
        "states": len(workspace.states),
        "has_rewards": workspace.has_rewards,
        "reused_subsets": None if workspace.subsets is None else len(workspace.subsets),
        "methods": {label: repr(method) for label, method in methods.items()},
    }


def read_groups(
    groups: Mapping[str, str] | Sequence[str] | None, names: list[str], distances: np.ndarray
) -> tuple[list[str], str]:
    """Return the group of every policy, and where it comes from.

    Args:
        groups: By name or in order; None finds them.
        names: Names of the M policies.
        distances: (M, M) action distances.

    Returns:
        M labels, and "given", "names", "action distance" or "none".

    Raises:
        ValueError: Groups are missing, or not one for each policy.
    """
    if groups is None:
        return find_groups(names, distances)
    if isinstance(groups, Mapping):
        if missing := [name for name in names if name not in groups]:
            raise ValueError(f"groups hold nothing for policy {missing[0]!r}")
        groups = [groups[name] for name in names]
    if isinstance(groups, str) or len(groups) != len(names):
        raise ValueError(f"groups must be one for each of {len(names)} policies, got {groups!r}")
    return [str(group) for group in groups], "given"


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Measures of methods on policies that they have not learned from.

    Attributes:
        names: M names of policies.
        returns: (M,) returns.
        return_errors: (M,) standard errors of the returns.
        groups: M groups.
        group_source: "given", "names", "action distance" or "none".
        folds: Random folds, then one fold for each group.
        values: Method -> for each fold the (T,) values of its test policies.
        dropped: Method -> reason why it has no values.
        seconds: Method -> time spent.
        notes: What limits the evidence.
        seed: Seed of the bootstrap.
        distances: (M, M) action distances, or None.
        coverage: (M,) share of logged states in which each policy acts as the log does; NaN where unknown; or None.
        settings: What the run rests on, see `describe_settings`.
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
        """Kinds of folds: "random", and "group" where there are several groups."""
        return list(dict.fromkeys(fold.kind for fold in self.folds))

    def measures(self, kind: str = "random") -> dict[str, dict[str, tuple[float, float, float]]]:
        """Compute every measure of every method.

        Each measure is the mean over folds of the measure among the fold's test policies. Intervals are bootstrapped:
        folds are resampled, and policies within them.

        Args:
            kind: "random" or "group".

        Returns:
            Method -> measure -> mean, lower and upper end of the 90 % interval; NaN where undefined.
        """
        places = [k for k, fold in enumerate(self.folds) if fold.kind == kind]
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
        for _ in range(_REPLICATES if places else 0):
            chosen = random.choice(places, len(places))
            samples.append(
                [(int(k), random.integers(len(self.folds[k].test), size=len(self.folds[k].test))) for k in chosen]
            )
        return samples

    def _mean(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Return (measures,) means over folds in which they are defined."""
        table = [_measure(self.returns[test], values, self.return_errors[test]) for test, values in parts]
        return _nan_mean(np.array(table).reshape(-1, len(MEASURES)))

    def table(self) -> str:
        """Return the measures as text, methods with the best Spearman correlation first; names are escaped."""
        blocks = []
        for kind in self.kinds:
            count = sum(fold.kind == kind for fold in self.folds)
            title = {
                "random": f"Candidates like the known policies: {count} random folds of {len(self.names)} policies",
                "group": f"Foreign candidates: one of {count} groups left out ({_origin(self.group_source)})",
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
        """Return a data frame with one row for each kind of folds, method and measure.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install 'sopr_fast[pandas]'") from error
        rows = [
            {"folds": kind, "method": method, "measure": name, "mean": mean, "low": low, "high": high}
            for kind in self.kinds
            for method, each in self.measures(kind).items()
            for name, (mean, low, high) in each.items()
        ]
        return pandas.DataFrame(rows)

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
        labels = {"random": "random folds", "group": "one group left out"}
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

    def report(self, path: str | os.PathLike, *, command: str | None = None, date: str | None = None) -> None:
        """Write a report: one HTML file that needs no network.

        Args:
            path: File to write or replace.
            command: Command that makes the report again; by default a call of `evaluate`.
            date: Date to print. None for none, so that equal evaluations give equal bytes.

        Raises:
            ImportError: matplotlib is not installed.
            OSError: The file cannot be written.
        """
        from ..report import write_evaluation

        write_evaluation(self, path, command=command, date=date)


def _measure(returns: np.ndarray, values: np.ndarray, errors: np.ndarray) -> list[float]:
    def regret(k: int) -> float:
        return regret_at_k(scores=values, returns=returns, k=k) if len(returns) > k else np.nan

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


__all__ = ["FEWEST_KNOWN", "MEASURES", "Evaluation", "evaluate", "read_groups"]
