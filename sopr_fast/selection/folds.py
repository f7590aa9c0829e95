"""Folds: which policies a method learns from, and which it is asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..runtime.checks import integer

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


def random_folds(count: int, folds: int, seed: int) -> list[Fold]:
    """Split policies into folds of nearly equal size.

    Args:
        count: Number of policies, at least `FEWEST_KNOWN`.
        folds: Number of folds, at least 2; at most one for each policy is made.
        seed: Seed of the permutation.

    Raises:
        ValueError: There are too few policies.
    """
    folds = integer(2)("cv", folds)
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
