"""How well methods would have ranked policies whose returns are known."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..estimators import Estimator
from ..estimators.estimator import Request
from ..estimators.methods import MethodsLike, read_methods
from ..inputs.accepted import LogLike, PoliciesLike, ReturnsLike
from ..inputs.policies import load_policies
from ..inputs.returns import with_returns
from ..runtime.checks import integer
from ..runtime.progress import Timings, part
from ..runtime.text import one_line
from .compared import Compared, read
from .evaluation import FEWEST_RANKED, Evaluation
from .folds import checkpoint_file, group_folds, quiet, random_folds, read_groups


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

    Random folds show how well a method ranks candidates like the known policies; leaving one group out shows how well
    it ranks foreign ones. Methods that need no returns value every policy once; the others learn anew for every fold.

    Args:
        policies: Policies, see `sopr_fast.load_policies`. Those without a return are left out.
        log: Logged transitions, see `sopr_fast.load_log`; or only states, see `sopr_fast.fit`, for methods that need
            no rewards.
        returns: Their returns, see `select`.
        methods: Names (see `sopr_fast.estimators.METHODS`), estimators, or a mapping from label to either; None for
            the default ones. "GaussianProcess(Simulator)" is the model of `select`.
        groups: Group of each policy by name. None finds them in the names.
        cv: Number of random folds; at most one for each policy.
        seed: Seed of everything random.
        checkpoints: Folder to keep the training of methods in, and to resume from.

    Returns:
        Measures of every method for each kind of folds.

    Raises:
        ValueError: There are fewer than four known returns, the returns are equal, every method failed, or an argument
            is invalid.
        ImportError, MemoryError, OSError, RuntimeError, TypeError: See `load_policies`, `load_log`, `load_returns`.

    Warns:
        UserWarning: The log or the returns look wrong.
    """
    seed = integer(0)("seed", seed)
    chosen = read_methods(methods)
    known, table = with_returns(load_policies(policies), returns)
    group_of = dict(zip(known, read_groups(groups, list(known)), strict=True))
    cv = integer(2)("cv", cv)
    compared, measured = read(known, log, table)
    names, (values, errors) = measured.representatives, measured.pooled
    folds = {"random": random_folds(len(names), cv, seed)}
    if np.ptp(values) == 0:
        raise ValueError("the returns of all policies are equal: there is no order to evaluate")
    labels = [group_of[name] for name in names]
    if foreign := group_folds(labels):
        folds["group"] = foreign
    found, dropped, timings = _values(chosen, compared, values, errors, folds, seed, checkpoints)
    notes = [*compared.facts, *measured.note()]
    if cv > len(names):
        notes.append(f"There are fewer policies than folds ({cv}): each is left out alone")
    if not any(len(test) >= FEWEST_RANKED for test in foreign.values()):
        notes.append("Nothing shows how foreign candidates are ranked: give groups of three or more policies")
    evaluation = Evaluation(
        names=names,
        returns=values,
        return_errors=errors,
        groups=labels,
        folds=folds,
        values=found,
        dropped=dropped,
        seconds=dict(timings),
        notes=notes,
        seed=seed,
        settings={
            "seed": seed,
            "compared states": compared.states,
            "methods": {label: repr(method) for label, method in chosen.items()},
        },
    )
    by_rewards = {label for label, method in chosen.items() if method.needs_rewards and not method.supervised}
    orders = {label: each["spearman"] for label, each in evaluation.measures().items() if label in by_rewards}
    if 2 * len(reverse := [label for label, (_, _, high) in orders.items() if high < 0]) > len(orders):
        remedy = "if returns or logged rewards are costs, name them so (`costs` in a log, `cost` in returns)"
        if compared.has_rewards and compared.log.are_costs:
            remedy = "check that less is better of the log's costs and of the known ones"
        notes.append(f"Methods that learn from rewards order policies in reverse ({', '.join(reverse)}): {remedy}")
    return evaluation


def _values(
    methods: dict[str, Any],
    compared: Compared,
    returns: np.ndarray,
    errors: np.ndarray,
    folds: dict[str, dict[str, np.ndarray]],
    seed: int,
    checkpoints: Any,
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, str], Timings]:
    """Return values (P,) by method and kind of folds, why methods were dropped, and seconds."""
    found: dict[str, dict[str, np.ndarray]] = {}
    dropped: dict[str, str] = {}
    estimated: dict[str, np.ndarray] = {}  # values (P,) of methods that do not learn from returns
    timings, everyone = Timings(), np.arange(len(returns))

    def value_all(method: Estimator) -> np.ndarray:
        if repr(method) not in estimated:
            file = checkpoint_file(checkpoints, method)
            values = method.estimate(compared.policies, compared.log, seed=seed, checkpoint=file).values
            estimated[repr(method)] = np.asarray(values, np.float64)
        return estimated[repr(method)]

    def value(method: Any) -> dict[str, np.ndarray]:
        if method.needs_rewards and not compared.has_rewards:
            raise ValueError("it needs rewards, which the log lacks")
        if method.supervised:
            mean = None if method.mean is None else value_all(method.mean)
            learn = method.prepare(Request(compared.policies, compared.log, seed), mean)
        values = {kind: np.full(len(returns), np.nan) for kind in folds}
        for kind, tests in folds.items():
            for test in tests.values():
                train = np.setdiff1d(everyone, test)
                known = returns[train], errors[train]
                values[kind][test] = learn(test, train, *known).values if method.supervised else value_all(method)[test]
        everything = np.concatenate([values[kind][test] for kind, tests in folds.items() for test in tests.values()])
        if not np.isfinite(everything).all():
            raise ValueError("it diverged: values are not finite")
        if np.ptp(everything) <= 1e-9 * np.abs(everything).max():
            raise ValueError("it gives all policies the same value")
        return values

    for k, (label, method) in enumerate(methods.items(), 1):
        with timings.stage(label), part(k, len(methods), label), quiet():
            try:
                found[label] = value(method)
            except (ArithmeticError, ValueError, RuntimeError) as error:  # one of several must not end hours of work
                dropped[label] = one_line(error)
    if not found:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in dropped.items())
        raise ValueError(f"no method is left to value the policies ({reasons})")
    return found, dropped, timings
