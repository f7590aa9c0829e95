"""On a GPU: our kernels beside what torch and others do there, on the data and the parameters of the CPU's benchmarks.

FLOP are counted on the very clusters, a training step as four forward passes; their peak is what torch's own fp32
product reaches in the same run. Ten policies on twenty subsets; k-means of 200 problems.
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
from sopr_fast.released import from_released
from sopr_fast.subsets import Drawing

try:
    from flash_kmeans import batch_kmeans_Euclid
except ImportError:
    batch_kmeans_Euclid = None

TORCH = f"torch {torch.__version__.partition('+')[0]}"
SUBSETS, PROBLEMS, ITERATIONS = 20, 200, 25


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
def clustered(cuda, states) -> Subsets:
    return Subsets.draw(states, SUBSETS, size=SIZE, clusters=CLUSTERS)


@pytest.fixture(scope="module")
def problem(cuda, clustered) -> list[torch.Tensor]:
    """States, columns of thirty policies, rows and offsets."""
    columns = actions_on(clustered)
    return [x.to(cuda) for x in (clustered.states, columns, clustered.rows, clustered.offsets)]


@pytest.fixture(scope="module")
def gflop(clustered) -> float:
    return forward_gflop(clustered)


@pytest.fixture(scope="module")
def released(cuda) -> ReleasedModel:
    torch.manual_seed(0)
    return ReleasedModel(17, 6).eval().to(cuda)


def test_cuda_forward_10_policies(released, problem, gflop, peak, contend):
    """`ours` is in fp32; so are the peers but where their name says bf16."""
    states, columns, rows, offsets = problem
    columns = columns[:10].contiguous()
    model = from_released(released.state_dict()).to(columns.device)
    clusterings = [(subset.long(), bounds) for subset, bounds in zip(rows, offsets, strict=True)]
    options = {"tokens": 1 << 17}
    peers = {
        f"{TORCH} padded SDPA": BucketedModel(released, **options),
        f"{TORCH} padded matmul, compiled": BucketedModel(released, attention="matmul", compiled=True, **options),
        f"{TORCH} padded SDPA, bf16": BucketedModel(released, dtype=torch.bfloat16, **options),
    }
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

    contenders = {f"{TORCH} per-cluster loop": lambda: run("loop", lambda: of_subsets(released, clusterings))}
    for name, peer in peers.items():
        plans = [peer.eval().plan(clustering) for clustering in clusterings]
        contenders[name] = lambda name=name, peer=peer, plans=plans: run(name, lambda: of_subsets(peer, plans))
    contend(
        lambda: run("ours", lambda: model(states, columns, rows, offsets)),
        contenders,
        rounds=3,
        gflop=gflop * len(columns) * SUBSETS,
        peak=peak,
    )
    for name, score in scores.items():
        allowed = 5e-2 if "bf16" in name else 1e-4
        assert (score - scores["ours"]).abs().max() <= allowed * scores["ours"].abs().max(), name


def test_cuda_training_step_30_policies(released, problem, gflop, peak, contend):
    states, columns, rows, offsets = problem
    rows, offsets = rows[:1].contiguous(), offsets[:1].contiguous()
    model = from_released(released.state_dict()).to(columns.device).train()
    rng = torch.tensor([0, 0], device=columns.device)
    weights = torch.linspace(-1, 1, len(columns), device=columns.device)
    options = {"tokens": 1 << 17, "recompute": True}
    peers = {
        f"{TORCH} padded SDPA": BucketedModel(released, **options),
        f"{TORCH} padded matmul, compiled": BucketedModel(
            released, attention="matmul", compiled=True, hashed_dropout=True, **options
        ),
    }

    def ours():
        model.zero_grad()
        (model(states, columns, rows, offsets, rng)[:, 0] * weights).sum().backward()

    def step(peer, plan):
        released.train()
        peer.train()
        peer.zero_grad()
        (peer(states, columns, plan) * weights).sum().backward()
        released.eval()

    contenders = {}
    for name, peer in peers.items():
        plan = peer.plan((rows[0].long(), offsets[0]))
        contenders[name] = lambda peer=peer, plan=plan: step(peer, plan)
    contend(ours, contenders, rounds=3, gflop=4 * gflop * len(columns), peak=peak)


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


def test_cuda_kmeans_plusplus(points, peak, contend):
    seeds = torch.arange(PROBLEMS, device=points.device)
    contend(lambda: ops.kmeans_plusplus(points, CLUSTERS, seeds), {}, rounds=3, peak=peak)
