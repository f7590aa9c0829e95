"""The values that a method gives policies from a log, and what else it and the log tell."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..estimators import (
    BehaviourQ,
    DoublyRobust,
    Estimator,
    ImportanceWeighting,
    Simulator,
    UncertainEstimateWarning,
)
from ..estimators.simulator import unfinished
from ..inputs.logs import Transitions
from ..inputs.policies import ArrayPolicy
from ..results.estimates import Estimates
from ..results.warnings import ForeignPolicyWarning
from ..runtime.files import make_folder
from ..runtime.text import list_names
from ..runtime.warn import DoubtfulPolicyWarning
from .compared import Compared, possible_returns


def default_method(compared: Compared) -> Estimator | None:
    """Return the method whose values count if none is named; None if only known returns can tell."""
    if compared.is_bandit:
        return ImportanceWeighting()
    if compared.has_rewards and not any(isinstance(policy, ArrayPolicy) for policy in compared.policies):
        return Simulator()
    if compared.has_rewards and compared.log.longest == 1:
        return BehaviourQ(updates=3000)  # of one step, which needs no action in another state
    return None


def without_values(compared: Compared) -> str:
    """Return what to do if nothing tells of any policy."""
    if compared.has_rewards:
        return "policies that can act in any state, or simulator='BehaviourQ'"
    _, separator, unread = getattr(compared.log, "summary", "").partition("; not read: ")
    return f"a log with rewards: name them by load_log(…, columns={{'rewards': …}}){separator}{unread}"


def of_log(compared: Compared) -> dict[str, Any]:
    """Return what a log tells without any method: fields of `Selection`."""
    if not compared.has_rewards:
        return {"facts": compared.facts}
    spread = float(compared.log.returns.std())
    return {"facts": compared.facts, "bounds": possible_returns(compared.log), "logged_spread": spread}


def of_method(compared: Compared, method: Estimator | None, folder: Any, seed: int) -> dict[str, Any]:
    """Return what a method tells: fields of `Selection`."""
    if method is None:
        lack = "Policies are arrays of actions" if compared.has_rewards else "The log holds no rewards"
        return {"facts": [*compared.facts, f"{lack}, so only known returns and action distances count"]}
    file = checkpoint_file(folder, method)
    with quiet():  # intervals and notes say so
        estimates = method.estimate(compared.policies, compared.log, seed=seed, checkpoint=file)
    return _told(method, compared, estimates)


def _told(method: Estimator, compared: Compared, estimates: Estimates) -> dict[str, Any]:
    """Return what estimates by a method tell: fields of `Selection`."""
    values, found, replicates = np.asarray(estimates.values, np.float64), estimates.diagnostics, estimates.replicates
    if not np.isfinite(values).all():
        name = compared.names[int(np.argmin(np.isfinite(values)))]
        raise ValueError(
            f"the simulator gives policy {name!r} no finite value; train it longer, or leave the policy out"
        )
    told: dict[str, Any] = {"values": values, "method": method.name}
    if isinstance(method, ImportanceWeighting | DoublyRobust) and compared.is_bandit:
        return told if replicates is None else told | {"covariance": np.atleast_2d(np.cov(replicates))}
    facts = [*compared.facts, *unfinished(compared.names, np.asarray(found.get("unfinished", 0)))]
    if isinstance(method, BehaviourQ) and compared.log.longest > 1:
        facts.append(f"Values by {method.name} are not returns of episodes: rely on the order of the candidates only")
    if replicates is not None and (lost := np.isnan(estimates.standard_errors)).any():
        few = list_names([compared.names[i] for i in np.flatnonzero(lost)], 5)
        facts.append(f"{method.name} knows no error of {few}: the log hardly covers what they do")
    if "inside" in found:
        told |= {"outside": 1 - np.asarray(found["inside"], np.float64), "members": replicates}
    if "tuned" in found:
        told["tune"] = partial(_tune, method, compared, found["tuned"])
    rest = {name: found[name] for name in ("state_error", "unsupported", "unlived") if name in found}
    return told | {"facts": facts} | rest


def _tune(method: Estimator, compared: Compared, tuned: Callable, episodes: Transitions) -> dict[str, Any]:
    """Return what a simulator and the log tell after further episodes: fields of `Selection`."""
    together = replace(compared, log=compared.log.followed_by(episodes))
    with quiet():
        return of_log(together) | _told(method, together, tuned(episodes))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings that are of no use in folds, which are meant to be few and foreign, or that were said before."""
    with warnings.catch_warnings():
        for category in (UncertainEstimateWarning, ForeignPolicyWarning, DoubtfulPolicyWarning):
            warnings.simplefilter("ignore", category)
        yield


def checkpoint_file(folder: str | os.PathLike | None, method: Estimator) -> Path | None:
    """Return the file of a method in a folder, which is made: its name, and a hash of its options."""
    if folder is None:
        return None
    make_folder(Path(folder), "checkpoints are kept")
    return Path(folder) / f"{method.name}-{hashlib.sha256(repr(method).encode()).hexdigest()[:8]}.safetensors"
