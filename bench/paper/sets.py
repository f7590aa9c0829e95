"""The sets that the stages made, as the studies use them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from sopr_fast.inputs.policies import Policy, load_policies

from .rollouts import read_return_means

Known = tuple[dict[str, Any], np.ndarray]  # policies by name and their returns


def snapshots(game: Path) -> dict[str, Known]:
    """Load the online policies in the folder of a game: "train", "validation" and "test_set_2"."""
    split = json.loads((game / "split.json").read_text())
    policies, returns = list(load_policies(game / "policies.npz").values()), read_return_means(game / "returns.csv")
    parts = ("train", "validation", "test_set_2")
    return {part: ({f"sac-{i}": policies[i] for i in split[part]}, returns[split[part]]) for part in parts}


def offline_policies(game: Path, log: str, test_set: str = "test_set_1") -> Known:
    """Load the `test_set` "test_set_1" or "competent" of a log from the folder of a game."""
    folder = game / test_set / log
    prefix = "offline" if test_set == "test_set_1" else test_set
    policies = {f"{prefix}-{i}": policy for i, policy in enumerate(load_policies(folder / "policies.npz").values())}
    return policies, read_return_means(folder / "returns.csv")


def _clipped(policy: Policy) -> Callable[[np.ndarray], np.ndarray]:
    """Clip actions to [-1, 1], as the games do; some foreign policies exceed that."""
    return lambda states: np.clip(np.asarray(policy(states)), -1, 1)


def foreign_policies(folder: Path) -> Known:
    """Load policies of other authors: an `.npz` file each, named in `returns.csv`."""
    table = pandas.read_csv(folder / "returns.csv", dtype={"policy": str})
    policies = {
        f"foreign-{name}": _clipped(*load_policies(folder / f"{name}.npz").values()) for name in table["policy"]
    }
    return policies, table["return_mean"].to_numpy()
