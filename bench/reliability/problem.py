"""A small problem that all attacks share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import sopr_fast
from sopr_fast import estimators

CONFIG = sopr_fast.Config(
    width=16,
    low_layers=1,
    low_feedforward=32,
    high_layers=1,
    high_heads=2,
    high_feedforward=32,
    subset_size=128,
    clusters=8,
    subsets=8,
    steps=24,
    warmup_steps=4,
)
_FQE = estimators.FQE(discount=0.9, updates=40, hidden=(8,), batch_size=32)
GAINS = np.random.default_rng(1).permutation(np.linspace(0.1, 1.5, 14))


class LinearPolicy:
    """Policy whose return grows with its gain."""

    weight = np.random.default_rng(7).standard_normal((4, 2)).astype(np.float32)

    def __init__(self, gain: float) -> None:
        self.gain = gain

    def __call__(self, states: np.ndarray) -> np.ndarray:
        return np.tanh(self.gain * states @ self.weight)


def policies(gains: np.ndarray = GAINS) -> dict[str, LinearPolicy]:
    return {f"gain-{gain:.3f}": LinearPolicy(gain) for gain in gains}


def states(rows: int = 600) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)


def transitions(rows: int = 600) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    actions = np.clip(LinearPolicy(0.7)(states(rows)) + random.normal(0, 0.2, (rows, 2)), -1, 1)
    return {
        "observations": states(rows),
        "actions": actions.astype(np.float32),
        "rewards": random.normal(size=rows),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(rows) % 50 == 49,
    }


def fit(checkpoint: Path | None = None, seed: int = 0) -> sopr_fast.Ranker:
    return sopr_fast.fit(policies(), states(), GAINS, config=CONFIG, seed=seed, checkpoint=checkpoint)


def estimate(checkpoint: Path) -> estimators.Estimates:
    return _FQE.estimate(policies(GAINS[:3]), transitions(), checkpoint=checkpoint)


def evaluate(checkpoints: Path) -> sopr_fast.Evaluation:
    methods = {"SOPR": estimators.SOPR(CONFIG), "NearestPolicy": estimators.NearestPolicy(), "FQE": _FQE}
    return sopr_fast.evaluate(
        policies(GAINS[:8]),
        transitions(),
        GAINS[:8],
        methods=methods,
        cv=2,
        checkpoints=checkpoints,
    )


def select(checkpoints: Path) -> sopr_fast.Selection:
    known = dict(zip(policies(GAINS[:8]), GAINS[:8], strict=True))
    simulator = estimators.Simulator(updates=40, hidden=(8,), members=2)
    return sopr_fast.select(policies(), transitions(), known, simulator=simulator, checkpoints=checkpoints)
