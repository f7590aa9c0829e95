"""The encoder on tensor cores, emulated or real: results and gradients, segments of all lengths, dropout, launches."""

import ctypes
import math

import pytest
import torch
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
from support.operators import OnDevice
from support.problems import train_scores
from support.segment_attention import RNG

import sopr_fast
from sopr_fast import Config
from sopr_fast.sopr.model import ScoringModel

ONE, ALONE, DROPOUT = {"layers": 1}, {"policies": 1}, {"dropout": 0.3, "rng": RNG}
HEADS_OF_16 = {"width": 64, "layers": 1, "heads": 4, "feedforward": 32}
SIZES = [0, 1, 33, 0, 40, 16, 60]  # tiles hold several segments, empty ones and unused rows; pieces are partly filled
LONG = [129, 7, 260]  # more tiles than the workspace holds at once; the short one is in a tile of its own
HARDLY_ANY = ([], [0], [1], [0, 0])
BACKWARD = "segment_encoder_backward"


@pytest.fixture
def ran(emulated, cuda_module_for_cpu):
    """Run the operator in the emulator and list its kernels; fail if the tensor cores had nothing to do."""
    products = ctypes.CDLL(cuda_module_for_cpu.__file__).simt_products
    before = products()
    yield emulated
    assert products() > before


@pytest.fixture(params=[pytest.param("ran", marks=pytest.mark.emulated), "cuda"])
def ops(request):
    """The operators in the emulator and on a GPU."""
    device = request.getfixturevalue(request.param)
    return OnDevice(device) if request.param == "cuda" else sopr_fast.ops


def hold(ops):
    """Give the tensor cores something to do where a test has no rows."""
    tensors, options = problem([5], **HEADS_OF_16)
    run(ops.segment_encoder, tensors, options)


def check(ops, tensors, options):
    for pool in (True, False):
        options |= {"pool": pool}
        assert_as_good_as_torch(ops, tensors, options)
        oracle = run(reference.segment_encoder, tensors, options, torch.float64)
        out = run(ops.segment_encoder, tensors, options | {"precision": "bf16"})
        assert (out - oracle).norm() <= 2e-2 * oracle.norm()


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        (SIZES, LOW),
        (SIZES, HIGH | ONE),
        (SIZES, HEADS_OF_16),
        (SIZES, LOW | ONE | {"ds": 40, "subsets": 2, "policies": 3}),
        (LONG, LOW | {"policies": 2, "spare": 3}),
        ([129], HIGH | ONE | ALONE | {"subsets": 2}),
        *(([0, 9, 40, 150], options | DROPOUT) for options in (LOW, HIGH | ONE, HEADS_OF_16)),
        *((sizes, LOW | ONE | {"distinct": 3}) for sizes in HARDLY_ANY),
    ],
)
def test_tensor_cores_match_float64(sizes, options, ops, poison):
    tensors, options = problem(sizes, **options)
    check(ops, tensors, options)
    if sizes in HARDLY_ANY:
        hold(ops)


def without_switches(tensors, options):
    """Move biases before ReLUs away from 0: there, rounding to bf16 would switch some values on or off."""
    inputs = tensors[0].shape[1] + tensors[1].shape[2]
    project = options.get("project", True)
    shapes = sopr_fast.ops.encoder_shapes(inputs, options["width"], options["layers"], options["feedforward"], project)
    parts = list(tensors[4].split([math.prod(shape) for shape in shapes]))
    before_relus = [1] * project + [2 * project + 12 * layer + 7 for layer in range(options["layers"])]
    for i in before_relus:
        parts[i] = 8 * parts[i].sign()
    return (*tensors[:4], torch.cat(parts))


BOTH = ("fp32", "bf16")


@pytest.mark.parametrize(
    ("sizes", "options", "precisions"),
    [
        *((SIZES, LOW | ALONE | more, BOTH) for more in ({}, DROPOUT, ONE | {"ds": 40, "pool": False})),
        *((SIZES, options | ALONE | DROPOUT, BOTH) for options in (HIGH | ONE, HEADS_OF_16)),
        ([3, 20], HEADS_OF_16 | {"policies": 3, "dc": 40}, ["fp32"]),  # more columns than a tile holds
        ([30, 20], HEADS_OF_16 | {"subsets": 3, "distinct": 40}, BOTH),  # shared rows
        *((sizes, HEADS_OF_16 | {"distinct": 3}, ["fp32"]) for sizes in HARDLY_ANY),
        pytest.param(
            LONG, LOW | ONE | DROPOUT | {"policies": 2, "spare": 3, "pool": False}, BOTH, marks=pytest.mark.slow
        ),
        pytest.param([7, 140], LOW | ALONE, ["fp32"], marks=pytest.mark.slow),
        pytest.param([150], HIGH | ONE | ALONE | DROPOUT | {"pool": True}, BOTH, marks=pytest.mark.slow),
    ],
)
def test_gradients_match_float64(sizes, options, precisions, ops, poison):
    """They have at most twice the error of torch in the same precision, and 1e-6 of the largest gradient."""
    tensors, options = problem(sizes, **options)
    for precision in precisions:
        if precision == "bf16":
            tensors = without_switches(tensors, options)
        assert_gradients(ops, tensors, options | {"precision": precision}, times=allowed(ops), relative=0)
    if sizes in HARDLY_ANY:
        hold(ops)


@pytest.mark.parametrize("scale", [1e-20, 1e2, 1e4])
def test_tensor_cores_of_huge_and_tiny_values(scale, ops):
    """Where softmax is 0 or 1, its gradient is the rounding of a difference, as it is on a CPU."""
    tensors, options = problem([5, 40], policies=1, scale=scale, **LOW)
    assert_as_good_as_torch(ops, tensors, options)
    assert_as_good_as_torch(ops, (*tensors[:4], tensors[4] * 30), options)
    if scale < 1e3:
        assert_gradients(ops, tensors, options, relative=0, of_largest=1e-4)


def test_tensor_cores_keep_nan_in_its_segment(ops):
    tensors, options = problem([20, 40, 200, 8], policies=1, spare=0, **LOW | ONE)
    tensors[1][0, tensors[2][0, 30], 0] = float("nan")
    for precision in BOTH:
        out = run(ops.segment_encoder, tensors, options | {"precision": precision})[0, 0]
        assert out[1].isnan().all() and out[[0, 2, 3]].isfinite().all()


@pytest.mark.slow
def test_tensor_cores_repeat_bit_for_bit_and_by_cell(ops):
    """A cell of the grid does not depend on other cells, which change the packing into tiles and blocks."""
    tensors, options = problem([9, 30, 130], policies=3, subsets=2, **DROPOUT, **LOW | ONE)
    whole = run(ops.segment_encoder, tensors, options)
    assert torch.equal(run(ops.segment_encoder, tensors, options), whole)
    states, columns, *rest = tensors
    alone = run(ops.segment_encoder, (states, columns[1:], *rest), options | {"segment_base": 7 + 2 * 3})
    assert torch.equal(alone, whole[1:])
    tensors, options = problem([9, 30, 130], policies=2, **HEADS_OF_16 | DROPOUT)
    first, again = (gradients(ops.segment_encoder, tensors, options) for _ in range(2))
    assert all(map(torch.equal, first, again))


@pytest.mark.emulated
def test_other_shapes_are_computed_in_fp32_and_differentiated_by_torch(caplog, ran):
    caplog.set_level("INFO")
    for shape, other in [(LOW | ONE, False), (SMALL, True)]:
        ran.clear()
        tensors, options = problem([5, 9], policies=1, **shape)
        options |= {"precision": "bf16"}
        run(sopr_fast.ops.segment_encoder, tensors, options)
        gradients(sopr_fast.ops.segment_encoder, tensors, options)
        assert ("bf16 is computed in fp32" in caplog.text) == (BACKWARD not in ran) == other


@pytest.mark.slow
@pytest.mark.emulated
@pytest.mark.parametrize(("sizes", "tiles", "expected"), [([20, 128, 60], 0, 5), ([20, 150, 300, 9], 5, 9)])
def test_launches_of_the_tensor_cores(sizes, tiles, expected, ran, cuda_module_for_cpu):
    """Clearing, weights; in each pass two for the plan, one for short segments, one a layer and two for long ones."""
    tensors, options = problem(sizes, **LOW | ALONE, spare=800)
    assert sopr_fast.ops.long_tiles(tensors[3]) == tiles
    before = cuda_module_for_cpu.launches()
    out = run(sopr_fast.ops.segment_encoder, tensors, options | {"long_tiles": tiles})
    assert cuda_module_for_cpu.launches() - before == expected
    assert torch.equal(out, run(sopr_fast.ops.segment_encoder, tensors, options))


def test_bf16_gradients_where_rounding_switches_relus(ops):
    """Biases are as trained: some hidden values change sign. All tensors together have the error of torch's bf16."""
    tensors, options = problem([33, 40, 60], policies=1, **LOW | ONE)
    oracle = gradients(reference.segment_encoder, tensors, options, torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        of_torch = gradients(reference.segment_encoder, tensors, options)
    actual = gradients(ops.segment_encoder, tensors, options | {"precision": "bf16"})

    def error(parts):
        return math.hypot(
            *((part - exact).norm() / exact.norm().clamp(min=1e-3) for part, exact in zip(parts, oracle, strict=True))
        )

    assert error(actual) <= 2 * error(of_torch)


@pytest.mark.emulated
def test_scores_and_gradients_of_the_model(generator, monkeypatch, ran, cuda_module_for_cpu):
    """Both levels, from scores to the model's parameters; scores take five launches for each, where none is long."""
    shape = {"low_layers": 1, "low_feedforward": 32, "high_layers": 2, "high_feedforward": 64, "clusters": 4}
    model = ScoringModel(6, Config(**shape))
    states, columns = torch.randn(80, 4, generator=generator), torch.randn(3, 80, 2, generator=generator)
    rows = torch.randint(80, (2, 50), generator=generator, dtype=torch.int32)
    offsets = torch.tensor([[0, 5, 5, 40, 50], [0, 16, 32, 48, 50]], dtype=torch.int32)

    def compute():
        model.zero_grad()
        train_scores(model, states, columns, rows, offsets, RNG).square().sum().backward()
        before = cuda_module_for_cpu.launches()
        with torch.no_grad():
            scores = model.eval()(states, columns, rows, offsets)
        launches = cuda_module_for_cpu.launches() - before
        return scores, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]), launches

    scores, actual, launches = compute()
    assert ran.count(BACKWARD) == 2 and launches == 10
    monkeypatch.undo()
    expected_scores, expected, _ = compute()
    assert (scores - expected_scores).norm() <= 1e-5 * expected_scores.norm()
    assert (actual - expected).norm() <= 1e-4 * expected.norm()
