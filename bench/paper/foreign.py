"""Policies of other authors: a folder a game, an `.npz` file a policy, and `returns.csv`."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sopr_fast.inputs.policies import Policy, load

ROLLOUTS = 20


@dataclass(frozen=True)
class Clipped:
    """A policy whose actions are clipped to [-1, 1], as the games clip them; some of these policies exceed that."""

    policy: Policy

    def __call__(self, states: np.ndarray) -> np.ndarray:
        return np.clip(np.asarray(self.policy(states)), -1, 1)


def read_foreign(folder: Path) -> tuple[dict[str, Clipped], np.ndarray, np.ndarray]:
    """Return the policies of a game, their returns and the standard deviations of their rollouts, NaN where unknown.

    Raises:
        FileNotFoundError: A policy or the table of returns is missing.
    """
    with (folder / "returns.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    policies = {row["policy"]: Clipped(next(iter(load(folder / f"{row['policy']}.npz").values()))) for row in rows}
    mean, std = (np.array([float(row.get(key, "nan")) for row in rows]) for key in ("return_mean", "return_std"))
    return policies, mean, std
