"""Groups of policies, and how far candidates are from the known ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..inputs.returns import check_groups
from .panel import Panel

FOREIGN = 0.5  # gate from which a candidate counts as foreign
_STEP = re.compile(
    r"[\W_]*(step|steps|iter|iteration|epoch|seed|ckpt|checkpoint|model)?[\W_]*\d[\d\W_]*$", re.IGNORECASE
)
_LEAST = 3  # policies of a group that is found, not given
_MOST = 6  # blocks that are found along action distance


@dataclass(frozen=True, eq=False)
class Placement:
    """Where policies stand relative to the known ones.

    Attributes:
        panel: The panel, its groups filled in.
        gate: (P,) from 0 (acts like known policies) to 1 (foreign); 0 for known policies.
        nearest: (P,) root of the action distance to the nearest other known policy, over the median of the same between
            two known policies; NaN without distances.
        membership: (P, G) square roots of the shares by which policies belong to groups; rows have norm 1.
        source: Where the groups of known policies come from: "given", "names", "action distance" or "none".
    """

    panel: Panel
    gate: np.ndarray
    nearest: np.ndarray
    membership: np.ndarray
    source: str


def find_groups(names: list[str], distances: np.ndarray) -> tuple[list[str], str]:
    """Find groups of policies from their names, else from their action distances.

    Names are grouped by what stands before a trailing number: "sac/run1/step_100" and "sac/run1/step_200" form one
    group. Groups of fewer than three policies join: they form the group "others" if it then has three, else they join
    the group of the policy that acts most alike. Unless names give two groups and put most policies into groups of
    three, groups are blocks of average linkage on the root of the action distance, cut where the linkage distance grows
    most; single outliers stay alone.

    Args:
        names: M names.
        distances: (M, M) action distances; NaN where unknown.

    Returns:
        M group labels, and "names", "action distance" or "none".
    """
    stems = _join_small([_STEP.sub("", name) for name in names], distances)
    if len(set(stems)) > 1:
        return stems, "names"
    if len(names) >= 2 * _LEAST and np.isfinite(distances).all():
        blocks = _blocks(distances)
        if blocks.max() > 0:
            return [f"block {block + 1}" for block in blocks], "action distance"
    return ["all"] * len(names), "none"


def read_groups(
    groups: Mapping[str, str] | Sequence[str] | None, names: list[str], distances: np.ndarray
) -> tuple[list[str], str]:
    """Return the group of every policy, and where it comes from.

    Args:
        groups: By name or in order, as returns; None finds them.
        names: Names of the M policies.
        distances: (M, M) action distances.

    Returns:
        M labels, and "given", "names", "action distance" or "none".

    Raises:
        ValueError: A group is missing, or there is not one for each policy.
    """
    if groups is None:
        return find_groups(names, distances)
    return [str(group) for group in check_groups(groups, names)], "given"


def _join_small(stems: list[str], distances: np.ndarray) -> list[str]:
    """Join groups of fewer than `_LEAST` policies; one group for all where names say too little."""
    sizes = Counter(stems)
    large = {stem for stem, size in sizes.items() if stem and size >= _LEAST}
    small = [i for i, stem in enumerate(stems) if stem not in large]
    if not large or len(small) > 0.5 * len(stems):
        return [""] * len(stems)
    joined = list(stems)
    rest = [i for i in range(len(stems)) if stems[i] in large]
    for i in small:
        near = rest[int(distances[i, rest].argmin())] if np.isfinite(distances).all() else None
        joined[i] = "others" if len(small) >= _LEAST else stems[i] if near is None else stems[near]
    return joined


def place(panel: Panel) -> Placement:
    """Fill in missing groups and compute each candidate's gate.

    With action distances, the gate of a candidate grows with the logarithm of its distance to the nearest known
    policy, from 0 at the distance within which nine of ten members of that policy's group have a neighbour in it, to 1
    at their median distance to the nearest policy of another group, or twice the former if that is larger. The former
    is at most the distance within which nine of ten known policies have a neighbour in their group, so that a loose
    group does not make distant policies look known. Without distances, a candidate that claims a known group has gate
    0, and every other candidate has gate 1.

    Candidates without a claim belong to the group of the nearest known policy as far as the gate is closed, and to a
    group of foreign candidates, found like those of known policies, as far as it is open; if none is found, each
    stands alone.

    Args:
        panel: At least two known policies.
    """
    known, candidates = np.flatnonzero(panel.known), np.flatnonzero(~panel.known)
    labels, source = list(panel.groups), "given"
    missing = [i for i in known if not labels[i]]
    if missing:
        found, source = find_groups([panel.names[i] for i in missing], panel.distances[np.ix_(missing, missing)])
        if len(missing) < len(known):
            found, source = [panel.names[i] for i in missing], "given"
        for i, label in zip(missing, found, strict=True):
            labels[i] = label
    known_labels = np.array([labels[i] for i in known], dtype=object)
    gate, nearest = np.zeros(len(panel)), np.full(len(panel), np.nan)
    home: dict[int, str] = {}
    if np.isfinite(panel.distances).all():
        distances = panel.distances[:, known]
        inside, outside = _reference_distances(distances[known], known_labels)
        distances = distances.copy()
        distances[known, np.arange(len(known))] = np.inf
        closest, neighbour = distances.min(1), distances.argmin(1)
        nearest = np.sqrt(closest / _positive_median(panel.distances[np.ix_(known, known)]))
        home = {int(i): known_labels[neighbour[i]] for i in candidates}
        for i in candidates:
            low, high = inside[neighbour[i]], outside[neighbour[i]]
            gate[i] = np.clip(np.log(max(closest[i], low) / low) / np.log(high / low), 0, 1)
        foreign = [i for i in candidates if not labels[i] and gate[i] >= 0.5]
        found, kind = find_groups([panel.names[i] for i in foreign], panel.distances[np.ix_(foreign, foreign)])
        for i, label in zip(foreign, found, strict=True):
            labels[i] = f"foreign {panel.names[i] if kind == 'none' else label}"
        for i in candidates:
            labels[i] = labels[i] or home[int(i)]
    else:
        gate[candidates] = [0.0 if labels[i] in set(known_labels) else 1.0 for i in candidates]
    return Placement(replace(panel, groups=labels), gate, nearest, _membership(panel, labels, gate, home), source)


def _reference_distances(distances: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute, for the group of each known policy, the distances at which a gate begins and ends to open."""
    smallest = 1e-6 * _positive_median(distances)
    same = labels[:, None] == labels[None, :]
    apart = distances + np.where(np.eye(len(labels), dtype=bool), np.inf, 0)
    siblings, others = np.where(same, apart, np.inf).min(1), np.where(same, np.inf, apart).min(1)
    inside, outside = np.zeros(len(labels)), np.zeros(len(labels))
    paired = siblings[np.isfinite(siblings)]
    most = float(np.quantile(paired, 0.9)) if len(paired) else np.inf
    for label in dict.fromkeys(labels):
        rows = labels == label
        near = siblings[rows] if rows.sum() > 1 else apart.min(1)
        inside[rows] = max(min(float(np.quantile(near, 0.9)), most), smallest)
        far = float(np.median(others[rows])) if np.isfinite(others[rows]).all() else _positive_median(distances)
        outside[rows] = max(far, 2 * inside[rows][0])
    return inside, outside


def _positive_median(distances: np.ndarray) -> float:
    """Return the median distance of two known policies that differ; 1 if none do."""
    positive = distances[distances > 0]
    return float(np.median(positive)) if len(positive) else 1.0


def _membership(panel: Panel, labels: list[str], gate: np.ndarray, home: dict[int, str]) -> np.ndarray:
    """Share each candidate between the known group nearest to it and its own group."""
    own = [label or f"alone {name}" for label, name in zip(labels, panel.names, strict=True)]
    for i, label in home.items():
        if own[i] == label:
            own[i] = f"alone {panel.names[i]}"
    shares = [(i, label, gate[i] if i in home else 1.0) for i, label in enumerate(own)]
    shares += [(i, label, 1 - gate[i]) for i, label in home.items()]
    index = {label: column for column, label in enumerate(dict.fromkeys(label for _, label, _ in shares))}
    membership = np.zeros((len(panel), len(index)))
    for i, label, share in shares:
        membership[i, index[label]] = np.sqrt(share)
    return membership


def _merges(distances: np.ndarray) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Return the merges of average linkage: pairs of clusters (by first members) in order, and their distances."""
    total = distances.astype(float).copy()
    np.fill_diagonal(total, np.inf)
    sizes = np.ones(len(total))
    merges, heights = [], []
    for _ in range(len(total) - 1):
        i, j = sorted(divmod(int(total.argmin()), len(total)))
        merges.append((i, j))
        heights.append(total[i, j])
        joined = (sizes[i] * total[i] + sizes[j] * total[j]) / (sizes[i] + sizes[j])
        total[i], total[:, i] = joined, joined
        total[i, i] = np.inf
        total[j], total[:, j] = np.inf, np.inf
        sizes[i] += sizes[j]
    return merges, np.array(heights)


def _label(merges: list[tuple[int, int]], count: int) -> np.ndarray:
    root = np.arange(count)
    for i, j in merges:
        root[root == root[j]] = root[i]
    _, first, labels = np.unique(root, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[labels]


def _blocks(distances: np.ndarray) -> np.ndarray:
    """Return the blocks of average linkage, cut where its height grows most; one block if none is clear."""
    count = len(distances)
    merges, heights = _merges(np.sqrt(distances))
    best, labels = 1.25, np.zeros(count, dtype=int)  # the height must grow by a quarter
    for blocks in range(2, min(_MOST, count - 1) + 1):
        kept = count - blocks  # merges that leave so many blocks
        proposal = _label(merges[:kept], count)
        below = heights[:kept].max(initial=0)
        growth = heights[kept] / below if below > 0 else np.inf if heights[kept] > 0 else 0
        if growth > best and (np.bincount(proposal) >= _LEAST).sum() > 1:
            best, labels = growth, proposal
    return labels
