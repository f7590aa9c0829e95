"""Random problems of `segment_attention`, compared with float64."""

import torch
from support import operators, reference

RNG = torch.tensor([11, 5])


def batch(sizes, heads, dim, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)
    q, k, v = spread * torch.randn(3, int(offsets[-1]), heads, dim, generator=generator)
    return q, k, v, offsets


def error_of(actual, expected):
    return (actual.double() - expected).abs().max().item() if expected.numel() else 0.0


def compare_with_float64(sizes, heads, dim, device="cpu", **options):
    tensors = dict(zip(("q", "k", "v", "offsets"), batch(sizes, heads, dim), strict=True))
    name = "segment_attention"
    operators.compare(name, operators.call(name, ("q", "k", "v"), **tensors, **options), device)


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
