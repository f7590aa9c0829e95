"""Studies on public scores: each returns rows of plain numbers for one task."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from unittest import mock

import numpy as np

from sopr_fast.ranking.metrics import regret_at_k, spearman
from sopr_fast.selection import posterior as posterior_module
from sopr_fast.selection.blend import Recipe
from sopr_fast.selection.groups import place
from sopr_fast.selection.intervals import conformal_quantile
from sopr_fast.selection.measure import draw_returns, measure_next
from sopr_fast.selection.metrics import gap_accuracy
from sopr_fast.selection.panel import Panel
from sopr_fast.selection.posterior import Design, fit_posterior
from sopr_fast.selection.predict import Prediction, predict
from sopr_fast.selection.verdict import judge

from .contenders import best_of, contenders
from .scores import Task

Row = dict[str, object]
MEASUREMENTS = (0, 1, 2, 3, 5)
NORMAL_80 = 1.2815515655446004
SPLITS = 10


def left_out_algorithms(task: Task, left_out: int = 1) -> Iterator[tuple[str, tuple[str, ...], np.ndarray, np.ndarray]]:
    """Yield every choice of algorithms as candidates and of others as known policies.

    Yields:
        Candidates' algorithms, known algorithms, indices of known policies, indices of candidates.
    """
    algorithms = sorted(set(task.algorithms))
    for asked in itertools.combinations(algorithms, left_out):
        others = [name for name in algorithms if name not in asked]
        for count in range(1, len(others) + 1):
            for known in itertools.combinations(others, count):
                yield (
                    " + ".join(asked),
                    known,
                    np.flatnonzero(np.isin(task.algorithms, known)),
                    np.flatnonzero(np.isin(task.algorithms, asked)),
                )


def random_splits(task: Task) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield seeds, known policies and candidates of random halves."""
    count = len(task.returns)
    for seed in range(SPLITS):
        order = np.random.default_rng(seed).permutation(count)
        yield seed, np.sort(order[: count // 2]), np.sort(order[count // 2 :])


def ordering(task: Task) -> list[Row]:
    """Order a new algorithm, and a random half, by every contender."""
    rows: list[Row] = []
    ways = contenders(task.estimators)
    cases = [(f"{len(known)} known", k, c) for _, known, k, c in left_out_algorithms(task)]
    cases += [("random", k, c) for _, k, c in random_splits(task)]
    for kind, known, candidates in cases:
        panel, returns = task.panel(known, candidates), task.returns[candidates]
        row: Row = {"kind": kind, "best single column, chosen with hindsight": best_of(panel, returns, _rho)}
        rows.append(row | {name: _rho(way(panel), returns) for name, way in ways.items()})
    return rows


def prediction(task: Task) -> list[Row]:
    """Predict a new algorithm, and a random half, with intervals, evidence and verdict."""
    rows: list[Row] = []
    for asked, known, k, c in left_out_algorithms(task):
        variants = [("", None)] if len(known) > 1 else [("", None), (", runs as groups", task.runs)]
        for suffix, groups in variants:
            panel = task.panel(k, c, groups)
            rows.append({"kind": f"{len(known)} known{suffix}", "asked": asked} | predicted_row(panel, task.returns[c]))
    for seed, k, c in random_splits(task):
        for claims, kind in ((True, "random"), (False, "random, one group")):
            groups = task.algorithms if claims else np.full(len(task.returns), "all")
            rows.append({"kind": kind, "asked": seed} | predicted_row(task.panel(k, c, groups), task.returns[c]))
    return rows


def priors(task: Task) -> list[Row]:
    """Measure coverage for a new algorithm under several priors of the variance of group offsets."""
    rows: list[Row] = []
    for median in (0.1, 0.3, 1.0, 3.0):
        with mock.patch.dict(posterior_module._PRIOR, {"offset": (median, 1.0)}):
            for _, known, k, c in left_out_algorithms(task):
                if len(known) > 1:
                    row = predicted_row(task.panel(k, c), task.returns[c], verdict=False)
                    rows.append({"kind": f"{len(known)} known", "offset": median} | row)
    return rows


def measuring(task: Task) -> list[Row]:
    """Measure regret after candidates of one or two new algorithms were measured one by one."""
    rows: list[Row] = []
    for left_out in (1, 2):
        for asked, known, k, c in left_out_algorithms(task, left_out):
            if len(known) != len(set(task.algorithms)) - left_out:
                continue
            panel, truth = task.panel(k, c), dict(zip(task.policies, task.returns, strict=True))
            first = predict(panel)
            orders = {
                "random picks": None,
                "order of the uniform mean": _order(c, contenders(task.estimators)["uniform mean of all"](panel)),
                "order of the predictions": _order(c, _mean(first)),
            }
            batch = [panel.names.index(name) - len(k) for name in measure_next(first, len(c))]
            orders["expected improvement, one batch"] = c[batch]
            for name, order in orders.items():
                values = task.returns[c] if order is None else task.returns[order]
                rows.append({"kind": f"{left_out} new", "asked": asked, "way": name} | regrets(values, order is None))
            ways = {"expected improvement, this posterior": measured_returns(first, truth)}
            if task.distances is not None:
                ways["expected improvement, Gaussian process on actions alone"] = process_measured(panel, truth)
                blind = Panel.build(panel.names, panel.returns, panel.columns, groups=panel.groups)
                ways["expected improvement, this posterior without distances"] = measured_returns(predict(blind), truth)
            for name, values in ways.items():
                rows.append({"kind": f"{left_out} new", "asked": asked, "way": name} | regrets(values, False))
    return rows


def distances(task: Task) -> list[Row]:
    """Order candidates by action distance, by a Gaussian process on actions, and by the panel under several gates."""
    cases = [("random", k, c) for _, k, c in random_splits(task)]
    algorithms = sorted(set(task.algorithms))
    for asked in algorithms:
        c = np.flatnonzero(task.algorithms == asked)
        cases.append(("one algorithm left out", np.flatnonzero(task.algorithms != asked), c))
        cases += [
            ("from one algorithm to another", np.flatnonzero(task.algorithms == other), c)
            for other in algorithms
            if other != asked
        ]
    rows: list[Row] = []
    for kind, k, c in cases:
        panel, returns = task.panel(k, c, claims=False), task.returns[c]
        placement = place(panel)
        full = predict(panel)
        blind = Panel.build(panel.names, panel.returns, panel.columns, groups=panel.groups)
        inside = Panel.build(panel.names, panel.returns, panel.columns, groups=["all"] * len(panel))
        closest = k[task.distances[np.ix_(c, k)].argmin(1)]
        rows.append(
            {
                "kind": kind,
                "root distance to the nearest over the median": float(placement.nearest[~panel.known].mean()),
                "gate": float(placement.gate[~panel.known].mean()),
                "nearest policy": _rho(task.returns[closest], returns),
                "Gaussian process on actions": _rho(process_scores(panel), returns),
                "panel, gate by distance, local term": _rho(_mean(full), returns),
                "panel, gate open, no local term": _rho(_mean(predict(blind)), returns),
                "panel, gate closed, no local term": _rho(_mean(predict(inside)), returns),
            }
        )
    return rows


def snapshots(task: Task) -> list[Row]:
    """Order unseen snapshots of one run (D4RL): six known, five candidates."""
    rows: list[Row] = []
    for seed in range(SPLITS):
        order = np.random.default_rng(seed).permutation(len(task.returns))
        k, c = order[:6], order[6:]
        panel, returns = task.panel(k, c), task.returns[c]
        ways = contenders(task.estimators)
        names = [*task.estimators, "uniform mean of all", "pooled^4", "ridge on ranks"]
        row: Row = {"kind": "snapshots"} | {name: _rho(ways[name](panel), returns) for name in names}
        rows.append(row | {"this posterior": _rho(_mean(predict(panel)), returns)} | _coverage(predict(panel), returns))
    return rows


def predicted_row(panel: Panel, returns: np.ndarray, verdict: bool = True) -> Row:
    result = predict(panel, recipe=Recipe())
    mean = _mean(result)
    row: Row = {
        "rho": _rho(mean, returns),
        "gap": gap_accuracy(returns, mean),
        "regret@1": regret_at_k(returns=returns, scores=mean, k=1),
        "regret@3": regret_at_k(returns=returns, scores=mean, k=3),
    } | _coverage(result, returns)
    if verdict:
        said = judge(result)
        row |= {"verdict": said.kind, "trust": said.trust, "expected regret": said.expected_regret}
        row["probability of a small regret"] = said.sure
        row |= {"success": said.success, "agreement": said.agreement, "probability of best": said.probability_best}
        row["inside correlation"] = result.inside
        choices = [i for i, name in enumerate(panel.names) if name in said.policies]
        chosen = returns[np.array(choices, dtype=int) - int(panel.known.sum())]
        row["regret of the verdict"] = (returns.max() - chosen.max()) / np.ptp(returns) if len(chosen) else None
    return row


def _coverage(result: Prediction, returns: np.ndarray) -> Row:
    """Measure coverage and width of nominal 80 % intervals, by several calibrations."""
    candidates = ~result.panel.known
    ends = result.intervals(0.8)[candidates]
    factor = result.calibration.factors(0.8, result.placement.gate)[candidates]
    raw = np.ptp(ends, axis=1) / 2 / factor
    error = np.abs(returns - _mean(result)) / raw
    inside, outside = result.calibration.inside, list(result.calibration.outside.values())
    factors = {"uncalibrated": NORMAL_80, "as delivered": factor}
    if len(inside):
        factors["random folds"] = conformal_quantile(inside, 0.8)
    if outside:
        factors["groups left out, pooled"] = conformal_quantile(np.concatenate(outside), 0.8)
        factors["groups left out, largest quantile"] = max(conformal_quantile(scores, 0.8) for scores in outside)
    spread = np.ptp(np.concatenate([returns, result.panel.returns[result.panel.known]]))
    row: Row = {f"coverage, {name}": float(np.mean(error <= value)) for name, value in factors.items()}
    return row | {f"width, {name}": float(np.mean(2 * value * raw) / spread) for name, value in factors.items()}


def measured_returns(prediction: Prediction, truth: dict[str, float]) -> np.ndarray:
    """List returns in the order in which the posterior asks for them."""
    values = []
    for _ in range(max(MEASUREMENTS)):
        name = measure_next(prediction)[0]
        values.append(truth[name])
        prediction = prediction.update({name: truth[name]})
    rest = [truth[n] for n, known in zip(prediction.panel.names, prediction.panel.known, strict=True) if not known]
    return np.array(values + rest)


def thompson_returns(prediction: Prediction, truth: dict[str, float], seed: int) -> np.ndarray:
    """List returns in the order in which Thompson sampling asks for them: the best of one draw of the posterior."""
    values = []
    for step in range(max(MEASUREMENTS)):
        candidates = np.flatnonzero(~prediction.panel.known)
        drawn = draw_returns(replace(prediction, seed=1000 * seed + step), candidates, 1)
        name = prediction.panel.names[candidates[int(drawn.argmax())]]
        values.append(truth[name])
        prediction = prediction.update({name: truth[name]})
    rest = [truth[n] for n, known in zip(prediction.panel.names, prediction.panel.known, strict=True) if not known]
    return np.array(values + rest)


def regrets(values: np.ndarray, random: bool) -> Row:
    """Return the normalised regret of the best of the first n values; 0 measurements deploy the first."""
    best, spread = values.max(), np.ptp(values)
    if random:
        draws = np.random.default_rng(0).permuted(np.tile(values, (2000, 1)), axis=1)
        return {str(n): float(np.mean(best - draws[:, : max(n, 1)].max(1)) / spread) for n in MEASUREMENTS}
    return {str(n): float((best - values[: max(n, 1)].max()) / spread) for n in MEASUREMENTS}


def process_scores(panel: Panel) -> np.ndarray:
    """Predict candidates by a Gaussian process on action distance alone, without groups."""
    known = panel.known
    count = len(panel)
    near = panel.distances[np.ix_(known, known)] + np.where(np.eye(known.sum(), dtype=bool), np.inf, 0)
    unit = float(np.median(near.min(1)))
    design = Design(
        np.zeros(count), np.zeros((count, 0)), np.zeros(count), np.ones((count, 1)), panel.distances / unit, 0.0
    )
    with neighbours():
        return fit_posterior(design, panel.returns, panel.return_errors).mean[~known]


def process_measured(panel: Panel, truth: dict[str, float]) -> np.ndarray:
    """List returns in the order in which a Gaussian process on actions and groups, without columns, asks for them."""
    bare = Panel.build(
        panel.names, panel.returns, {}, groups=panel.groups, return_errors=panel.return_errors,
        distances=panel.distances,
    )  # fmt: skip
    with neighbours():
        return measured_returns(predict(bare), truth)


def neighbours() -> AbstractContextManager:
    """Let policies share a local term as far as a Gaussian process without columns needs it."""
    return mock.patch.dict(posterior_module._PRIOR, {"length": (2.0, 1.0)})


def _order(candidates: np.ndarray, scores: np.ndarray) -> np.ndarray:
    return candidates[np.argsort(-scores, kind="stable")]


def _mean(prediction: Prediction) -> np.ndarray:
    return prediction.posterior.mean[~prediction.panel.known]


def _rho(scores: np.ndarray, returns: np.ndarray) -> float:
    """Return the Spearman correlation; 0 if all scores are equal."""
    return float(np.nan_to_num(spearman(scores, returns)))
