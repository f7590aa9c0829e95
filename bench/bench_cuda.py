"""On a GPU: our kernels beside what torch and others do there, on the data and the parameters of the CPU's benchmarks.

FLOP are counted on the very clusters, a training step as four forward passes; their peak is what torch's own fp32
product reaches in the same run. K-means of 200 problems; ten policies on twenty subsets. Peers that torch compiles for
minutes have tests of their own, so that a limit of time takes no other number away.
"""

from __future__ import annotations

import time

import pytest
import torch
from peers import packed
from peers.bucketed import BucketedModel
from peers.kmeans import lloyd
from peers.loop import ReleasedModel
from peers.packed import PackedModel
from workload import CLUSTERS, SIZE, actions_on, forward_gflop

from sopr_fast import Subsets, ops
from sopr_fast.sopr.released import from_released
from sopr_fast.sopr.subsets import Drawing

try:
    from flash_kmeans import batch_kmeans_Euclid
except ImportError:
    batch_kmeans_Euclid = None

TORCH = f"torch {torch.__version__.partition('+')[0]}"
SUBSETS, PROBLEMS, ITERATIONS = 20, 200, 25
compiled_or_not = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


@pytest.fixture(scope="module")
def peak(cuda) -> float:
    """GFLOP/s of torch's fp32 product on this GPU."""
    x, side = torch.randn(2, 8192, 8192, device=cuda), 8192
    seconds = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        x[0] @ x[1]
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return 2e-9 * side**3 / min(seconds)


@pytest.fixture(scope="module")
def points(cuda, states) -> torch.Tensor:
    drawing = Drawing.draw(states, PROBLEMS, size=SIZE, seed=0)
    return drawing.states[drawing.rows.long()].to(cuda)


def test_cuda_lloyd_from_the_same_centroids(points, peak, contend):
    start = points[:, :CLUSTERS].contiguous()
    found = {}

    def ours():
        found["ours"] = ops.kmeans(points, CLUSTERS, init=start, iterations=ITERATIONS, tolerance=0.0)

    def torch_kmeans():
        found["theirs"], _ = lloyd(points, start, ITERATIONS)

    def flash_kmeans():
        batch_kmeans_Euclid(points, CLUSTERS, max_iters=ITERATIONS, tol=0.0, init_centroids=start)

    contenders = {TORCH: torch_kmeans}
    if batch_kmeans_Euclid is not None:
        contenders["flash-kmeans"] = flash_kmeans
    contend(ours, contenders, rounds=3, gflop=3e-9 * points.numel() * CLUSTERS * ITERATIONS, peak=peak)
    _, squared = ops.kmeans_assign(points, found["theirs"])
    assert found["ours"].inertia.sum() <= 1.01 * squared.double().sum()


def test_cuda_kmeans_init(points, peak, contend):
    seeds = torch.arange(PROBLEMS, device=points.device)
    contend(lambda: ops.kmeans_init(points, CLUSTERS, seeds), {}, rounds=3, peak=peak)


@pytest.fixture(scope="module")
def clustered(cuda, states) -> Subsets:
    return Subsets.draw(states, SUBSETS, size=SIZE, clusters=CLUSTERS)


def on_gpu(subsets: Subsets) -> list[torch.Tensor]:
    """States, columns of thirty policies, rows and offsets."""
    return [x.cuda() for x in (subsets.states, actions_on(subsets), subsets.rows, subsets.offsets)]


@pytest.fixture(scope="module")
def released(cuda) -> ReleasedModel:
    torch.manual_seed(0)
    return ReleasedModel(17, 6).eval().to(cuda)


@compiled_or_not
def test_cuda_forward_10_policies(compiled, released, clustered, peak, contend):
    """`ours` is in fp32; so are the peers but where their name says bf16."""
    states, columns, rows, offsets = on_gpu(clustered)
    columns = columns[:10].contiguous()
    model = from_released(released.state_dict()).to(columns.device)
    clusterings = [(subset.long(), bounds) for subset, bounds in zip(rows, offsets, strict=True)]
    options = {"tokens": 1 << 17}
    peers = {
        f"{TORCH} padded SDPA": BucketedModel(released, **options),
        f"{TORCH} padded SDPA, bf16": BucketedModel(released, dtype=torch.bfloat16, **options),
    }
    if compiled:
        fused = BucketedModel(released, attention="matmul", compiled=True, **options)
        peers = {f"{TORCH} padded matmul, compiled": fused}
        if packed.varlen_attn is not None:
            peers[f"{TORCH} packed varlen, compiled, bf16"] = PackedModel(
                released, attention="varlen", dtype=torch.bfloat16
            )
    scores = {}

    def run(name, call):
        with torch.no_grad():
            scores[name] = call()

    def of_subsets(peer, plans):
        return torch.stack([peer(states, columns, plan) for plan in plans], 1)

    contenders = {}
    if not compiled:
        contenders[f"{TORCH} per-cluster loop"] = lambda: run("loop", lambda: of_subsets(released, clusterings))
    for name, peer in peers.items():
        plans = [peer.eval().plan(clustering) for clustering in clusterings]
        contenders[name] = lambda name=name, peer=peer, plans=plans: run(name, lambda: of_subsets(peer, plans))
    contend(
        lambda: run("ours", lambda: model(states, columns, rows, offsets)),
        contenders,
        rounds=3,
        gflop=forward_gflop(clustered) * len(columns) * SUBSETS,
        peak=peak,
    )
    for name, score in scores.items():
        allowed = 5e-2 if "bf16" in name else 1e-4
        assert (score - scores["ours"]).abs().max() <= allowed * scores["ours"].abs().max(), name


@compiled_or_not
def test_cuda_training_step_30_policies(compiled, released, clustered, peak, contend):
    subset = clustered.take(1)  # the peers normalise by the moments of all states they are given
    states, columns, rows, offsets = on_gpu(subset)
    model = from_released(released.state_dict()).to(columns.device).train()
    rng = torch.tensor([0, 0], device=columns.device)
    weights = torch.linspace(-1, 1, len(columns), device=columns.device)
    name, options = f"{TORCH} padded SDPA", {"tokens": 1 << 17, "recompute": True}
    if compiled:
        name = f"{TORCH} padded matmul, compiled"
        options |= {"attention": "matmul", "compiled": True, "hashed_dropout": True}
    peer = BucketedModel(released, **options)
    plan = peer.plan((rows[0].long(), offsets[0]))

    def ours():
        model.zero_grad()
        (model(states, columns, rows, offsets, rng)[:, 0] * weights).sum().backward()

    def step():
        released.train()
        peer.train()
        peer.zero_grad()
        (peer(states, columns, plan) * weights).sum().backward()
        released.eval()

    contend(ours, {name: step}, rounds=3, gflop=4 * forward_gflop(subset) * len(columns), peak=peak)
