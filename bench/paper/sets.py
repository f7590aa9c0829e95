"""The sets that the stages made, as the studies use them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from sopr_fast.inputs.policies import Policy, load

from .rollouts import read_return_means

Known = tuple[dict[str, Policy], np.ndarray]  # policies by name and their returns


def snapshots(game: Path) -> dict[str, Known]:
    """Load the online policies of a game.

    Args:
        game: Folder of the game.

    Returns:
        Policies and returns of "train", "validation" and "test_set_2".
    """
    split = json.loads((game / "split.json").read_text())
    policies, returns = list(load(game / "policies.npz").values()), read_return_means(game / "returns.csv")
    parts = ("train", "validation", "test_set_2")
    return {part: ({f"sac-{i}": policies[i] for i in split[part]}, returns[split[part]]) for part in parts}


def offline_policies(game: Path, log: str, test_set: str = "test_set_1") -> Known:
    """Load Test Set I of a log, or its test set of competent policies.

    Args:
        game: Folder of the game.
        log: Name of the log.
        test_set: "test_set_1" or "competent".

    Returns:
        Policies and their returns.
    """
    folder = game / test_set / log
    prefix = "offline" if test_set == "test_set_1" else test_set
    policies = {f"{prefix}-{i}": policy for i, policy in enumerate(load(folder / "policies.npz").values())}
    return policies, read_return_means(folder / "returns.csv")
