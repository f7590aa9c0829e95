"""Ask `select` for candidates whose returns are known, and compare: leave runs, algorithms and offline policies out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas

import sopr_fast
from sopr_fast import estimators
from sopr_fast.results.metrics import regret_at_k, spearman
from sopr_fast.selection.draws import probability_beats
from sopr_fast.selection.measured import Measured
from sopr_fast.selection.selection import Selection
from sopr_fast.selection.verdict import SURE

from .archive import load, measure
from .tasks import Task

RESULTS = Path(__file__).parent / "results.csv"
KNOWN, SEEDS, MOST_MEASURED = (0, 10), (0, 1, 2), 10
_SNAPSHOTS = 10  # unseen ones
_MISSED = 0.1  # share of the range of returns that a right choice may miss
_NEAR = 0.02  # share of the range that makes no difference


def run(
    tasks: Sequence[Task],
    logs: Sequence[str],
    seeds: Sequence[int],
    work: Path,
    simulator: estimators.Simulator,
    results: Path,
) -> None:
    """Add the results of tasks to the table; those that it has are not run again.

    Args:
        tasks: The tasks.
        logs: Names of their logs.
        seeds: Seeds of simulators and of what is known.
        work: Folder that keeps simulators.
        simulator: Simulator of `select`.
        results: File of the table.
    """
    table = pandas.read_csv(results) if results.exists() else pandas.DataFrame(columns=["task", "log", "seed"])
    done = set(zip(table["task"], table["log"], table["seed"], strict=True))
    for seed, task, log in itertools.product(seeds, tasks, logs):
        if (task.environment, log, seed) in done:
            continue
        rows = pandas.DataFrame(list(judged(task, log, seed, work, simulator)))
        rows.insert(1, "log", log)
        table = pandas.concat([table, rows]) if len(table) else rows
        results.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(results, index=False, float_format="%.4g", lineterminator="\n")
        print(task.environment, log, seed, flush=True)


def judged(task: Task, log: str, seed: int, work: Path, simulator: estimators.Simulator) -> Iterator[dict[str, Any]]:
    """Yield one row of results for each kind of candidates, number of known returns and method."""
    policies, transitions, table = load(task, log)
    online = table[~table["run"].str.startswith("offline")]
    progress = dict(zip(online.index, snapshots(online.index), strict=True))
    options = {"simulator": simulator, "checkpoints": work / task.name / f"study-{log}-{seed}", "seed": seed}
    whole = sopr_fast.select(policies, transitions, progress=progress, groups=table["run"].to_dict(), **options)
    table = table.loc[whole.names]
    for kind, candidates, order in cases(table, seed):
        for count in KNOWN:
            if count > len(order):
                continue
            known = np.sort(order[:count])
            for method, result in results(whole, known, candidates, table).items():
                row = {"task": task.environment, "seed": seed, "kind": kind, "known": count, "method": method}
                yield row | result


def of_games(folder: Path, work: Path, foreign: Path | None = None, draws: int = 5) -> pandas.DataFrame:
    """Return results on logs of the paper's games: ten snapshots are known, or none; others are ranked.

    Args:
        folder: Folder of a scale of `bench.paper`, with logs.
        work: Folder that keeps simulators.
        foreign: Folder with policies of other authors, or None.
        draws: Draws of known snapshots.
    """
    from bench.paper.sets import foreign_policies, offline_policies, snapshots

    rows = []
    for file in sorted(folder.glob("*/logs/*.hdf5")):
        game, log = file.parents[1], file.stem
        parts = snapshots(game) | {kind: offline_policies(game, log, kind) for kind in ("competent", "test_set_1")}
        if foreign is not None:
            parts["foreign"] = foreign_policies(foreign / game.name.rpartition("-")[0])
        policies = {name: policy for own, _ in parts.values() for name, policy in own.items()}
        kinds = np.repeat([*parts], [len(returns) for _, returns in parts.values()])
        returns = np.concatenate([returns for _, returns in parts.values()])
        table = pandas.DataFrame({"return": returns, "error": 0.0, "kind": kinds}, index=[*policies])
        transitions = sopr_fast.load_log(file, max_episode_steps=1000)
        whole = sopr_fast.select(policies, transitions, checkpoints=work / game.name / log)
        table = table.loc[whole.names]
        pool = np.flatnonzero(table["kind"].isin(["train", "validation"]))
        tests = [kind for kind in parts if kind not in ("train", "validation")]
        for (known, draw), kind in itertools.product([(0, 0), *((10, draw) for draw in range(draws))], tests):
            chosen = np.sort(np.random.default_rng(draw).permutation(pool)[:known])
            found = results(whole, chosen, np.flatnonzero(table["kind"] == kind), table)["select"]
            rows.append({"game": game.name, "log": log, "kind": kind, "known": known} | found)
    return pandas.DataFrame(rows)


def of_measured(tasks: Sequence[Task], seeds: Sequence[int], work: Path) -> pandas.DataFrame:
    """Return how the others of an algorithm are ordered by three measured returns, or also by five episodes of each."""
    rows = []
    for task, seed in itertools.product(tasks, seeds):
        policies, transitions, table = load(task, task.offline)
        kept = work / task.name / f"study-{task.offline}-{seed}"
        for algorithm in task.steps:
            own = {name: policies[name] for name in table.index[table["run"].str.startswith(f"{algorithm}-")]}
            selection = sopr_fast.select(own, transitions, checkpoints=kept, seed=seed)
            names = selection.measure_next(3)
            episodes = measure(task, [own[name] for name in names], 5)
            totals = np.add.reduceat(episodes.rewards, episodes.episodes[:-1]).reshape(-1, 5)
            true = table["return"][selection.names].to_numpy()
            row: dict[str, Any] = {"task": task.environment, "chooses": task.chooses, "algorithm": algorithm}
            for what, log in (("returns", None), ("episodes", episodes)):
                told = selection.update(dict(zip(names, totals.mean(1), strict=True)), log=log)
                row[what] = spearman(true[~told.known], told.predicted[~told.known])
            rows.append(row)
    return pandas.DataFrame(rows)


def cases(table: pandas.DataFrame, seed: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield kinds and indices of candidates, and the policies that may be known in random order."""
    random = np.random.default_rng(seed)
    online = np.flatnonzero(~table["run"].str.startswith("offline"))
    for kind, candidates in groups(table, random):
        yield kind, candidates, random.permutation(np.setdiff1d(online, candidates))


def latest(table: pandas.DataFrame, task: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield rows of results for taking the latest snapshot, which knows neither log nor returns."""
    returns, steps = table["return"].to_numpy(), snapshots(table["name"])
    for kind, candidates, order in cases(table, seed):
        found = order_scores(returns[candidates], steps[candidates])
        for count in KNOWN:
            if count <= len(order):
                yield {"task": task, "seed": seed, "kind": kind, "known": count, "method": "latest snapshot"} | found


def snapshots(names: Iterable[str]) -> np.ndarray:
    """Return the number of each policy (P,) among the snapshots of its run, from 1; they are evenly spaced."""
    return np.array([int(name.rsplit("-", 1)[1]) + 1 for name in names])


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


def results(
    whole: Selection, known: np.ndarray, candidates: np.ndarray, table: pandas.DataFrame
) -> dict[str, dict[str, float]]:
    """Return the results of each method that knows the returns of some policies."""
    returns = table["return"].to_numpy()
    places = np.sort(np.concatenate([known, candidates]))
    is_known = np.isin(places, known)
    measured = table[["return", "error"]].assign(rollouts=np.nan).iloc[places]
    measured[~is_known] = np.nan
    names = ("values", "members", "outside", "unsupported", "unlived", "progress")
    parts = {name: getattr(whole, name) for name in names}
    informed = replace(
        whole,
        measured=Measured([whole.names[i] for i in places], np.arange(len(places)), measured),
        distances=whole.distances[np.ix_(places, places)],
        **{name: None if own is None else own[places] for name, own in parts.items()},
    )
    found = {"select": scores(replace(informed, progress=None), table), "progress": scores(informed, table)}
    if len(known):
        nearest = returns[known][whole.distances[np.ix_(candidates, known)].argmin(1)]
        found["nearest policy"] = order_scores(returns[candidates], nearest)
    return found


def order_scores(true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return how well predictions order candidates: rank correlation, NaN if all are equal, and regret."""
    return {"spearman": spearman(true, predicted), "regret@1": regret_at_k(returns=true, scores=predicted, k=1)}


def scores(selection: Selection, table: pandas.DataFrame) -> dict[str, float]:
    """Return how well a selection orders its candidates, covers their returns and decides."""
    true = table["return"][selection.names].to_numpy()
    span = float(np.ptp(table["return"]))
    own = ~selection.known
    low, high = selection.intervals().T
    result = {
        **order_scores(true[own], selection.predicted[own]),
        "coverage": float(((low <= true) & (true <= high))[own].mean()),
    }
    verdict = selection.verdict
    best_known = true[~own].max(initial=-np.inf)
    result["deploy"] = float(verdict.kind == "deploy")
    chosen = true[selection.names.index(verdict.policies[0])]
    is_right = chosen >= best_known and true.max() - chosen <= _MISSED * span
    result["right"] = float(is_right) if verdict.kind == "deploy" else np.nan
    beats = np.array([probability_beats(selection.posterior, i) for i in np.flatnonzero(own)])[:, own]
    gaps = true[own] - true[own, None]  # of the policy that is to beat the other
    stated = beats >= SURE
    result["stated"] = 2 * float(stated.mean()) * len(beats) / max(1, len(beats) - 1)  # of all pairs
    result["stated right"] = float((gaps >= -_NEAR * span)[stated].mean()) if stated.any() else np.nan
    returns = dict(zip(selection.names, true, strict=True))
    for count in range(MOST_MEASURED):
        if true[selection.known].max(initial=-np.inf) >= true.max() - _NEAR * span:
            return result | {"measurements": float(count)}
        if not (picked := selection.measure_next(1)):
            break
        selection = selection.update({picked[0]: returns[picked[0]]})
    return result | {"measurements": float(MOST_MEASURED)}
