"""Workload of the benchmarks: real policies and states, and the FLOP that the model spends on them."""

from __future__ import annotations

import resource
import sys

import halfcheetah
import torch

from sopr_fast.inputs.policies import collect, load_policies, probe
from sopr_fast.sopr.subsets import Subsets

SIZE, CLUSTERS = 16384, 256


def actions_on(subsets: Subsets) -> torch.Tensor:
    """Return the actions of real policies, (30, U, 6)."""
    policies = load_policies(dict(list(halfcheetah.policies().items())[::-1][:30])).for_log(subsets.states_count)
    layout = probe(policies, subsets.states, subsets.source)
    return collect(policies, subsets.states, subsets.source, layout)


def forward_gflop(subsets: Subsets) -> float:
    """Return the useful GFLOP of a forward pass for one policy on one of these subsets; a training step takes three."""
    sizes, width = subsets.offsets.diff(dim=1).double().flatten(), 64
    clusters = torch.full((len(subsets.rows),), subsets.offsets.shape[1] - 1.0, dtype=torch.double)
    total = 2 * sizes.sum() * 23 * width  # projects states and actions
    for n, layers, feedforward in [(sizes, 2, 128), (clusters, 6, 512)]:
        linear = 2 * n * (4 * width**2 + 2 * width * feedforward)
        total += layers * (linear + 4 * width * n * n).sum()
    return float(total) / len(subsets.rows) / 1e9


def peak_megabytes() -> int:
    """Return the peak memory of this process."""
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)
