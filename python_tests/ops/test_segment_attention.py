import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import reference
from support.segment_attention import RNG, batch, check_extreme_scores, compare_with_float64, error_of

from sopr_fast import ops


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), max_size=6),
    heads=st.integers(1, 3),
    dim=st.integers(1, 17),
    spread=st.sampled_from([1e-20, 1e-3, 1.0, 30.0]),
    dropout=st.sampled_from([0.0, 0.3]),
)
@example(sizes=[1, 0, 15, 16, 17, 0, 400], heads=2, dim=32, spread=1.0, dropout=0.0)
def test_segment_attention_on_any_shape(sizes, heads, dim, spread, dropout, ops):
    *inputs, offsets = batch(sizes, heads, dim, spread=spread)
    options = {"dropout": dropout, "rng": RNG, "level": 1, "layer": 2, "segment_base": 9}
    oracle = reference.segment_attention(*(x.double() for x in inputs), offsets, **options)
    plain = reference.segment_attention(*inputs, offsets, **options)
    actual = ops.segment_attention(*inputs, offsets, **options)
    largest = oracle.abs().max().item() if oracle.numel() else 0.0
    scores = max((inputs[0].norm(dim=-1).amax() * inputs[1].norm(dim=-1).amax()).item(), 1) if oracle.numel() else 1
    rounding = 1e-6 + 2**-24 * scores / dim**0.5  # the rounding error of a score is the relative error of its weight
    assert error_of(actual, oracle) <= 2 * error_of(plain, oracle) + rounding * largest


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize(("heads", "dim"), [(2, 32), (3, 5), (1, 70)])
def test_segment_attention_gradients_match_float64(heads, dim, dropout, device):
    compare_with_float64([5, 0, 1, 70, 16, 300], heads, dim, device, scale=0.3, dropout=dropout, rng=RNG, layer=1)


def test_segment_attention_of_a_long_segment(ops):
    *inputs, offsets = batch([16384], 1, 4)
    actual = ops.segment_attention(*inputs, offsets)
    q, k, v = (x.double() for x in inputs)
    some = torch.arange(0, 16384, 1000)
    expected = torch.softmax(q[some, 0] / 2 @ k[:, 0].T, -1) @ v[:, 0]
    assert error_of(actual[some, 0], expected) <= 1e-5 * expected.abs().max()


def test_segment_attention_of_extreme_scores(ops):
    check_extreme_scores(ops)


@pytest.mark.parametrize("function", [ops.segment_attention, reference.segment_attention], ids=["kernel", "reference"])
def test_segment_attention_of_no_columns(function):
    *inputs, offsets = batch([5, 0, 2], 2, 0)
    leaves = [x.requires_grad_() for x in inputs]
    out = function(*leaves, offsets)
    assert out.shape == (7, 2, 0)
    assert [x.shape for x in torch.autograd.grad(out.sum(), leaves)] == 3 * [(7, 2, 0)]
