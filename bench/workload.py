"""Workload of the benchmarks: real policies and states, and the FLOP that the model spends on them."""

from __future__ import annotations

import resource
import sys

import halfcheetah
import torch

from sopr_fast import Subsets
from sopr_fast.inputs.policies import collect, load, probe

SIZE, CLUSTERS = 16384, 256


def actions_on(subsets: Subsets) -> torch.Tensor:
    """Return the actions of real policies, (30, U, 6)."""
    policies = load(dict(list(halfcheetah.policies().items())[::-1][:30])).for_log(subsets.states_count)
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


def peak_megabytes() -> int:
    """Return the peak memory of this process."""
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)
