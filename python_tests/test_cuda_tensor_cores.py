"""The encoder on tensor cores, emulated: precision, segments of all lengths, dropout, launches."""

import ctypes
import math

import pytest
import reference
import torch
from test_segment_attention import RNG
from test_segment_encoder import HIGH, LOW, SMALL, assert_as_good_as_torch, problem, run

from sopr_fast import Config, ops
from sopr_fast.sopr.model import ScoringModel

pytestmark = pytest.mark.emulated

HEADS_OF_16 = {"width": 64, "layers": 1, "heads": 4, "feedforward": 32}
ONE = {"layers": 1}


@pytest.fixture(autouse=True)
def tensor_cores(emulated, cuda_module_for_cpu):
    """Run the operator in the emulator; fail if the tensor cores had nothing to do."""
    products = ctypes.CDLL(cuda_module_for_cpu.__file__).simt_products
    before = products()
    yield
    assert products() > before


def check(tensors, options):
    """Check both kinds of output against float64, in both precisions."""
    for pool in (True, False):
        options |= {"pool": pool}
        assert_as_good_as_torch(ops, tensors, options)
        oracle = run(reference.segment_encoder, tensors, options, torch.float64)
        out = run(ops.segment_encoder, tensors, options | {"precision": "bf16"})
        assert (out - oracle).norm() <= 2e-2 * oracle.norm()


@pytest.mark.parametrize(
    "options",
    [LOW, HIGH | ONE, HEADS_OF_16, LOW | ONE | {"ds": 40, "subsets": 2, "policies": 3}],
    ids=["low", "high", "heads of 16", "many inputs"],
)
def test_tensor_cores_match_float64(options, poison):
    """Tiles hold several segments, empty ones and unused rows; pieces are partly filled."""
    tensors, options = problem([0, 1, 33, 0, 40, 16, 60], **options)
    check(tensors, options)


def test_tensor_cores_split_long_segments(poison):
    """There are more tiles of long segments than the workspace holds at once; the short one is in a tile of its own."""
    check(*problem([129, 7, 260], policies=2, spare=3, **LOW))


def test_tensor_cores_split_long_segments_of_the_high_level(poison):
    tensors, options = problem([129], policies=1, subsets=2, **HIGH | ONE)
    assert_as_good_as_torch(ops, tensors, options | {"pool": True})


@pytest.mark.parametrize("options", [LOW, HIGH | ONE, HEADS_OF_16], ids=["low", "high", "heads of 16"])
def test_tensor_cores_drop_what_the_reference_drops(options):
    tensors, options = problem([0, 9, 40, 150], **options, dropout=0.3, rng=RNG)
    check(tensors, options)


@pytest.mark.parametrize("scale", [1e-20, 1e4])
def test_tensor_cores_of_huge_and_tiny_values(scale):
    tensors, options = problem([5, 40], policies=1, scale=scale, **LOW)
    assert_as_good_as_torch(ops, tensors, options)
    assert_as_good_as_torch(ops, (*tensors[:4], tensors[4] * 30), options)


def test_tensor_cores_keep_nan_in_its_segment():
    tensors, options = problem([20, 40, 200, 8], policies=1, spare=0, **LOW | ONE)
    tensors[1][0, tensors[2][0, 30], 0] = float("nan")
    for precision in ("fp32", "bf16"):
        out = run(ops.segment_encoder, tensors, options | {"precision": precision})[0, 0]
        assert out[1].isnan().all() and out[[0, 2, 3]].isfinite().all()


@pytest.mark.slow
def test_tensor_cores_repeat_bit_for_bit_and_by_cell():
    """A cell of the grid does not depend on other cells, which change the packing into tiles and blocks."""
    tensors, options = problem([9, 30, 130], policies=3, subsets=2, dropout=0.2, rng=RNG, **LOW | ONE)
    whole = run(ops.segment_encoder, tensors, options)
    assert torch.equal(run(ops.segment_encoder, tensors, options), whole)
    states, columns, *rest = tensors
    alone = run(ops.segment_encoder, (states, columns[1:], *rest), options | {"segment_base": 7 + 2 * 3})
    assert torch.equal(alone, whole[1:])


def test_log_says_where_bf16_is_computed_in_fp32(caplog):
    caplog.set_level("INFO")
    for shape, logged in [(LOW | ONE, False), (SMALL, True)]:
        tensors, options = problem([5, 9], policies=1, **shape)
        run(ops.segment_encoder, tensors, options | {"precision": "bf16"})
        assert ("bf16 is computed in fp32" in caplog.text) == logged


def test_tensor_cores_of_hardly_any_segments():
    for sizes in ([], [0], [1], [0, 0]):
        check(*problem(sizes, distinct=3, **LOW | ONE))


def passes(policies, subsets, rows, capacity):
    """Return numbers of passes over subsets, and in each over policies for long segments; 0: none can be long."""
    tiles = 2 * rows // 128 if rows > 128 else 0
    if not tiles:
        return 1, 0
    subsets_at_once = min(subsets, max(1, capacity // tiles))
    policies_at_once = min(policies, max(1, capacity // (tiles * subsets_at_once)))
    return math.ceil(subsets / subsets_at_once), math.ceil(policies / policies_at_once)


def launches(policies, subsets, rows, layers, capacity=2048, pool=True):
    """Clearing, weights; in each pass two for the plan, one for short segments, one a layer and two for long ones."""
    of_subsets, of_policies = passes(policies, subsets, rows, capacity)
    return 2 + of_subsets * (3 + of_policies * (layers + 1 + pool))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policies", "subsets", "rows", "pool", "expected"),
    [
        (2, 2, 128, True, 5),
        (2, 2, 129, True, 9),
        (3, 3, 300, True, 2 + 2 * (3 + 3 * 4)),
        (2, 1, 520, False, 2 + 3 + 2 * 3),
    ],
)
def test_launches_of_the_tensor_cores(policies, subsets, rows, pool, expected, cuda_module_for_cpu):
    tensors, options = problem([20, 40], policies=policies, subsets=subsets, spare=rows - 60, pool=pool, **LOW)
    before = cuda_module_for_cpu.launches()
    run(ops.segment_encoder, tensors, options)
    assert cuda_module_for_cpu.launches() - before == expected
    assert launches(policies, subsets, rows, LOW["layers"], capacity=8, pool=pool) == expected
    # At the paper's size, as bench/README.md states it; the high level has one subset of all clusters.
    ranking = launches(10, 102, 16384, 2), launches(10, 1, 102 * 256, 6)
    training = launches(30, 1, 16384, 2), launches(30, 1, 256, 6)
    assert (ranking, training) == ((561, 21), (21, 13))


@pytest.mark.parametrize(("sizes", "tiles", "expected"), [([20, 128, 60], 0, 5), ([20, 150, 300, 9], 5, 9)])
def test_launches_for_the_segments_that_are_long(sizes, tiles, expected, cuda_module_for_cpu):
    """Segments of 150 and 300 rows take two and three tiles, for which the workspace has room."""
    tensors, options = problem(sizes, policies=1, spare=800, **LOW)
    assert ops.long_tiles(tensors[3]) == tiles
    before = cuda_module_for_cpu.launches()
    out = run(ops.segment_encoder, tensors, options | {"long_tiles": tiles})
    assert cuda_module_for_cpu.launches() - before == expected
    torch.testing.assert_close(out, run(ops.segment_encoder, tensors, options), rtol=0, atol=0)


@pytest.mark.slow
def test_tensor_cores_score_policies_in_ten_launches(cuda_module_for_cpu, generator, monkeypatch):
    """Five for each level, where no segment can be long."""
    shape = {"low_layers": 1, "low_feedforward": 32, "high_layers": 2, "high_feedforward": 64, "clusters": 4}
    model = ScoringModel(6, Config(**shape)).eval()
    states, columns = torch.randn(80, 4, generator=generator), torch.randn(3, 80, 2, generator=generator)
    rows = torch.randint(80, (2, 50), generator=generator, dtype=torch.int32)
    offsets = torch.tensor([[0, 5, 5, 40, 50], [0, 16, 32, 48, 50]], dtype=torch.int32)
    before = cuda_module_for_cpu.launches()
    with torch.no_grad():
        scores = model(states, columns, rows, offsets)
        assert cuda_module_for_cpu.launches() - before == 10
        monkeypatch.undo()
        expected = model(states, columns, rows, offsets)
    assert (scores - expected).norm() <= 1e-5 * expected.norm()
