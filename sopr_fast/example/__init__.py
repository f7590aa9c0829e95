"""A small real set: 50 HalfCheetah policies, their returns and 65,536 logged states (origin: README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..policies import Actor, load

_FOLDER = Path(__file__).parent


def policies() -> dict[str, Actor]:
    """The 50 actors, "halfcheetah-000" to "halfcheetah-049", in the order in which training wrote them."""
    return {policy.name: policy for policy in load(_FOLDER / "halfcheetah.npz")}


def returns() -> np.ndarray:
    """(50,) float64: mean undiscounted return of each policy over 50 rollouts."""
    table = np.genfromtxt(_FOLDER / "returns.csv", delimiter=",", names=True)
    return table["return_mean"]


def states() -> np.ndarray:
    """(65536, 17) float32: logged states, in the order in which they were seen."""
    with np.load(_FOLDER / "states.npz") as archive:
        return archive["observations"].astype(np.float32)
