import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import reference
from support.encoder_problems import (
    HIGH,
    LOW,
    SMALL,
    allowed,
    assert_as_good_as_torch,
    assert_gradients,
    gradients,
    problem,
    run,
)

from sopr_fast import native, ops
from sopr_fast.ops import composed


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        *(
            (sizes, options | {"subsets": 2})
            for sizes in ([1], [0, 1, 2, 0, 15, 16, 17], [400, 33])
            for options in (LOW, HIGH, SMALL)
        ),
        ([5000], SMALL | {"layers": 1, "heads": 1, "policies": 1}),
        *(([5, 70], LOW | {"scale": scale}) for scale in (1e-20, 1e-3, 1e4)),
    ],
    ids=str,
)
def test_segment_encoder_matches_float64(sizes, options, ops):
    tensors, options = problem(sizes, **options)
    assert_as_good_as_torch(ops, tensors, options)
    assert_as_good_as_torch(ops, tensors, options | {"pool": not options.get("pool", True)})
    if sizes == [5, 70]:
        assert_as_good_as_torch(ops, (*tensors[:4], tensors[4] * 30), options)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        *((sizes, SMALL) for sizes in ([], [0], [0, 0])),
        *(([0, 1, 2, 15, 150, 17], options | {"dropout": p}) for options in (LOW, HIGH) for p in (0.0, 0.1)),
        ([1500, 5], SMALL | {"policies": 1}),
        ([30, 20], SMALL | {"subsets": 3, "distinct": 40}),  # rows that subsets share
    ],
    ids=str,
)
def test_segment_encoder_gradients(sizes, options, ops):
    assert_gradients(ops, *problem(sizes, rng=torch.tensor([3, 4]), **options))


def test_segment_encoder_scores_of_minus_infinity(ops):
    """Whole tiles of keys have scores of -inf: queries are 1e19 in one column, keys and values are the tokens."""
    options = {"width": 8, "layers": 1, "heads": 1, "feedforward": 4, "project": False, "pool": False}
    tensors, options = problem([300], policies=1, ds=0, **options)
    columns, rows, parameters = tensors[1], tensors[2][0].long(), tensors[4]
    columns[0, rows[:200], 0], columns[0, rows[200:], 0] = -1e20, 0
    parameters[: 3 * 64] = torch.cat([torch.zeros(8, 8), torch.eye(8), torch.eye(8)]).flatten()
    parameters[3 * 64 : 3 * 72] = torch.tensor([1e19] + [0.0] * 23)
    expected = run(reference.segment_encoder, tensors, options, torch.float64)[:, :, 200:]
    actual = run(ops.segment_encoder, tensors, options)[:, :, 200:]
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_segment_encoder_infinite_input_that_relu_cuts_off(ops):
    tensors, options = problem([5, 9], width=6, layers=1, heads=2, feedforward=5)
    tensors[0][3] = torch.inf
    weight = tensors[4][: 6 * 8]
    weight.copy_(-weight.abs() - 0.1)
    result = run(ops.segment_encoder, tensors, options)
    assert result.isfinite().all()
    torch.testing.assert_close(result, run(reference.segment_encoder, tensors, options), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("function", [ops.segment_encoder, composed.segment_encoder, reference.segment_encoder])
@pytest.mark.parametrize(("policies", "subsets"), [(0, 3), (2, 0)])
def test_segment_encoder_of_nothing(function, policies, subsets):
    (states, columns, rows, offsets, parameters), options = problem([5, 9], policies=2, subsets=3, **SMALL)
    for pool, tokens in ((True, 2), (False, 16)):
        out = function(states, columns[:policies], rows[:subsets], offsets[:subsets], parameters, **options, pool=pool)
        assert out.shape == (policies, subsets, tokens, 16)


@pytest.mark.parametrize(("rows", "layers"), [(200_000, 0), (3000, 1)])
def test_gradients_of_many_rows_are_as_good_as_torchs(rows, layers, ops):
    tensors, options = problem([rows], policies=1, **SMALL | {"layers": layers})
    assert_gradients(ops, tensors, options, times=allowed(ops), relative=5e-7, of_largest=0)


@pytest.mark.parametrize("pool", [True, False])
def test_the_composed_encoder_matches_float64(pool, monkeypatch):
    monkeypatch.setattr(composed, "MAX_TOKENS", 200)  # of two policies
    tensors, options = problem([0, 3, 40], policies=3, subsets=2, spare=7, **SMALL, pool=pool)
    options |= {"dropout": 0.2, "rng": torch.tensor([3, 4])}
    oracle = run(reference.segment_encoder, tensors, options, torch.float64)
    assert (run(composed.segment_encoder, tensors, options) - oracle).norm() <= 5e-6 * oracle.norm()
    expected = gradients(reference.segment_encoder, tensors, options, torch.float64)
    for ours, exact in zip(gradients(composed.segment_encoder, tensors, options), expected, strict=True):
        assert (ours - exact).norm() <= 1e-4 * exact.norm() + 1e-6 * max(g.norm() for g in expected)


def test_the_backward_pass_of_the_mlp_drops_what_forward_dropped():
    (states, columns, rows, offsets, _), _ = problem([3, 40], **SMALL)
    shape = {"width": 8, "layers": 1, "heads": 1, "feedforward": 16, "project": False}
    weights = torch.randn(2 * 8 * 16 + 8 + 16, generator=torch.Generator().manual_seed(0))

    def gradient(steps: int) -> torch.Tensor:
        leaf, rng = columns.clone().requires_grad_(), torch.tensor([3, 4])
        out = composed.mlp_encoder(states, leaf, rows, offsets, weights, **shape, dropout=0.5, rng=rng)
        rng[1] += steps  # between forward and backward
        return torch.autograd.grad(out.square().sum(), leaf)[0]

    assert torch.equal(gradient(1), gradient(0))


@st.composite
def shapes(draw):
    heads, head = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    project = draw(st.booleans())
    width = heads * head
    return {
        "sizes": draw(st.lists(st.integers(0, 40), max_size=4)),
        "seed": draw(st.integers(0, 1000)),
        "policies": draw(st.integers(1, 3)),
        "subsets": draw(st.integers(1, 2)),
        "ds": draw(st.integers(0, 20 if project else width)),
        "dc": draw(st.integers(1, 5)),
        "width": width,
        "layers": draw(st.integers(int(not project), 3)),
        "heads": heads,
        "feedforward": draw(st.integers(1, 70)),
        "project": project,
        "pool": draw(st.booleans()),
        "dropout": draw(st.sampled_from([0.0, 0.1, 0.7])),
        "rng": torch.tensor([draw(st.integers(-(2**40), 2**40)), 2]),
    }


@settings(max_examples=40, deadline=None)
@given(shape=shapes())
def test_segment_encoder_any_shape(shape, ops):
    tensors, options = problem(**shape)
    assert run(ops.segment_encoder, tensors, options).isfinite().all()
    if options["width"] > 2:  # a norm of one or two columns is a step function, which amplifies rounding without bound
        assert_as_good_as_torch(ops, tensors, options)
        assert_gradients(ops, tensors, options, times=10)


@pytest.mark.parametrize("options", [LOW, HIGH, SMALL | {"feedforward": 21, "width": 36}], ids=["low", "high", "small"])
def test_segment_encoder_bf16(options):
    tensors, options = problem([0, 1, 2, 15, 16, 17, 131, 300], **options)
    oracle = run(reference.segment_encoder, tensors, options, torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        torch_error = (run(reference.segment_encoder, tensors, options).double() - oracle).norm()
    narrow = run(ops.segment_encoder, tensors, options | {"precision": "bf16"})
    assert (narrow.double() - oracle).norm() <= 2 * torch_error
    same = torch.equal(narrow, run(ops.segment_encoder, tensors, options))
    assert same == (native._cpu.isa != "avx512_bf16")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_segment_encoder_bf16_gradients(dropout):
    tensors, options = problem([0, 1, 2, 15, 16, 17, 150], **LOW, dropout=dropout, rng=torch.tensor([3, 4]))
    assert_gradients(ops, tensors, options | {"precision": "bf16"}, times=2, relative=0, of_largest=0)


def test_segment_encoder_bf16_of_odd_heads_is_fp32(ops):
    tensors, options = problem([0, 1, 2, 40], **SMALL | {"width": 15, "heads": 3})
    narrow = run(ops.segment_encoder, tensors, options | {"precision": "bf16"})
    assert torch.equal(narrow, run(ops.segment_encoder, tensors, options))


def test_segment_encoder_keeps_only_inputs():
    tensors, options = problem([60] * 8, policies=8, **LOW)
    saved = []
    tensors[4].requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        ops.segment_encoder(*tensors, **options)
    assert {t.data_ptr() for t in saved} <= {t.data_ptr() for t in tensors}
