"""Values of known policies by models that have not seen them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..inputs.policies import as_policies
from ..inputs.returns import check_groups, check_positions, check_returns
from ..ranking.estimates import Estimates
from ..ranking.warnings import ForeignPolicyWarning
from ..runtime.options import integer
from .estimator import BATCH_SIZE, Estimator


def cross_fit(
    estimator: Estimator,
    known: Any,
    returns: Any,
    log: Any,
    *,
    folds: int = 5,
    groups: Mapping[str, Any] | Sequence[Any] | None = None,
    discount: float | None = None,
    seed: int = 0,
    action_count: int | None = None,
    checkpoint: str | os.PathLike | None = None,
    device: torch.device | str = "cpu",
    batch_size: int = BATCH_SIZE,
    progress: bool = True,
    trust: bool = False,
    stochastic: bool = False,
    skip: bool = False,
) -> Estimates:
    """Estimate the values of known policies, each without its own return.

    The known policies are split into folds. The policies of a fold are evaluated by a supervised estimator that knows
    only the others. Folds share drawn and clustered subsets and the actions of the policies. An estimator that is not
    supervised never sees returns, so it evaluates all policies at once.

    Args:
        estimator: The estimator.
        known: M policies with known returns, see `Estimator.estimate`.
        returns: (M,) returns, or a mapping from name to return.
        log: See `Estimator.estimate`.
        folds: Number of random folds of equal size, at most M; M for leave-one-out.
        groups: (M,) group of each policy, or a mapping from name to group. If given, each group is a fold
            (leave-one-group-out), and `folds` is ignored.
        discount: See `Estimator.estimate`.
        seed: Seed of the folds, and of everything random in the estimator.
        action_count: See `Estimator.estimate`.
        checkpoint: File to resume from; fold number k adds ".k" to its name.
        device: See `Estimator.estimate`.
        batch_size: See `Estimator.estimate`.
        progress: See `Estimator.estimate`.
        trust: See `Estimator.estimate`.
        stochastic: See `Estimator.estimate`.
        skip: See `Estimator.estimate`.

    Returns:
        Values of the known policies, in input order. For a supervised estimator the diagnostics are "fold", the fold
        (M,) of each policy, and "folds", the diagnostics of each fold.

    Raises:
        ValueError: There are too few policies or groups, or see `Estimator.estimate`.
    """
    seed = integer(0)("seed", seed)
    options: dict[str, Any] = {"seed": seed, "action_count": action_count, "device": device}
    options |= {"batch_size": batch_size, "progress": progress}
    check_positions("returns", returns, known)
    check_positions("groups", groups, known)
    policies = as_policies(known, action_count=action_count, trust=trust, stochastic=stochastic, skip=skip)
    if not estimator.supervised:
        return estimator.estimate(policies, log, discount=discount, checkpoint=checkpoint, **options)
    names = [policy.name for policy in policies]
    values = check_returns(returns, names)
    fold_of = _random_folds(len(names), folds, seed) if groups is None else _groups(groups, names)
    policies, log = estimator.prepare(policies, log, **options)
    parts: list[tuple[np.ndarray, Estimates]] = []
    with warnings.catch_warnings():
        # The policies of a left-out group are expected to be foreign, and diagnostics say which are.
        warnings.simplefilter("ignore", ForeignPolicyWarning)
        for fold in range(fold_of.max() + 1):
            inside, outside = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
            estimates = estimator.estimate(
                [policies[i] for i in inside],
                log,
                known=[policies[i] for i in outside],
                returns=values[outside],
                discount=discount,
                checkpoint=None if checkpoint is None else f"{os.fspath(checkpoint)}.{fold}",
                **options,
            )
            parts.append((inside, estimates))
            warnings.filterwarnings("ignore", "only .* training policies")  # one fold has said so
    return _join(names, fold_of, parts)


def _random_folds(count: int, folds: int, seed: int) -> np.ndarray:
    """Return the fold (M,) of each of M policies."""
    folds = integer(2)("folds", folds)
    if folds > count:
        raise ValueError(f"folds is {folds}, but there are only {count} known policies; lower folds or pass more")
    fold_of = np.empty(count, np.int64)
    for fold, members in enumerate(np.array_split(np.random.default_rng([seed, 6]).permutation(count), folds)):
        fold_of[members] = fold
    return fold_of


def _groups(groups: Mapping[str, Any] | Sequence[Any], names: list[str]) -> np.ndarray:
    """Return the index (M,) of each policy's group, in order of first occurrence."""
    groups = check_groups(groups, names)
    index = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    if len(index) < 2:
        raise ValueError("groups put all known policies into one group; pass two or more groups, or folds instead")
    return np.array([index[group] for group in groups])


def _join(names: list[str], fold_of: np.ndarray, parts: list[tuple[np.ndarray, Estimates]]) -> Estimates:
    values, standard_errors = np.empty((2, len(names)))
    timings: dict[str, float] = {}
    for members, estimates in parts:
        values[members], standard_errors[members] = estimates.values, estimates.standard_errors
        for stage, seconds in estimates.timings.items():
            timings[stage] = timings.get(stage, 0.0) + seconds
    return Estimates(
        names,
        values,
        standard_errors,
        method=parts[0][1].method,
        diagnostics={"fold": fold_of, "folds": [estimates.diagnostics for _, estimates in parts]},
        timings=timings,
    )
