"""Public scores of off-policy estimators as panels (`rl_unplugged.csv`, `d4rl.csv`, `cartpole_swingup_actions.npz`)."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sopr_fast.selection.panel import Panel


@dataclass(frozen=True, eq=False)
class Task:
    """Policies of one task with the values that estimators gave them.

    Attributes:
        name: Task.
        policies: (P,) names.
        algorithms: (P,) algorithm of each policy.
        runs: (P,) training run of each policy.
        returns: (P,) true returns.
        values: (P, m) estimates.
        estimators: (m,) names.
        distances: (P, P) action distances, or None.
    """

    name: str
    policies: list[str]
    algorithms: np.ndarray
    runs: np.ndarray
    returns: np.ndarray
    values: np.ndarray
    estimators: list[str]
    distances: np.ndarray | None = None

    def panel(
        self,
        known: np.ndarray,
        candidates: np.ndarray,
        groups: np.ndarray | None = None,
        claims: bool = True,
        estimators: list[str] | None = None,
    ) -> Panel:
        """Build a panel.

        Args:
            known: (K,) indices.
            candidates: (C,) indices.
            groups: (P,) groups; algorithms by default.
            claims: Whether candidates claim their group.
            estimators: Estimators to use; all by default.
        """
        order = np.concatenate([known, candidates])
        labels = self.algorithms if groups is None else groups
        chosen = self.estimators if estimators is None else estimators
        return Panel.build(
            [self.policies[i] for i in order],
            np.concatenate([self.returns[known], np.full(len(candidates), np.nan)]),
            {name: self.values[order, self.estimators.index(name)] for name in chosen},
            groups=[str(labels[i]) for i in known] + [str(labels[i]) if claims else "" for i in candidates],
            distances=None if self.distances is None else self.distances[np.ix_(order, order)],
        )


def read_rl_unplugged(folder: Path) -> list[Task]:
    """Read six tasks of DOPE's RL Unplugged half: about 96 policies of four algorithms, eight estimators."""
    rows = _rows(folder / "rl_unplugged.csv")
    estimators = list(rows[0])[5:]
    return [_task(name, part, estimators) for name, part in _by_task(rows).items()]


def read_d4rl(folder: Path) -> list[Task]:
    """Read 39 tasks of DOPE's D4RL half: 11 snapshots of one run, five estimators."""
    rows = [row | {"algorithm": "SAC", "run": "SAC"} for row in _rows(folder / "d4rl.csv")]
    estimators = [name for name in rows[0] if name not in ("task", "policy", "return", "algorithm", "run")]
    return [_task(name, part, estimators) for name, part in _by_task(rows).items()]


def read_cartpole(folder: Path) -> Task:
    """Read 76 policies of cartpole swing-up with the distances of their actions."""
    actions = np.load(folder / "cartpole_swingup_actions.npz")
    task = next(task for task in read_rl_unplugged(folder) if task.name == "cartpole_swingup")
    index = {name: i for i, name in enumerate(task.policies)}
    order = np.array([index[str(name)] for name in actions["policy"]])
    columns = actions["actions"].astype(float)
    distances = np.array([((columns - row) ** 2).mean(1) for row in columns])
    return Task(
        "cartpole_swingup with actions",
        [task.policies[i] for i in order],
        task.algorithms[order],
        task.runs[order],
        task.returns[order],
        task.values[order],
        task.estimators,
        distances,
    )


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _by_task(rows: list[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    tasks: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        tasks.setdefault(row["task"], []).append(row)
    return tasks


def _task(name: str, rows: list[dict[str, str]], estimators: list[str]) -> Task:
    return Task(
        name,
        [row["policy"] for row in rows],
        np.array([row["algorithm"] for row in rows]),
        np.array([row["run"] for row in rows]),
        np.array([float(row["return"]) for row in rows]),
        np.array([[float(row[estimator]) for estimator in estimators] for row in rows]),
        estimators,
    )
