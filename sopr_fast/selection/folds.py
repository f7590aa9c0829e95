"""Folds of policies, and the groups that they leave out: training runs, algorithms or authors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..inputs.returns import check_groups
from ..runtime.checks import integer

FEWEST_KNOWN = 4
_LEAST_SHARE = 0.25  # of the policies, to learn from if a group is left out
_LEAST_GROUP = 3  # policies of a group that is found, not given
_STEP = re.compile(
    r"[\W_]*(step|steps|iter|iteration|epoch|seed|ckpt|checkpoint|model)?[\W_]*\d[\d\W_]*$", re.IGNORECASE
)


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
    """Split policies into folds of nearly equal size, at most one for each policy.

    Raises:
        ValueError: There are too few policies or folds.
    """
    folds = integer(2)("cv", folds)
    if count < FEWEST_KNOWN:
        raise ValueError(f"at least {FEWEST_KNOWN} policies with known returns are needed, got {count}")
    order = np.random.default_rng([seed, 7]).permutation(count)
    parts = [np.sort(part) for part in np.array_split(order, min(folds, count))]
    return [Fold("random", str(k + 1), np.setdiff1d(order, part), part) for k, part in enumerate(parts)]


def group_folds(groups: Sequence[str]) -> list[Fold]:
    """Return one fold for each group: learn from the other groups, value the policies of this one.

    A group has no fold if it holds one policy, or leaves fewer than two or a quarter of all to learn from.
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


def read_groups(groups: Mapping[str, str] | Sequence[str] | None, names: list[str]) -> list[str]:
    """Return the group of every policy, by name or in order as returns.

    None finds groups by the text before a trailing number: "sac/run1/step_100" and "sac/run1/step_200" form one group.
    Policies of groups of fewer than three form the group "others"; if most are such, all form the group "all".

    Raises:
        ValueError: A group is missing, or there is not one for each policy.
    """
    if groups is not None:
        return [str(group) for group in check_groups(groups, names)]
    stems = [_STEP.sub("", name) for name in names]
    sizes = Counter(stems)
    stems = [stem if stem and sizes[stem] >= _LEAST_GROUP else "others" for stem in stems]
    return ["all"] * len(names) if stems.count("others") > len(names) / 2 else stems
