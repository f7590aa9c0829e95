"""How well each method would have ranked policies whose returns are known."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..inputs.policies import as_policies
from ..inputs.returns import check_positions, with_returns
from ..methods import read_methods
from ..runtime.options import integer, number, optional
from .columns import compute_columns
from .evaluation import Evaluation
from .folds import given_folds, group_folds, random_folds
from .groups import read_groups
from .known_returns import are_ranks, read_known_returns
from .workspace import ROWS, Workspace


def evaluate(
    policies: Any,
    returns: Any,
    log: Any,
    *,
    methods: Any = None,
    groups: Mapping[str, str] | Sequence[str] | None = None,
    folds: int | Mapping[str, tuple[Any, Any]] | Sequence[tuple[Any, Any]] = 5,
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
    it ranks foreign ones. Given folds replace both kinds. Methods that need no returns value every tested policy once;
    the others learn anew for every fold. Reading, acting and clustering are shared between folds.

    Args:
        policies: M policies, see `sopr_fast.load_policies`.
        returns: Their returns: (M,) numbers, a mapping from name, a file, folder or data frame (see
            `sopr_fast.load_returns`), or for each policy the returns of its rollouts. Policies without a
            return are left out.
        log: Logged transitions, see `sopr_fast.load_log`; or states alone, or clustered `Subsets`, which only methods
            that need no rewards can use.
        methods: Names (see `sopr_fast.selection.METHODS`), estimators, or a mapping from label to either; None for
            the default panel.
        groups: Group of each policy, by name or in order. None finds them: by name, else by action distance.
        folds: Number of random folds; or folds to use: pairs (policies to learn from, policies to value), or a mapping
            from name to such a pair. Policies are given by name, or by position among those that have a return.
        discount: Discount factor γ.
        seed: Seed of everything random.
        return_errors: Standard errors of the returns: one number, (M,) or by name. Gaps within them are ties.
        rollouts: Number of rollouts behind each return; then `return_errors` are standard deviations over rollouts.
        action_count: Number of discrete actions, where policies return indices.
        rows: Transitions to use; of a larger log, some episodes are drawn.
        subsets: Clustered `Subsets` of the log, or their file, that SOPR-T uses again; their number, size and clusters
            then replace those of its config. None for its own.
        checkpoints: Folder to keep finished columns in and to resume from.
        time_limit: Seconds that each method may take; a method that exceeds it is dropped.
        device: Device of networks and data.
        progress: Whether to show progress bars.
        trust: Run code in files of policies where reading them needs it, see `sopr_fast.load_policies`.
        stochastic: Act by the distributions in files of policies instead of their means.
        skip: Skip files of policies that cannot be read, with a warning for each, instead of raising.

    Returns:
        Measures of every method for each kind of folds.

    Raises:
        ImportError: A file needs an extra that is not installed.
        MemoryError: A file needs more memory than is free.
        TypeError: A policy, a return, a method or the log is of the wrong type.
        ValueError: There are too few policies for so many folds, the returns are equal, or an argument is invalid.
        RuntimeError: A policy raised an error.
        OSError: A file cannot be read or written.

    Warns:
        UncertainEstimateWarning: Outliers dwarf all other logged actions.
        UserWarning: The log or the returns look wrong, or some known policies have no return.
    """
    discount, seed = number(below=1)("discount", discount), integer(0)("seed", seed)
    rows, time_limit = integer(1)("rows", rows), optional(number(above=0))("time_limit", time_limit)
    chosen = read_methods(methods)
    known = as_policies(policies, action_count=action_count, trust=trust, stochastic=stochastic, skip=skip)
    by_policy = {"returns": returns, "groups": groups, "return_errors": return_errors, "rollouts": rollouts}
    for what, part in by_policy.items():
        check_positions(what, part, policies)
    known, returns = with_returns(known, returns)
    names = [policy.name for policy in known]
    values, errors = read_known_returns(returns, names, return_errors, rollouts)
    if np.ptp(values) == 0:
        raise ValueError("the returns of all policies are equal: there is no order to evaluate")
    given = isinstance(folds, Mapping | Sequence) and not isinstance(folds, str)
    splits = given_folds(folds, names) if given else random_folds(len(names), folds, seed)
    workspace = Workspace.build(
        known,
        log,
        rows=rows,
        action_count=action_count,
        subsets=subsets,
        needs_actions=any(method.needs_rewards for method in chosen.values()),
    )
    labels, source = read_groups(groups, names, workspace.distances)
    left_out = [] if given else group_folds(labels)
    columns = compute_columns(
        workspace,
        chosen,
        values,
        splits + left_out,
        discount=discount,
        seed=seed,
        folder=checkpoints,
        time_limit=time_limit,
        device=device,
        progress=progress,
    )
    notes = []
    if copies := [f"{names[i]} (acts as {names[k]})" for i, k in workspace.copies().items()]:
        notes.append(f"what a method learns of a policy it knows of its copies: leave out {', '.join(copies)}")
    if not given and not left_out:
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
        settings=workspace.describe(
            chosen,
            discount=discount,
            seed=seed,
            folds=None if given else folds,
            given_folds=len(splits) if given else None,
            given_groups=None if groups is None else len(set(labels)),
            given_return_errors=None if return_errors is None else True,
            given_rollouts=None if rollouts is None else True,
            rows=rows,
        ),
    )
