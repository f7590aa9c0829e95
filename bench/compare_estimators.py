"""Rank correlation and cost of SOPR-T, SOPR-MLP and the other estimators on unseen policies.

Run i gives every method seed i and the same training, validation and test policies. `--test` chooses the test policies:

- "random" splits the 50 snapshots into 30, 10 and 10 as bench/quality.py does.
- "first" and "last" test the first or last ten snapshots of the run, unlike or better than all training policies.
- "paper" tests both of the paper's test sets at once, with the training and validation policies of split.json
  (bench.paper) and the log of `--log`.

`sopr_fast.evaluate` judges the methods. SOPR and NearestPolicy learn from the returns of the training policies, the
others from logged rewards.

    python bench/compare_estimators.py --data FOLDER --out out/estimators.json
    python bench/compare_estimators.py --data FOLDER --out out/first.json --test first \\
        --methods SOPR-T BehaviourQ
    python bench/compare_estimators.py --data out/paper/small/* --out out/paper.json --test paper --log full-replay

Writes the file after every run, with a Markdown table (.md) and a plot (.png) beside it, and keeps finished methods of
a run in a folder beside it until then. Resumes from both.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fitted import Fitted, Recorded
from paper.games import LOGS
from paper.scores import MEASURES, offline_policies, snapshots
from workload import log_of, peak_megabytes, read_set

import sopr_fast
from sopr_fast.estimators import FQE, BehaviourQ, DualDICE, Estimates, ImportanceWeighting, NearestPolicy, Simulator
from sopr_fast.inputs.logs import Transitions, load
from sopr_fast.ranking.metrics import spearman
from sopr_fast.runtime.files import atomic_path
from sopr_fast.sopr.config import Config

LABELS = {
    "SOPR-T": "SOPR-T",
    "SOPR-MLP": "SOPR-MLP",
    "NearestPolicy": "return of the nearest policy",
    "BehaviourQ": "mean of a SARSA critic",
    "FQE": "FQE",
    "Simulator": "model-based",
    "ImportanceWeighting": "importance weighting",
    "DualDICE": "DualDICE",
}


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    settings = {key: getattr(options, key) for key in ("test", "discount", "subset_size", "clusters", "steps")}
    if options.test == "paper":
        settings["log"] = options.log
    results = json.loads(options.out.read_text()) if options.out.exists() else {"settings": settings, "runs": []}
    if results["settings"] != settings:
        raise SystemExit(f"{options.out} holds runs with other options: choose another --out")
    for run in results["runs"]:
        if run["method"] in options.methods and run.get("updates", options.updates) != options.updates:
            raise SystemExit(
                f"{options.out} holds runs of {run['method']} with --updates {run['updates']}: choose another --out"
            )
    done = {(run["data"], run["run"], run["method"]) for run in results["runs"]}
    for folder in options.data:
        missing = {
            i: [method for method in options.methods if (folder.name, i, method) not in done]
            for i in range(options.runs)
        }
        if not any(missing.values()):
            continue
        split_of = read_splits(folder, options.test, options.log)
        log = load(folder / "logs" / f"{options.log}.hdf5" if options.test == "paper" else log_of(folder))
        for i, methods in missing.items():
            if methods:
                part = options.out.with_suffix("") / f"{folder.name}-{i}"
                for run in measure(methods, split_of(i), log, options, i, part):
                    results["runs"].append({"data": folder.name, "run": i, **run})
                    print(f"{folder.name}, run {i}, {_line(run)}", flush=True)
                _write(options.out, results)
                shutil.rmtree(part)
    print(table(results["runs"]))
    options.out.with_suffix(".md").write_text(table(results["runs"]) + "\n")
    _plot(results["runs"], options.out.with_suffix(".png"))


class Split(NamedTuple):
    """Policies of a run, their returns, and the slices of the test policies by test set."""

    train: dict
    validation: dict
    test: dict
    train_returns: np.ndarray
    validation_returns: np.ndarray
    test_returns: np.ndarray
    sets: dict[str, slice]


def read_splits(folder: Path, test: str, log: str) -> Callable[[int], Split]:
    """Return a function from the number of a run to its policies.

    Args:
        folder: Folder of the game.
        test: Value of `--test`.
        log: Name of the log that Test Set I belongs to.

    Returns:
        The function.
    """
    if test != "paper":
        policies, returns, _ = read_set(folder)
        return lambda run: _chosen(policies, returns, divide(len(policies), test, run), test)
    online, (first, first_returns) = snapshots(folder), offline_policies(folder, log)
    (train, train_returns), (validation, validation_returns), (second, second_returns) = online.values()
    split = Split(
        train,
        validation,
        first | second,
        train_returns,
        validation_returns,
        np.append(first_returns, second_returns),
        {"I": slice(len(first)), "II": slice(len(first), None)},
    )
    return lambda run: split


def _chosen(policies: dict, returns: np.ndarray, parts: Sequence[Sequence[int]], test: str) -> Split:
    names = list(policies)
    chosen = ({names[i]: policies[names[i]] for i in part} for part in parts)
    return Split(*chosen, *(returns[part] for part in parts), sets={test: slice(None)})


def divide(count: int, test: str, run: int) -> list[np.ndarray]:
    """Return the positions of 30 training, 10 validation and 10 test policies.

    Args:
        count: Number of policies.
        test: "random", "first" or "last".
        run: Number of the run, the seed of the split.

    Returns:
        Three arrays.
    """
    random = np.random.default_rng(run)
    if test == "random":
        return np.split(random.permutation(count), [30, 40])
    tested = np.arange(10) if test == "first" else np.arange(count - 10, count)
    return [*np.split(random.permutation(np.setdiff1d(np.arange(count), tested)), [30]), tested]


def measure(
    methods: Sequence[str], split: Split, log: Transitions, options: Any, seed: int, folder: Path
) -> list[dict]:
    """Return a run of each method.

    Args:
        methods: Labels.
        split: Policies of the run.
        log: The log.
        options: Options of the command.
        seed: Seed of all methods.
        folder: Folder of columns of this run, to resume from.
    """
    recorded = {label: Recorded(method) for label, method in _methods(methods, split, options).items()}
    evaluation = sopr_fast.evaluate(
        split.train | split.test,
        np.append(split.train_returns, split.test_returns),
        log,
        methods=recorded,
        folds={name: (list(split.train), list(split.test)[part]) for name, part in split.sets.items()},
        discount=options.discount,
        seed=seed,
        rows=len(log),
        checkpoints=folder,
        progress=options.progress,
    )
    runs: list[dict] = [{"method": label, "dropped": reason} for label, reason in evaluation.dropped.items()]
    measures = {fold.name: evaluation.measures(fold=fold.name) for fold in evaluation.folds}
    for label, values in evaluation.values.items():
        judged: dict[str, dict] = {}
        for fold, scores in zip(evaluation.folds, values, strict=True):
            judged[fold.name] = {name: measures[fold.name][label][name][0] for name in MEASURES}
            judged[fold.name] |= {"scores": scores.tolist(), "returns": evaluation.returns[fold.test].tolist()}
        details = _details(recorded[label].last)
        for name, part in split.sets.items() if "curve" in details else ():
            judged[name]["converged"] = _converged(details["curve"], recorded[label].last.values, part)
        seconds = evaluation.seconds[label]
        updates = {} if label in ("SOPR-T", "SOPR-MLP", "NearestPolicy") else {"updates": options.updates}
        runs.append({"method": label, "seconds": seconds, "judged": judged, **updates, **details})
    return runs


def _methods(labels: Sequence[str], split: Split, options: Any) -> dict[str, Any]:
    """Return methods by label."""
    config = Config(
        subset_size=options.subset_size, clusters=options.clusters, subsets=options.steps, steps=options.steps
    )
    sopr, updates = Fitted(config, (split.validation, split.validation_returns)), {"updates": options.updates}

    methods = {
        "SOPR-T": sopr,
        "SOPR-MLP": replace(sopr, config=replace(config, encoder="mlp"), rankers={}),
        "NearestPolicy": NearestPolicy(),
        "BehaviourQ": BehaviourQ(**updates),
        "FQE": FQE(**updates),
        "Simulator": Simulator(**updates),
        "DualDICE": DualDICE(**updates),
        "ImportanceWeighting": ImportanceWeighting(clip=(-6.0, 2.0), **updates),
    }
    return {label: methods[label] for label in labels}


def _details(estimates: Estimates | None) -> dict[str, Any]:
    """Return what a run keeps of the estimates; of those that a file held, nothing."""
    if estimates is None:
        return {}
    kept = ("effective_sample_size", "mass", "state_error", "reward_error", "guarded", "horizon", "held_out_log_prob")
    kept += ("distances", "distance_limit")
    details = {key: value for key, value in estimates.to_dict()["diagnostics"].items() if key in kept}
    curve = estimates.diagnostics.get("curve", {})
    if "values" in curve:
        details["curve"] = {key: np.asarray(curve[key]).tolist() for key in ("seconds", "updates", "values")}
    return details | {"timings": estimates.timings, "peak_megabytes": peak_megabytes()}


def _line(run: dict) -> str:
    if "dropped" in run:
        return f"{run['method']} was dropped: {run['dropped']}"
    agreement = ", ".join(f"{name} {measured['spearman']:.3f}" for name, measured in run["judged"].items())
    return f"{run['method']}: Spearman {agreement}; {run['seconds']:.0f} s"


def _converged(curve: dict, final: np.ndarray, part: slice, agreement: float = 0.95) -> float:
    """Return the seconds after which the order keeps a Spearman of at least `agreement` with the final one."""
    late = [i for i, values in enumerate(curve["values"]) if not spearman(values[part], final[part]) >= agreement]
    return curve["seconds"][min(late[-1] + 1, len(curve["seconds"]) - 1) if late else 0]


def table(runs: list[dict]) -> str:
    """Format a table per test set, with the Spearman of each folder where there are several."""
    folders = sorted({run["data"] for run in runs})
    folders = folders if len(folders) > 1 else []
    runs = [run for run in runs if "judged" in run]
    blocks = []
    for name in runs[0]["judged"]:
        measures = ["Spearman", *folders, "worst", "Kendall", "regret@1", "regret@3"]
        lines = [[name, "runs", "updates", *measures, "seconds", "to a settled order"]]
        lines.append(["---"] * len(lines[0]))
        for method, label in LABELS.items():
            own = [run for run in runs if run["method"] == method]
            if not own:
                continue
            judged = [run["judged"][name] for run in own]
            values = {key: np.array([measured[key] for measured in judged]) for key in MEASURES}
            orders = values["spearman"]
            by_folder = [orders[[run["data"] == folder for run in own]] for folder in folders]
            means = [orders, *by_folder, orders.min(keepdims=True), *list(values.values())[1:]]
            lines.append(
                [
                    label,
                    f"{len(own)}",
                    f"{own[0]['updates']:,}" if "updates" in own[0] else "",
                    *(f"{each.mean():.3f}" if len(each) else "" for each in means),
                    _median_seconds([run["seconds"] for run in own]),
                    _median_seconds([measured["converged"] for measured in judged if "converged" in measured]),
                ]
            )
        blocks.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    return "\n\n".join(blocks)


def _median_seconds(seconds: list[float]) -> str:
    return f"{np.median(seconds):.0f}" if seconds else ""


def _plot(runs: list[dict], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    runs = [run for run in runs if "judged" in run]
    names = list(runs[0]["judged"])
    figure = Figure(figsize=(5.2 + 3.4 * len(names), 3.6), layout="constrained")
    *panels, right = figure.subplots(1, len(names) + 1, sharey=True)
    methods = [method for method in LABELS if any(run["method"] == method for run in runs)][::-1]
    folders = sorted({run["data"] for run in runs})
    for place, method in enumerate(methods):
        for run in (run for run in runs if run["method"] == method):
            color = f"C{folders.index(run['data'])}"
            for ax, name in zip(panels, names, strict=True):
                ax.plot(run["judged"][name]["spearman"], place, "o", color=color, alpha=0.6)
            right.plot(run["seconds"], place, "o", color=color, alpha=0.6)
    panels[0].set_yticks(range(len(methods)), [LABELS[method] for method in methods])
    for ax, name in zip(panels, names, strict=True):
        ax.set_xlabel(f"Spearman, Test Set {name}" if len(names) > 1 else "Spearman, unseen policies")
        ax.set_xlim(None, 1.02)
    right.set(xlabel="seconds", xscale="log")
    if len(folders) > 1:
        for i, folder in enumerate(folders):
            right.plot([], [], "o", color=f"C{i}", label=folder)
        figure.legend(loc="outside upper center", ncols=len(folders))
    for ax in (*panels, right):
        ax.grid(alpha=0.3)
    figure.savefig(path, dpi=130)


def _write(path: Path, results: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(results, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders made by bench.paper")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    tests = ("random", "first", "last", "paper")
    parser.add_argument("--test", choices=tests, default="random", help="which policies are unseen")
    parser.add_argument("--log", choices=LOGS, default="full-replay", help="log of --test paper")
    methods = list(LABELS)
    parser.add_argument("--methods", nargs="*", choices=methods, default=methods)
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--updates", type=int, default=20000, help="updates of every other estimator's networks")
    parser.add_argument("--subset-size", type=int, default=4096)
    parser.add_argument("--clusters", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--progress", action="store_true", help="show progress bars")
    return parser.parse_args()


if __name__ == "__main__":
    main()
