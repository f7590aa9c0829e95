import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sopr_fast import ops

RNG = torch.tensor([11, 5])


def batch(sizes, heads, dim, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)
    q, k, v = spread * torch.randn(3, int(offsets[-1]), heads, dim, generator=generator)
    return q, k, v, offsets


def error_of(actual, expected):
    return (actual.double() - expected).abs().max().item() if expected.numel() else 0.0


def check_forward(ops, sizes, heads, dim, spread=1.0, **options):
    *inputs, offsets = batch(sizes, heads, dim, spread=spread)
    oracle = reference.segment_attention(*(x.double() for x in inputs), offsets, **options)
    plain = reference.segment_attention(*inputs, offsets, **options)
    actual = ops.segment_attention(*inputs, offsets, **options)
    largest = oracle.abs().max().item() if oracle.numel() else 0.0
    scores = max((inputs[0].norm(dim=-1).amax() * inputs[1].norm(dim=-1).amax()).item(), 1) if oracle.numel() else 1
    rounding = 1e-6 + 2**-24 * scores / dim**0.5  # the rounding error of a score is the relative error of its weight
    assert error_of(actual, oracle) <= 2 * error_of(plain, oracle) + rounding * largest


@pytest.mark.parametrize("sizes", [[3], [0], [1, 0, 15, 16, 17, 0], [400, 2], []], ids=str)
@pytest.mark.parametrize(("heads", "dim"), [(2, 32), (8, 8), (1, 5)])
def test_segment_attention_matches_float64(sizes, heads, dim, ops):
    check_forward(ops, sizes, heads, dim)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), max_size=6),
    heads=st.integers(1, 3),
    dim=st.integers(1, 17),
    spread=st.sampled_from([1e-20, 1e-3, 1.0, 30.0]),
    dropout=st.sampled_from([0.0, 0.3]),
)
def test_segment_attention_on_any_shape(sizes, heads, dim, spread, dropout, ops):
    check_forward(ops, sizes, heads, dim, spread, dropout=dropout, rng=RNG, level=1, layer=2, segment_base=9)


def compare_with_float64(ops, sizes, heads, dim, tolerance=1e-5, **options):
    *inputs, offsets = batch(sizes, heads, dim)
    weights = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1))
    actual = [x.clone().requires_grad_() for x in inputs]
    oracle = [x.double().requires_grad_() for x in inputs]
    out = ops.segment_attention(*actual, offsets, **options)
    expected = reference.segment_attention(*oracle, offsets, **options)
    assert (out - expected).norm() <= 5e-6 * expected.norm()
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    for leaf, exact in zip(actual, oracle, strict=True):
        assert (leaf.grad - exact.grad).norm() <= tolerance * exact.grad.norm()


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize(("heads", "dim"), [(2, 32), (3, 5), (1, 70)])
def test_segment_attention_gradients_match_float64(heads, dim, dropout, ops):
    compare_with_float64(ops, [5, 0, 1, 70, 16, 300], heads, dim, scale=0.3, dropout=dropout, rng=RNG, layer=1)


def check_gradients_of_large_scores(ops):
    """Two keys are equal, so some weights are neither 0 nor 1.

    A product of a score has an absolute error of up to `rounding`, which is a relative error of weights and gradients.
    The order of sums decides which errors cancel, so the limit is a small multiple.
    """
    *inputs, offsets = batch([200], 4, 16)
    inputs[1][0] = inputs[1][1]
    weights = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1))

    def gradients(function, dtype):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in inputs]
        return torch.autograd.grad((function(*leaves, offsets, scale=2500.0) * weights).sum(), leaves)

    rounding = 2**-24 * 2500 * torch.einsum("qhd,khd->hqk", inputs[0].abs(), inputs[1].abs()).max()
    assert rounding < 0.005
    oracle = gradients(reference.segment_attention, torch.float64)
    for actual, expected in zip(gradients(ops.segment_attention, torch.float32), oracle, strict=True):
        assert error_of(actual, expected) <= 4 * rounding * expected.abs().max()


def check_scores_of_minus_infinity(ops):
    """First whole tiles of keys, then all keys of some queries have scores of -inf."""
    q, k, v, offsets = batch([200], 2, 16)
    q, k[:150] = torch.full_like(q, 1e19), -1e19
    k[150:] *= 1e-20
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = ops.segment_attention(*leaves, offsets, scale=1.0)
    expected = reference.segment_attention(q.double(), k.double(), v.double(), offsets, scale=1.0)
    assert error_of(out, expected) <= 1e-5 * expected.abs().max()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), leaves))
    with torch.no_grad():
        q[7], k[150:] = 1.0, -1e19
        actual = ops.segment_attention(q, k, v, offsets, scale=1.0)
        plain = reference.segment_attention(q, k, v, offsets, scale=1.0)
    assert torch.equal(actual.isnan(), plain.isnan()) and plain.isnan().any() and plain[7].isfinite().all()


def test_segment_attention_of_a_long_segment(ops):
    *inputs, offsets = batch([16384], 1, 4)
    actual = ops.segment_attention(*inputs, offsets)
    q, k, v = (x.double() for x in inputs)
    some = torch.arange(0, 16384, 1000)
    expected = torch.softmax(q[some, 0] / 2 @ k[:, 0].T, -1) @ v[:, 0]
    assert error_of(actual[some, 0], expected) <= 1e-5 * expected.abs().max()


def check_dropping_everything(ops):
    """The probability rounds to 1."""
    q, k, v, offsets = batch([5, 40], 2, 8)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = ops.segment_attention(*leaves, offsets, dropout=0.999999, rng=RNG)
    out.sum().backward()
    assert not out.any() and not any(x.grad.any() for x in leaves)


def check_nan_stays_in_its_segment(ops):
    q, k, v, offsets = batch([10, 200], 2, 8)
    k[60, 1, 3] = float("nan")
    out = ops.segment_attention(q, k, v, offsets)
    assert out[:10].isfinite().all() and out[:, 0].isfinite().all()
    assert out[10:, 1].isnan().all()


def check_extreme_scores(ops):
    check_gradients_of_large_scores(ops)
    check_scores_of_minus_infinity(ops)
    check_dropping_everything(ops)
    check_nan_stays_in_its_segment(ops)


def test_segment_attention_of_extreme_scores(ops):
    check_extreme_scores(ops)


@pytest.mark.parametrize("function", [ops.segment_attention, reference.segment_attention], ids=["kernel", "reference"])
def test_segment_attention_of_no_columns(function):
    *inputs, offsets = batch([5, 0, 2], 2, 0)
    leaves = [x.requires_grad_() for x in inputs]
    out = function(*leaves, offsets)
    assert out.shape == (7, 2, 0)
    assert [x.shape for x in torch.autograd.grad(out.sum(), leaves)] == 3 * [(7, 2, 0)]


@pytest.mark.parametrize("site", [1, 3])
def test_segment_dropout_is_the_reference_mask(site, ops):
    x, *_, offsets = batch([5, 0, 1, 30], 1, 67)
    x = x[:, 0]
    options = {"probability": 0.25, "rng": RNG, "level": 1, "layer": 4, "site": site, "segment_base": 70}
    expected = reference.segment_dropout(x, offsets, **options)
    assert torch.equal(ops.segment_dropout(x, offsets, **options), expected)
    assert 0.15 < (expected == 0).float().mean() < 0.35


def test_no_dropout_without_columns_rng_or_probability(ops):
    x, *_, offsets = batch([5], 1, 8)
    assert ops.segment_dropout(x[:, 0, :0], offsets, probability=0.1, rng=RNG).shape == (5, 0)
    assert ops.segment_dropout(x[:, 0], offsets, probability=0.5, rng=None) is not None
    assert torch.equal(ops.segment_dropout(x[:, 0], offsets, probability=0.0, rng=RNG), x[:, 0])
    with pytest.raises(ValueError, match="dropout must be at least 0 and below 1"):
        ops.segment_dropout(x[:, 0], offsets, probability=1.0, rng=RNG)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"level": -1}, "level must be 0 or 1, got -1"),
        ({"level": 256}, "level must be 0 or 1, got 256"),  # has the masks of level 0
        ({"layer": 256}, "layer must be between 0 and 255, got 256"),  # has the masks of the next level
        ({"site": 16}, "site must be between 0 and 3, got 16"),  # has the masks of the next layer
    ],
)
def test_dropout_refuses_places_that_would_share_their_masks(place, message, ops):
    q, k, v, offsets = batch([5], 2, 4)
    with pytest.raises(ValueError, match=message):
        ops.segment_dropout(q[:, 0], offsets, probability=0.5, rng=RNG, **place)
    if "site" not in place:
        with pytest.raises(ValueError, match=message):
            ops.segment_attention(q, k, v, offsets, dropout=0.5, rng=RNG, **place)


def test_segment_attention_refuses_many_heads_and_other_shapes():
    q, k, v, offsets = batch([2], 4097, 1)  # which would share their masks
    assert ops.segment_attention(q, k, v, offsets, rng=RNG).shape == q.shape
    with pytest.raises(ValueError, match="with dropout, heads must be between 0 and 4096, got 4097"):
        ops.segment_attention(q, k, v, offsets, rng=RNG, dropout=0.1)
    with pytest.raises(ValueError, match=r"k must have shape \(2, 4097, 1\), got \(2, 1, 1\)"):
        ops.segment_attention(q, k[:, :1], v, offsets)
