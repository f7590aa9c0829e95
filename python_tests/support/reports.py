"""Small results whose reports tests read, some of their names hostile."""

from __future__ import annotations

import numpy as np
import pandas

from sopr_fast.results.ranking import Ranking
from sopr_fast.selection import Evaluation, Selection
from sopr_fast.selection.measured import Measured

HOSTILE = (
    "<script>window.hacked = true</script>",
    "\"><img src=x onerror='window.hacked = true'>",
    "</title></style></svg><b>bold",
    "a \u202egnp.exe \x1b[31m\x00 \u2066b",
    "$\\frac{1}{0}$ & {{ 7 * 7 }} ' `x`",
    "很长的名字/" + 30 * "step_",
)
METHODS = ("SOPR", "Simulator", "NearestPolicy", "m<script>window.hacked = true</script>")


def _names(known: int, count: int, hostile: bool) -> list[str]:
    """Return names of known policies and candidates as Stable-Baselines3 gives them; hostile ones of some of these."""
    names = [f"sac/rl_model_{800 * (i + 1)}_steps" for i in range(known + count)]
    return [*names[:known], *HOSTILE[:count], *names[known + len(HOSTILE) :]][: known + count] if hostile else names


def _problem(known: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return action distances of policies, whose candidate number 3 acts unlike the others, and true returns."""
    places = np.random.default_rng(0).standard_normal((known + count, 3))
    places[known + min(3, count - 1)] += 5
    distances = ((places[:, None] - places) ** 2).sum(2)
    return distances, -160 + 40 * np.tanh(places[:, 0]) + 10 * np.tanh(places[:, 1])


def selection(*, hostile: bool = False, incumbent: bool = True, known: int = 12, count: int = 6) -> Selection:
    """Return known policies and candidates, one of which acts unlike the others."""
    names, (distances, truth) = _names(known, count, hostile), _problem(known, count)
    noise = np.random.default_rng(1).standard_normal((2, len(names)))
    returns = np.where(np.arange(len(names)) < known, truth + 3 * noise[0], np.nan)
    table = pandas.DataFrame({"return": returns, "error": 3.0, "rollouts": np.nan}, names)
    return Selection(
        Measured(names, np.arange(len(names)), table, names[2] if incumbent and known > 2 else None),
        distances,
        truth + 12 * noise[1],
        "Simulator",
        (-1600.0, 0.0),
        facts=["only 3 returns are known: predictions rest on Simulator"] if known == 3 else [],
        settings={"seed": 0, "policies": len(names), "values by": "Simulator"},
    )


def evaluation(*, hostile: bool = False, count: int = 14) -> Evaluation:
    """Return values of policies by methods, of which the first two are equally good."""
    names, truth = _names(count - 6, 6, hostile), _problem(count - 6, 6)[1]
    labels = ["<g>" if i % 2 and hostile else f"g{i % 2}" for i in range(count)]
    folds = {label: np.flatnonzero([one == label for one in labels]) for label in dict.fromkeys(labels)}
    random = np.random.default_rng(2)
    noise = {name: scale * random.standard_normal(count) for name, scale in zip(METHODS, (5, 6, 90, 300), strict=True)}
    return Evaluation(
        names,
        truth,
        np.full(count, 3.0),
        labels,
        folds,
        {name: truth + own for name, own in noise.items()},
        {"FQE": "it diverged: values are not finite"},
        settings={"seed": 0, "discount": 0.99, "methods": {"SOPR": "SOPR()", METHODS[3]: "Broken(<b>)"}},
    )


def ranking(*, hostile: bool = False, count: int = 6, known: int = 8) -> Ranking:
    """Return a ranking of candidates, one of them foreign."""
    names, (distances, _) = _names(known, count, hostile), _problem(known, count)
    random = np.random.default_rng(0)
    return Ranking.from_subsets(
        names[known:],
        random.standard_normal((count, 1)) + 0.1 * random.standard_normal((count, 5)),
        distances=distances[known:, :known].min(1),
        distance_limit=9.0,
        history={"validation_rank_correlation": [0.1, 0.8, 0.7], "best_step": 1, "collapsed": False},
        settings={"subsets": 5, "seed": 0, "training policies": known},
    )


RESULTS = {"selection": selection, "evaluation": evaluation, "ranking": ranking}
