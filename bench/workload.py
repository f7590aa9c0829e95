"""Workload of the benchmarks: real policies and states, and the FLOP that the model spends on them."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Sequence

import halfcheetah
import torch

from sopr_fast import Subsets, build_info
from sopr_fast.inputs.policies import collect, load_policies, probe

SIZE, CLUSTERS = 16384, 256


def actions_on(subsets: Subsets) -> torch.Tensor:
    """Return the actions of real policies, (30, U, 6)."""
    policies = load_policies(dict(list(halfcheetah.policies().items())[::-1][:30])).for_log(subsets.states_count)
    layout = probe(policies, subsets.states, subsets.source)
    return collect(policies, subsets.states, subsets.source, layout)


def forward_gflop(subsets: Subsets) -> float:
    """Return the useful GFLOP of a forward pass for one policy on one of these subsets; a training step takes three."""
    return sum(forward for forward, _ in _levels(subsets, 1)) / len(subsets.rows)


def step_gflop(subsets: Subsets, policies: int, kept: Sequence[int]) -> float:
    """Return the GFLOP of all products that the CPU kernels execute in a training step on one subset.

    They pad queries, keys and inputs to whole vectors and compute attention weights twice. `kept` lists for how many
    policies the low and the high level keep activations; the others' forward pass is computed twice too.
    """
    lanes = {"portable": 4, "avx2": 8}.get(build_info()["instruction_set"], 16)
    return sum(
        forward * (2 * policies - count) + backward * policies
        for (forward, backward), count in zip(_levels(subsets, lanes), kept, strict=True)
    )


def _levels(subsets: Subsets, lanes: int) -> list[tuple[float, float]]:
    """Return the GFLOP of the forward and the backward pass of both levels, with vectors of so many lanes."""
    sizes, width = subsets.offsets.diff(dim=1).double().flatten(), 64
    clusters = torch.full((len(subsets.rows),), subsets.offsets.shape[1] - 1.0, dtype=torch.double)
    results = []
    for n, layers, heads, feedforward, inputs in [(sizes, 2, 2, 128, 23), (clusters, 6, 8, 512, 0)]:
        padded = (n / lanes).ceil() * lanes
        values = math.ceil(width / heads / lanes) * lanes * heads
        linear = 2 * n * (4 * width**2 + 2 * width * feedforward)
        forward = layers * (linear + 4 * width * n * padded) + 2 * n * inputs * width
        backward = layers * (2 * linear + 6 * width * n * padded + 4 * values * n * n)
        backward += 2 * n * (inputs + math.ceil(inputs / lanes) * lanes) * width  # projects again
        results.append((float(forward.sum()) / 1e9, float(backward.sum()) / 1e9))
    return results


def peak_megabytes() -> int:
    """Return the peak memory of this process."""
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)
