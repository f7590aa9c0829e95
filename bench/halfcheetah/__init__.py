"""The HalfCheetah set of the benchmarks: 50 policies, their returns, 65,536 logged states (origin: README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sopr_fast.inputs.policies import Actor, load_policies

_FOLDER = Path(__file__).parent
_SET = _FOLDER.parent / "paper" / "sets" / "small" / "halfcheetah-v4"


def policies() -> dict[str, Actor]:
    """Return the 50 actors, "policies-000" to "policies-049", in the order in which training saved them."""
    return load_policies(_SET / "policies.npz")


def returns() -> np.ndarray:
    """Return the mean undiscounted return of each policy over 100 episodes, (50,) float64."""
    return np.genfromtxt(_SET / "returns.csv", delimiter=",", names=True)["return_mean"]


def states() -> np.ndarray:
    """Return the logged states, (65536, 17) float32, in the order in which they were logged."""
    with np.load(_FOLDER / "states.npz") as archive:
        return archive["observations"].astype(np.float32)
