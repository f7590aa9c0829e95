"""Groups of known policies: training runs, algorithms or authors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ..inputs.returns import check_groups

_STEP = re.compile(
    r"[\W_]*(step|steps|iter|iteration|epoch|seed|ckpt|checkpoint|model)?[\W_]*\d[\d\W_]*$", re.IGNORECASE
)
_LEAST = 3  # policies of a group that is found, not given
_MOST = 6  # blocks that are found along action distance
_GROWTH = 1.25  # of the height of the linkage between two blocks


def read_groups(groups: Mapping[str, str] | Sequence[str] | None, names: list[str], distances: np.ndarray) -> list[str]:
    """Return the group of every policy.

    Groups that are not given are found. Names are grouped by the text before a trailing number: "sac/run1/step_100" and
    "sac/run1/step_200" form one group. Policies of groups of fewer than three form the group "others". If most policies
    are such, or all have one name, groups are blocks of average linkage on the root of the action distance, cut where
    its height grows most.

    Args:
        groups: By name or in order, as returns; None finds them.
        names: Names of the M policies.
        distances: (M, M) action distances.

    Raises:
        ValueError: A group is missing, or there is not one for each policy.
    """
    if groups is not None:
        return [str(group) for group in check_groups(groups, names)]
    stems = [_STEP.sub("", name) for name in names]
    sizes = Counter(stems)
    stems = [stem if stem and sizes[stem] >= _LEAST else "others" for stem in stems]
    if len(set(stems)) > 1 and stems.count("others") <= len(stems) / 2:
        return stems
    blocks = _blocks(distances)
    return [f"block {block + 1}" if blocks.any() else "all" for block in blocks]


def _blocks(distances: np.ndarray) -> np.ndarray:
    """Return the block (M,) of every policy; one block for all if no cut is clear."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    count = len(distances)
    best, labels = _GROWTH, np.zeros(count, int)
    if count < 2 * _LEAST:
        return labels
    tree = linkage(squareform(np.sqrt(distances), checks=False), "average")
    for blocks in range(2, min(_MOST, count - 1) + 1):
        low, high = tree[-blocks, 2], tree[1 - blocks, 2]
        proposal = fcluster(tree, blocks, "maxclust")
        if high > best * low and (np.bincount(proposal) >= _LEAST).sum() > 1:
            best, labels = high / low if low > 0 else np.inf, proposal
    _, first, labels = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[labels]
