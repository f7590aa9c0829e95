"""Methods of the studies: each scores the test policies of a task."""

from __future__ import annotations

import json
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
from sopr_fast.methods import read_methods
from sopr_fast.sopr.config import Config

from ..foreign import read_foreign
from ..rollouts import read_return_means
from ..scores import Known, offline_policies, snapshots
from .cells import Cell

DISCOUNT = 0.99
LABELS = {
    "sopr-t": "SOPR-T",
    "sopr-mlp": "SOPR-MLP",
    "nearest-policy": "nearest policy",
    "sarsa-critic": "SARSA critic",
    "importance-weighting": "importance weighting",
    "model-based": "model-based",
    "simulator": "simulator",
    "fqe": "FQE",
    "dual-dice": "DualDICE",
    "select": "`select`",
    "sopr-t-critic": "SOPR-T with critic values",
    "sopr-t-estimates": "SOPR-T with estimates",
}
SOPR = ("sopr-t", "sopr-mlp")
_ESTIMATORS: dict[str, Callable[[], Estimator]] = {
    "nearest-policy": NearestPolicy,
    "sarsa-critic": BehaviourQ,
    "importance-weighting": lambda: ImportanceWeighting(clip=(-6.0, 2.0)),
    "simulator": Simulator,
    "fqe": FQE,
    "dual-dice": DualDICE,
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
    """Load policies, returns and log of a cell.

    Args:
        cell: The cell.
        sets: Folder of the games at one scale.
        foreign: Folder with policies of other authors, a folder a game, or None.

    Raises:
        FileNotFoundError: A product of the stages is missing.
    """
    game = sets / f"{cell.game}-v4"
    online, log = snapshots(game), sopr_fast.load_log(game / "logs" / f"{cell.log}.hdf5")
    tests = {"I": offline_policies(game, cell.log), "II": online["test_set_2"]}
    if (game / "competent" / cell.log / "policies.npz").exists():
        tests["competent"] = offline_policies(game, cell.log, "competent")
    if foreign is not None:
        tests["foreign"] = _foreign_policies(foreign / cell.game)
    return Task(choose_known(online["train"], cell.known), online["validation"], tests, take_rows(log, cell))


def read_returns(cell: Cell, sets: Path, foreign: Path | None) -> dict[str, np.ndarray]:
    """Load the returns of a cell's test policies by test set, without the policies.

    Args:
        cell: The cell.
        sets: Folder of the games at one scale.
        foreign: Folder with policies of other authors, a folder a game, or None.

    Raises:
        FileNotFoundError: A product of the stages is missing.
    """
    game = sets / f"{cell.game}-v4"
    split = json.loads((game / "split.json").read_text())
    returns = {
        "I": read_return_means(game / "test_set_1" / cell.log / "returns.csv"),
        "II": read_return_means(game / "returns.csv")[split["test_set_2"]],
    }
    if (game / "competent" / cell.log / "policies.npz").exists():
        returns["competent"] = read_return_means(game / "competent" / cell.log / "returns.csv")
    if foreign is not None:
        returns["foreign"] = read_return_means(foreign / cell.game / "returns.csv")
    return returns


def _foreign_policies(folder: Path) -> Known:
    policies, returns, _ = read_foreign(folder)
    return {f"foreign-{name}": policy for name, policy in policies.items()}, returns


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
    if "replay" not in cell.log:
        episodes = np.random.default_rng([cell.seed, 7]).permutation(episodes)
    spans = [np.arange(log.episodes[e], log.episodes[e + 1]) for e in episodes]
    rows = np.concatenate(spans)[: cell.rows]
    timeouts = log.timeouts[rows].copy()
    timeouts[-1] = not log.terminals[rows[-1]]
    return Transitions.from_arrays(
        log.states[rows],
        log.actions[rows],
        log.rewards[rows],
        log.next_states[rows],
        log.terminals[rows],
        timeouts,
        None if log.log_probs is None else log.log_probs[rows],
    )


def run(cell: Cell, task: Task) -> dict[str, Any]:
    """Return scores of all test policies, seconds and what is known of the training.

    Args:
        cell: The cell.
        task: What it is run on.

    Raises:
        ValueError, RuntimeError: The method failed.
    """
    with warnings.catch_warnings():
        for expected in (ForeignPolicyWarning, UncertainEstimateWarning):
            warnings.simplefilter("ignore", expected)
        if cell.method in SOPR:
            return _run_sopr(cell, task)
        return _run_select(cell, task) if cell.method == "select" else _run_estimator(cell, task)


def _run_sopr(cell: Cell, task: Task) -> dict[str, Any]:
    options = dict(cell.options)
    validation = task.validation if options.pop("validation", True) else None
    config = Config(**options, encoder="mlp" if cell.method == "sopr-mlp" else "transformer")
    config = replace(config, subsets=config.steps)
    clock = _Clock()
    ranker = sopr_fast.fit(
        *task.train,
        task.log.states,
        validation=validation,
        config=config,
        seed=cell.seed,
        keep_subsets=0,
    )
    fit_seconds = clock.lap()
    rankings = [
        ranker.rank(
            task.candidates,
            task.log.states,
            subsets=cell.rank_subsets,
            seed=1000 * (1 + repeat) + cell.seed,
        )
        for repeat in range(cell.repeats)
    ]
    rank_seconds = clock.lap()
    if ranker.collapsed:
        return {"gap": "training collapsed"}
    result = _describe_sopr(ranker, rankings[0]) | {"fit_seconds": fit_seconds, "rank_seconds": rank_seconds}
    if cell.repeats > 1:
        counts = [count for count in (1, 5, 10, 50, 100, 200) if count <= cell.rank_subsets]
        result["prefixes"] = {
            str(count): [dict(zip(r.names, r.take(count).scores.tolist(), strict=True)) for r in rankings]
            for count in counts
        }
    return result


def _describe_sopr(ranker: sopr_fast.Ranker, ranking: sopr_fast.Ranking) -> dict[str, Any]:
    """Return scores and distances of a ranking, and the stages and steps of the training before it."""
    return {
        "scores": dict(zip(ranking.names, ranking.scores.tolist(), strict=True)),
        "distances": dict(zip(ranking.names, ranking.distances.tolist(), strict=True)),
        "distance_limit": ranker.training_policies.distance_limit,
        "stages": {stage: round(seconds, 2) for stage, seconds in ranker.timings.items()},
        "best_step": ranker.history["best_step"],
        "last_step": len(ranker.history["loss"]),
        "restarts": ranker.history["restarts"],
    }


def _run_estimator(cell: Cell, task: Task) -> dict[str, Any]:
    clock = _Clock()
    estimates = _estimator(cell.method, cell.options).estimate(
        task.candidates,
        task.log,
        known=task.train[0],
        returns=task.train[1],
        discount=DISCOUNT,
        seed=cell.seed,
        progress=False,
    )
    if not np.isfinite(estimates.values).all():
        return {"gap": "the method diverged: values are not finite"}
    names = list(task.candidates)
    return {"scores": dict(zip(names, estimates.values.tolist(), strict=True)), "fit_seconds": clock.lap()}


def _estimator(method: str, options: dict[str, Any]) -> Estimator:
    """Return an estimator with the settings of the panel of `select`, or with its own and these options."""
    if options.get("settings") == "panel":
        return read_methods([LABELS[method]])[LABELS[method]]
    return replace(_ESTIMATORS[method](), **options)


def _run_select(cell: Cell, task: Task) -> dict[str, Any]:
    clock = _Clock()
    selection = sopr_fast.select(
        task.candidates,
        task.log,
        known=task.train[0] | task.validation[0],
        returns=np.concatenate([task.train[1], task.validation[1]]),
        methods=cell.options["methods"].split(" + ") if "methods" in cell.options else None,
        discount=DISCOUNT,
        seed=cell.seed,
        progress=False,
    )
    predicted = dict(zip(selection.names, selection.predicted.tolist(), strict=True))
    if missing := set(task.candidates) - set(predicted):
        raise ValueError(
            f"`select` leaves out candidates that act as training policies do: {', '.join(sorted(missing))}"
        )
    return {
        "scores": {name: predicted[name] for name in task.candidates},
        "fit_seconds": clock.lap(),
        "verdict": selection.verdict.kind,
    }


class _Clock:
    """Seconds since the last lap, on the wall and of this process's CPU."""

    def __init__(self) -> None:
        self._last = time.perf_counter(), time.process_time()

    def lap(self) -> dict[str, float]:
        """Return seconds since the last lap."""
        now = time.perf_counter(), time.process_time()
        wall, cpu = (end - begin for begin, end in zip(self._last, now, strict=True))
        self._last = now
        return {"wall": round(wall, 2), "cpu": round(cpu, 2)}
