"""Stage 5: SOPR-T trained on the SAC snapshots of a game, once per log and seed, and its scores of both test sets."""

from __future__ import annotations

import csv
import json
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import sopr_fast
from sopr_fast import ForeignPolicyWarning
from sopr_fast.estimators import NearestPolicy
from sopr_fast.inputs.logs import Transitions
from sopr_fast.inputs.policies import Policy, load
from sopr_fast.ranking.metrics import kendall, regret_at_k, spearman
from sopr_fast.runtime.files import atomic_path
from sopr_fast.sopr.config import Config
from sopr_fast.sopr.ranker import Ranker

from .manifest import Task, is_made, write_manifest
from .offline import chosen_logs
from .rollouts import read_return_means

METHODS = ("SOPR-T", "nearest policy")
MEASURES = {
    "spearman": spearman,
    "kendall": kendall,
    "regret@1": lambda returns, scores: regret_at_k(returns=returns, scores=scores, k=1),
    "regret@3": lambda returns, scores: regret_at_k(returns=returns, scores=scores, k=3),
}

Known = tuple[dict[str, Policy], np.ndarray]  # policies by name and their returns


def train_models(task: Task) -> list[Path]:
    """Train SOPR-T with every seed on every log's states.

    Args:
        task: Game, scale, folder and threads.

    Returns:
        Paths `models/LOG-SEED.safetensors`.
    """
    torch.set_num_threads(task.threads)
    (task.folder / "models").mkdir(exist_ok=True)
    scale, online = task.scale, snapshots(task.folder)
    config = Config(subset_size=scale.subset_size, clusters=scale.clusters, steps=scale.steps, subsets=scale.steps)
    products = []
    for log in chosen_logs(task):
        for seed in range(scale.score_seeds):
            product, begin = _model(task, log, seed), time.monotonic()
            products.append(product)
            if is_made(product):
                continue
            checkpoint = product.with_suffix(".partial")
            resumed = checkpoint.exists()
            ranker = sopr_fast.fit(
                *online["train"],
                task.folder / "logs" / f"{log}.hdf5",
                validation=online["validation"],
                config=config,
                seed=seed,
                checkpoint=checkpoint,
            )
            ranker.save(product, subsets=False)
            write_manifest(task, product, None if resumed else time.monotonic() - begin, config=config.to_dict())
            checkpoint.unlink(missing_ok=True)
    return products


def write_scores(task: Task) -> list[Path]:
    """Write the rank correlations and regrets of every seed, test set and method.

    Args:
        task: Game, scale, folder and threads.

    Returns:
        Paths `scores/LOG.csv`.
    """
    torch.set_num_threads(task.threads)
    (task.folder / "scores").mkdir(exist_ok=True)
    products, online = [], snapshots(task.folder)
    for log in chosen_logs(task):
        product, begin = task.folder / "scores" / f"{log}.csv", time.monotonic()
        products.append(product)
        if is_made(product):
            continue
        transitions = sopr_fast.load_log(task.folder / "logs" / f"{log}.hdf5")
        tests = {"I": offline_policies(task.folder, log), "II": online["test_set_2"]}
        rows = []
        for seed in range(task.scale.score_seeds):
            ranker = sopr_fast.load(_model(task, log, seed))
            for test_set, (policies, returns) in tests.items():
                for method, scores in _score(task, ranker, online["train"], policies, transitions, seed).items():
                    measured = [measure(returns, scores) for measure in MEASURES.values()]
                    rows.append((seed, test_set, method, *measured))
        with atomic_path(product) as temporary, temporary.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["seed", "test_set", "method", *MEASURES])
            writer.writerows(rows)
        write_manifest(task, product, time.monotonic() - begin)
    return products


def snapshots(game: Path) -> dict[str, Known]:
    """Load the online policies of a game.

    Args:
        game: Folder of the game.

    Returns:
        Policies and returns of "train", "validation" and "test_set_2".
    """
    split = json.loads((game / "split.json").read_text())
    policies, returns = list(load(game / "policies.npz").values()), read_return_means(game / "returns.csv")
    parts = ("train", "validation", "test_set_2")
    return {part: ({f"sac-{i}": policies[i] for i in split[part]}, returns[split[part]]) for part in parts}


def offline_policies(game: Path, log: str, test_set: str = "test_set_1") -> Known:
    """Load Test Set I of a log, or its test set of competent policies.

    Args:
        game: Folder of the game.
        log: Name of the log.
        test_set: "test_set_1" or "competent".

    Returns:
        Policies and their returns.
    """
    folder = game / test_set / log
    prefix = "offline" if test_set == "test_set_1" else test_set
    policies = {f"{prefix}-{i}": policy for i, policy in enumerate(load(folder / "policies.npz").values())}
    return policies, read_return_means(folder / "returns.csv")


def _model(task: Task, log: str, seed: int) -> Path:
    return task.folder / "models" / f"{log}-{seed}.safetensors"


def _score(
    task: Task, ranker: Ranker, train: Known, policies: dict[str, Policy], transitions: Transitions, seed: int
) -> dict[str, np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForeignPolicyWarning)
        ranking = ranker.rank(policies, transitions.states, subsets=task.scale.rank_subsets, seed=seed + 1000)
    nearest = NearestPolicy().estimate(policies, transitions, known=train[0], returns=train[1], seed=seed)
    return dict(zip(METHODS, (ranking.scores, nearest.values), strict=True))
