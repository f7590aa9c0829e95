"""The sources of the CUDA kernels, compiled for the CPU with simt/, so that no GPU is needed. Races fail."""

import importlib

import operators
import pytest
import torch
from test_segment_attention import RNG, batch, check_gradients_of_large_scores, check_scores_of_minus_infinity
from test_segment_encoder import HIGH, LOW, SMALL, assert_as_good_as_torch, problem

from sopr_fast import ops
from sopr_fast.ops import reference
from sopr_fast.runtime import native

pytestmark = pytest.mark.emulated

kmeans = importlib.import_module("sopr_fast.ops.kmeans")  # `ops.kmeans` is the function of this module


@pytest.mark.parametrize("name", ["segment_mean", "segment_dropout", "segment_attention", "sort_by_cluster"])
def test_cuda_kernels_match_float64(name, emulated):
    operators.check(name)
    assert set(emulated) <= {name, f"{name}_backward"} and emulated


@pytest.mark.parametrize(("sizes", "heads", "dim"), [([33, 0, 70], 1, 67), ([5, 32, 1], 3, 129), ([40], 2, 64)])
def test_cuda_segment_attention_of_wide_heads(sizes, heads, dim, emulated):
    *inputs, offsets = batch(sizes, heads, dim)
    options = {"scale": 0.2, "dropout": 0.3, "rng": RNG, "level": 1, "layer": 2, "segment_base": 9}
    actual = [x.clone().requires_grad_() for x in inputs]
    oracle = [x.double().requires_grad_() for x in inputs]
    out = ops.segment_attention(*actual, offsets, **options)
    expected = reference.segment_attention(*oracle, offsets, **options)
    weights = torch.linspace(-1, 1, out.numel()).cos().view(out.shape)
    out.backward(weights)
    expected.backward(weights.double())
    assert (out - expected).norm() <= 5e-6 * expected.norm()
    for leaf, exact in zip(actual, oracle, strict=True):
        assert (leaf.grad - exact.grad).norm() <= 5e-6 * exact.grad.norm()
    assert emulated == ["segment_attention", "segment_attention_backward"]


def test_cuda_segment_attention_takes_long_segments_first(emulated, monkeypatch):
    """The kernels of both passes sort segments by the power of two of their lengths."""
    sizes = [0, 3, 64, 5, 130, 63, 0, 70, 1]
    *inputs, offsets = batch(sizes, 1, 8)
    orders = []

    def scratch(offsets):
        orders.append(torch.full_like(offsets, -1))
        return {"order": orders[-1]}

    monkeypatch.setattr(importlib.import_module("sopr_fast.ops.segment_attention"), "_scratch", scratch)
    ops.segment_attention(*(x.requires_grad_() for x in inputs), offsets).sum().backward()
    assert len(orders) == 2
    for order in orders:
        taken = order[: len(sizes)].tolist()
        assert sorted(taken) == list(range(len(sizes)))
        powers = [sizes[i].bit_length() for i in taken]
        assert powers == sorted(powers, reverse=True) and taken[0] == 4


def test_cuda_segment_attention_of_huge_scores(emulated):
    check_gradients_of_large_scores(ops)
    check_scores_of_minus_infinity(ops)
    assert emulated


def test_cuda_segment_attention_may_drop_everything(emulated):
    q, k, v, offsets = batch([5, 40], 2, 8)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = ops.segment_attention(*leaves, offsets, dropout=0.999999, rng=RNG)
    out.sum().backward()
    assert not out.any() and not any(x.grad.any() for x in leaves)


def test_cuda_segment_attention_propagates_nan(emulated):
    q, k, v, offsets = batch([10, 40], 2, 8)
    k[30, 1, 3] = float("nan")
    out = ops.segment_attention(q, k, v, offsets)
    assert out[:10].isfinite().all() and out[:, 0].isfinite().all()
    assert out[10:, 1].isnan().all()


def problems(kind, count=150, width=5, seed=0):
    points = torch.randn(2, count, width, generator=torch.Generator().manual_seed(seed))
    if kind == "grid":
        return points.round()
    if kind == "duplicates":
        return points[:, torch.arange(count) % 9]
    if kind == "outlier":
        points[:, 77] = 1e12
    if kind == "units":
        return points * torch.logspace(18, -3, width)
    return points * 1e-30 if kind == "small" else points


@pytest.mark.parametrize("width", [3, 17, 40])
@pytest.mark.parametrize("kind", ["normal", "grid", "duplicates", "outlier", "small", "units"])
def test_cuda_kmeans_is_that_of_the_cpu(kind, width, emulated, monkeypatch):
    """Labels, centroids and iterations are equal. 20 clusters make two groups of centroids; one cluster is empty."""
    points = problems(kind, width=width)
    start = points[:, :20].clone()
    start[:, 7] = 50 * points.abs().max()

    def results():
        seeds = torch.tensor([3, -(2**40)])
        chosen = [ops.kmeans_init(points, 20, seeds, method=method, restart=1) for method in ("k-means++", "random")]
        actual = ops.kmeans(points, 20, init=start, iterations=4)
        return *chosen, *ops.kmeans_assign(points, start), *actual

    actual = results()
    assert set(emulated) == {"kmeans_init", "kmeans_assign", "kmeans"}
    monkeypatch.undo()
    expected = results()
    if native._cpu.isa == "portable":  # without fused multiply-adds
        assert torch.equal(actual[1], expected[1])
        return
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b) if a.dtype != torch.float64 else torch.allclose(a, b, rtol=1e-12, atol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_cuda_kmeans_ends_beside_points_that_are_not_finite(value, emulated):
    points = problems("normal")
    start = points[:, :6].clone()
    start[:, 4] = 1e3
    points[0, 7, 1], points[0, 109, 2] = value, -value
    labels = kmeans._kernel(points, start, 4, 0.0)[1]
    assert (labels[0].bincount(minlength=6) > 0).all() and emulated == ["kmeans"]


def test_cuda_kmeans_init_draws_as_the_reference(emulated):
    points, seeds = problems("normal", 300, 6), torch.tensor([5, 6])
    assert torch.equal(ops.kmeans_init(points, 20, 5), reference.kmeans_init(points.double(), 20, seeds, 0, True))


@pytest.mark.parametrize(
    "options",
    [
        LOW | {"layers": 1, "subsets": 2, "distinct": 60},
        HIGH | {"layers": 1, "dropout": 0.3},
        SMALL | {"width": 15, "heads": 3, "subsets": 2, "policies": 3, "dropout": 0.3},
        SMALL | {"width": 70, "heads": 1, "feedforward": 5, "ds": 40},
    ],
    ids=["low", "high", "odd", "wide"],
)
def test_cuda_segment_encoder_matches_float64(options, emulated, monkeypatch, poison):
    """Covers empty, one-row and long segments, several policies and subsets, unused rows, with and without pooling."""
    monkeypatch.setenv("SOPR_FAST_TENSOR_CORES", "0")
    tensors, options = problem([0, 1, 33, 0, 40], **options, rng=RNG)
    assert_as_good_as_torch(ops, tensors, options)
    assert_as_good_as_torch(ops, tensors, options | {"pool": not options.get("pool", True)})
    assert set(emulated) == {"segment_encoder"}


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [1]], ids=str)
@pytest.mark.parametrize("spare", [0, 2])
def test_cuda_segment_encoder_of_hardly_any_segments(sizes, spare, emulated):
    tensors, options = problem(sizes, spare=spare, distinct=3, **SMALL)
    for pool in (True, False):
        assert_as_good_as_torch(ops, tensors, options | {"pool": pool})
    assert emulated


@pytest.mark.parametrize("scale", [1e-20, 1e4])
def test_cuda_segment_encoder_huge_and_tiny_values(scale, emulated):
    tensors, options = problem([5, 40], scale=scale, **SMALL)
    assert_as_good_as_torch(ops, tensors, options)
    assert_as_good_as_torch(ops, (*tensors[:4], tensors[4] * 30), options)
