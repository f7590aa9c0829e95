"""Values of several estimators in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..estimators.methods import MethodsLike, read_methods
from ..inputs.accepted import LogLike, PoliciesLike
from ..inputs.logs import load_transitions
from ..inputs.policies import load_policies

if TYPE_CHECKING:
    import pandas


def compare(
    policies: PoliciesLike, log: LogLike, methods: MethodsLike, *, level: float = 0.95, seed: int = 0
) -> pandas.DataFrame:
    """Value policies by several estimators, which need no known return.

    Where estimators disagree, the log does not decide: measure. Estimators may have other units, see each; on episodes
    of one step all values are expected rewards.

    Args:
        policies: P policies, see `sopr_fast.load_policies`.
        log: Logged transitions, see `sopr_fast.load_log`.
        methods: Names of methods, estimators, or a mapping from label to either, see `sopr_fast.evaluate`.
        level: Nominal coverage of the intervals.
        seed: Seed of everything random.

    Returns:
        Data frame of P rows by name, in the order of the policies. Its columns are pairs of a method and "value",
        "error" (standard error), "low" or "high" (ends of the interval); NaN where the error is unknown.

    Raises:
        ValueError: A method is unknown or learns from known returns, or what `Estimator.estimate` raises.
    """
    import pandas

    chosen = read_methods(methods)
    if learning := [label for label, method in chosen.items() if method.supervised]:
        raise ValueError(f"{learning[0]} learns from known returns: leave it out, or ask sopr_fast.evaluate")
    loaded, steps = load_policies(policies), load_transitions(log)
    columns: dict[tuple[str, str], np.ndarray] = {}
    for label, method in chosen.items():
        estimates = method.estimate(loaded, steps, seed=seed)
        low, high = estimates.intervals(level).T
        own = {"value": estimates.values, "error": estimates.standard_errors, "low": low, "high": high}
        columns |= {(label, part): values for part, values in own.items()}
    return pandas.DataFrame(columns, pandas.Index([*loaded], dtype=object, name="policy"))
