"""How well methods would have ranked policies whose returns are known."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..argument_types import LogLike, PoliciesLike, ReturnsLike
from ..estimators import Estimator
from ..estimators.estimator import Request
from ..estimators.methods import MethodsLike, read_methods
from ..inputs.policies import load_policies
from ..inputs.returns import check_groups, with_returns
from ..results.metrics import regret_at_k, spearman
from ..results.numbers import number
from ..results.result import Result
from ..results.tables import Column, column, plain, to_text, wrapped
from ..runtime.checks import integer
from ..runtime.progress import part
from ..runtime.text import list_names, one_line
from .compared import Compared, read
from .values import checkpoint_file, quiet

MEASURES = ("spearman", "regret@1", "regret@3")  # the first orders methods
_REPLICATES = 200
_LEVEL = 0.9
FEWEST_RANKED = 3  # policies whose order says something
FEWEST_TRAINING = 4  # policies with returns, to learn from some and test others
_LEAST_SHARE = 0.25  # of the policies, to learn from if a group is left out


def evaluate(
    policies: PoliciesLike,
    log: LogLike,
    returns: ReturnsLike,
    *,
    methods: MethodsLike = None,
    groups: Mapping[str, str] | None = None,
    cv: int = 5,
    seed: int = 0,
    checkpoints: str | os.PathLike | None = None,
) -> Evaluation:
    """Measure how well methods rank policies that they have not learned from.

    Random folds show how well a method ranks candidates like the known policies; with groups, each of which is left
    out once, how well it ranks foreign ones. Methods that need no returns value every policy once; the others learn
    anew for every fold.

    Args:
        policies: Policies, see `sopr_fast.load_policies`. Those without a return are left out.
        log: Logged transitions, see `sopr_fast.load_log`; or only states, see `sopr_fast.fit`, for methods that need
            no rewards.
        returns: Their returns, see `select`.
        methods: Names (see `sopr_fast.estimators.METHODS`), estimators, or a mapping from label to either; None for
            the default ones. "GaussianProcess(Simulator)" is the model of `select`.
        groups: Group of each policy by name, whose groups are the folds; None for random folds.
        cv: Number of random folds; at most one for each policy.
        seed: Seed of everything random.
        checkpoints: Folder to keep the training of methods in, and to resume from.

    Returns:
        Measures of every method.

    Raises:
        ValueError: There are fewer than four known returns, the returns are equal, every method failed, groups leave
            nothing to learn from, or an argument is invalid.
        ImportError, MemoryError, OSError, RuntimeError, TypeError: See `load_policies`, `load_log`, `load_returns`.

    Warns:
        UserWarning: The log or the returns look wrong.
    """
    seed = integer(0)("seed", seed)
    chosen = read_methods(methods)
    known, table = with_returns(load_policies(policies), returns)
    group_of = {} if groups is None else dict(zip(known, check_groups(groups, [*known]), strict=True))
    cv = integer(2)("cv", cv)
    compared, measured = read(known, log, table)
    names, (values, errors) = measured.representatives, measured.pooled
    labels = [str(group_of[name]) for name in names] if groups is not None else []
    folds = group_folds(labels) if labels else random_folds(len(names), cv, seed)
    if np.ptp(values) == 0:
        raise ValueError("the returns of all policies are equal: give policies from poor to good")
    found, dropped = _values(chosen, compared, values, errors, [*folds.values()], seed, checkpoints)
    notes = [*compared.facts, *measured.note()]
    if not labels:
        notes.append("Nothing shows how foreign candidates are ranked: give groups")
    if untested := [label for label in dict.fromkeys(labels) if label not in folds]:
        notes.append(f"Groups of one policy, or of nearly all, are not left out: {list_names(untested, 5)}")
    return Evaluation(
        names=names,
        returns=values,
        return_errors=errors,
        groups=labels,
        folds=folds,
        values=found,
        dropped=dropped,
        notes=notes,
        seed=seed,
        settings={
            "seed": seed,
            "compared states": compared.states,
            "methods": {label: repr(method) for label, method in chosen.items()},
        },
    )


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Result):
    """Measures of methods on policies that they have not learned from.

    Attributes:
        names: P names of policies.
        returns: (P,) float64 returns, in the units in which they were given.
        return_errors: (P,) float64 standard errors of the returns.
        groups: P groups, which are the folds; none if these are random.
        folds: Name of a fold -> (T,) int64 indices of the policies that it tests. Methods learn from all others.
        values: Method -> (P,) float64 values in the method's own units, NaN for policies in no fold.
        dropped: Method -> reason why it has no values.
        notes: What limits the evidence.
        seed: Seed of the bootstrap.
        settings: What the run rests on, as plain text and numbers.
    """

    names: list[str]
    returns: np.ndarray
    return_errors: np.ndarray
    groups: list[str]
    folds: dict[str, np.ndarray]
    values: dict[str, np.ndarray]
    dropped: dict[str, str]
    notes: list[str] = field(default_factory=list)
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """The best method, in one sentence."""
        best, *others = self.tied
        mean, *_ = self.measures[best]["spearman"]
        if np.isnan(mean):
            return "These policies are too few to choose the best method"
        rivals = others[0] if len(others) == 1 else f"{len(others)} other methods"
        tie = f"; {rivals} may be as good" if others else ""
        return f"Best on {self.tested}: {best} (rank correlation {number(mean)}{tie})"

    @property
    def tested(self) -> str:
        """What policies the folds leave out, in words."""
        return "a new group of policies" if self.groups else "policies like the known ones"

    @property
    def measures(self) -> dict[str, dict[str, tuple[float, float, float]]]:
        """Method -> measure -> mean, lower and upper end of the 90 % interval; NaN where undefined.

        The first method has the highest rank correlation. Values of random folds are measured together, since folds of
        two policies would show no order. A group is measured by itself, if it has three policies or more; the measure
        is the mean over groups. Intervals are bootstrapped over policies.
        """
        return {method: _summary(replicates) for method, replicates in self._replicates.items()}

    @property
    def tied(self) -> list[str]:
        """Methods that order policies as well as any, the highest rank correlation first.

        A method is left out if a better one has a higher rank correlation in 95 % of the bootstrap's samples.
        """
        found = {method: each[1:, 0] for method, each in self._replicates.items()}
        best = next(iter(found))
        return [method for method in found if method == best or np.mean(found[method] < found[best]) < 0.95]

    @cached_property
    def _replicates(self) -> dict[str, np.ndarray]:
        """Measures (1 + 200, measures) by method, the best first: of all policies, then of bootstrap samples."""
        tests = [test for test in self.folds.values() if len(test) >= FEWEST_RANKED]
        if not self.groups:
            tests = [np.concatenate([*self.folds.values()])]
        random = np.random.default_rng([self.seed, 8])
        tables = {method: np.full((1 + len(tests), 1 + _REPLICATES, len(MEASURES)), np.nan) for method in self.values}
        for row, test in enumerate(tests):
            samples = [test, *test[random.integers(len(test), size=(_REPLICATES, len(test)))]]
            for method, values in self.values.items():
                tables[method][row] = [_measure(self.returns[s], values[s], s) for s in samples]
        means = {method: np.ma.masked_invalid(table).mean(0).filled(np.nan) for method, table in tables.items()}
        return dict(sorted(means.items(), key=lambda item: -np.nan_to_num(item[1][0, 0], nan=-2)))

    def cells(self) -> list[Column]:
        """Return the columns that text and report show, see `measures`; the best method first."""
        measures = self.measures
        spearman, *others = ([each[name] for each in measures.values()] for name in MEASURES)
        return [
            Column("method", [*measures]),
            Column("spearman", [_with_interval(*each) for each in spearman], is_number=True),
            *(column(name, [each[0] for each in own]) for name, own in zip(MEASURES[1:], others, strict=True)),
        ]

    @property
    def title(self) -> str:
        """What the folds show."""
        if self.groups:
            return f"Foreign candidates: one of {len(self.folds)} groups left out"
        return f"Candidates like the known policies: {len(self.folds)} folds of {len(self.names)} policies"

    def table(self, rows: int | None = None) -> str:
        """Return the measures as text of 80 columns, the methods with the best Spearman correlation first."""
        tie = [f"no clear difference: {', '.join(self.tied)}"] if len(self.tied) > 1 else []
        dropped = [f"{method} was dropped: {reason}" for method, reason in self.dropped.items()]
        return "\n".join([self.title, to_text(self.cells()), *map(wrapped, tie + dropped + self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, ready for JSON (NaN where a measure is undefined)."""
        shown = ("names", "returns", "return_errors", "groups", "folds", "values", "dropped", "notes")
        return plain({name: getattr(self, name) for name in (*shown, "measures")})

    def columns(self) -> dict[str, Any]:
        """Return one row for each method and measure."""
        rows = [(method, name, *ends) for method, each in self.measures.items() for name, ends in each.items()]
        return dict(zip(("method", "measure", "mean", "low", "high"), zip(*rows, strict=True), strict=True))


def random_folds(count: int, folds: int, seed: int) -> dict[str, np.ndarray]:
    """Split policies, at least four, into two or more folds of nearly equal size, at most one for each policy."""
    if count < FEWEST_TRAINING:
        needed = f"at least {FEWEST_TRAINING} policies with known returns are needed"
        raise ValueError(f"{needed}, got {count}; those that act alike count once")
    order = np.random.default_rng([seed, 7]).permutation(count)
    return {str(k): np.sort(part) for k, part in enumerate(np.array_split(order, min(folds, count)), 1)}


def group_folds(groups: Sequence[str]) -> dict[str, np.ndarray]:
    """Return one fold for each group, to learn from the other groups and value the policies of this one.

    A group has no fold if it holds one policy, or leaves fewer than two or a quarter of all to learn from. ValueError
    is raised if none has one.
    """
    labels = np.array(groups, dtype=object)
    found = {label: np.flatnonzero(labels == label) for label in dict.fromkeys(groups)}
    most = len(labels) - max(2.0, _LEAST_SHARE * len(labels))
    folds = {label: inside for label, inside in found.items() if 2 <= len(inside) <= most}
    if not folds:
        raise ValueError("groups leave no policies to learn from, or one to order: give larger groups, or none")
    return folds


def _values(
    methods: dict[str, Any],
    compared: Compared,
    returns: np.ndarray,
    errors: np.ndarray,
    tests: list[np.ndarray],
    seed: int,
    checkpoints: Any,
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return values (P,) by method, and why methods were dropped."""
    found: dict[str, np.ndarray] = {}
    dropped: dict[str, str] = {}
    estimated: dict[str, np.ndarray] = {}  # values (P,) of methods that do not learn from returns
    everyone = np.arange(len(returns))

    def value_all(method: Estimator) -> np.ndarray:
        if repr(method) not in estimated:
            file = checkpoint_file(checkpoints, method)
            values = method.estimate(compared.policies, compared.log, seed=seed, checkpoint=file).values
            estimated[repr(method)] = np.asarray(values, np.float64)
        return estimated[repr(method)]

    def value(method: Any) -> np.ndarray:
        if method.needs_rewards and not compared.has_rewards:
            raise ValueError("it needs rewards, which the log lacks")
        if method.supervised:
            mean = None if method.mean is None else value_all(method.mean)
            learn = method.prepare(Request(compared.policies, compared.log, seed), mean)
        values = np.full(len(returns), np.nan)
        for test in tests:
            train = np.setdiff1d(everyone, test)
            known = returns[train], errors[train]
            values[test] = learn(test, train, *known).values if method.supervised else value_all(method)[test]
        everything = values[np.concatenate(tests)]
        if not np.isfinite(everything).all():
            raise ValueError("it diverged: values are not finite")
        if np.ptp(everything) <= 1e-9 * np.abs(everything).max():
            raise ValueError("it gives all policies the same value")
        return values

    for k, (label, method) in enumerate(methods.items(), 1):
        with part(k, len(methods), label), quiet():
            try:
                found[label] = value(method)
            except (ArithmeticError, ValueError, RuntimeError) as error:  # one of several must not end hours of work
                dropped[label] = one_line(error)
    if not found:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in dropped.items())
        raise ValueError(f"no method is left to value the policies ({reasons})")
    return found, dropped


def _measure(returns: np.ndarray, values: np.ndarray, sample: np.ndarray) -> list[float]:
    """Return the measures of a sample of policies, which may hold some repeatedly."""
    distinct = len(np.unique(sample)) if np.ptp(returns) > 0 else 0
    regrets = [regret_at_k(scores=values, returns=returns, k=k) if distinct > k else np.nan for k in (1, 3)]
    return [spearman(returns, values) if distinct >= FEWEST_RANKED else np.nan, *regrets]


def _summary(replicates: np.ndarray) -> dict[str, tuple[float, float, float]]:
    """Return mean, lower and upper end of the 90 % interval of each measure, NaN if it is rarely defined."""
    samples = replicates[1:]
    defined = np.isfinite(samples).sum(0) >= _REPLICATES / 2
    ends = np.nanquantile(np.where(defined, samples, 0), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
    table = np.stack([replicates[0], *np.where(defined, ends, np.nan)], 1)
    return {name: (mean, low, high) for name, (mean, low, high) in zip(MEASURES, table.tolist(), strict=True)}


def _with_interval(mean: float, low: float, high: float) -> str:
    return number(mean) if np.isnan([mean, low]).any() else f"{number(mean)} ({number(low)} to {number(high)})"
