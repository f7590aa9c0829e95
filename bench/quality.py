"""Rank correlation of SOPR-T on unseen real policies, beside two trivial rankings.

For each split of the 50 HalfCheetah snapshots into 30 training, 10 validation and 10 test policies
(numpy.random.default_rng(split).permutation(50)) and each seed, `sopr_fast.evaluate` judges the order of the 10.

    python bench/quality.py --splits 6 --seeds 3 --out out/quality.json
    python bench/quality.py --splits 1 --seeds 3 --subset-size 16384 --clusters 256 --out out/quality-full.json

Writes the file after every run and resumes from it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from fitted import Fitted
from workload import peak_megabytes, read_set

import sopr_fast
from sopr_fast.estimators import Estimates, NearestPolicy
from sopr_fast.runtime.files import atomic_path
from sopr_fast.sopr.config import Config

LABELS = ("SOPR-T", "snapshot index", "nearest policy's return")


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
    train, validation, test = np.split(np.random.default_rng(split).permutation(len(policies)), [30, 40])
    names, held_out = np.array(list(policies)), None
    if options.no_validation:
        train = np.concatenate([train, validation])
    else:
        held_out = {name: policies[name] for name in names[validation]}, returns[validation]
    sopr = Fitted(config, held_out, subsets=options.rank_subsets)
    methods = sopr, SnapshotIndex(list(names)), NearestPolicy()
    evaluation = sopr_fast.evaluate(
        {name: policies[name] for name in names[[*train, *test]]},
        returns[[*train, *test]],
        states,
        methods=dict(zip(LABELS, methods, strict=True)),
        folds=[(names[train], names[test])],
        seed=seed,
        progress=False,
    )
    (ranker,) = sopr.rankers.values()
    if options.models:
        options.models.mkdir(parents=True, exist_ok=True)
        ranker.save(options.models / f"split-{split}-seed-{seed}.safetensors", subsets=False)
    measures = evaluation.measures()
    return {
        "split": split,
        "seed": seed,
        "scores": {label: values[0].tolist() for label, values in evaluation.values.items()},
        "judged": {label: {name: measures[label][name][0] for name in ("spearman", "regret@3")} for label in measures},
        "best_step": ranker.history["best_step"],
        "validation_spearman": max(ranker.history.get("validation_rank_correlation", [float("nan")])),
        "restarts": ranker.history["restarts"],
        "last_loss": float(np.mean(ranker.history["loss"][-10:])),
        "fit_seconds": sum(ranker.timings.values()),
        "fit_by_stage": ranker.timings,
        "peak_MB": peak_megabytes(),
        "rank_seconds": sum(ranker.timings.values()),
    }


class SnapshotIndex:
    """A method that prefers later snapshots.

    Args:
        names: Names of all snapshots, the first one first.
    """

    name = "snapshot index"
    supervised = needs_rewards = False

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def estimate(self, policies, log, **_) -> Estimates:
        own = [policy.name for policy in policies]
        return Estimates(own, np.array([self.names.index(name) for name in own], float))


def summary(runs: list[dict]) -> str:
    lines = [f"{'':<24}{'Spearman':>10}{'min':>8}{'regret@3':>10}{'max':>8}"]
    for label in LABELS:
        judged = [run["judged"][label] for run in runs if label in run["judged"]]
        rho, regret = (np.array([measured[name] for measured in judged]) for name in ("spearman", "regret@3"))
        lines.append(f"{label:<24}{rho.mean():>10.3f}{rho.min():>8.3f}{regret.mean():>10.4f}{regret.max():>8.4f}")
    seconds = np.median([run["fit_seconds"] for run in runs])
    lines.append(f"{len(runs)} runs, median {seconds:.0f} s to fit, {sum(run['restarts'] for run in runs)} restarts")
    return "\n".join(lines)


def _line(run: dict) -> str:
    values = (f"{label} {measured['spearman']:.3f}" for label, measured in run["judged"].items())
    return f"split {run['split']} seed {run['seed']}  Spearman  {'  '.join(values)}  {run['fit_seconds']:.0f} s"


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
