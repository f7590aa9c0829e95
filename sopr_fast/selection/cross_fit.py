"""Values of policies by a method, those of known policies by models that have not seen them."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..estimators import Estimator, UncertainEstimateWarning
from ..ranking.warnings import ForeignPolicyWarning, TrainingPolicyWarning
from .compared import Compared
from .folds import Fold

_LONGEST = 60  # characters of a file's name


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
