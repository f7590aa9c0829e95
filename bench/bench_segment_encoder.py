"""The scoring model, forward and a training step, compared with plain torch on the same parameters.

Peers are the released per-cluster loop, bucketed and padded clusters, and packed rows; see `bench/peers`. A training
step counts as four forward passes, which includes recomputation.
"""

from __future__ import annotations

import pytest
import torch
from peers.bucketed import BucketedModel
from peers.loop import ReleasedModel
from peers.packed import PackedModel
from workload import forward_gflop

from sopr_fast.sopr.released import from_released

TORCH = f"torch {torch.__version__.partition('+')[0]}"


@pytest.fixture(scope="module")
def gflop(subsets) -> float:
    return forward_gflop(subsets)


@pytest.fixture(scope="module")
def released() -> ReleasedModel:
    torch.manual_seed(0)
    return ReleasedModel(17, 6).eval()


def peers_of(released: ReleasedModel, dtype: torch.dtype) -> dict[str, torch.nn.Module]:
    return {
        f"{TORCH} bucketed SDPA": BucketedModel(released, dtype=dtype),
        f"{TORCH} bucketed SDPA, compiled": BucketedModel(released, compiled=True, dtype=dtype),
        f"{TORCH} bucketed matmul, compiled": BucketedModel(released, attention="matmul", compiled=True, dtype=dtype),
        f"{TORCH} packed, nested": PackedModel(released, attention="nested", dtype=dtype),
        f"{TORCH} packed, flex, compiled": PackedModel(released, attention="flex", dtype=dtype),
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_forward_10_policies(precision, released, subsets, columns, gflop, contend):
    model = from_released(released.state_dict())
    columns = columns[:10].contiguous()
    clustering = (subsets.rows[0].long(), subsets.offsets[0])
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    scores = {}

    def run(name, call):
        with torch.inference_mode():
            scores[name] = call().flatten()

    def ours():
        run("ours", lambda: model(subsets.states, columns, subsets.rows, subsets.offsets, precision=precision))

    contenders = {}
    if precision == "fp32":
        contenders[f"{TORCH} per-cluster loop"] = lambda: run(
            "loop", lambda: released(subsets.states, columns, clustering)
        )
    for name, peer in peers_of(released, dtype).items():
        plan = peer.eval().plan(clustering)
        contenders[name] = lambda name=name, peer=peer, plan=plan: run(
            name, lambda: peer(subsets.states, columns, plan)
        )
    contend(ours, contenders, rounds=5, gflop=gflop * len(columns), precision=precision)
    if precision == "fp32":
        for name, score in scores.items():
            assert (score - scores["ours"]).abs().max() <= 1e-4 * scores["ours"].abs().max(), name


def test_training_step_30_policies(released, subsets, columns, gflop, contend):
    model = from_released(released.state_dict()).train()
    clustering = (subsets.rows[0].long(), subsets.offsets[0])
    weights = torch.linspace(-1, 1, len(columns))
    compiled = {"compiled": True, "hashed_dropout": True, "recompute": True}
    peers = {
        f"{TORCH} bucketed SDPA": BucketedModel(released, recompute=True),
        f"{TORCH} bucketed SDPA, compiled": BucketedModel(released, **compiled),
        f"{TORCH} bucketed matmul, compiled": BucketedModel(released, attention="matmul", **compiled),
    }

    def ours():
        model.zero_grad()
        scores = model(subsets.states, columns, subsets.rows, subsets.offsets, torch.tensor([0, 0]))[:, 0]
        (scores * weights).sum().backward()

    def step(module, plan):
        released.train()
        module.train()
        module.zero_grad()
        (module(subsets.states, columns, plan) * weights).sum().backward()
        released.eval()

    contenders = {}
    for name, peer in peers.items():
        plan = peer.plan(clustering)
        contenders[name] = lambda peer=peer, plan=plan: step(peer, plan)
    contend(ours, contenders, rounds=3, gflop=4 * gflop * len(columns))


@pytest.mark.parametrize(("policies", "rounds"), [(5, 3), (30, 1)])
def test_training_step_of_the_released_loop(policies, rounds, released, subsets, columns, gflop, contend):
    """The loop needs 9 GB and most of a minute for thirty policies, so it runs only once."""
    model = from_released(released.state_dict()).train()
    clustering = (subsets.rows[0].long(), subsets.offsets[0])
    columns = columns[:policies].contiguous()
    weights = torch.linspace(-1, 1, len(columns))

    def ours():
        model.zero_grad()
        scores = model(subsets.states, columns, subsets.rows, subsets.offsets, torch.tensor([0, 0]))[:, 0]
        (scores * weights).sum().backward()

    def loop():
        released.train()
        released.zero_grad()
        (released(subsets.states, columns, clustering) * weights).sum().backward()
        released.eval()

    contend(ours, {f"{TORCH} per-cluster loop": loop}, rounds=rounds, gflop=4 * gflop * len(columns))
