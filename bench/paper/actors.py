"""Actors as arrays: stacks of them in files of half precision, one of them acting by numpy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sopr_fast.runtime.files import atomic_path

_BLOCK = 32

Layers = dict[str, np.ndarray]  # hidden_0.weight (out, in), hidden_0.bias (out,), …, mean, log_std


class Actor:
    """tanh(mean) of a ReLU network, or a draw of tanh(normal) with standard deviation exp(clip(log_std, -20, 2)).

    States pass in blocks of a fixed size, so that an action does not depend on what else is in the batch.
    """

    def __init__(self, layers: Layers) -> None:
        depth = sum(key.startswith("hidden") for key in layers) // 2
        names = [*(f"hidden_{i}" for i in range(depth)), "mean", "log_std"]
        self._layers = [
            (np.ascontiguousarray(layers[f"{name}.weight"].T, np.float32), layers[f"{name}.bias"].astype(np.float32))
            for name in names
            if f"{name}.weight" in layers
        ]
        self._depth = depth
        self.action_dim = self._layers[depth][0].shape[1]

    def act(self, states: np.ndarray, noise: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Actions (N, dim_a) float32 for states (N, dim_s); with standard normal noise (N, dim_a), drawn ones and
        their log-densities (N,)."""
        mean = np.empty((len(states), self.action_dim), np.float32)
        log_std = None if noise is None else np.empty_like(mean)
        for first in range(0, len(states), _BLOCK):
            rows = slice(first, min(first + _BLOCK, len(states)))
            hidden = np.zeros((_BLOCK, states.shape[1]), np.float32)
            hidden[: rows.stop - first] = states[rows]
            for weight, bias in self._layers[: self._depth]:
                hidden = np.maximum(hidden @ weight + bias, 0)
            for out, (weight, bias) in zip((mean, log_std), self._layers[self._depth :], strict=False):
                if out is not None:
                    out[rows] = (hidden @ weight + bias)[: rows.stop - first]
        if noise is None:
            return np.tanh(mean), None
        log_std = np.clip(log_std, -20, 2)
        drawn = mean + np.exp(log_std) * noise.astype(np.float32)
        return np.tanh(drawn), _log_density(drawn, log_std, noise)


def _log_density(drawn: np.ndarray, log_std: np.ndarray, noise: np.ndarray) -> np.ndarray:
    normal = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
    squash = 2 * (np.log(2) - drawn - np.logaddexp(0, -2 * drawn))  # log(1 - tanh²) without cancellation
    return (normal - squash).sum(1)


def save_stack(path: Path, actors: Sequence[Layers]) -> None:
    """Actors of one shape as an `.npz` of stacks (S, …) in half precision, which `sopr_fast.policies` reads."""
    stacked = {key: np.stack([layers[key] for layers in actors]).astype(np.float16) for key in actors[0]}
    with atomic_path(path) as temporary:
        np.savez_compressed(temporary, **stacked)


def read_stack(path: Path) -> list[Layers]:
    """Actors of a stack, as what they were rounded to."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    count = len(next(iter(arrays.values())))
    return [{key: values[i] for key, values in arrays.items()} for i in range(count)]
