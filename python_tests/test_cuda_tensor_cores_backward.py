"""Gradients of the encoder on tensor cores, emulated: precision, dropout, segments of all lengths, launches."""

import ctypes
import math

import pytest
import reference
import torch
from problems import train_scores
from test_cuda_tensor_cores import passes
from test_segment_attention import RNG
from test_segment_encoder import HIGH, LOW, SMALL, gradients, problem

from sopr_fast import Config, ops
from sopr_fast.sopr.model import ScoringModel

pytestmark = pytest.mark.emulated

ONE = {"layers": 1}
HEADS_OF_16 = {"width": 64, "layers": 1, "heads": 4, "feedforward": 32}
DROPOUT = {"dropout": 0.3, "rng": RNG}
KERNEL = "segment_encoder_backward"


def without_switches(tensors, options):
    """Move biases before ReLUs away from 0: there, rounding to bf16 would switch some values on or off."""
    inputs = tensors[0].shape[1] + tensors[1].shape[2]
    project = options.get("project", True)
    shapes = ops.encoder_shapes(inputs, options["width"], options["layers"], options["feedforward"], project)
    parts = list(tensors[4].split([math.prod(shape) for shape in shapes]))
    before_relus = [1] * project + [2 * project + 12 * layer + 7 for layer in range(options["layers"])]
    for i in before_relus:
        parts[i] = 8 * parts[i].sign()
    return (*tensors[:4], torch.cat(parts))


def check(tensors, options, precisions=("fp32", "bf16")):
    """Compare with float64: allow twice the error of torch in the same precision, and 1e-6 of the largest gradient."""
    for precision in precisions:
        if precision == "bf16":
            tensors = without_switches(tensors, options)
        oracle = gradients(reference.segment_encoder, tensors, options, torch.float64)
        largest = max(g.norm() for g in oracle)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            of_torch = gradients(reference.segment_encoder, tensors, options)
        actual = gradients(ops.segment_encoder, tensors, options | {"precision": precision})
        for i, (ours, theirs, exact) in enumerate(zip(actual, of_torch, oracle, strict=True)):
            error, allowed = (ours - exact).norm(), 2 * (theirs - exact).norm() + 1e-6 * largest
            assert error <= allowed, f"{precision}, tensor {i}: {error} > {allowed}"


@pytest.fixture(autouse=True)
def tensor_cores(emulated, cuda_module_for_cpu):
    """Run the operator in the emulator; fail if the tensor cores had nothing to do."""
    products = ctypes.CDLL(cuda_module_for_cpu.__file__).simt_products
    before = products()
    yield
    assert products() > before and KERNEL in emulated


@pytest.mark.parametrize(
    "options",
    [LOW, HIGH | ONE | DROPOUT, HEADS_OF_16 | DROPOUT, LOW | ONE | {"ds": 40, "pool": False}, LOW | DROPOUT],
    ids=["low", "high", "heads of 16", "many inputs", "dropout"],
)
def test_gradients_match_float64(options, poison):
    """Tiles hold several segments, empty ones and unused rows; pieces are partly filled."""
    check(*problem([0, 1, 33, 0, 40, 16, 60], policies=1, **options))


def test_gradients_of_many_columns(poison):
    check(*problem([3, 20], policies=3, dc=40, **HEADS_OF_16), precisions=["fp32"])


@pytest.mark.slow
def test_gradients_of_long_segments(poison):
    """There are more tiles of long segments than the workspace holds at once; the short one is in a tile of its own."""
    check(*problem([129, 7, 260], policies=2, spare=3, **LOW | ONE | DROPOUT | {"pool": False}))


@pytest.mark.slow
def test_gradients_of_long_segments_through_layers(poison):
    check(*problem([7, 140], policies=1, **LOW), precisions=["fp32"])


@pytest.mark.slow
def test_gradients_of_a_long_segment_of_the_high_level(poison):
    check(*problem([150], policies=1, **HIGH | ONE | DROPOUT | {"pool": True}))


def test_gradients_of_shared_rows(poison):
    check(*problem([30, 20], subsets=3, distinct=40, **HEADS_OF_16))


@pytest.mark.parametrize("scale", [1e-20, 1e2])
def test_gradients_of_huge_and_tiny_values(scale):
    """Where softmax is 0 or 1, its gradient is the rounding of a difference, as it is on a CPU."""
    tensors, options = problem([5, 40], policies=1, scale=scale, **LOW)
    oracle = gradients(reference.segment_encoder, tensors, options, torch.float64)
    largest = max(g.norm() for g in oracle)
    for actual, exact in zip(gradients(ops.segment_encoder, tensors, options), oracle, strict=True):
        assert (actual - exact).norm() <= 1e-4 * largest


def test_gradients_of_hardly_any_segments():
    for sizes in ([], [0], [1], [0, 0]):
        check(*problem(sizes, distinct=3, **HEADS_OF_16), precisions=["fp32"])


@pytest.mark.slow
def test_gradients_repeat_bit_for_bit():
    tensors, options = problem([9, 30, 130], policies=2, **HEADS_OF_16 | DROPOUT)
    first, again = (gradients(ops.segment_encoder, tensors, options) for _ in range(2))
    assert all(map(torch.equal, first, again))


def test_gradients_of_other_shapes_run_composed(emulated):
    for shape in (SMALL, LOW | ONE):  # the second keeps the fixture content
        gradients(ops.segment_encoder, *problem([5, 9], policies=1, **shape))
        assert (KERNEL in emulated) == (shape is not SMALL)


def launches(policies, rows, layers, columns, capacity=1024):
    """Clearing, weights twice, plan twice, one for short segments, sums; three for columns.

    Where segments may be long, one per layer and one more forward, and two per layer backward.
    """
    _, of_policies = passes(policies, 1, rows, capacity)
    return 7 + of_policies * (3 * layers + 1) + 3 * columns


@pytest.mark.parametrize(("policies", "rows", "expected"), [(1, 128, 10), (1, 129, 17), (3, 260, 7 + 3 * 7 + 3)])
def test_launches_of_gradients(policies, rows, expected, cuda_module_for_cpu):
    """A forward pass precedes."""
    tensors, options = problem([20, 40], policies=policies, spare=rows - 60, **LOW)
    before = cuda_module_for_cpu.launches()
    ops.segment_encoder(*tensors, **options)
    forward = cuda_module_for_cpu.launches() - before
    gradients(ops.segment_encoder, tensors, options)
    assert cuda_module_for_cpu.launches() - before - 2 * forward == expected
    assert launches(policies, rows, LOW["layers"], True, capacity=4) == expected
    # At the paper's size, as bench/README.md states it: gradients of columns on the high level alone.
    assert (launches(30, 16384, 2, False), launches(30, 256, 6, True)) == (63, 29)


def test_bf16_gradients_where_rounding_switches_relus():
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


def test_gradients_of_the_model(generator, monkeypatch, emulated):
    """Both levels, from scores to the model's parameters."""
    shape = {"low_layers": 1, "low_feedforward": 32, "high_layers": 2, "high_feedforward": 64, "clusters": 4}
    model = ScoringModel(6, Config(**shape)).train()
    states, columns = torch.randn(80, 4, generator=generator), torch.randn(3, 80, 2, generator=generator)
    rows = torch.randint(80, (2, 50), generator=generator, dtype=torch.int32)
    offsets = torch.tensor([[0, 5, 5, 40, 50], [0, 16, 32, 48, 50]], dtype=torch.int32)

    def gradients_of_model():
        model.zero_grad()
        train_scores(model, states, columns, rows, offsets, RNG).square().sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    actual = gradients_of_model()
    assert emulated.count(KERNEL) == 2
    monkeypatch.undo()
    expected = gradients_of_model()
    assert (actual - expected).norm() <= 1e-4 * expected.norm()
