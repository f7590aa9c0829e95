"""Workload of the benchmarks: real policies and states, and the FLOP that the model spends on them."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import halfcheetah
import numpy as np
import torch
from paper.rollouts import read_return_means

from sopr_fast import Subsets
from sopr_fast.inputs.logs import load_states
from sopr_fast.inputs.policies import Policy, collect, load, probe

SIZE, CLUSTERS = 16384, 256


def actions_on(subsets: Subsets) -> torch.Tensor:
    """Return the actions of real policies, (30, U, 6)."""
    policies = list(load(dict(list(halfcheetah.policies().items())[::-1][:30])).for_log(subsets.states_count).values())
    layout = probe(policies, subsets.states, subsets.source)
    return collect(policies, subsets.states, subsets.source, layout)


def forward_gflop(subsets: Subsets) -> float:
    """Return the GFLOP of a forward pass for one policy on one of these subsets."""
    states, clusters, width = subsets.rows.shape[1], subsets.offsets.shape[1] - 1, 64
    squares = float(subsets.offsets.diff(dim=1).double().square().sum(1).mean())
    projection = 2 * states * 23 * width
    low = 2 * (2 * states * (4 * width**2 + 2 * width * 128) + 4 * width * squares)
    high = 6 * (2 * clusters * (4 * width**2 + 2 * width * 512) + 4 * width * clusters**2)
    return (projection + low + high) / 1e9


def read_set(folder: Path | None) -> tuple[dict[str, Policy], np.ndarray, np.ndarray]:
    """Return policies, returns and states of `halfcheetah` or of a folder made by `bench.paper`."""
    if folder is None:
        return halfcheetah.policies(), halfcheetah.returns(), halfcheetah.states()
    policies = load(folder / "policies.npz")
    return policies, read_return_means(folder / "returns.csv"), np.asarray(load_states(log_of(folder)))


def log_of(folder: Path) -> Path:
    """Return the path of the log in a folder made by a training run or by `bench.paper`."""
    replay = folder / "replay.hdf5"
    return replay if replay.exists() else folder / "logs" / "full-replay.hdf5"


def peak_megabytes() -> int:
    """Return the peak memory of this process."""
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)
