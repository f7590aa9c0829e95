"""Actors as arrays: evaluation with NumPy, and files of stacked actors in half precision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sopr_fast.runtime.files import atomic_path

Layers = dict[str, np.ndarray]  # hidden_0.weight (out, in), hidden_0.bias (out,), …, mean, log_std


class Actor:
    """ReLU network that acts by tanh(mean), or samples tanh(normal) with standard deviation exp(clip(log_std, -20, 2)).

    Each state is evaluated by itself, by the same calls on arrays of the same shapes, and without BLAS. So an action
    depends neither on the rest of the batch nor on its row in it.

    Attributes:
        action_dim: Number of action components.
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
        """Compute the actions of a batch of states.

        Args:
            states: (N, dim_s).
            noise: Standard normals (N, dim_a) that actions are drawn with; the mean acts if None.

        Returns:
            Actions (N, dim_a) float32, and the log-densities (N,) of drawn actions or None.
        """
        if noise is None:
            return np.stack([np.tanh(self._heads(state, 1)[0]) for state in states]), None
        actions, log_probs = zip(*map(self._draw, states, noise), strict=True)
        return np.stack(actions), np.stack(log_probs)

    def _heads(self, state: np.ndarray, count: int) -> list[np.ndarray]:
        hidden = state.astype(np.float32)
        for weight, bias in self._layers[: self._depth]:
            hidden = np.maximum(_product(hidden, weight) + bias, 0)
        return [_product(hidden, weight) + bias for weight, bias in self._layers[self._depth :][:count]]

    def _draw(self, state: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, log_std = self._heads(state, 2)
        log_std = np.minimum(np.maximum(log_std, -20), 2)
        raw = mean + np.exp(log_std) * noise.astype(np.float32)
        normal = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
        squash = 2 * (np.log(2) - raw - np.logaddexp(0, -2 * raw))  # log(1 - tanh²) without cancellation
        return np.tanh(raw), (normal - squash).sum()


def _product(vector: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.einsum("i,ij->j", vector, weight, optimize=False)  # optimize=True may call BLAS


def save_stack(path: Path, actors: Sequence[Layers]) -> None:
    """Save actors of one shape as an `.npz` of float16 arrays (S, …), which `sopr_fast.load_policies` reads."""
    stacked = {key: np.stack([layers[key] for layers in actors]).astype(np.float16) for key in actors[0]}
    with atomic_path(path) as temporary:
        np.savez_compressed(temporary, **stacked)


def read_stack(path: Path) -> list[Layers]:
    """Load the actors of a stack, rounded to half precision as they were saved."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    count = len(next(iter(arrays.values())))
    return [{key: values[i] for key, values in arrays.items()} for i in range(count)]
