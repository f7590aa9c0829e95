"""The scoring model, forward and a training step, compared with plain torch on the same parameters.

Peers are the released per-cluster loop, and bucketed and padded clusters; see `bench/peers`. The useful work of a
training step is three forward passes.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from peers.bucketed import BucketedModel
from peers.loop import ReleasedModel
from peers.released import from_released
from torch._inductor import config as inductor_config
from workload import CLUSTERS, SIZE, actions_on, forward_gflop

from sopr_fast.ops.segment_encoder_blocks import Arena
from sopr_fast.runtime.distributed import block_bounds
from sopr_fast.sopr.input_norm import row_moments
from sopr_fast.sopr.subsets import Subsets

try:
    import zentorch
except ImportError:
    zentorch = None

TORCH = f"torch {torch.__version__.partition('+')[0]}"


@pytest.fixture(scope="module")
def released() -> ReleasedModel:
    torch.manual_seed(0)
    return ReleasedModel(17, 6).eval()


def forward_peers(released: ReleasedModel, dtype: torch.dtype) -> dict[str, torch.nn.Module]:
    """Return models by name; those called frozen have their parameters as constants, which cannot be trained."""
    compilers: dict[str, dict] = {"compiled": {}, "compiled, frozen": {"options": {"freezing": True}}}
    if zentorch is not None and dtype == torch.float32:
        compilers[f"zentorch {zentorch.__version__}, frozen"] = {"backend": "zentorch"}
    matmul = {
        f"{TORCH} bucketed matmul, {name}": BucketedModel(released, attention="matmul", compiler=options, dtype=dtype)
        for name, options in compilers.items()
    }
    return {
        f"{TORCH} bucketed SDPA": BucketedModel(released, dtype=dtype),
        f"{TORCH} bucketed SDPA, compiled": BucketedModel(released, compiler={}, dtype=dtype),
        **matmul,
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_forward_10_policies(precision, released, subsets, columns, contend):
    model = from_released(released.state_dict())
    columns = columns[:10].contiguous()
    clustering = (subsets.rows[0].long(), subsets.offsets[0])
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    scores = {}

    def run(name, call):
        with torch.no_grad():
            scores[name] = call().flatten()

    def ours():
        run("ours", lambda: model(subsets.states, columns, subsets.rows, subsets.offsets, precision=precision))

    contenders = {}
    if precision == "fp32":
        contenders[f"{TORCH} per-cluster loop"] = lambda: run(
            "loop", lambda: released(subsets.states, columns, clustering)
        )
    for name, peer in forward_peers(released, dtype).items():
        plan = peer.eval().plan(clustering)
        with torch.no_grad(), inductor_config.patch(freezing="frozen" in name):
            peer(subsets.states, columns, plan)  # compiles
        contenders[name] = lambda name=name, peer=peer, plan=plan: run(
            name, lambda: peer(subsets.states, columns, plan)
        )
    contend(ours, contenders, rounds=5, gflop=forward_gflop(subsets) * len(columns), precision=precision)
    if precision == "fp32":
        for name, score in scores.items():
            assert (score - scores["ours"]).abs().max() <= 1e-4 * scores["ours"].abs().max(), name


def contend_step(contend, peers, released, subsets, columns, rounds, precision="fp32"):
    """Time a step as `fit` takes it: forward, backward by blocks of policies, without the update of the weights."""
    arena = Arena(1 << 30)
    model = from_released(released.state_dict()).train()
    blocks = tuple(b - a for a, b in itertools.pairwise(block_bounds(len(columns))))
    weights = torch.linspace(-1, 1, len(columns))

    def step():
        arena.reset()
        moments = row_moments(subsets.states, columns, subsets.rows)
        model.norm.observe(moments)
        leaves = model.weights(moments).apart(blocks, arena)
        arguments = subsets.states, columns, subsets.rows, subsets.offsets, torch.tensor([0, 0])
        scores = model(*arguments, precision=precision, weights=leaves)[:, 0]
        torch.autograd.grad((scores * weights).sum(), leaves[:3])

    gflop = 3 * forward_gflop(subsets) * len(columns)
    contend(step, peers, rounds=rounds, gflop=gflop, precision=precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("size", "clusters", "keeps"), [(1024, 16, True), (2048, 32, True), (SIZE, CLUSTERS, False)])
def test_training_step_30_policies(size, clusters, keeps, precision, released, states, contend):
    """Peers may keep activations too; at the paper's size, they would need some 20 GB and compute these again."""
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    subsets = Subsets.draw(states, 1, size=size, clusters=clusters)
    columns = actions_on(subsets)
    clustering = (subsets.rows[0].long(), subsets.offsets[0])
    weights = torch.linspace(-1, 1, len(columns))
    compiled = {"compiler": {}, "hashed_dropout": True, "recompute": not keeps, "dtype": dtype}
    peers = {
        f"{TORCH} bucketed SDPA": BucketedModel(released, recompute=not keeps, dtype=dtype),
        f"{TORCH} bucketed matmul, compiled": BucketedModel(released, attention="matmul", **compiled),
    }

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
    contend_step(contend, contenders, released, subsets, columns, rounds=3, precision=precision)


@pytest.mark.parametrize(("policies", "rounds"), [(5, 3), (30, 1)])
def test_training_step_of_the_released_loop(policies, rounds, released, subsets, columns, contend):
    """The loop needs 9 GB for thirty policies, so it runs only once."""
    clustering = (subsets.rows[0].long(), subsets.offsets[0])
    columns = columns[:policies].contiguous()
    weights = torch.linspace(-1, 1, len(columns))

    def loop():
        released.train()
        released.zero_grad()
        (released(subsets.states, columns, clustering) * weights).sum().backward()
        released.eval()

    contend_step(contend, {f"{TORCH} per-cluster loop": loop}, released, subsets, columns, rounds)
