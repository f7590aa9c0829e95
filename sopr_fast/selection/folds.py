"""Folds: which policies a method learns from, and which it is asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..runtime.checks import check_integer

FEWEST_KNOWN = 4
_LEAST_SHARE = 0.25  # of the policies, to learn from where a group is left out


@dataclass(frozen=True, eq=False)
class Fold:
    """One split of policies.

    Attributes:
        kind: "random", or "group" (one group left out).
        name: Number of a random fold, or the group that is left out.
        train: (M,) int64 indices of the policies to learn from.
        test: (T,) int64 indices of the policies to value.
    """

    kind: str
    name: str
    train: np.ndarray
    test: np.ndarray


def random_folds(count: int, folds: Any, seed: int) -> list[Fold]:
    """Split policies into folds of nearly equal size.

    Args:
        count: Number of policies, at least `FEWEST_KNOWN`.
        folds: Number of folds, at least 2; at most one for each policy is made.
        seed: Seed of the permutation.

    Raises:
        ValueError: There are too few policies.
    """
    folds = check_integer("cv", folds, 2)
    if count < FEWEST_KNOWN:
        raise ValueError(f"at least {FEWEST_KNOWN} policies with known returns are needed, got {count}")
    order = np.random.default_rng([seed, 7]).permutation(count)
    parts = [np.sort(part) for part in np.array_split(order, min(folds, count))]
    return [Fold("random", str(k + 1), np.setdiff1d(order, part), part) for k, part in enumerate(parts)]


def group_folds(groups: Sequence[str]) -> list[Fold]:
    """Return one fold for each group: learn from the other groups, value the policies of this one.

    Args:
        groups: Group of every policy. Groups of a single policy have no fold, nor have groups that leave fewer than two
            policies, or fewer than a quarter, to learn from: what a few policies teach says little of what all teach.

    Returns:
        The folds in order of first appearance; none if there is only one group.
    """
    labels = np.array(groups, dtype=object)
    everyone = np.arange(len(labels))
    least = max(2.0, _LEAST_SHARE * len(labels))
    folds = []
    for label in dict.fromkeys(groups):
        inside = labels == label
        if np.count_nonzero(inside) >= 2 and np.count_nonzero(~inside) >= least:
            folds.append(Fold("group", label, everyone[~inside], everyone[inside]))
    return folds


def read_folds(cv: Any, names: Sequence[str], seed: int) -> list[Fold]:
    """Return random folds, or those that a user gives.

    Args:
        cv: Number of random folds; or pairs (names to learn from, names to value).
        names: Names of the M policies with known returns.
        seed: Seed of random folds.

    Raises:
        TypeError: Something is no such pair.
        ValueError: There are too few policies, or a policy is unknown or occurs twice in a fold.
    """
    if not isinstance(cv, Sequence) or isinstance(cv, str):
        return random_folds(len(names), cv, seed)
    return [_read_fold(str(k + 1), pair, names) for k, pair in enumerate(cv)]


def _read_fold(name: str, pair: Any, names: Sequence[str]) -> Fold:
    if isinstance(pair, str) or len(pair) != 2 or any(isinstance(part, str) for part in pair):
        raise TypeError(f"fold {name} must be a pair (names to learn from, names to value), got {pair!r}")
    parts = []
    for part in pair:
        for policy in part:
            if policy not in names:
                raise ValueError(f"fold {name} holds {policy!r}, which is no policy with a known return")
        parts.append(np.array([names.index(policy) for policy in part], np.int64))
    everyone = np.concatenate(parts)
    if min(map(len, parts)) < 2 or len(np.unique(everyone)) < len(everyone):
        raise ValueError(f"fold {name} must hold each policy once, and at least two to learn from and two to value")
    return Fold("random", name, *parts)
