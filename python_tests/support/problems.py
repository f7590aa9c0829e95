"""A small problem with a known answer: policies scale a fixed linear map, and larger gains are better."""

from contextlib import contextmanager

import numpy as np
import torch

import sopr_fast
from sopr_fast import Config
from sopr_fast.inputs.logs import Transitions
from sopr_fast.sopr.input_norm import row_moments

MODEL = {"width": 16, "low_layers": 1, "low_feedforward": 32, "high_layers": 1, "high_heads": 2, "high_feedforward": 32}
TINY = Config(**MODEL, subset_size=128, clusters=8, subsets=10, steps=40, warmup_steps=5)


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


TORCH_MODES = {
    "device": lambda: torch.device("meta"),  # stands for any other default device
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
}


def log(rows: int = 600, dim: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)


def blobs(problems, count, width, generator, spread=0.3):
    """Return points around 12 centres per problem."""
    centres = torch.randn(problems, 12, width, generator=generator)
    which = torch.randint(12, (problems, count), generator=generator)
    near = centres.gather(1, which[..., None].expand(-1, -1, width))
    return near + spread * torch.randn(problems, count, width, generator=generator)


def shaped(points, kind, distinct=100):
    """Return points (problems, count, width), some of which are equal, in one row, far away, or of other units."""
    points = points.clone()
    if kind == "line":
        points[..., 1:] = 0
    if kind == "outlier":
        points[:, 77] = 1e12
    return {
        "grid": lambda: (points * 2).round(),
        "duplicates": lambda: points[:, torch.arange(points.shape[1]) % distinct],
        "units": lambda: points * torch.logspace(18, -3, points.shape[2]),
        "small": lambda: points * 1e-30,
    }.get(kind, lambda: points)()


def transitions(states, actions, rewards, next_states=None, terminals=None, timeouts=None, log_probs=None, **options):
    """Make transitions of arrays, without those that are None; flags that are None mark no row."""
    never = np.zeros(len(rewards), bool)
    terminals, truncations = (never if flags is None else np.asarray(flags, bool) for flags in (terminals, timeouts))
    ends = terminals | truncations
    arrays = {"states": states, "actions": actions, "rewards": rewards, "next_states": next_states}
    arrays |= {"terminals": terminals, "truncations": truncations, "log_probs": log_probs}
    arrays["episodes"] = None if "max_episode_steps" in options else np.cumsum(ends) - ends
    if "episodes" in options:
        arrays |= {"terminals": None, "truncations": None}
    return Transitions.from_arrays(**arrays | options)


def train_scores(model, states, columns, rows, offsets, rng):
    """Return scores in training mode with the batch norm of this batch, as a training step computes them."""
    moments = row_moments(states, columns, rows)
    model.train().norm.observe(moments)
    return model(states, columns, rows, offsets, rng, weights=model.weights(moments))


class LinearPolicy:
    def __init__(self, gain: float, dim: int = 4) -> None:
        self.gain = gain
        self.weight = np.random.default_rng(7).standard_normal((dim, 2)).astype(np.float32)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        return np.tanh(self.gain * states @ self.weight)


def ladder(gains) -> dict[str, LinearPolicy]:
    return {f"gain-{gain:.3f}": LinearPolicy(gain) for gain in gains}


def training_gains(count: int = 12) -> np.ndarray:
    """Return gains in random order, so that neither position nor name reveals the return."""
    return np.random.default_rng(1).permutation(np.linspace(0.1, 1.5, count))


def fit(config=TINY, gains=None, **options):
    """Train on twelve policies, or on those of these gains, whose returns are their gains."""
    gains = training_gains() if gains is None else gains
    arguments = {"policies": ladder(gains), "states": log(), "returns": gains, "config": config}
    return sopr_fast.fit(**arguments | options)


def weights(ranker) -> torch.Tensor:
    return torch.cat([value.double().flatten() for value in ranker.model.state_dict().values()])
