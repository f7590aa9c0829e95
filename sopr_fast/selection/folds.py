"""Folds of policies, and the groups that they leave out.

A fold is the indices of policies that are valued, by methods that learn from all others.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..estimators import Estimator, UncertainEstimateWarning
from ..inputs.returns import check_groups
from ..results.warnings import ForeignPolicyWarning, TrainingPolicyWarning

FEWEST_TRAINING = 4  # policies with returns, to learn from some and test others
_LEAST_SHARE = 0.25  # of the policies, to learn from if a group is left out
_LEAST_GROUP = 3  # policies of a group that is found, not given
_STEP = re.compile(
    r"[\W_]*(step|steps|iter|iteration|epoch|seed|ckpt|checkpoint|model)?[\W_]*\d[\d\W_]*$", re.IGNORECASE
)


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


def read_groups(groups: Mapping[str, str] | None, names: list[str]) -> list[str]:
    """Return the group of every policy.

    None finds groups by the text before a trailing number: "sac/run1/step_100" and "sac/run1/step_200" form one group.
    Policies of groups of fewer than three form the group "others"; if most are such, all form the group "all".
    """
    if groups is not None:
        return [str(group) for group in check_groups(groups, names)]
    stems = [_STEP.sub("", name) for name in names]
    sizes = Counter(stems)
    stems = [stem if stem and sizes[stem] >= _LEAST_GROUP else "others" for stem in stems]
    return ["all"] * len(names) if stems.count("others") > len(names) / 2 else stems


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings that are of no use where many policies are valued: folds are meant to hold foreign ones."""
    with warnings.catch_warnings():
        for category in (UncertainEstimateWarning, ForeignPolicyWarning, TrainingPolicyWarning):
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("ignore", "only .* training policies")  # a fold has fewer than the user gave
        warnings.filterwarnings("ignore", "policies .* (return whole|give different)")  # said when they were compared
        yield


def checkpoint_file(folder: str | os.PathLike | None, method: Estimator) -> Path | None:
    """Return the file of a method in a folder, which is made: its name, and a hash of its options."""
    if folder is None:
        return None
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(f"checkpoints are kept in a folder, but {folder} is a file: name another") from error
    return Path(folder) / f"{method.name}-{hashlib.sha256(repr(method).encode()).hexdigest()[:8]}.safetensors"
