"""Draw the figures of the pages from what the package computes, each time the site is built."""

from __future__ import annotations

import io
import itertools
import runpy
import tempfile
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from mkdocs.structure.files import File

import sopr_fast
from sopr_fast import estimators, example
from sopr_fast.results.metrics import policy_distances
from sopr_fast.sopr.subsets import Subsets

CONFIG = sopr_fast.Config.small(subsets=60, steps=60)
SMALL = {"updates": 300, "hidden": (32, 32), "learning_rate": 3e-3}


def on_files(files: Any, config: Any) -> Any:
    """Add the figures to the files of the site."""
    with warnings.catch_warnings(action="ignore"), matplotlib.rc_context({"svg.hashsalt": "sopr_fast", "font.size": 9}):
        for name, result in {**of_the_example(), **of_a_selection()}.items():
            if isinstance(result, str):
                files.append(File.generated(config, f"reports/{name}.html", content=result))
                continue
            drawn = io.BytesIO()
            result.savefig(drawn, format="svg", metadata={"Date": None})
            files.append(File.generated(config, f"figures/{name}.svg", content=drawn.getvalue()))
    return files


def of_the_example() -> dict[str, Figure]:
    """Draw what happens when SOPR-T ranks the embedded policies."""
    policies, returns, states = example.policies(), example.returns(), example.states()
    names = list(policies)
    known, held_out, candidates = (
        {name: policies[name] for name in part} for part in (names[::2], names[3::10], names[1::10])
    )
    true = dict(zip(names, returns, strict=True))
    ranker = sopr_fast.fit(known, states, true, validation=(held_out, true), config=CONFIG)
    ranking = ranker.rank(candidates, states, subsets=20)
    return {
        "clusters": clusters(Subsets.draw(states, 1, size=512, clusters=16)),
        "training": training(ranker.history),
        "subset-scores": subset_scores(ranking),
        "distances": distances(policies, returns, states),
    }


def of_a_selection() -> dict[str, Figure | str]:
    """Draw the results of estimators, `evaluate` and `select` on the problem of the tutorials; make their reports."""
    reach = runpy.run_path(str(Path(__file__).parents[1] / "tutorials" / "reach.py"))
    pull, log = reach["pull"], reach["log"](reach["pull"](0.2), episodes=60)
    known = {f"brake-{s}": pull(s) for s in (0.02, 0.06, 0.12, 0.25, 0.5, 1.0)}
    known |= {f"free-{s}": pull(s, damping=0.0) for s in (0.01, 0.03, 0.05, 0.1, 0.2, 0.3)}
    returns = {name: reach["measure"](policy) for name, policy in known.items()}
    groups = {name: name.split("-")[0] for name in known}
    candidates = {"weak": pull(0.04), "medium": pull(0.15), "strong": pull(0.7), "away": pull(-0.05)}
    methods = {
        "NearestPolicy": estimators.NearestPolicy(),
        "BehaviourQ": estimators.BehaviourQ(**SMALL),
        "FQE": estimators.FQE(**SMALL, target_rate=0.02),
    }
    simulator = estimators.Simulator(updates=500, hidden=(32, 32))
    methods["GaussianProcess(Simulator)"] = estimators.GaussianProcess(mean=simulator)
    evaluation = sopr_fast.evaluate(known, log, returns, methods=methods, groups=groups)
    selection = sopr_fast.select(known | candidates, log, returns, incumbent="brake-0.25", simulator=simulator)
    return {
        "evaluation": evaluation.plot().figure,
        "selection": selection.plot().figure,
        "of-an-evaluation": report(evaluation),
        "of-a-selection": report(selection),
    }


def report(result: Any) -> str:
    """Return the report of a result, an HTML page."""
    with tempfile.TemporaryDirectory() as folder:
        sopr_fast.report(result, Path(folder, "report.html"))
        return Path(folder, "report.html").read_text(encoding="utf-8")


def clusters(subsets: Any) -> Figure:
    """Plot a clustered subset on the first two principal components of its states."""
    states = subsets.states.double()
    centred = states - states.mean(0)
    axes = torch.linalg.svd(centred, full_matrices=False).Vh[:2]
    offsets = subsets.offsets[0].tolist()
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    plot = figure.add_subplot()
    parts = [centred[subsets.rows[0, begin:end].long()] for begin, end in itertools.pairwise(offsets)]
    for part in parts:
        plot.scatter(*axes @ part.T, s=8)
    plot.scatter(*axes @ torch.stack([part.mean(0) for part in parts]).T, marker="x", color="black", label="centroids")
    plot.set(xlabel="first principal component", ylabel="second principal component")
    plot.legend()
    return figure


def training(history: dict[str, Any]) -> Figure:
    """Plot the loss and the rank correlation on validation policies over the steps."""
    figure = Figure(figsize=(6.4, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(history["loss"])
    left.set(xlabel="step", ylabel="pairwise loss")
    right.plot(history["validation_rank_correlation"])
    right.axvline(history["best_step"], color="black", linestyle="dotted", label="weights that are kept")
    right.set(xlabel="step", ylabel="rank correlation")
    right.legend()
    return figure


def subset_scores(ranking: Any) -> Figure:
    """Plot each candidate's scores on all subsets."""
    figure = Figure(figsize=(6.4, 2.6), layout="constrained")
    plot = figure.add_subplot()
    for place, name in enumerate(reversed(ranking.order)):
        scores = ranking.subset_scores[ranking.names.index(name)]
        plot.scatter(scores, np.full(len(scores), place), s=12, alpha=0.5)
    plot.set_yticks(range(len(ranking)), ranking.order[::-1])
    plot.set_xlabel("score, one dot a subset")
    return figure


def distances(policies: dict[str, Any], returns: np.ndarray, states: np.ndarray) -> Figure:
    """Plot the action distance of every two policies, ordered by return."""
    sample = torch.from_numpy(states[::16])
    columns = np.stack([policy.act(sample).numpy() for policy in policies.values()])[np.argsort(returns)]
    figure = Figure(figsize=(4.8, 4), layout="constrained")
    plot = figure.add_subplot()
    image = plot.imshow(policy_distances(columns, columns), cmap="viridis")
    plot.set(xlabel="policies by return, the best last", ylabel="policies by return")
    figure.colorbar(image, label="action distance")
    return figure
