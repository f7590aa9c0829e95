"""The CUDA kernels of k-means, emulated: equal to the CPU's to the bit for any number of blocks. Races fail."""

import ctypes
import importlib

import pytest
import torch
from support.problems import blobs, shaped

from sopr_fast import native, ops

pytestmark = pytest.mark.emulated

SHARED = 227 << 10  # bytes of a block of sm_90
BLOCKS = (1, 2, 4, 8)


@pytest.fixture
def emulator(emulated, cuda_module_for_cpu):
    """Returns the emulator's library, whose device is that of sm_90 again after the test."""
    library = ctypes.CDLL(cuda_module_for_cpu.__file__)
    library.simt_distances.restype = ctypes.c_int64
    yield library
    library.simt_device(True, True, 132, SHARED, 512)


@pytest.fixture
def check(emulator, emulated, monkeypatch):
    """Returns a function that compares results on every number of blocks with those of the CPU's kernels, once."""

    def check(results, problems=2, blocks=BLOCKS, shared=SHARED):
        actual = []
        for number in blocks:
            emulator.simt_device(True, True, problems * number, shared, 1)
            actual.append(results())
        assert emulated
        monkeypatch.undo()
        expected = results()
        fused = native._cpu.isa != "portable"  # with fused multiply-adds, as on a GPU
        for number, other in zip(blocks, actual, strict=True):
            for a, b, first in zip(other, expected, actual[0], strict=True):
                assert torch.equal(a, b if fused else first), number

    return check


def problems(kind="normal", width=5):
    return shaped(torch.randn(2, 400, width, generator=torch.Generator().manual_seed(0)), kind, distinct=9)


@pytest.mark.parametrize("width", [3, 17, 40])
@pytest.mark.parametrize("kind", ["normal", "grid", "duplicates", "line", "outlier", "small", "units"])
def test_cuda_kmeans_is_that_of_the_cpu(kind, width, check):
    """20 clusters take two warps of centroids; four are empty at first, three of them at one place."""
    points = problems(kind, width)
    start = points[:, :20].clone()
    start[:, 7] = 50 * points.abs().max()
    start[:, 12:15] = 1e3 * points.abs().max()

    def results():
        seeds = torch.tensor([3, -(2**40)])
        return ops.kmeans_init(points, 20, seeds), *ops.kmeans(points, 20, init=start, iterations=6)

    check(results, blocks=(1, 4) if width == 40 else BLOCKS)


@pytest.mark.parametrize(
    ("width", "count", "k", "options"),
    [
        *((width, 290, 9, {"blocks": (2,)}) for width in range(1, 34)),
        *((17, 1500, 70, {"shared": shared}) for shared in (60_000, 20_000, 9_000, 3_000)),  # less and less is held
    ],
)
def test_cuda_kmeans_of_every_width_and_shared_memory(width, count, k, options, check, generator):
    points = blobs(2, count, width, generator)

    def results():
        return ops.kmeans_init(points, k), *ops.kmeans(points, k, init=points[:, :k], iterations=4)

    check(results, **{"blocks": (1, 8)} | options)


@pytest.mark.parametrize(
    ("count", "k", "options"),
    [
        (1, 1, {}),
        (2, 2, {}),
        (33, 33, {}),
        (500, 9, {"tolerance": 1e-2}),
        (500, 9, {"tolerance": 0.0}),
        (500, 9, {"iterations": 0}),
        (700, 40, {"offset": 1e6}),
        (70, 1, {}),
        (1100, 1050, {"iterations": 2}),
    ],
    ids=str,
)
def test_cuda_kmeans_of_shapes_and_options(count, k, options, check, generator):
    points = blobs(2, count, 4, generator) + options.get("offset", 0)
    rest = {name: value for name, value in options.items() if name != "offset"}
    check(lambda: ops.kmeans(points, k, **rest), blocks=(1, 8))


def test_cuda_kmeans_in_code_for_an_older_gpu(emulator, emulated, monkeypatch):
    """A GPU of sm_90 runs PTX of sm_80, whose blocks know no clusters: one block a problem writes all its results."""
    points = problems()
    emulator.simt_device(True, False, 132, SHARED, 1)
    actual = ops.kmeans(points, 20, iterations=5)
    assert emulated
    monkeypatch.undo()
    for a, b in zip(actual, ops.kmeans(points, 20, iterations=5), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_cuda_kmeans_ends_beside_points_that_are_not_finite(value, emulator, emulated, monkeypatch):
    points = problems()
    start = points[:, :6].clone()
    start[:, 4] = 1e3
    points[0, 7, 1], points[0, 109, 2] = value, -value
    monkeypatch.setattr(importlib.import_module("sopr_fast.ops.kmeans"), "check_finite", lambda *_: None)
    for blocks in (1, 4):
        emulator.simt_device(True, True, 2 * blocks, SHARED, 1)
        labels = ops.kmeans(points, 6, init=start, iterations=4, tolerance=0.0).labels
        assert (labels[0].bincount(minlength=6) > 0).all()
    assert set(emulated) == {"kmeans"}


def test_cuda_kmeans_computes_few_distances(emulator, generator):
    """Counted for 32 points at a time, without products that show which to skip."""
    points = blobs(1, 4096, 8, generator)
    groups, k, steps = 4096 // 32, 128, 8

    def distances(call):
        before = emulator.simt_distances()
        call()
        return emulator.simt_distances() - before

    lloyd = distances(lambda: ops.kmeans(points, k, init=points[:, :k], iterations=steps, tolerance=0.0))
    assert lloyd < 0.05 * (steps + 1) * groups * k
    candidates = 6
    plus_plus = distances(lambda: ops.kmeans_init(points, k))
    assert plus_plus < 0.6 * groups * (1 + (k - 1) * (candidates + 1))


@pytest.mark.parametrize(
    ("problem", "expected"),  # of compute capabilities 9.0, 8.0 and 12.0
    [
        ((True, 132, SHARED, 200, 16384, 256, 17), (8, 256, True)),
        ((True, 132, SHARED, 200, 2048, 256, 17), (1, 256, True)),
        ((True, 132, SHARED, 200, 65536, 256, 17), (1, 256, False)),
        ((True, 132, SHARED, 200, 16384, 4096, 17), (8, 464, True)),
        ((True, 132, SHARED, 1, 2000, 100, 6000), (4, 0, False)),
        ((False, 108, 163 << 10, 1, 16384, 256, 17), (1, 256, False)),
        ((True, 188, 99 << 10, 200, 16384, 256, 11), (1, 256, False)),
        ((True, 188, 99 << 10, 200, 4096, 256, 17), (8, 256, True)),
    ],
    ids=str,
)
def test_plan_of_kmeans(problem, expected, cuda_module_for_cpu):
    """A problem is whether blocks form clusters, processors, shared bytes, problems, rows, clusters and columns."""
    *plan, shared_bytes = cuda_module_for_cpu.kmeans_plan(*problem)
    assert tuple(plan) == expected and shared_bytes <= problem[2]
