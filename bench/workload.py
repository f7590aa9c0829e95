"""What the benchmarks work on: real policies and states, and what the model does with them."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np
import torch
from paper.rollouts import read_return_means

from sopr_fast import Subsets, example
from sopr_fast.data import load_states
from sopr_fast.policies import Policy, as_policies, collect, load, probe

SIZE, CLUSTERS = 16384, 256


def actions_on(subsets: Subsets) -> torch.Tensor:
    """(30, U, 6) actions of real policies."""
    policies = as_policies(dict(list(example.policies().items())[::-1][:30]), states_count=subsets.states_count)
    layout = probe(policies, subsets.states, subsets.source)
    return collect(policies, subsets.states, subsets.source, layout)


def forward_gflop(subsets: Subsets) -> float:
    """Multiplications and additions of one policy's forward pass on one of these very subsets, / 1e9."""
    states, clusters, width = subsets.rows.shape[1], subsets.offsets.shape[1] - 1, 64
    squares = float(subsets.offsets.diff(dim=1).double().square().sum(1).mean())
    projection = 2 * states * 23 * width
    low = 2 * (2 * states * (4 * width**2 + 2 * width * 128) + 4 * width * squares)
    high = 6 * (2 * clusters * (4 * width**2 + 2 * width * 512) + 4 * width * clusters**2)
    return (projection + low + high) / 1e9


def read_set(folder: Path | None) -> tuple[dict[str, Policy], np.ndarray, np.ndarray]:
    """Policies, returns (50,) and states of the embedded example, or of a folder as `bench.paper` makes."""
    if folder is None:
        return example.policies(), example.returns(), example.states()
    policies = load(folder / "policies.npz")
    return policies, read_return_means(folder / "returns.csv"), np.asarray(load_states(log_of(folder)))


def log_of(folder: Path) -> Path:
    """The log beside the policies, where the run itself or `bench.paper` put it."""
    replay = folder / "replay.hdf5"
    return replay if replay.exists() else folder / "logs" / "full-replay.hdf5"


def peak_megabytes() -> int:
    """The most memory this process has held."""
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)
