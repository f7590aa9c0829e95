"""Panels on real policies of three games: what each method, the blend, its intervals and its verdicts are worth.

    python -m bench.selection.real_sets columns --data DATA --sets SETS --out OUT  # resumable
    python -m bench.selection.real_sets columns --data DATA --sets SETS --out OTHER --seed 1
    python -m bench.selection.real_sets report --out OUT

`DATA` has the folders `halfcheetah` (a run and its replay) and `foreign` (policies of other authors); `SETS` is a
folder of `bench.paper` whose `logs` stage has run. Every column is computed once and kept in a file of its own. Another
seed of the estimators needs another folder; splits and folds stay the same. The report takes a minute.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sopr_fast.estimators import FQE, LSTDQ, Estimator
from sopr_fast.inputs.policies import Policy, load
from sopr_fast.methods import DEFAULT_PANEL, read_methods
from sopr_fast.runtime.files import atomic_path
from sopr_fast.selection.columns import Columns, compute_columns
from sopr_fast.selection.folds import Fold, group_folds, random_folds
from sopr_fast.selection.groups import find_groups
from sopr_fast.selection.workspace import Workspace

from ..paper.foreign import ROLLOUTS, read_foreign

# Variants of methods of the default panel that the report compares with them; pass their labels to --methods.
VARIANTS: dict[str, Estimator] = {
    "LSTDQ": LSTDQ(),
    "LSTDQ, logged starts": LSTDQ(start="data"),
    "FQE layer norm": FQE(
        updates=2000, batch_size=128, hidden=(64, 64), learning_rate=1e-3, ensemble=2, layer_norm=True
    ),
}
GAMES = ("halfcheetah", "hopper", "walker2d")
DISCOUNT = 0.99


@dataclass(frozen=True)
class Source:
    """One log and the policies that are valued on it.

    Attributes:
        name: Game and log, such as "hopper full-replay".
        game: One of `GAMES`.
        log: Path of the log.
        policies: Name -> policy.
        returns: (P,) returns.
        errors: (P,) standard errors of the returns.
        families: P of "sac", "trpo", "ars", "dope" and, for policies trained offline on the log, "offline".
    """

    name: str
    game: str
    log: Path
    policies: dict[str, Policy]
    returns: np.ndarray
    errors: np.ndarray
    families: np.ndarray


@dataclass(frozen=True)
class Scenario:
    """Which policies are known.

    Attributes:
        name: Families that are known, and the split of the snapshots.
        known: Indices of the known policies.
        others: Indices of all others.
    """

    name: str
    known: np.ndarray
    others: np.ndarray

    @property
    def order(self) -> np.ndarray:
        """Indices of all policies, known ones first."""
        return np.concatenate([self.known, self.others])


def sources(data: Path, sets: Path, logs: list[str]) -> list[Source]:
    """Return the logs with their policies, in the order in which they are computed."""
    found = []
    for name in logs:
        game, log = name.split(" ", 1)
        folder = sets / "small" / f"{game}-v4"
        parts: list[tuple[dict[str, Policy], np.ndarray, np.ndarray]] = []
        if log == "replay":
            run = data / game
            parts.append(_policies(run / "policies.npz", run / "returns.csv", "sac", 50))
            path = run / "replay.hdf5"
        else:
            parts.append(_policies(folder / "policies.npz", folder / "returns.csv", "sac", 100))
            path = folder / "logs" / f"{log}.hdf5"
            offline = folder / "test_set_1" / log
            parts.append(_policies(offline / "policies.npz", offline / "returns.csv", "offline", 100))
        parts.append(_foreign(data / "foreign" / game))
        policies: dict[str, Policy] = {}
        for part, _, _ in parts:
            policies |= part
        returns, errors = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
        families = np.array([re.split(r"[-_]", policy)[0] for policy in policies])
        found.append(Source(name, game, path, policies, returns, errors, families))
    return found


def _policies(path: Path, table: Path, family: str, rollouts: int) -> tuple[dict[str, Policy], np.ndarray, np.ndarray]:
    rows = _rows(table)
    policies = {f"{family}-{i:03d}": policy for i, policy in enumerate(load(path).values())}
    mean, std = (np.array([float(row[key]) for row in rows]) for key in ("return_mean", "return_std"))
    return policies, mean, std / np.sqrt(rollouts)


def _foreign(folder: Path) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    policies, mean, std = read_foreign(folder)
    return policies, mean, std / np.sqrt(ROLLOUTS)


def _rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def scenarios(families: np.ndarray, splits: int) -> list[Scenario]:
    """Return which policies are known: snapshots alone, and with foreign families.

    Args:
        families: P families.
        splits: Number of splits of the snapshots.

    A split keeps 40 snapshots as known, 10 as unseen (`numpy.random.default_rng(split).permutation(50)`).
    """
    everyone = np.arange(len(families))
    snapshots = np.flatnonzero(families == "sac")
    result = []
    for split in range(splits):
        kept = np.sort(snapshots[np.random.default_rng(split).permutation(len(snapshots))[:40]])
        foreign: list[tuple[str, ...]] = [(), ("trpo",), ("ars", "dope")] if split == 0 else [()]
        for extra in foreign:
            known = np.append(kept, np.flatnonzero(np.isin(families, extra)))
            name = "+".join(["sac", *extra]) + f" split {split}"
            result.append(Scenario(name, known, np.setdiff1d(everyone, known)))
    return result


def compute(options: argparse.Namespace) -> None:
    """Compute every column of every scenario that is not in a file yet."""
    torch.set_num_threads(options.threads)
    labels = DEFAULT_PANEL if options.methods is None else options.methods
    methods = read_methods({label: VARIANTS.get(label, label) for label in labels})
    once = {label: method for label, method in methods.items() if not method.supervised}
    learned = {label: method for label, method in methods.items() if method.supervised}
    for source in sources(options.data, options.sets, options.logs):
        folder = options.out / source.name.replace(" ", "-")
        workspace = Workspace.build(source.policies, source.log)
        _write(folder / "policies.json", _describe(source, workspace))
        everyone = [Fold("all", "", np.arange(0), np.arange(len(source.policies)))]
        for label, method in [*learned.items(), *once.items()]:
            begin, cpu = time.perf_counter(), time.process_time()
            if label in once:
                _compute(workspace, {label: method}, source.returns, everyone, options.seed, folder / "all")
            else:
                for scenario in scenarios(source.families, options.splits):
                    folds = make_folds(workspace.names, workspace.distances, scenario)[0]
                    part, order = folder / scenario.name.replace(" ", "-"), scenario.order
                    own = workspace.reorder(order), {label: method}, source.returns[order]
                    _compute(*own, folds, options.seed, part)
            seconds = time.perf_counter() - begin, time.process_time() - cpu
            print(f"{source.name}, {label}: {seconds[0]:.0f} s, {seconds[1]:.0f} s of CPU", flush=True)


def make_folds(names: list[str], distances: np.ndarray, scenario: Scenario) -> tuple[list[Fold], list[str]]:
    """Return the folds that `select` would make, for policies in the scenario's order, and the known groups."""
    count = len(scenario.known)
    labels, _ = find_groups([names[i] for i in scenario.known], distances[np.ix_(scenario.known, scenario.known)])
    folds = [*random_folds(count, 5, 0), *group_folds(labels)]
    folds.append(Fold("candidates", "", np.arange(count), np.arange(count, len(scenario.order))))
    return folds, labels


def _compute(
    workspace: Workspace, methods: dict[str, Any], returns: np.ndarray, folds: list[Fold], seed: int, folder: Path
) -> Columns | None:
    try:
        return compute_columns(
            workspace, methods, returns, folds, discount=DISCOUNT, seed=seed, folder=folder, progress=False
        )
    except ValueError as error:
        if "no method is left" not in str(error):
            raise
        print(f"{folder}: {error}", flush=True)
        return None


def _describe(source: Source, workspace: Workspace) -> dict[str, Any]:
    return {
        "name": source.name,
        "game": source.game,
        "policies": list(source.policies),
        "families": source.families.tolist(),
        "returns": source.returns.tolist(),
        "errors": source.errors.tolist(),
        "distances": workspace.distances.tolist(),
    }


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("columns", "report"))
    parser.add_argument("--data", type=Path, help="folder with halfcheetah/ and foreign/")
    parser.add_argument("--sets", type=Path, default=Path("bench/paper/sets"), help="folder of bench.paper with logs")
    parser.add_argument("--out", type=Path, default=Path("out/selection"))
    parser.add_argument(
        "--logs", nargs="+", default=["halfcheetah replay", "hopper full-replay", "walker2d full-replay"]
    )
    parser.add_argument("--methods", nargs="+", help="default: the default panel")
    parser.add_argument("--splits", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0, help="seed of the estimators")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.stage == "columns":
        compute(options)
    else:
        from .real_report import report

        report(options.out)


if __name__ == "__main__":
    main()
