"""Methods of the studies: each scores the test policies of a task."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import sopr_fast
from sopr_fast import ForeignPolicyWarning
from sopr_fast.estimators import (
    FQE,
    BehaviourQ,
    DualDICE,
    Estimator,
    ImportanceWeighting,
    NearestPolicy,
    Simulator,
    UncertainEstimateWarning,
)
from sopr_fast.inputs.logs import Transitions
from sopr_fast.sopr.config import Config

from ..sets import Known, foreign_policies, offline_policies, snapshots
from .cells import COUNTS, Cell

LABELS = {
    "sopr-t": "SOPR-T",
    "sopr-mlp": "SOPR-MLP",
    "nearest-policy": "NearestPolicy",
    "sarsa-critic": "BehaviourQ",
    "importance-weighting": "ImportanceWeighting",
    "simulator": "Simulator",
    "fqe": "FQE",
    "dual-dice": "DualDICE",
    "select": "`select`",
}
_ESTIMATORS: dict[str, Callable[[], Estimator]] = {
    "sarsa-critic": BehaviourQ,
    "importance-weighting": lambda: ImportanceWeighting(clip=(-6.0, 2.0)),
    "simulator": Simulator,
    "fqe": FQE,
    "dual-dice": DualDICE,
}
_QUICK: dict[str, dict[str, Any]] = {  # "panel", the settings of the stored results
    "sarsa-critic": {"updates": 4000, "hidden": (128, 128), "learning_rate": 1e-3},
    "importance-weighting": {"updates": 2000, "hidden": (128, 128)},
    "fqe": {"updates": 2000, "batch_size": 128, "hidden": (64, 64), "learning_rate": 1e-3},
    "dual-dice": {"updates": 2000, "batch_size": 128, "hidden": (64, 64), "nu_rate": 1e-3, "zeta_rate": 3e-3},
}


@dataclass(frozen=True)
class Task:
    """What a cell is run on.

    Attributes:
        train: Training policies and returns.
        validation: Validation policies and returns.
        tests: Test policies and returns by test set.
        log: The rows that are used.
    """

    train: Known
    validation: Known
    tests: dict[str, Known]
    log: Transitions

    @property
    def candidates(self) -> dict[str, Any]:
        """The policies of all test sets."""
        return {name: policy for policies, _ in self.tests.values() for name, policy in policies.items()}


def read_task(cell: Cell, sets: Path, foreign: Path | None) -> Task:
    """Load policies, returns and log of a cell, see `run_cells`.

    Raises:
        FileNotFoundError: A product of the stages is missing.
    """
    name, which = cell.task.split("-", 1)
    game = sets / f"{name}-v4"
    online, log = snapshots(game), sopr_fast.load_log(game / "logs" / f"{which}.hdf5")
    tests = {"I": offline_policies(game, which), "II": online["test_set_2"]}
    if (game / "competent" / which / "policies.npz").exists():
        tests["competent"] = offline_policies(game, which, "competent")
    if foreign is not None:
        tests["foreign"] = foreign_policies(foreign / name)
    return Task(choose_known(online["train"], cell.known), online["validation"], tests, take_rows(log, cell))


def choose_known(train: Known, which: str) -> Known:
    """Return some of the training policies.

    Args:
        train: Policies and returns.
        which: "all"; or "poor-K" and "good-K" for the K of lowest and highest return, "mixed-K" for K spread evenly
            over the ranks.
    """
    if which == "all":
        return train
    kind, count = which.split("-")
    (policies, returns), number = train, int(count)
    order = np.argsort(returns, kind="stable")
    spread = np.linspace(0, len(order) - 1, number).round().astype(int)
    chosen = np.sort({"poor": order[:number], "good": order[::-1][:number], "mixed": order[spread]}[kind])
    names = list(policies)
    return {names[i]: policies[names[i]] for i in chosen}, returns[chosen]


def take_rows(log: Transitions, cell: Cell) -> Transitions:
    """Return whole episodes with the cell's number of rows, the last one cut (paper section 4.4, data size).

    Episodes of expert and medium logs are chosen at random, those of replays in order.
    """
    if cell.rows is None:
        return log
    episodes = np.arange(len(log.episodes) - 1)
    if "replay" not in cell.task:
        episodes = np.random.default_rng([cell.seed, 7]).permutation(episodes)
    spans = [np.arange(log.episodes[e], log.episodes[e + 1]) for e in episodes]
    rows = np.concatenate(spans)[: cell.rows]
    timeouts = log.timeouts[rows].copy()
    timeouts[-1] = not log.terminals[rows[-1]]
    parts = ("states", "actions", "rewards", "next_states", "terminals", "log_probs")
    arrays = {part: getattr(log, part)[rows] for part in parts if getattr(log, part) is not None}
    return sopr_fast.load_log(arrays | {"timeouts": timeouts})


def run(cell: Cell, task: Task) -> dict[str, Any]:
    """Return scores of all test policies, as (subsets, repeat, names, scores), and seconds.

    Raises:
        ValueError, RuntimeError: The method failed.
    """
    with warnings.catch_warnings():
        for expected in (ForeignPolicyWarning, UncertainEstimateWarning):
            warnings.simplefilter("ignore", expected)
        if cell.method.startswith("sopr"):
            return _run_sopr(cell, task)
        return _run_select(cell, task) if cell.method == "select" else _run_estimator(cell, task)


def _run_sopr(cell: Cell, task: Task) -> dict[str, Any]:
    options = {"policy_share": 1.0} | cell.options  # the stored results are of all policies in each step
    config = Config(**options, encoder="mlp" if cell.method == "sopr-mlp" else "transformer")
    config = replace(config, subsets=config.steps)
    begun = time.process_time()
    ranker = sopr_fast.fit(
        task.train[0],
        task.log.states,
        task.train[1],
        validation=task.validation,
        config=config,
        seed=cell.seed,
    )
    fitted = time.process_time()
    rankings = [
        ranker.rank(task.candidates, task.log.states, subsets=cell.subsets, seed=1000 * (1 + repeat) + cell.seed)
        for repeat in range(cell.repeats)
    ]
    ranked = time.process_time()
    if ranker.collapsed:
        return {"gap": "training collapsed"}
    counts = [count for count in COUNTS if count <= cell.subsets] if cell.repeats > 1 else [cell.subsets]
    return {
        "scores": [
            (count, i, r.names, r.subset_scores[:, :count].mean(1)) for i, r in enumerate(rankings) for count in counts
        ],
        "distances": dict(zip(rankings[0].names, rankings[0].distances.tolist(), strict=True)),
        "fit": fitted - begun,
        "rank": ranked - fitted,
    }


def _run_estimator(cell: Cell, task: Task) -> dict[str, Any]:
    begun = time.process_time()
    estimates = _estimator(cell.method, cell.options).estimate(
        task.candidates,
        task.log,
        known=task.train[0],
        returns=task.train[1],
        seed=cell.seed,
    )
    if not np.isfinite(estimates.values).all():
        return {"gap": "the method diverged: values are not finite"}
    return {"scores": [(None, None, list(task.candidates), estimates.values)], "fit": time.process_time() - begun}


def _estimator(method: str, options: dict[str, Any]) -> Estimator:
    """Return an estimator with quick settings, or with its own and these options."""
    if options.get("settings") == "panel":
        options = _QUICK.get(method, {})
    return NearestPolicy() if method == "nearest-policy" else replace(_ESTIMATORS[method](), **options)


def _run_select(cell: Cell, task: Task) -> dict[str, Any]:
    begun = time.process_time()
    known = task.train[0] | task.validation[0]
    selection = sopr_fast.select(
        known | task.candidates,
        task.log,
        dict(zip(known, np.concatenate([task.train[1], task.validation[1]]), strict=True)),
        simulator=replace(Simulator(), **cell.options) if cell.options else None,
        seed=cell.seed,
    )
    predicted = dict(zip(selection.names, selection.predicted.tolist(), strict=True))
    return {
        "scores": [(None, None, list(predicted), np.array([*predicted.values()]))],
        "fit": time.process_time() - begun,
    }
