"""Folds: which policies a supervised method learns from, and which it is asked about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
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
        kind: "random", "group" (one group left out), "given" or "candidates".
        name: Number of a random fold, the group that is left out, or the name of a given fold.
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
        folds: Number of folds, at least 2. Every fold has two or more policies.
        seed: Seed of the permutation.

    Raises:
        ValueError: There are too few policies for so many folds.
    """
    folds = check_integer("folds", folds, 2)
    if count < FEWEST_KNOWN:
        raise ValueError(f"at least {FEWEST_KNOWN} policies with known returns are needed, got {count}")
    if count < 2 * folds:
        raise ValueError(
            f"{folds} folds need {2 * folds} policies with known returns, two for each fold, got {count}; "
            f"set folds={count // 2} or fewer"
        )
    order = np.random.default_rng([seed, 7]).permutation(count)
    parts = [np.sort(part) for part in np.array_split(order, folds)]
    return [Fold("random", str(k + 1), np.setdiff1d(order, part), part) for k, part in enumerate(parts)]


def group_folds(groups: Sequence[str]) -> list[Fold]:
    """Return one fold for each group: learn from the other groups, value the policies of this one.

    Args:
        groups: Group of every policy. Groups of a single policy have no fold, nor have groups that leave fewer than two
            policies, or fewer than a quarter, to learn from: what a few policies teach says little of what all teach.

    Returns:
        The folds in order of first appearance; none where there is only one group.
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


def given_folds(folds: Any, names: Sequence[str]) -> list[Fold]:
    """Return the folds that a user gives.

    Args:
        folds: Pairs (policies to learn from, policies to value), or a mapping from name to such a pair; policies by
            name or position.
        names: Names of the M policies with known returns, in whose order positions count.

    Raises:
        TypeError: Something is no such pair.
        ValueError: A policy is unknown, or occurs twice in a fold; or a part of a fold has fewer than two policies.
    """
    items = folds.items() if isinstance(folds, Mapping) else ((str(k + 1), fold) for k, fold in enumerate(folds))
    given = [_read_fold(str(name), parts, names) for name, parts in items]
    if not given:
        raise ValueError("no folds given: pass a number of random folds, or one pair or more")
    return given


def _read_fold(name: str, parts: Any, names: Sequence[str]) -> Fold:
    is_pair = not isinstance(parts, str | Mapping | Set) and hasattr(parts, "__len__") and len(parts) == 2
    if not is_pair or any(isinstance(part, str) or not isinstance(part, Iterable) for part in parts):
        raise TypeError(f"fold {name!r} must be a pair (policies to learn from, policies to value), got {parts!r}")
    train, test = (np.array([_position(policy, name, names) for policy in part], np.int64) for part in parts)
    for part, purpose in ((train, "learn from"), (test, "value")):
        if len(part) < 2:
            raise ValueError(f"fold {name!r} has {len(part)} policies to {purpose}; at least two are needed")
    policies, counts = np.unique(np.append(train, test), return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"fold {name!r} holds policy {names[policies[counts > 1][0]]!r} more than once")
    return Fold("given", name, train, test)


def _position(policy: Any, fold: str, names: Sequence[str]) -> int:
    if isinstance(policy, str) and policy in names:
        return names.index(policy)
    if isinstance(policy, int | np.integer) and not isinstance(policy, bool) and 0 <= policy < len(names):
        return int(policy)
    raise ValueError(
        f"fold {fold!r} holds {policy!r}, but its policies must be names, or positions below {len(names)}, of policies "
        "with known returns"
    )
