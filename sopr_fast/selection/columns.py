"""Columns of a panel: what every method says of every policy, cross-fitted, kept in files."""

from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..estimators import Estimator, UncertainEstimateWarning
from ..ranking import ForeignPolicyWarning, TrainingPolicyWarning
from ..runtime.checkpoints import fingerprint
from ..runtime.deadline import time_limit as limit_time
from ..runtime.files import atomic_path
from .folds import Fold
from .workspace import Workspace, possible_values

NO_REWARDS = "the log holds no rewards"


@dataclass
class Columns:
    """Values of P policies by several methods.

    Attributes:
        values: Method -> for each fold (T,) values of its test policies.
        errors: Method -> (P,) standard errors of the values; NaN where unknown.
        dropped: Method -> reason why it has no values.
        seconds: Method -> time spent.
        clipped: Method -> names of the policies whose values exceeded what the rewards allow.
        supervised: Methods that learn from known returns.
    """

    folds: list[Fold]
    values: dict[str, list[np.ndarray]] = field(default_factory=dict)
    errors: dict[str, np.ndarray] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    clipped: dict[str, list[str]] = field(default_factory=dict)
    supervised: set[str] = field(default_factory=set)

    def column(self, method: str, count: int, *kinds: str) -> np.ndarray:
        """Return (P,) values, NaN where no fold of these kinds has tested a policy."""
        column = np.full(count, np.nan)
        for fold, values in zip(self.folds, self.values[method], strict=True):
            if fold.kind in kinds:
                column[fold.test] = values
        return column


def compute_columns(
    workspace: Workspace,
    methods: dict[str, Estimator],
    returns: np.ndarray,
    folds: list[Fold],
    *,
    discount: float,
    seed: int,
    folder: Path | None = None,
    time_limit: float | None = None,
    device: Any = "cpu",
    progress: bool = True,
) -> Columns:
    """Let every method value the test policies of every fold.

    Methods that learn from known returns are trained for every fold on its training policies; those that leave a known
    policy out by themselves learn from all others of a random fold. The other methods value all policies once. A method
    that fails, exceeds the time limit, or gives values that are equal or not finite is dropped.

    Args:
        workspace: Policies and log.
        methods: Label -> estimator.
        returns: (P,) returns; NaN for candidates.
        folds: The folds.
        discount: Discount factor γ.
        seed: Seed of everything random.
        folder: Where finished columns and checkpoints of training are kept, to resume from; None for nowhere.
        time_limit: Seconds that each method may take.
        device: Device of networks and data.
        progress: Whether to show progress bars.

    Raises:
        ValueError: Every method was dropped, or the folder holds columns of another run.
        OSError: The folder cannot be written.
    """
    columns = Columns(folds)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for label, method in methods.items():
        if method.needs_rewards and not workspace.has_rewards:
            columns.dropped[label] = NO_REWARDS
            continue
        run = _Run(workspace, label, method, returns, folds, discount, seed, folder, device, progress)
        begin = time.perf_counter()
        try:
            with warnings.catch_warnings(), limit_time(time_limit):
                # Columns say which values are clipped, and folds are meant to hold foreign policies.
                for category in (UncertainEstimateWarning, ForeignPolicyWarning, TrainingPolicyWarning):
                    warnings.simplefilter("ignore", category)
                warnings.filterwarnings("ignore", "only .* training policies")  # a fold has fewer than the user gave
                stored = run.load() or run.compute()
        except Exception as error:  # one method of several must not end hours of work
            if isinstance(error, _OtherRun):
                raise
            columns.dropped[label] = _reason(error)
            columns.seconds[label] = time.perf_counter() - begin
            continue
        columns.seconds[label] = stored["seconds"]
        if reason := _why_useless(stored["values"]):
            columns.dropped[label] = reason
            continue
        columns.values[label] = [np.array(values) for values in stored["values"]]
        if method.supervised:
            columns.supervised.add(label)
        columns.errors[label] = np.array([np.nan if e is None else e for e in stored["errors"]])
        if stored["clipped"]:
            columns.clipped[label] = stored["clipped"]
    if not columns.values:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in columns.dropped.items())
        raise ValueError(f"no method is left to value the policies ({reasons})")
    return columns


class _OtherRun(ValueError):
    """A stored column belongs to another run."""


@dataclass(frozen=True)
class _Run:
    """One method's values, computed or read from its file."""

    workspace: Workspace
    label: str
    method: Estimator
    returns: np.ndarray
    folds: list[Fold]
    discount: float
    seed: int
    folder: Path | None
    device: Any
    progress: bool

    def load(self) -> dict[str, Any] | None:
        path = self._path(".json")
        if path is None or not path.exists():
            return None
        stored = json.loads(path.read_text())
        if stored["run"] != self._identity():
            raise _OtherRun(
                f"{path} holds values of other policies, returns, folds or options; delete it or name another folder"
            )
        return stored

    def compute(self) -> dict[str, Any]:
        begin = time.perf_counter()
        count = len(self.workspace.policies)
        clipped: list[str] = []
        errors = np.full(count, np.nan)
        if self.method.supervised:
            values = list(self._supervised())
        else:
            estimates = self.method.estimate(
                self.workspace.policies,
                self.workspace.log,
                discount=self.discount,
                seed=self.seed,
                action_count=self.workspace.action_count,
                checkpoint=self._path(".safetensors"),
                device=self.device,
                progress=self.progress,
            )
            bounded, errors = estimates.values, estimates.standard_errors
            if self.method.needs_rewards:
                bounded = bounded.clip(*possible_values(self.workspace.log, self.discount))
                clipped = [self.workspace.names[i] for i in np.flatnonzero(np.abs(bounded - estimates.values) > 0)]
            values = [bounded[fold.test] for fold in self.folds]
        stored = {
            "run": self._identity(),
            "values": [each.tolist() for each in values],
            "errors": [float(error) if np.isfinite(error) else None for error in errors],
            "clipped": clipped,
            "seconds": time.perf_counter() - begin,
        }
        self._write(".json", stored)
        if (training := self._path(".safetensors")) is not None:
            training.unlink(missing_ok=True)
        return stored

    def _supervised(self) -> Iterator[np.ndarray]:
        """Yield each fold's (T,) values of its test policies, by a model of its training policies."""
        options = {
            "seed": self.seed,
            "action_count": self.workspace.action_count,
            "device": self.device,
            "progress": self.progress,
        }
        policies, log = self.method.prepare(self.workspace.policies, self.workspace.log, **options)
        for fold in self.folds:
            known = fold.train
            if fold.kind == "random" and getattr(self.method, "leaves_one_out", False):
                known = np.union1d(fold.train, fold.test)
            yield self.method.estimate(
                [policies[i] for i in fold.test],
                log,
                known=[policies[i] for i in known],
                returns=self.returns[known],
                discount=self.discount,
                **options,
            ).values

    def _identity(self) -> str:
        parts: list[Any] = [self.workspace.names, self.workspace.distances, self.discount, self.seed, self.method]
        if self.method.supervised:
            parts += [self.returns, *(indices for fold in self.folds for indices in (fold.train, fold.test))]
        else:
            parts += [fold.test for fold in self.folds]
        return fingerprint(self.workspace.states, *parts)

    def _path(self, suffix: str) -> Path | None:
        if self.folder is None:
            return None
        return self.folder / (re.sub(r"[^A-Za-z0-9]+", "-", self.label).strip("-").lower() + suffix)

    def _write(self, suffix: str, content: dict[str, Any]) -> None:
        if (path := self._path(suffix)) is not None:
            with atomic_path(path) as temporary:
                temporary.write_text(json.dumps(content))


def _reason(error: Exception) -> str:
    """Return the message of an error in one line; of errors in the code, with their type."""
    text = " ".join(str(error).split())
    told = isinstance(error, ArithmeticError | ValueError | RuntimeError | MemoryError | OSError) and text
    return text if told else f"{type(error).__name__} {text}".rstrip()


def _why_useless(values: list[list[float]]) -> str:
    """Return why values order nothing, or nothing."""
    everything = np.concatenate([np.asarray(fold, np.float64) for fold in values])
    if not np.isfinite(everything).all():
        return "diverged: values are not finite"
    if len(everything) > 1 and np.ptp(everything) <= 1e-9 * max(1.0, float(np.abs(everything).max())):
        return "gives all policies the same value"
    return ""
