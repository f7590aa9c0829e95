"""A small problem whose answer is known: policies that scale a fixed linear map, better the larger the gain."""

import numpy as np

from sopr_fast import Config

TINY = Config(
    width=16,
    low_layers=1,
    low_feedforward=32,
    high_layers=1,
    high_heads=2,
    high_feedforward=32,
    subset_size=128,
    clusters=8,
    subsets=10,
    steps=40,
    warmup_steps=5,
)


def log(rows: int = 600, dim: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)


class LinearPolicy:
    def __init__(self, gain: float, dim: int = 4) -> None:
        self.gain = gain
        self.weight = np.random.default_rng(7).standard_normal((dim, 2)).astype(np.float32)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        return np.tanh(self.gain * states @ self.weight)


def ladder(gains) -> dict[str, LinearPolicy]:
    return {f"gain-{gain:.3f}": LinearPolicy(gain) for gain in gains}


def training_gains(count: int = 12) -> np.ndarray:
    """In no order, so that neither position nor name tells the return."""
    return np.random.default_rng(1).permutation(np.linspace(0.1, 1.5, count))
