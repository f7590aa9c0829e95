"""Stage 5: SOPR-T trained on the SAC snapshots of a game, asked for both test sets of each log."""

from __future__ import annotations

import csv
import json
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch

import sopr_fast
from sopr_fast.baselines import NearestPolicy
from sopr_fast.config import Config
from sopr_fast.data import Transitions
from sopr_fast.files import atomic_path
from sopr_fast.metrics import kendall, regret_at_k, spearman
from sopr_fast.policies import Policy, load
from sopr_fast.ranker import ForeignPolicyWarning

from .games import LOGS
from .manifest import Task, is_made, write_manifest
from .offline import chosen_logs
from .rollouts import read_return_means

_METHODS = ("SOPR-T", "SOPR-T, pessimism 1", "nearest policy")
_MEASURES = {
    "spearman": spearman,
    "kendall": kendall,
    "regret@1": partial(regret_at_k, k=1),
    "regret@3": partial(regret_at_k, k=3),
}
_SHOWN = ("spearman", "regret@1", "regret@3")
_COLUMNS = ("seed", "test_set", "method", *_MEASURES)


def write_scores(task: Task) -> list[Path]:
    """Rank correlation and regret of every seed, test set and method, to `scores/LOG.csv`; written after each seed."""
    torch.set_num_threads(task.threads)
    (task.folder / "scores").mkdir(exist_ok=True)
    products = []
    for log in chosen_logs(task):
        product, begin = task.folder / "scores" / f"{log}.csv", time.monotonic()
        products.append(product)
        if is_made(product):
            continue
        transitions = sopr_fast.data.load(task.folder / "logs" / f"{log}.hdf5")
        parts = _parts(task, log)
        rows = _read(product)
        for seed in sorted(set(range(task.scale.score_seeds)) - {int(row["seed"]) for row in rows}):
            rows += _run(task, parts, transitions, seed)
            _write(product, rows)
        write_manifest(task, product, time.monotonic() - begin)
    return products


def table(scale_folder: Path) -> str:
    """Means over seeds, and the distances to the training policies, of all games and logs that a folder has."""
    lines = [
        "| log | test set | distance | " + " | ".join(f"{name}: Spearman | regret@1 | regret@3" for name in _METHODS),
        "| --- " * (3 + 3 * len(_METHODS)),
    ]
    for game in sorted(path for path in scale_folder.iterdir() if (path / "scores").is_dir()):
        for log in LOGS:
            rows = _read(game / "scores" / f"{log}.csv")
            for test_set in sorted({row["test_set"] for row in rows}):
                distances = _read(game / "distances" / f"{log}.csv")
                distance = next(float(row["mean"]) for row in distances if row["test_set"] == test_set)
                cells = [f"{game.name} {log}", test_set, f"{distance:.2f}"]
                for method in _METHODS:
                    found = [row for row in rows if (row["test_set"], row["method"]) == (test_set, method)]
                    cells += [f"{np.mean([float(r[m]) for r in found]):.2f}" for m in _SHOWN]
                lines.append("| " + " | ".join(cells))
    return "\n".join(f"{line} |" for line in lines)


def _parts(task: Task, log: str) -> dict[str, tuple[dict[str, Policy], np.ndarray]]:
    """Policies by name and their returns: train, validation, and the test sets I and II."""
    split = json.loads((task.folder / "split.json").read_text())
    online, returns = load(task.folder / "policies.npz"), read_return_means(task.folder / "returns.csv")
    first = task.folder / "test_set_1" / log
    offline = {f"offline-{i}": policy for i, policy in enumerate(load(first / "policies.npz"))}
    parts = {"I": (offline, read_return_means(first / "returns.csv"))}
    for part, name in (("train", "train"), ("validation", "validation"), ("II", "test_set_2")):
        parts[part] = ({f"sac-{i}": online[i] for i in split[name]}, returns[split[name]])
    return parts


def _run(task: Task, parts: dict, transitions: Transitions, seed: int) -> list[dict]:
    scale = task.scale
    config = Config(subset_size=scale.subset_size, clusters=scale.clusters, steps=scale.steps, subsets=scale.steps)
    known, known_returns = parts["train"]
    ranker = sopr_fast.fit(
        known,
        known_returns,
        transitions.states,
        validation=parts["validation"],
        config=config,
        seed=seed,
    )
    rows = []
    for test_set in ("I", "II"):
        candidates, returns = parts[test_set]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ForeignPolicyWarning)
            ranking = ranker.rank(
                candidates, transitions.states, subsets=scale.rank_subsets, pessimism=1, seed=seed + 1000
            )
        nearest = NearestPolicy(known, known_returns).estimate(candidates, transitions, seed=seed)
        scores = (ranking.subset_scores.mean(1), ranking.scores, nearest.values)
        for method, given in zip(_METHODS, scores, strict=True):
            judged = [measure(returns, given) for measure in _MEASURES.values()]
            rows.append(dict(zip(_COLUMNS, (seed, test_set, method, *judged), strict=True)))
    return rows


def _read(path: Path) -> list[dict]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: list[dict]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
