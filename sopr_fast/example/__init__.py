"""A small set: 50 HalfCheetah policies, their returns, and 8,192 logged states (origin: README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..inputs.policies import Actor, load

_FOLDER = Path(__file__).parent


def policies() -> dict[str, Actor]:
    """Return the 50 actors, "halfcheetah-000" to "halfcheetah-049", in the order in which training saved them."""
    actors = load(_FOLDER / "halfcheetah.npz")
    return {name: actor for name, actor in actors.items() if isinstance(actor, Actor)}


def returns() -> np.ndarray:
    """Return the mean undiscounted return of each policy over 20 episodes, (50,) float64."""
    table = np.genfromtxt(_FOLDER / "returns.csv", delimiter=",", names=True)
    return table["return_mean"]


def states() -> np.ndarray:
    """Return the logged states, (8192, 17) float32, in the order in which they were logged."""
    with np.load(_FOLDER / "states.npz") as archive:
        return archive["observations"].astype(np.float32)
