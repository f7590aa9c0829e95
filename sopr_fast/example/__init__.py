"""Two small sets: HalfCheetah policies with logged states, and Pendulum policies with a log (origin: README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..inputs.policies import Actor, load
from ..inputs.policies.output import Bounds

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


def pendulum() -> tuple[dict[str, Actor], dict[str, np.ndarray], dict[str, float]]:
    """Return eight policies that offline RL trained on a log of Pendulum, the log, and their returns.

    Returns:
        Actors by name, algorithm and number of updates; every second episode of the log, 5,000 rows, as the arrays that
        `load_log` reads; mean undiscounted returns over 50 episodes, by name.
    """
    table = np.genfromtxt(_FOLDER / "pendulum.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    names = table["policy"].tolist()
    with np.load(_FOLDER / "pendulum_policies.npz") as stored:
        layers = {key: torch.from_numpy(stored[key].astype(np.float32)) for key in stored.files}
    with np.load(_FOLDER / "pendulum.npz") as stored:
        log = {key: stored[key] for key in stored.files}
    torque = Bounds(torch.tensor([-2.0]), torch.tensor([2.0]))
    actors = {
        name: Actor(name, [(layers[f"{i}.weight"][p], layers[f"{i}.bias"][p]) for i in range(3)], scale=torque)
        for p, name in enumerate(names)
    }
    return actors, log, dict(zip(names, table["return_mean"].tolist(), strict=True))
