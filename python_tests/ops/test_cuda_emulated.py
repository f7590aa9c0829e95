"""The sources of the CUDA kernels, compiled for the CPU with simt/, so that no GPU is needed. Races fail."""

import pytest
from support import operators
from support.encoder_problems import HIGH, LOW, SMALL, assert_as_good_as_torch, problem
from support.segment_attention import RNG, check_extreme_scores, compare_with_float64

from sopr_fast import ops

pytestmark = pytest.mark.emulated


@pytest.mark.parametrize("name", ["segment_mean", "segment_dropout", "segment_attention"])
def test_cuda_kernels_match_float64(name, emulated):
    operators.check(name)
    assert set(emulated) <= {name, f"{name}_backward"} and emulated


@pytest.mark.parametrize(("sizes", "heads", "dim"), [([33, 0, 70], 1, 67), ([5, 32, 1], 3, 129), ([40], 2, 64)])
def test_cuda_segment_attention_of_wide_heads(sizes, heads, dim, emulated):
    options = {"scale": 0.2, "dropout": 0.3, "rng": RNG, "level": 1, "layer": 2, "segment_base": 9}
    compare_with_float64(sizes, heads, dim, **options)
    assert emulated == ["segment_attention", "segment_attention_backward"]


def test_cuda_segment_attention_of_extreme_scores(emulated):
    check_extreme_scores(ops)
    assert emulated


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


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        *((sizes, {"spare": spare, "distinct": 3}) for sizes in ([], [0], [0, 0], [1]) for spare in (0, 2)),
        *(([5, 40], {"scale": scale}) for scale in (1e-20, 1e4)),
    ],
    ids=str,
)
def test_cuda_segment_encoder_of_hardly_any_segments_and_of_huge_values(sizes, options, emulated):
    tensors, options = problem(sizes, **options, **SMALL)
    for pool in (True, False):
        assert_as_good_as_torch(ops, tensors, options | {"pool": pool})
    assert_as_good_as_torch(ops, (*tensors[:4], tensors[4] * 30), options)
    assert emulated
