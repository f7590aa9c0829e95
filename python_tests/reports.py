"""Small results whose reports tests read, some of their names hostile."""

from __future__ import annotations

import numpy as np
import pytest
from selection_problems import DISCOUNT, Scripted, gains, log, true_values

from sopr_fast.ranking.ranking import Ranking, Training
from sopr_fast.selection import evaluate, select

HOSTILE = (
    "<script>window.hacked = true</script>",
    "\"><img src=x onerror='window.hacked = true'>",
    "</title></style></svg><b>bold",
    "a \u202egnp.exe \x1b[31m\x00 \u2066b",
    "$\\frac{1}{0}$ & {{ 7 * 7 }} ' `x`",
    "很长的名字/" + 30 * "step_",
)
_METHOD = "m<script>window.hacked = true</script>"


@pytest.fixture(scope="module", autouse=True)
def few_replicates():
    """Make bootstrapped intervals cheap, in the modules that import this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sopr_fast.selection.evaluation._REPLICATES", 10)
        yield


def policies(hostile: bool):
    """Return known policies with returns, and candidates."""
    known, candidates = gains(16), gains(6, first=20)
    truth = true_values(known) | true_values(candidates)
    if hostile:
        renamed = dict(zip(candidates, HOSTILE, strict=True)) | {"left-01": "<i>known</i>\n\u202e"}
        truth = {renamed.get(name, name): value for name, value in truth.items()}
        known, candidates = ({renamed.get(n, n): p for n, p in part.items()} for part in (known, candidates))
    return known, candidates, truth


def _methods(truth, count=3):
    return {
        (_METHOD if i == 0 else f"m{i}"): Scripted(
            {
                name: value + 0.05 * np.random.default_rng([i, place]).standard_normal()
                for place, (name, value) in enumerate(truth.items())
            },
            supervised=i == 1,
        )
        for i in range(count)
    }


def selection(*, hostile: bool = False, incumbent: bool = True):
    """Select among six candidates by a stand-in for the simulator."""
    known, candidates, truth = policies(hostile)
    return select(
        candidates,
        log(),
        known,
        {name: truth[name] for name in known},
        incumbent=max(known, key=truth.get) if incumbent else None,
        groups={name: "<g>" if i % 2 else "g2" for i, name in enumerate(known)} if hostile else None,
        simulator=_methods(truth)["m2"],
    )


def evaluation(*, hostile: bool = False):
    """Evaluate three stand-ins on 16 policies."""
    known, _, truth = policies(hostile)
    returns = {name: truth[name] for name in known}
    return evaluate(log(), known, returns, methods=_methods(truth), cv=4, discount=DISCOUNT)


def ranking(*, hostile: bool = False, count: int = 6, known: int = 8):
    """Return a ranking of candidates, one of them foreign."""
    random = np.random.default_rng(0)
    places = random.standard_normal((known + count, 3))
    places[known] += 5
    distances = ((places[:, None] - places) ** 2).sum(2)
    names = [*HOSTILE[:count], *(f"candidate {i}" for i in range(count))][:count] if hostile else None
    return Ranking.from_subsets(
        names or [f"candidate {i}" for i in range(count)],
        random.standard_normal((count, 1)) + 0.1 * random.standard_normal((count, 5)),
        distances=distances[known:, :known].min(1),
        distance_limit=9.0,
        in_training=[False] * count,
        training=Training(
            [f"known <{i}>" for i in range(known)],
            random.standard_normal(known),
            distances[known:, :known],
            distances[:known, :known],
            distances[known:, known:],
            {"validation_rank_correlation": [0.1, 0.8, 0.7], "best_step": 1, "collapsed": False},
            {"seed": 0, "steps": 3},
        ),
        settings={
            "subsets": 5,
            "seed": 0,
            "precision": "fp32",
            "source": "the model",
        },
    )


RESULTS = {"selection": selection, "evaluation": evaluation, "ranking": ranking}
