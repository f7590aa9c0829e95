"""Rank policies of offline RL with `select` and with what users have otherwise; no return is known."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import torch

import sopr_fast
from sopr_fast import estimators
from sopr_fast.inputs.logs import Transitions

from .archive import load
from .study import cases, order_scores
from .table import fill, mean_of_tasks
from .tasks import Task

RESULTS = Path(__file__).parent / "peers.csv"
D3RLPY, UPDATES = "FQE of d3rlpy", 10_000  # as d3rlpy's tutorial on choosing policies
KNOWN = 10  # returns of online policies, for the nearest policy alone


def run(tasks: Sequence[Task], logs: Sequence[str]) -> None:
    """Add results of tasks to the table; those that it has are not run again."""
    torch.set_num_threads(1)
    for task, log in itertools.product(tasks, logs):
        policies, transitions, table = load(task, log)
        candidates, order = next((chosen, order) for kind, chosen, order in cases(table, 0) if kind == "offline")
        returns = table["return"]
        known = returns.iloc[order[:KNOWN]].to_dict()
        names = list(table.index[candidates])
        for method, values in methods(policies, transitions, names, known):
            rows = pandas.read_csv(RESULTS) if RESULTS.exists() else pandas.DataFrame(columns=["task", "log", "method"])
            key = {"task": task.environment, "log": log, "method": method}
            if rows[[*key]].eq(list(key.values())).all(axis=1).any():
                continue
            start = time.process_time()
            result = order_scores(returns[names].to_numpy(), np.asarray(values()))
            row = pandas.DataFrame([key | result | {"seconds": time.process_time() - start}])
            rows = pandas.concat([rows, row]) if len(rows) else row
            rows.to_csv(RESULTS, index=False, float_format="%.4g", lineterminator="\n")
            print(*key.values(), flush=True)


def methods(
    policies: dict[str, Any], log: Transitions, names: list[str], known: dict[str, float]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield methods by name, and functions that return their values of the named policies."""
    chosen = {name: policies[name] for name in names}
    snapshots = [float(name.rsplit("-", 1)[1]) for name in names]
    others = {name: policies[name] for name in known}
    yield "`select`", lambda: _by_select(chosen, log)
    yield "latest snapshot", lambda: snapshots
    yield "distance to the logged actions", lambda: [-_distance(policy, log) for policy in chosen.values()]
    nearest = estimators.NearestPolicy()
    yield "NearestPolicy, ten known", lambda: nearest.estimate(chosen, log, known=others, returns=known).values
    yield "BehaviourQ", lambda: estimators.BehaviourQ().estimate(chosen, log).values
    yield D3RLPY, lambda: [_value_by_d3rlpy(policy, log) for policy in chosen.values()]
    yield "FQE", lambda: estimators.FQE().estimate(chosen, log).values


def _by_select(policies: dict[str, Any], log: Transitions) -> list[float]:
    selection = sopr_fast.select(policies, log)
    predicted = dict(zip(selection.names, selection.predicted, strict=True))
    return [predicted[name] for name in policies]


def _distance(policy: Any, log: Transitions) -> float:
    """Return the mean squared distance of a policy's actions to the logged ones; the share that differs if discrete."""
    actions = policy(log.states).reshape(log.actions.shape)
    return float(np.mean(actions != log.actions if policy.action_count else np.square(actions - log.actions)))


def _value_by_d3rlpy(policy: Any, log: Transitions) -> float:
    """Return the mean value of initial states by FQE of d3rlpy, with its documented defaults and its own `fit`."""
    import d3rlpy
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # d3rlpy logs a lot
    discrete = policy.action_count is not None
    actions = log.actions.astype(int) if discrete else log.actions
    data = d3rlpy.dataset.MDPDataset(
        log.states, actions, log.rewards, log.terminals, log.timeouts, action_size=policy.action_count
    )
    kind = d3rlpy.ope.DiscreteFQE if discrete else d3rlpy.ope.FQE
    act = SimpleNamespace(predict_best_action=lambda states: torch.from_numpy(policy(states.numpy())))
    d3rlpy.seed(0)
    fqe = kind(algo=SimpleNamespace(impl=act), config=d3rlpy.ope.FQEConfig())
    fqe.fit(data, n_steps=UPDATES, logger_adapter=d3rlpy.logging.NoopAdapterFactory(), show_progress=False)
    starts = log.states[log.episodes[:-1]]
    return float(fqe.predict_value(starts, policy(starts)).mean())


def update_page(page: Path) -> None:
    """Write means over the tasks of `select`, and mean CPU seconds, between the marks of a page."""
    rows = pandas.read_csv(RESULTS)
    rows = rows[rows["task"].isin(rows["task"][rows["method"] == "`select`"])]
    table = ["| method | Spearman | regret@1 | CPU seconds | tasks |", "| --- | --- | --- | --- | --- |"]
    for method, own in rows.groupby("method", sort=False):
        order, regret = (mean_of_tasks(own, column) for column in ("spearman", "regret@1"))
        tasks = own["task"].unique()
        names = ", ".join(tasks) if len(tasks) <= 5 else str(len(tasks))
        table.append(f"| {method} | {order} | {regret} | {own['seconds'].mean():.0f} | {names} |")
    fill(page, "peers", "\n".join(table))
