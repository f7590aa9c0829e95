"""Two small sets: HalfCheetah policies with logged states, and Pendulum policies with a log (origin: README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..inputs.policies import Policy, load_policies
from ..inputs.returns import load_returns
from ..runtime.containers import open_archive

_FOLDER = Path(__file__).parent
PENDULUM = _FOLDER / "pendulum"


def policies() -> dict[str, Policy]:
    """Return the 50 actors, "halfcheetah-000" to "halfcheetah-049", in the order in which training saved them."""
    return {**load_policies(_FOLDER / "halfcheetah.npz")}


def returns() -> np.ndarray:
    """Return the mean undiscounted return of each policy over 20 episodes, (50,) float64."""
    return np.genfromtxt(_FOLDER / "returns.csv", delimiter=",", names=True)["return_mean"]


def states() -> np.ndarray:
    """Return the logged states, (8192, 17) float32, in the order in which they were logged."""
    with open_archive(_FOLDER / "states.npz") as archive:
        return archive.array("observations.npy").astype(np.float32)


def pendulum() -> tuple[dict[str, Policy], dict[str, np.ndarray], dict[str, float]]:
    """Return eight policies that offline RL trained on a log of Pendulum, the log, and their returns.

    Returns:
        Policies by name, algorithm and number of updates; every second episode of the log, 5,000 rows, as the arrays
        that `load_log` reads; mean undiscounted returns over 50 episodes, by name.
    """
    returns, loaded = load_returns(PENDULUM / "returns.csv")["return"].to_dict(), load_policies(PENDULUM / "policies")
    with open_archive(PENDULUM / "log.npz") as archive:
        log = {name.removesuffix(".npy"): archive.array(name) for name in archive.names}
    return {name: loaded[name] for name in returns}, log, returns
