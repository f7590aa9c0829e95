"""Rank correlation of SOPR-T on unseen real policies, without and with shrinkage, beside two trivial rankings.

For each split of the 50 HalfCheetah snapshots into 30 training, 10 validation and 10 test policies
(numpy.random.default_rng(split).permutation(50)) and each seed: train, rank the 10, compare with their returns.

    python bench/quality.py --splits 6 --seeds 3 --out out/quality.json
    python bench/quality.py --splits 1 --seeds 3 --subset-size 16384 --clusters 256 --out out/quality-full.json

Writes the file after every run and resumes from it. There, "spearman" and "regret@3" belong to the paper's scores
(`shrinkage=0`), "shrunk_spearman" and "shrunk_regret@3" to `shrinkage=1`.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from workload import peak_megabytes, read_set

import sopr_fast
from sopr_fast.metrics import policy_distance, regret_at_k, spearman
from sopr_fast.policies import as_policies, collect, probe
from sopr_fast.ranking import ForeignPolicyWarning
from sopr_fast.runtime.files import atomic_path
from sopr_fast.sopr.config import Config


def main() -> None:
    options = _options()
    if options.threads:
        torch.set_num_threads(options.threads)
    policies, returns, states = read_set(options.data)
    changes = {name: json.loads(value) for name, value in (item.split("=", 1) for item in options.set)}
    config = Config(
        subset_size=options.subset_size,
        clusters=options.clusters,
        subsets=options.steps,
        steps=options.steps,
        **changes,
    )
    settings = {"config": config.to_dict(), "no_validation": options.no_validation}
    results = json.loads(options.out.read_text()) if options.out.exists() else {**settings, "runs": []}
    if any(results[name] != value for name, value in settings.items()):
        raise SystemExit(f"{options.out} holds runs with other options: choose another --out")
    done = {(run["split"], run["seed"]) for run in results["runs"]}
    for split in range(options.first_split, options.first_split + options.splits):
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            if (split, seed) in done:
                continue
            run = measure(policies, returns, states, config, split, seed, options)
            results["runs"].append(run)
            with atomic_path(options.out) as temporary:
                temporary.write_text(json.dumps(results, indent=1))
            print(_line(run), flush=True)
    print(summary(results["runs"]))


def measure(policies, returns, states, config, split, seed, options) -> dict:
    order = np.random.default_rng(split).permutation(len(policies))
    train, validation, test = np.split(order, [30, 40])
    names = list(policies)

    def chosen(indices):
        return {names[i]: policies[names[i]] for i in indices}

    held_out = (chosen(validation), returns[validation])
    if options.no_validation:
        train, held_out = np.concatenate([train, validation]), None
    start = time.perf_counter()
    ranker = sopr_fast.fit(
        chosen(train),
        returns[train],
        states,
        validation=held_out,
        config=config,
        seed=seed,
        progress=False,
    )
    trained = time.perf_counter() - start
    if options.models:
        options.models.mkdir(parents=True, exist_ok=True)
        ranker.save(options.models / f"split-{split}-seed-{seed}.safetensors", subsets=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForeignPolicyWarning)
        ranking, shrunk = (
            ranker.rank(
                chosen(test),
                states,
                subsets=options.rank_subsets,
                shrinkage=shrinkage,
                seed=seed + 1000,
                progress=False,
            )
            for shrinkage in (0, 1)
        )
    true = returns[test]
    nearest = nearest_returns(chosen(train), chosen(test), returns[train], states)
    index = test.astype(float)
    return {
        "split": split,
        "seed": seed,
        "scores": ranking.scores.tolist(),
        "shrinkage": shrunk.shrinkage.tolist(),
        "spearman": spearman(true, ranking.scores),
        "regret@3": regret_at_k(returns=true, scores=ranking.scores, k=3),
        "shrunk_spearman": spearman(true, shrunk.scores),
        "shrunk_regret@3": regret_at_k(returns=true, scores=shrunk.scores, k=3),
        "index_spearman": spearman(true, index),
        "index_regret@3": regret_at_k(returns=true, scores=index, k=3),
        "nearest_spearman": spearman(true, nearest),
        "nearest_regret@3": regret_at_k(returns=true, scores=nearest, k=3),
        "best_step": ranker.history["best_step"],
        "validation_spearman": max(ranker.history.get("validation_rank_correlation", [float("nan")])),
        "restarts": ranker.history["restarts"],
        "last_loss": float(np.mean(ranker.history["loss"][-10:])),
        "fit_seconds": trained,
        "fit_by_stage": ranker.timings,
        "peak_MB": peak_megabytes(),
        "rank_seconds": sum(ranking.timings.values()),
    }


def nearest_returns(train, test, returns, states) -> np.ndarray:
    """Return the return of each policy's nearest training policy by action distance (Eq. 3) on 4,096 states."""
    sample = torch.from_numpy(np.ascontiguousarray(states[:: max(1, len(states) // 4096)], np.float32))
    source = torch.arange(len(sample))
    known, candidates = as_policies(train), as_policies(test)
    layout = probe(known, sample, source)
    columns = [collect(group, sample, source, layout).numpy() for group in (known, candidates)]
    return returns[policy_distance(*columns)[1]]


def summary(runs: list[dict]) -> str:
    lines = [f"{'':<24}{'Spearman':>10}{'min':>8}{'regret@3':>10}{'max':>8}"]
    for label, prefix in (
        ("SOPR-T", ""),
        ("SOPR-T, shrinkage 1", "shrunk_"),
        ("snapshot index", "index_"),
        ("nearest policy's return", "nearest_"),
    ):
        rho = np.array([run[f"{prefix}spearman"] for run in runs])
        regret = np.array([run[f"{prefix}regret@3"] for run in runs])
        lines.append(f"{label:<24}{rho.mean():>10.3f}{rho.min():>8.3f}{regret.mean():>10.4f}{regret.max():>8.4f}")
    seconds = np.median([run["fit_seconds"] for run in runs])
    lines.append(f"{len(runs)} runs, median {seconds:.0f} s to fit, {sum(run['restarts'] for run in runs)} restarts")
    return "\n".join(lines)


def _line(run: dict) -> str:
    shown = ("spearman", "regret@3", "shrunk_spearman", "index_spearman", "nearest_spearman")
    values = (f"{name} {run[name]:.3f}" for name in shown)
    return f"split {run['split']} seed {run['seed']}  " + "  ".join(values) + f"  {run['fit_seconds']:.0f} s"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder made by bench.paper (default: bench/halfcheetah)")
    parser.add_argument("--splits", type=int, default=6)
    parser.add_argument("--first-split", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--subset-size", type=int, default=4096)
    parser.add_argument("--clusters", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rank-subsets", type=int, default=5)
    parser.add_argument(
        "--no-validation",
        action="store_true",
        help="train on the 10 validation policies too; keep the last weights",
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE", help="other options of Config")
    parser.add_argument("--models", type=Path, help="folder for the trained models")
    parser.add_argument("--threads", type=int, default=0, help="0: torch's default")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
