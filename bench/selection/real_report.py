"""What the panels on real policies are worth, computed from the files of `real_sets`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from sopr_fast.ranking.metrics import regret_at_k, spearman
from sopr_fast.selection.blend import Recipe, ranks
from sopr_fast.selection.columns import Columns
from sopr_fast.selection.metrics import gap_accuracy
from sopr_fast.selection.panel import Panel
from sopr_fast.selection.predict import predict
from sopr_fast.selection.selecting import assemble

from . import recipes
from .real_sets import Scenario, make_folds, scenarios
from .real_tables import (
    BLEND,
    FOREIGN,
    KNOWN_ALONE,
    LABELS,
    NEW,
    OFFLINE,
    REWARDS_ALONE,
    UNIFORM,
    UNSEEN,
    VARIANTS,
    Case,
    ablation,
    all_targets,
    intervals,
    known_families,
    measuring,
    ordering,
    plot,
    variants,
)
from .real_trust import trust
from .studies import (
    MEASUREMENTS,
    measured_returns,
    predicted_row,
    process_measured,
    regrets,
    thompson_returns,
)


def report(out: Path, splits: int = 6) -> None:
    """Write results.json, tables.md and plots beside the columns."""
    cases = [case for folder in sorted(out.glob("*/policies.json")) for case in _cases(folder.parent, splits)]
    if not cases:
        raise SystemExit(f"{out} holds no columns; run the stage columns first")
    (out / "results.json").write_text(json.dumps(cases, indent=1))
    parts = [part(cases) for part in (all_targets, ordering, known_families, ablation, variants)]
    parts += [recipes.rotations(cases, (UNSEEN, FOREIGN, NEW)), recipes.every(cases, (UNSEEN, FOREIGN, NEW))]
    parts += [part(cases) for part in (intervals, trust, measuring)]
    text = "\n\n".join(part for part in parts if part)
    (out / "tables.md").write_text(text + "\n")
    plot(cases, out)
    print(text)


def _cases(folder: Path, splits: int) -> list[Case]:
    described = json.loads((folder / "policies.json").read_text())
    families = np.array(described["families"])
    cases = []
    for scenario in scenarios(families, splits):
        part = folder / scenario.name.replace(" ", "-")
        if not part.exists():
            continue
        whole, variants = _panel(folder, described, scenario)
        if not set(LABELS.values()) <= set(whole.methods) | set(whole.dropped):
            continue  # not all columns are done
        own = families[scenario.order]
        known = np.arange(len(scenario.known))
        alone = set(own[known]) == {"sac"}
        foreign = ["trpo", "ars", "dope"]
        kinds = {UNSEEN: ["sac"], FOREIGN if alone else NEW: foreign, OFFLINE: ["offline"]}
        for kind, members in kinds.items():
            chosen = np.flatnonzero(np.isin(own, members))
            chosen = chosen[chosen >= len(known)]
            if len(chosen) < 4 or (kind == OFFLINE and not alone):
                continue
            rows = np.concatenate([known, chosen])
            place = scenario.order[chosen]
            truth, errors = np.array(described["returns"])[place], np.array(described["errors"])[place]
            labels = {"set": described["name"], "game": described["game"], "scenario": scenario.name, "kind": kind}
            alone_there = {name: values[chosen] for name, values in variants.items()}
            cases.append(labels | _case(whole.take(rows), truth, errors, kind, alone_there))
    return cases


def _panel(folder: Path, described: dict[str, Any], scenario: Scenario) -> tuple[Panel, dict[str, np.ndarray]]:
    """Return the panel of known policies and all others, as `select` would assemble it, and columns of variants."""
    order, count = scenario.order, len(scenario.known)
    distances = np.array(described["distances"])
    folds, groups = make_folds(described["policies"], distances, scenario)
    columns = Columns(folds)
    for name, label in LABELS.items():
        paths = folder / scenario.name.replace(" ", "-") / f"{name}.json", folder / "all" / f"{name}.json"
        for path in paths:
            if not path.exists():
                continue
            stored = json.loads(path.read_text())
            if path.parent.name == "all":
                values = np.array(stored["values"][0])[order]
                columns.values[label] = [values[fold.test] for fold in folds]
                errors = np.array([np.nan if error is None else error for error in stored["errors"]])
                columns.errors[label] = errors[order]
            else:
                columns.supervised.add(label)
                columns.values[label] = [np.array(values) for values in stored["values"]]
            columns.seconds[label] = stored["seconds"]
    names = [described["policies"][i] for i in order]
    returns = np.array(described["returns"])[order]
    returns[count:] = np.nan
    errors = np.array(described["errors"])[order][:count]
    variants = {}
    for name, label in VARIANTS.items():
        path = folder / "all" / f"{name}.json"
        if path.exists():
            variants[label] = np.array(json.loads(path.read_text())["values"][0])[order]
    panel = assemble(
        names, returns, errors, groups + [""] * len(scenario.others), columns, distances[np.ix_(order, order)]
    )
    return panel, variants


def _case(panel: Panel, truth: np.ndarray, errors: np.ndarray, kind: str, variants: dict[str, np.ndarray]) -> Case:
    candidates = ~panel.known
    scores = variants | {method: values[candidates] for method, values in panel.grouped_columns.items()}
    table_of_ranks = ranks(np.array([panel.grouped_columns[method] for method in panel.methods]).T)
    scores[UNIFORM] = table_of_ranks[candidates].mean(1)
    prediction = predict(panel)
    scores[BLEND] = prediction.posterior.mean[candidates]
    for method in panel.methods:
        scores[f"{BLEND} without {method}"] = _without(panel, {method})
    scores[KNOWN_ALONE] = _without(panel, set(panel.methods) - panel.supervised)
    scores[REWARDS_ALONE] = _without(panel, panel.supervised)
    scores |= recipes.orders(panel) | recipes.inside(panel)
    case: Case = {
        "candidates": int(candidates.sum()),
        "methods": list(panel.methods),
        "seconds": panel.seconds,
        "weights": dict(zip(prediction.weights.methods, prediction.weights.outside.tolist(), strict=True)),
        "gate": float(prediction.placement.gate[candidates].mean()),
        "orders": {name: _measures(truth, each, errors) for name, each in scores.items()},
        "evidence": predicted_row(panel, truth),
    }
    if kind in (FOREIGN, NEW):
        case["measuring"] = _measuring(panel, truth, scores)
    return case


def _without(panel: Panel, methods: set[str]) -> np.ndarray:
    """Return the predictions of the candidates without some columns."""
    rest, grouped = (
        {name: values for name, values in columns.items() if name not in methods}
        for columns in (panel.columns, panel.grouped_columns)
    )
    smaller = Panel.build(
        panel.names, panel.returns, rest, grouped_columns=grouped, groups=panel.groups,
        return_errors=panel.return_errors, distances=panel.distances, supervised=panel.supervised - methods,
    )  # fmt: skip
    return predict(smaller).posterior.mean[~panel.known]


def _measures(truth: np.ndarray, scores: np.ndarray, errors: np.ndarray) -> dict[str, float]:
    return {
        "rho": float(np.nan_to_num(spearman(scores, truth))),
        "gap": gap_accuracy(truth, scores, errors),
        "regret@1": regret_at_k(returns=truth, scores=scores, k=1),
        "regret@3": regret_at_k(returns=truth, scores=scores, k=3),
    }


def _measuring(panel: Panel, truth: np.ndarray, scores: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    by_name = dict(zip(np.array(panel.names)[~panel.known], truth.tolist(), strict=True))
    first = predict(panel)
    thompson = [regrets(thompson_returns(first, by_name, seed), False) for seed in range(5)]
    return {
        "random picks": regrets(truth, True),
        "order of the uniform panel": regrets(truth[np.argsort(-scores[UNIFORM], kind="stable")], False),
        "order of the predictions": regrets(truth[np.argsort(-scores[BLEND], kind="stable")], False),
        "measure_next, Gaussian process on actions alone": regrets(process_measured(panel, by_name), False),
        "Thompson sampling (mean of five seeds)": {
            count: float(np.mean([each[count] for each in thompson])) for count in map(str, MEASUREMENTS)
        },
        "measure_next, equal weights with one group": regrets(
            measured_returns(predict(panel, recipe=Recipe(lone=1)), by_name), False
        ),
        "measure_next": regrets(measured_returns(first, by_name), False),
    }
