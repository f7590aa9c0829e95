"""Columns of a panel: what every method says of every policy, cross-fitted, kept in files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._version import __version__
from ..estimators import Estimator, UncertainEstimateWarning
from ..estimators.critics import possible_values
from ..estimators.log import logged_arrays
from ..inputs.policies import Policy
from ..ranking.warnings import ForeignPolicyWarning, TrainingPolicyWarning
from ..runtime import distributed
from ..runtime.checkpoints import fingerprint
from ..runtime.deadline import time_limit as limit_time
from ..runtime.files import atomic_path
from ..runtime.schema import any_real, check_fields, list_of, optional, real, text
from ..runtime.shares import share_policies
from ..runtime.text import printable
from ..sopr.subsets import Subsets
from .folds import Fold
from .workspace import Workspace

NO_REWARDS = "the log holds no rewards"
_WHOLE = ".safetensors"  # suffix of the checkpoint of all policies
_LONGEST = 80  # characters of a label in the names of its files

_FIELDS = {
    "run": text,
    "values": list_of(list_of(any_real)),
    "errors": list_of(optional(real)),
    "clipped": list_of(text),
    "seconds": real,
}


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
    folder: str | os.PathLike | None = None,
    time_limit: float | None = None,
    device: Any = "cpu",
    progress: bool = True,
) -> Columns:
    """Let every method value the test policies of every fold.

    Methods that learn from known returns are trained for every fold on its training policies; those that leave a known
    policy out by themselves learn from all others of a random fold. The other methods value every tested policy once. A
    method that fails, exceeds the time limit, or gives values that are equal or not finite is dropped.

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
        ValueError: Every method was dropped, or the folder holds damaged columns or those of another run.
        OSError: The folder cannot be written.
    """
    columns = Columns(folds)
    folder = None if folder is None else Path(folder)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, _Run] = {}
    for label, method in methods.items():
        if method.needs_rewards and not workspace.has_rewards:
            columns.dropped[label] = NO_REWARDS
            continue
        runs[label] = _Run(workspace, label, method, returns, folds, discount, seed, folder, device, progress)
    group = distributed.current()
    if group.count > 1:
        identities = [run.identity() for run in runs.values()]
        group.check_same(returns=returns, log_policies_or_options=identities)
    for label, run in runs.items():
        stored = group.from_first(run.load)
        begin = time.perf_counter()
        try:
            with warnings.catch_warnings(), limit_time(time_limit):
                # Columns say which values are clipped, and folds are meant to hold foreign policies.
                for category in (UncertainEstimateWarning, ForeignPolicyWarning, TrainingPolicyWarning):
                    warnings.simplefilter("ignore", category)
                warnings.filterwarnings("ignore", "only .* training policies")  # a fold has fewer than the user gave
                stored = stored or run.compute()
        except Exception as error:  # one method of several must not end hours of work
            if group.count > 1:  # others would wait for this process
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
        raise ValueError(f"no method is left to value the policies ({printable(reasons)})")
    return columns


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
        stored = _parse(path)
        if stored["run"] != self.identity():
            raise ValueError(
                f"{printable(path)} holds values of another log, other policies, returns, folds or options, or of "
                "another version of sopr_fast; delete it or name another folder"
            )
        shape = [len(fold.test) for fold in self.folds], len(self.workspace.policies)
        if ([len(values) for values in stored["values"]], len(stored["errors"])) != shape:
            raise ValueError(f"{printable(path)} is damaged: its values are not one for each policy; delete it")
        self._remove_checkpoints()  # those of a run which was killed before it could
        return stored

    def compute(self) -> dict[str, Any]:
        begin = time.perf_counter()
        clipped: list[str] = []
        errors = np.full(len(self.workspace.policies), np.nan)
        if self.method.supervised:
            values = self._supervised()
        else:
            tested = np.unique(np.concatenate([fold.test for fold in self.folds]))
            estimated = np.full(len(errors), np.nan)
            estimated[tested], errors[tested] = self._unsupervised(self.workspace.take(tested)).T
            bounded = estimated
            if self.method.needs_rewards:
                # Some methods sum over a limited horizon alone.
                bounded = estimated.clip(*possible_values(self.workspace.log, self.discount, any_length=True))
                clipped = [self.workspace.names[i] for i in np.flatnonzero(np.abs(bounded - estimated) > 0)]
            values = [bounded[fold.test] for fold in self.folds]
        stored = {
            "run": self.identity(),
            "values": [each.tolist() for each in values],
            "errors": [float(error) if np.isfinite(error) else None for error in errors],
            "clipped": clipped,
            "seconds": time.perf_counter() - begin,
        }
        distributed.current().from_first(lambda: self._write(".json", stored))
        self._remove_checkpoints()  # in every process, whose disk may be its own
        return stored

    def _unsupervised(self, policies: list[Policy]) -> np.ndarray:
        """Return values and standard errors, (T, 2); processes share the blocks that the method trains alone."""
        if not getattr(self.method, "trains_each_policy", False):
            return self._estimate(policies, _WHOLE)

        def estimate(part: slice) -> Tensor:
            return torch.from_numpy(self._estimate(policies[part], _of_block(part.start)))

        return share_policies(len(policies), estimate).numpy()

    def _estimate(self, policies: list[Policy], suffix: str) -> np.ndarray:
        """Return values and standard errors, (P, 2) float64."""
        estimates = self.method.estimate(
            policies,
            self.workspace.log,
            discount=self.discount,
            seed=self.seed,
            action_count=self.workspace.action_count,
            checkpoint=self._path(suffix),
            device=self.device,
            progress=self.progress,
        )
        return np.stack([estimates.values, estimates.standard_errors], 1).astype(np.float64)

    def _supervised(self) -> list[np.ndarray]:
        """Return each fold's (T,) values of its test policies, by a model of its training policies.

        Folds with the same training policies share a model. Processes share the models.
        """
        options = {
            "seed": self.seed,
            "action_count": self.workspace.action_count,
            "device": self.device,
            "progress": self.progress,
        }
        policies, log = self.method.prepare(self.workspace.policies, self._log(), **options)
        group = distributed.current()

        def estimate(places: list[int]) -> list[list[float]]:
            folds = [self.folds[k] for k in places]
            known, asked = folds[0].train, list(dict.fromkeys(i for fold in folds for i in fold.test.tolist()))
            if folds[0].kind == "random" and self._leaves_one_out:
                known = np.union1d(known, asked)
            estimates = self.method.estimate(
                [policies[i] for i in asked],
                log,
                known=[policies[i] for i in known],
                returns=self.returns[known],
                discount=self.discount,
                **options,
            )
            values = dict(zip(asked, estimates.values.tolist(), strict=True))
            return [[values[i] for i in fold.test.tolist()] for fold in folds]

        together: dict[tuple[Any, ...], list[int]] = {}
        for k, fold in enumerate(self.folds):
            together.setdefault((fold.kind, *fold.train.tolist()), []).append(k)
        models = list(together.values())
        with distributed.alone():
            own = [estimate(places) for places in models[group.part(len(models))]]
        values = [np.empty(0)] * len(self.folds)
        for places, each in zip(models, [each for part in group.gather_objects(own) for each in part], strict=True):
            for k, of_fold in zip(places, each, strict=True):
                values[k] = np.array(of_fold)
        return values

    @property
    def _leaves_one_out(self) -> bool:
        return getattr(self.method, "leaves_one_out", False)

    def _log(self) -> Any:
        """Return the log, or the subsets of it that the method is to use again."""
        reuses = getattr(self.method, "reuses_subsets", False) and self.workspace.subsets is not None
        return self.workspace.subsets if reuses else self.workspace.log

    def identity(self) -> str:
        """Return a hash of all that determines the values."""
        log = self._log()
        parts: list[Any] = [log.rows, log.offsets] if isinstance(log, Subsets) else []
        parts += [__version__, self.workspace.names, self.workspace.acting, self.discount, self.seed, self.method]
        if self.method.supervised:
            parts += [self.returns, *(indices for fold in self.folds for indices in (fold.train, fold.test))]
            if self._leaves_one_out and any(fold.kind == "given" for fold in self.folds):
                parts.append("given")  # learns from less than in random folds of the same policies
        else:
            parts += [fold.test for fold in self.folds]
        if self.method.needs_rewards:
            parts += logged_arrays(self.workspace.log).values()
        return fingerprint(self.workspace.states, *parts)

    def _path(self, suffix: str) -> Path | None:
        if self.folder is None:
            return None
        return self.folder / (file_stem(self.label) + suffix)

    def _remove_checkpoints(self) -> None:
        for suffix in (_WHOLE, *map(_of_block, range(len(self.workspace.policies)))):
            if (path := self._path(suffix)) is not None:
                path.unlink(missing_ok=True)

    def _write(self, suffix: str, content: dict[str, Any]) -> None:
        if (path := self._path(suffix)) is not None:
            with atomic_path(path) as temporary:
                temporary.write_text(_text(content), encoding="utf-8")


def _text(content: dict[str, Any]) -> str:
    """Return the content of a file: JSON with a hash of all else."""
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({"sha256": digest, **content})


def _parse(path: Path) -> dict[str, Any]:
    """Return the content of a file that `_text` made, or raise if a character of it differs."""
    try:
        written = path.read_text(encoding="utf-8")
        content = json.loads(written)
        del content["sha256"]
        if written != _text(content):
            raise ValueError("content hash differs")
        return check_fields("it", content, _FIELDS)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        reason = printable(error)
        raise ValueError(
            f"{printable(path)} is damaged, or of an older version of sopr_fast ({reason}); delete it"
        ) from error


def file_stem(label: str) -> str:
    """Return the name of a label's files: its letters a to z and digits, with a hash where the label has others."""
    stem = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:_LONGEST]
    if stem == label:
        return stem
    digest = hashlib.sha256(label.encode(errors="surrogatepass")).hexdigest()
    return f"{stem}-{digest[:8]}".lstrip("-")


def _of_block(first: int) -> str:
    """Return the suffix of the checkpoint of a block of policies by its first one; labels hold no dots."""
    return f".{first}.safetensors"


def _reason(error: Exception) -> str:
    """Return the message of an error in one line; of errors in the code, with their type."""
    message = " ".join(str(error).split())
    told = isinstance(error, ArithmeticError | ValueError | RuntimeError | MemoryError | OSError) and message
    return message if told else f"{type(error).__name__} {message}".rstrip()


def _why_useless(values: list[list[float]]) -> str:
    """Return why values order nothing, or nothing."""
    everything = np.concatenate([np.asarray(fold, np.float64) for fold in values])
    if not np.isfinite(everything).all():
        return "diverged: values are not finite"
    if len(everything) > 1 and np.ptp(everything) <= 1e-9 * np.abs(everything).max():
        return "gives all policies the same value"
    return ""
