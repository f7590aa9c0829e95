"""Ask `select` for candidates whose returns are known, and compare: leave runs, algorithms and offline policies out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas

import sopr_fast
from sopr_fast import estimators
from sopr_fast.ranking.metrics import regret_at_k, spearman
from sopr_fast.selection.selection import Selection

from .make import load
from .tasks import Task

RESULTS = Path(__file__).parent / "results.csv"
KNOWN, SEEDS, MEASURED = (0, 3, 10, 30), (0, 1, 2), 3
_SNAPSHOTS = 10  # unseen ones


def run(tasks: list[Task], work: Path, simulator: estimators.Simulator, seeds: tuple[int, ...] = SEEDS) -> None:
    """Add the results of tasks to the table; those that it has are not run again."""
    table = pandas.read_csv(RESULTS) if RESULTS.exists() else pandas.DataFrame({"task": [], "seed": []})
    for task in tasks:
        for seed in seeds:
            if ((table["task"] == task.environment) & (table["seed"] == seed)).any():
                continue
            rows = pandas.DataFrame(list(judged(task, work, simulator, seed)))
            table = pandas.concat([table, rows]) if len(table) else rows
            table.to_csv(RESULTS, index=False, float_format="%.4g", lineterminator="\n")
            print(task.environment, seed, flush=True)


def judged(task: Task, work: Path, simulator: estimators.Simulator, seed: int) -> Iterator[dict[str, Any]]:
    """Yield one row of results for each kind of candidates, number of known returns and method."""
    everyone, log, policies = load(task)
    kept = work / task.environment.lower() / f"study-{seed}"
    kept.mkdir(parents=True, exist_ok=True)
    whole = sopr_fast.select(everyone, log, simulator=simulator, checkpoints=kept, seed=seed)
    table = policies.loc[whole.names]
    random = np.random.default_rng(seed)
    for kind, candidates in groups(table, random):
        pool = np.setdiff1d(np.flatnonzero(~table["run"].str.startswith("offline")), candidates)
        order = random.permutation(pool)
        for count in KNOWN:
            if count > len(pool):
                continue
            known = np.sort(order[:count])
            true = table["return"].to_numpy()[candidates]
            selections = methods(whole, known, candidates, table)
            predictions = orders(whole, known, candidates, table)
            results = {method: scores(selection, table) for method, selection in selections.items()}
            results |= {method: order_scores(true, predicted) for method, predicted in predictions.items()}
            for method, result in results.items():
                row = {"task": task.environment, "seed": seed, "kind": kind, "known": count, "method": method}
                yield row | result


def groups(table: pandas.DataFrame, random: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Yield kinds and indices of candidates; the other policies that were trained online may be known."""
    online = np.flatnonzero(~table["run"].str.startswith("offline"))
    yield "snapshots", np.sort(random.choice(online, min(_SNAPSHOTS, len(online) // 2), replace=False))
    runs = table["run"].to_numpy()
    for run in dict.fromkeys(runs[online]):
        yield "run", np.flatnonzero(runs == run)
    algorithms = np.array([run.split("-")[0] for run in runs])
    for algorithm in dict.fromkeys(algorithms[online]):
        yield "algorithm", np.flatnonzero(algorithms == algorithm)
    yield "offline", np.setdiff1d(np.arange(len(table)), online)


def methods(
    whole: Selection, known: np.ndarray, candidates: np.ndarray, table: pandas.DataFrame
) -> dict[str, Selection]:
    """Return what each method selects among known policies and candidates."""
    places = np.sort(np.concatenate([known, candidates]))
    is_known = np.isin(places, known)
    assert whole.values is not None
    selection = replace(
        whole,
        names=[whole.names[i] for i in places],
        returns=np.where(is_known, table["return"].to_numpy()[places], np.nan),
        return_errors=np.where(is_known, table["error"].to_numpy()[places], 0.0),
        distances=whole.distances[np.ix_(places, places)],
        values=whole.values[places],
    )
    if not len(known):
        return {"select": selection}
    return {"select": selection, "Gaussian process": replace(selection, values=None, method="")}


def orders(
    whole: Selection, known: np.ndarray, candidates: np.ndarray, table: pandas.DataFrame
) -> dict[str, np.ndarray]:
    """Return the scores of candidates by simpler methods; equal scores leave the order to chance."""
    assert whole.values is not None
    found = {"simulator": whole.values[candidates], "random order": np.zeros(len(candidates))}
    if len(known):
        nearest = known[whole.distances[np.ix_(candidates, known)].argmin(1)]
        found["nearest policy"] = table["return"].to_numpy()[nearest]
    return found


def order_scores(true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return how well predictions order candidates: rank correlation, NaN if all are equal, and regrets."""
    regrets = {f"regret@{k}": regret_at_k(returns=true, scores=predicted, k=k) for k in (1, 3)}
    return {"spearman": spearman(true, predicted), **regrets}


def scores(selection: Selection, table: pandas.DataFrame) -> dict[str, float]:
    """Return how well a selection orders its candidates, covers their returns and decides."""
    true = table["return"][selection.names].to_numpy()
    span = float(np.ptp(table["return"]))
    own = ~selection.known
    low, high = selection.intervals().T
    ratios = selection.distance_ratio[own]
    result = {
        **order_scores(true[own], selection.predicted[own]),
        "coverage": float(((low <= true) & (true <= high))[own].mean()),
        "distance": float(np.median(ratios)) if len(ratios) else np.nan,
    }
    verdict = selection.verdict
    best_known = true[~own].max(initial=-np.inf)
    result["deploy"] = float(verdict.kind == "deploy")
    chosen = true[selection.names.index(verdict.policies[0])]
    result["right"] = float(chosen >= best_known) if verdict.kind == "deploy" else np.nan
    returns = dict(zip(selection.names, true, strict=True))
    for count in range(1, MEASURED + 1):
        if picked := selection.measure_next(1):
            selection = selection.update({picked[0]: returns[picked[0]]})
        known = selection.known
        best = true[known].max() if known.any() else true.min()
        result[f"measured {count}"] = float(true.max() - best) / span
    return result
