"""Which candidate to deploy, and whether the evidence allows to say so."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..inputs.policies import Policy, as_policies
from ..inputs.returns import check_positions, is_missing, with_returns
from ..methods import read_methods
from ..runtime.options import integer, number, optional
from .columns import Columns, compute_columns
from .evaluation import Evaluation
from .folds import FEWEST_KNOWN, Fold, group_folds, random_folds
from .groups import read_groups
from .known_returns import are_ranks, read_known_returns
from .panel import Panel
from .predict import predict
from .selection import Selection
from .workspace import ROWS, Workspace

_ENOUGH = 12  # known policies


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
    subsets: Any = None,
    checkpoints: str | os.PathLike | None = None,
    time_limit: float | None = None,
    device: Any = "cpu",
    progress: bool = True,
    trust: bool = False,
    stochastic: bool = False,
    skip: bool = False,
) -> Selection:
    """Predict the returns of candidates from a panel of methods, and judge whether one can be deployed.

    Every method values known policies and candidates alike; methods that learn from known returns value a known policy
    by models that have not seen it. The known returns tell which methods to believe, near the known policies and
    away from them, and how far predictions err.

    Args:
        candidates: Policies to choose from, see `sopr_fast.load_policies`. A candidate that is itself known
            (same name, same actions) is left out. Of those that act alike in all compared states the first is used, in
            the first group that `groups` give one of them.
        log: Logged transitions, see `sopr_fast.load_log`; or states alone, or clustered `Subsets`, which only methods
            that need no rewards can use.
        known: M policies with known returns, at least four. Of those that act alike in all compared states one is used,
            the incumbent or the first.
        returns: Their returns: (M,) numbers, a mapping from name, a file, folder or data frame (see
            `sopr_fast.load_returns`), or for each policy the returns of its rollouts. Policies without a
            return are left out.
        groups: Group of each known policy, by name or in order: training run, algorithm or author. None finds them: by
            name, else by action distance. Groups by name may also hold candidates.
        incumbent: Name of the known policy to beat.
        discount: Discount factor γ.
        methods: Names (see `sopr_fast.selection.METHODS`), estimators, or a mapping from label to either; None for
            the default panel.
        folds: Random folds of the known policies; fewer if there are fewer than two policies for each.
        seed: Seed of everything random.
        return_errors: Standard errors of the returns: one number, (M,) or by name.
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
        Predicted returns, intervals, probabilities and a verdict.

    Raises:
        ImportError: A file needs an extra that is not installed.
        MemoryError: A file needs more memory than is free.
        TypeError: A policy, a return, a method or the log is of the wrong type.
        ValueError: There are fewer than four known policies, a candidate has the name of another known policy, every
            candidate is known, every method failed, or an argument is invalid.
        RuntimeError: A policy raised an error.
        OSError: A file cannot be read or written.

    Warns:
        UncertainEstimateWarning: Outliers dwarf all other logged actions.
        UserWarning: The log or the returns look wrong, or some known policies have no return.
    """
    discount, seed = number(below=1)("discount", discount), integer(0)("seed", seed)
    rows, time_limit = integer(1)("rows", rows), optional(number(above=0))("time_limit", time_limit)
    chosen = read_methods(methods)
    options: dict[str, Any] = {"action_count": action_count, "trust": trust, "stochastic": stochastic, "skip": skip}
    by_policy = {"returns": returns, "groups": groups, "return_errors": return_errors, "rollouts": rollouts}
    for what, part in by_policy.items():
        check_positions(what, part, known)
    first, returns = with_returns(as_policies(known, **options), returns)
    everyone, count, notes = _join(first, as_policies(candidates, **options))
    workspace = Workspace.build(
        everyone,
        log,
        rows=rows,
        action_count=action_count,
        subsets=subsets,
        needs_actions=any(method.needs_rewards for method in chosen.values()),
    )
    workspace, repeats = _without_repeats(workspace, count)
    names = workspace.names
    if repeats:
        notes.append(f"candidates that are known already were left out: {', '.join(repeats)}")
    if len(names) == count:
        raise ValueError("every candidate is a known policy: there is nothing to select")
    if incumbent is not None and incumbent not in names[:count]:
        raise ValueError(f"the incumbent {incumbent!r} is none of the known policies; pass the name of one")
    means, errors = read_known_returns(returns, names[:count], return_errors, rollouts)
    labels, group_source = read_groups(groups, names[:count], workspace.distances[:count, :count])
    claimed: Any = groups if hasattr(groups, "keys") else {}
    claims = ["" if is_missing(claimed.get(name)) else str(claimed.get(name)) for name in names[count:]]
    if copies := workspace.copies(incumbent):
        said = {i: f"{names[i]} (acts as {names[k]})" for i, k in copies.items()}
        if of_known := [text for i, text in said.items() if i < count]:
            notes.append(f"copies of known policies were left out, with their returns: {', '.join(of_known)}")
        if of_candidates := [text for i, text in said.items() if i >= count]:
            notes.append(f"copies of candidates were left out: {', '.join(of_candidates)}")
        for i, k in copies.items():
            if i >= count:
                claims[k - count] = claims[k - count] or claims[i - count]
        kept = np.setdiff1d(np.arange(len(names)), [*copies])
        workspace, once = workspace.reorder(kept), kept[kept < count]
        means, errors, labels = means[once], errors[once], [labels[i] for i in once]
        claims = [claims[i - count] for i in kept[kept >= count]]
        names, count = workspace.names, len(once)
    if count < FEWEST_KNOWN:
        unlike = " that act differently" if copies else ""
        raise ValueError(f"select needs at least {FEWEST_KNOWN} policies with known returns{unlike}, got {count}")
    if np.ptp(means) == 0:
        raise ValueError("the returns of all known policies are equal: they cannot show which method is better")
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
        folder=checkpoints,
        time_limit=time_limit,
        device=device,
        progress=progress,
    )
    if not workspace.has_rewards:
        notes.append("the log holds no rewards, so only methods that need none were used")
    if count < _ENOUGH:
        notes.append(f"only {count} known policies: weights and intervals need {_ENOUGH} or more to be reliable")
    if len(set(labels)) == 1:
        notes.append("the known policies form one group, so nothing shows how well foreign candidates are ranked")
    if are_ranks(means):
        notes.append("the returns look like ranks, so predictions and intervals are ranks too")
    panel = assemble(names, values, errors, labels + claims, columns, workspace.distances)
    trials = [k for k, fold in enumerate(splits) if fold.kind != "candidates"]
    evaluation = Evaluation(
        names=names[:count],
        returns=means,
        return_errors=errors,
        groups=labels,
        group_source=group_source,
        folds=[splits[k] for k in trials],
        values={method: [values[k] for k in trials] for method, values in columns.values.items()},
        dropped=columns.dropped,
        seconds=columns.seconds,
        seed=seed,
        distances=workspace.distances[:count, :count],
    )
    return Selection.of(
        predict(panel, seed=seed),
        incumbent=incumbent,
        clipped=columns.clipped,
        notes=notes,
        evaluation=evaluation,
        coverage=dict(zip(names, workspace.coverage().tolist(), strict=True)),
        settings=workspace.describe(
            chosen,
            discount=discount,
            seed=seed,
            folds=folds,
            given_groups=None if groups is None else len(set(labels)),
            given_return_errors=None if return_errors is None else True,
            given_rollouts=None if rollouts is None else True,
            rows=rows,
        ),
    )


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
        supervised=columns.supervised,
    )


def _join(first: list[Policy], second: list[Policy]) -> tuple[list[Policy], int, list[str]]:
    """Return known policies followed by candidates, the number of known ones, and notes.

    Raises:
        ValueError: A candidate has the name of a known policy that is another object and no array.
    """
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
