"""Folds of policies, the groups that they leave out, and values by models that have not seen a fold's policies."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..estimators import Estimator, UncertainEstimateWarning
from ..inputs.returns import check_groups
from ..results.warnings import ForeignPolicyWarning, TrainingPolicyWarning
from .compared import Compared

FEWEST_TRAINING = 4  # policies with returns, to learn from some and test others
_LEAST_SHARE = 0.25  # of the policies, to learn from if a group is left out
_LEAST_GROUP = 3  # policies of a group that is found, not given
_LONGEST = 60  # characters of a file's name
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
    """Split policies, at least four, into two or more folds of nearly equal size, at most one for each policy."""
    if count < FEWEST_TRAINING:
        raise ValueError(f"at least {FEWEST_TRAINING} policies with known returns are needed, got {count}")
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


def read_groups(
    groups: Mapping[str, str] | Sequence[str] | None, names: list[str], ordered: Sequence[str] = ()
) -> list[str]:
    """Return the group of every policy, from groups by name, or in the order of `ordered` policies.

    None finds groups by the text before a trailing number: "sac/run1/step_100" and "sac/run1/step_200" form one group.
    Policies of groups of fewer than three form the group "others"; if most are such, all form the group "all".
    """
    if groups is not None:
        return [str(group) for group in check_groups(groups, names, ordered)]
    stems = [_STEP.sub("", name) for name in names]
    sizes = Counter(stems)
    stems = [stem if stem and sizes[stem] >= _LEAST_GROUP else "others" for stem in stems]
    return ["all"] * len(names) if stems.count("others") > len(names) / 2 else stems


def cross_fit(
    method: Estimator,
    compared: Compared,
    returns: np.ndarray,
    folds: Sequence[Fold],
    *,
    seed: int,
    checkpoint: Path | None = None,
) -> list[np.ndarray]:
    """Return for each fold the (T,) float64 values of its test policies.

    A method that learns from known returns (P,) is trained for every fold on its training policies. Others value every
    policy once, without returns, and can resume from a checkpoint.
    """
    with warnings.catch_warnings():
        for category in (UncertainEstimateWarning, ForeignPolicyWarning, TrainingPolicyWarning):
            warnings.simplefilter("ignore", category)  # folds are meant to hold foreign policies
        warnings.filterwarnings("ignore", "only .* training policies")  # a fold has fewer than the user gave
        if not method.supervised:
            tested = np.unique(np.concatenate([fold.test for fold in folds]))
            policies = [compared.policies[i] for i in tested]
            values = np.full(len(compared.policies), np.nan)
            estimates = method.estimate(policies, compared.log, seed=seed, checkpoint=checkpoint)
            values[tested] = np.asarray(estimates.values, np.float64)
            return [values[fold.test] for fold in folds]
        policies, log = method.prepare(compared.policies, compared.log, seed=seed)
        results = []
        for fold in folds:
            estimates = method.estimate(
                [policies[i] for i in fold.test],
                log,
                known=[policies[i] for i in fold.train],
                returns=returns[fold.train],
                seed=seed,
            )
            results.append(np.asarray(estimates.values, np.float64))
        return results


def checkpoint_file(folder: str | os.PathLike | None, label: str) -> Path | None:
    """Return the file of a label in a folder, which is made: its letters and digits, with a hash if it has others."""
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:_LONGEST]
    if stem != label:
        stem = f"{stem}-{hashlib.sha256(label.encode(errors='surrogatepass')).hexdigest()[:8]}".lstrip("-")
    return Path(folder) / f"{stem}.safetensors"
