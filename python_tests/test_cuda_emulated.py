"""The sources of the CUDA kernels, compiled for the CPU with simt/, so that no GPU is needed. Races fail."""

import operators
import pytest
import reference
import torch
from test_segment_attention import RNG, batch, check_gradients_of_large_scores, check_scores_of_minus_infinity
from test_segment_encoder import HIGH, LOW, SMALL, assert_as_good_as_torch, problem

from sopr_fast import ops
from sopr_fast.ops import library

pytestmark = pytest.mark.emulated


@pytest.mark.parametrize("name", ["segment_mean", "segment_dropout", "segment_attention"])
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
    orders, call = [], library.call_cpu

    def watched(kernel, **arguments):
        orders.append(arguments["order"])
        call(kernel, **arguments)

    monkeypatch.setattr(library, "call_cpu", watched)
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
