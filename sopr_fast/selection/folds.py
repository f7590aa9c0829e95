"""Folds of policies, and the groups that they leave out.

A fold is the indices of policies that are valued, by methods that learn from all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..inputs.returns import check_groups

FEWEST_TRAINING = 4  # policies with returns, to learn from some and test others
_LEAST_SHARE = 0.25  # of the policies, to learn from if a group is left out


def random_folds(count: int, folds: int, seed: int) -> dict[str, np.ndarray]:
    """Split policies, at least four, into two or more folds of nearly equal size, at most one for each policy."""
    if count < FEWEST_TRAINING:
        needed = f"at least {FEWEST_TRAINING} policies with known returns are needed"
        raise ValueError(f"{needed}, got {count}; those that act alike count once")
    order = np.random.default_rng([seed, 7]).permutation(count)
    return {str(k): np.sort(part) for k, part in enumerate(np.array_split(order, min(folds, count)), 1)}


def group_folds(groups: Sequence[str]) -> dict[str, np.ndarray]:
    """Return one fold for each group, to learn from the other groups and value the policies of this one.

    A group has no fold if it holds one policy, or leaves fewer than two or a quarter of all to learn from.
    """
    labels = np.array(groups, dtype=object)
    found = {label: np.flatnonzero(labels == label) for label in dict.fromkeys(groups)}
    most = len(labels) - max(2.0, _LEAST_SHARE * len(labels))
    return {label: inside for label, inside in found.items() if 2 <= len(inside) <= most}


def read_groups(groups: Mapping[str, str] | None, names: Sequence[str]) -> list[str]:
    """Return the group of every policy, which is "all" if there are no groups."""
    return ["all"] * len(names) if groups is None else [str(group) for group in check_groups(groups, names)]
