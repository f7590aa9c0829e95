"""SOPR-T and SOPR-MLP beside the baselines: how well each orders policies it has not seen, and what it costs.

Run i splits the 50 snapshots as bench/quality.py does (split i: 30 training, 10 validation, 10 test policies) and gives
every method seed i. SOPR and NearestPolicy learn from the training policies' returns, the others from logged rewards.

    python bench/baselines.py --data FOLDER --out out/baselines.json
    python bench/baselines.py --data FOLDER --out out/baselines.json --methods FQE BehaviourQ --updates 20000

Writes the file after every method and goes on from it; beside it a markdown table (.md) and a plot (.png).
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from quality import read_set

import sopr_fast
from sopr_fast.baselines import (
    FQE,
    BehaviourQ,
    DualDICE,
    ImportanceWeighting,
    ModelBased,
    NearestPolicy,
    UncertainEstimateWarning,
)
from sopr_fast.config import Config
from sopr_fast.data import load
from sopr_fast.files import atomic_path
from sopr_fast.metrics import kendall, regret_at_k, spearman

LABELS = {
    "SOPR-T": "SOPR-T",
    "SOPR-MLP": "SOPR-MLP",
    "NearestPolicy": "return of the nearest policy",
    "BehaviourQ": "mean of a SARSA critic",
    "FQE": "FQE",
    "ModelBased": "model-based",
    "ImportanceWeighting": "importance weighting",
    "DualDICE": "DualDICE",
}


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore", UncertainEstimateWarning)
    policies, returns, states = read_set(options.data)
    transitions = load(options.data / "replay.hdf5")
    settings = {key: getattr(options, key) for key in ("discount", "subset_size", "clusters", "steps")}
    results = json.loads(options.out.read_text()) if options.out.exists() else {"settings": settings, "runs": []}
    if results["settings"] != settings:
        raise SystemExit(f"{options.out} holds runs with other options")
    done = {(run["run"], run["method"]) for run in results["runs"]}
    for i in range(options.runs):
        train, validation, test = np.split(np.random.default_rng(i).permutation(len(policies)), [30, 40])
        sets = [{name: policies[name] for name in np.array(list(policies))[part]} for part in (train, validation, test)]
        for method in options.methods:
            if (i, method) in done:
                continue
            start = time.perf_counter()
            if method.startswith("SOPR"):
                scores, more = _sopr(method, sets, returns[train], returns[validation], states, options, i)
            else:
                scores, more = _baseline(method, sets, returns[train], transitions, options, i)
            seconds = time.perf_counter() - start
            results["runs"].append(
                _judge(returns[test], scores) | {"run": i, "method": method, "seconds": seconds} | more
            )
            _write(options.out, results)
            print(table([results["runs"][-1]]).splitlines()[-1], flush=True)
    print(table(results["runs"]))
    options.out.with_suffix(".md").write_text(table(results["runs"]) + "\n")
    _plot(results["runs"], options.out.with_suffix(".png"))


def _judge(returns: np.ndarray, scores: np.ndarray) -> dict:
    scores = np.asarray(scores, float)
    return {
        "spearman": spearman(returns, scores),
        "kendall": kendall(returns, scores),
        "regret@1": regret_at_k(returns, scores, 1),
        "regret@3": regret_at_k(returns, scores, 3),
        "scores": scores.tolist(),
        "returns": returns.tolist(),
    }


def _sopr(method, sets, train_returns, validation_returns, states, options, seed) -> tuple[np.ndarray, dict]:
    train, validation, test = sets
    config = Config(
        encoder="mlp" if method == "SOPR-MLP" else "transformer",
        subset_size=options.subset_size,
        clusters=options.clusters,
        subsets=options.steps,
        steps=options.steps,
    )
    ranker = sopr_fast.fit(
        train,
        train_returns,
        states,
        validation=(validation, validation_returns),
        config=config,
        seed=seed,
        progress=False,
    )
    return ranker.rank(test, states, subsets=5, seed=seed + 1000, progress=False).scores, {}


def _baseline(method, sets, train_returns, transitions, options, seed) -> tuple[np.ndarray, dict]:
    if method == "NearestPolicy":
        estimator = NearestPolicy(sets[0], train_returns)
    else:
        estimator = {
            "FQE": FQE(),
            "BehaviourQ": BehaviourQ(),
            "ModelBased": ModelBased(),
            "DualDICE": DualDICE(),
            "ImportanceWeighting": ImportanceWeighting(clip=(-6.0, 2.0)),
        }[method]
        estimator = replace(estimator, updates=options.updates)
    found = estimator.estimate(sets[2], transitions, discount=options.discount, seed=seed, progress=options.progress)
    kept = ("effective_sample_size", "mass", "state_error", "reward_error", "guarded", "horizon", "held_out_log_prob")
    more = {"updates": options.updates} if method != "NearestPolicy" else {}
    more |= {key: value for key, value in found.to_dict()["diagnostics"].items() if key in kept}
    curve = found.diagnostics.get("curve", {})
    if "values" in curve:
        agreement = [spearman(values, found.values) for values in curve["values"]]
        more["curve"] = {"seconds": curve["seconds"], "updates": curve["updates"], "spearman_to_final": agreement}
        more["converged"] = converged(curve["seconds"], agreement)
    more["timings"] = found.timings
    more["peak_gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return found.values, more


def converged(seconds: list[float], agreement: list[float], enough: float = 0.95) -> float:
    """Seconds from which on the order stays within a Spearman of `enough` of the final one."""
    late = [i for i, value in enumerate(agreement) if not value >= enough]
    return seconds[min(late[-1] + 1, len(seconds) - 1)] if late else seconds[0]


def table(runs: list[dict]) -> str:
    lines = [
        "| | Spearman | worst | Kendall | regret@1 | regret@3 | seconds | to a settled order |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for method, label in LABELS.items():
        mine = [run for run in runs if run["method"] == method]
        if mine:
            values = {
                key: np.array([run[key] for run in mine]) for key in ("spearman", "kendall", "regret@1", "regret@3")
            }
            numbers = [
                values["spearman"].mean(),
                values["spearman"].min(),
                *(values[k].mean() for k in list(values)[1:]),
            ]
            seconds = np.median([run["seconds"] for run in mine])
            settled = [run["converged"] for run in mine if "converged" in run]
            settled = f"{np.median(settled):.0f}" if settled else ""
            lines.append(f"| {label} | " + " | ".join(f"{x:.3f}" for x in numbers) + f" | {seconds:.0f} | {settled} |")
    return "\n".join(lines)


def _plot(runs: list[dict], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    methods = [method for method in LABELS if any(run["method"] == method for run in runs)][::-1]
    for place, method in enumerate(methods):
        mine = [run for run in runs if run["method"] == method]
        left.plot([run["spearman"] for run in mine], [place] * len(mine), "o", alpha=0.6)
        right.plot([run["seconds"] for run in mine], [place] * len(mine), "o", alpha=0.6)
    left.set_yticks(range(len(methods)), [LABELS[method] for method in methods])
    left.set(xlabel="Spearman, 10 unseen policies", xlim=(None, 1.02))
    right.set(xlabel="seconds", xscale="log")
    for ax in (left, right):
        ax.grid(alpha=0.3)
    figure.savefig(path, dpi=130)


def _write(path: Path, results: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(results, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with policies.npz, returns.csv, replay.hdf5")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--methods", nargs="*", choices=list(LABELS), default=list(LABELS))
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--updates", type=int, default=20000, help="of every baseline's networks")
    parser.add_argument("--subset-size", type=int, default=4096)
    parser.add_argument("--clusters", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--progress", action="store_true", help="show bars")
    return parser.parse_args()


if __name__ == "__main__":
    main()
