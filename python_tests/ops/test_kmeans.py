import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans, kmeans_plusplus
from support import reference
from support.problems import blobs, shaped


def assert_consistent(ops, points, result):
    """Labels, sizes, inertia and order are those of the centroids returned."""
    k = result.sizes.shape[1]
    again = ops.kmeans(points, k, init=result.centroids, iterations=0)
    assert all(map(torch.equal, again[:3], result[:3])) and torch.equal(again.inertia, result.inertia)
    assert torch.equal(result.sizes, torch.stack([row.bincount(minlength=k) for row in result.labels]).int())
    _, nearest = reference.kmeans_assign(points.double(), result.centroids.double())
    own = result.centroids.double().gather(1, result.labels.long()[..., None].expand(points.shape))
    squared = (points.double() - own).square().sum(-1)
    torch.testing.assert_close(squared, nearest, rtol=1e-5, atol=0)
    torch.testing.assert_close(result.inertia, squared.sum(1), rtol=1e-6, atol=0)
    rows, offsets = reference.sort_by_cluster(result.labels, k)
    assert torch.equal(rows, result.rows) and torch.equal(offsets, result.offsets)
    assert result.centroids.isfinite().all()


@pytest.mark.parametrize("exponent", [-110, -100, -40, 40, 120])
def test_kmeans_does_not_depend_on_the_unit(exponent, generator, ops):
    """Labels are correct although squared distances of 2^-220 or 2^240 exceed the range of float32."""
    points = (blobs(1, 500, 4, generator) * 4096).round() / 4096
    unit = 2.0**exponent
    plain, result = ops.kmeans(points, 20), ops.kmeans(points * unit, 20)
    assert torch.equal(result.labels, plain.labels)
    assert torch.equal(result.centroids, plain.centroids * unit)
    torch.testing.assert_close(result.inertia / unit / unit, plain.inertia, rtol=1e-12, atol=0)
    smallest = torch.randn(1, 200, 3, generator=generator) * 1e-38
    assert (ops.kmeans(smallest, 20).sizes > 0).all()


@pytest.mark.parametrize("offset", [1e3, 1e6])
def test_kmeans_far_from_the_origin(offset, generator, ops):
    points = blobs(2, 800, 6, generator) + offset
    assigned = ops.kmeans(points, 30, init=points[:, :30], iterations=0)
    labels, squared = reference.kmeans_assign(points.double(), points[:, :30].double())
    torch.testing.assert_close(assigned.inertia, squared.sum(1), rtol=1e-5, atol=0)
    assert torch.equal(assigned.labels, labels)
    result = ops.kmeans(points, 30)
    assert_consistent(ops, points, result)
    oracle = [KMeans(30, n_init=1, random_state=0).fit(x.double() - offset).inertia_ for x in points]
    assert (result.inertia.numpy() < np.array(oracle) * 1.1).all()


@pytest.mark.parametrize("exponent", [30, 60, 100])
def test_kmeans_keeps_the_digits_of_small_columns(exponent, generator, ops):
    points = blobs(1, 2000, 4, generator)
    points[..., 0] = points[..., 0].sign() * 2.0**exponent
    result = ops.kmeans(points, 2, tolerance=0)
    means = [points[0, result.labels[0] == k].double().mean(0) for k in range(2)]
    torch.testing.assert_close(result.centroids[0].double(), torch.stack(means), rtol=1e-6, atol=0)


def test_kmeans_rounds_beside_an_outlier(generator, ops):
    """The outlier leaves its column a unit of 2^-11; the rounding errors cancel in the mean."""
    points = torch.rand(1, 2000, 3, generator=generator)
    points[0, 7, 0] = 1e12
    result = ops.kmeans(points, 2, tolerance=0)
    mean = points[0, torch.arange(2000) != 7].double().mean(0)
    torch.testing.assert_close(result.centroids[0, result.labels[0, 0]].double(), mean, rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", ["blobs", "grid", "duplicates", "line", "outlier"])
def test_kmeans_skips_no_nearest_centroid(kind, generator, ops):
    """A single iteration compares with every centroid, later ones only with nearby centroids; results are equal."""
    points = shaped(blobs(2, 1500, 5, generator), kind)
    centroids = points[:, :40]
    for _ in range(12):
        centroids = ops.kmeans(points, 40, init=centroids, iterations=1, tolerance=0).centroids
    result = ops.kmeans(points, 40, init=points[:, :40], iterations=12, tolerance=0)
    assert torch.equal(result.centroids, centroids)
    assert_consistent(ops, points, result)


@pytest.mark.parametrize("tolerance", [0, 1e-4, 1e-2])
def test_kmeans_stops_as_scikit_learn(tolerance, generator, ops):
    points = blobs(1, 2000, 8, generator, spread=1.0)
    start = points[:, :16]
    result = ops.kmeans(points, 16, init=start, tolerance=tolerance)
    peer = KMeans(16, init=start[0].double().numpy(), n_init=1, tol=tolerance).fit(points[0].double().numpy())
    assert abs(result.iterations.item() - peer.n_iter_) <= (1 if tolerance else 3)
    assert result.inertia.item() == pytest.approx(peer.inertia_, rel=1e-3)
    assert_consistent(ops, points, result)


def test_kmeans_fills_empty_clusters(generator, ops):
    points = blobs(1, 400, 3, generator)
    start = torch.full((1, 12, 3), 1e3)
    for iterations in (0, 1, 300):
        result = ops.kmeans(points, 12, init=start, iterations=iterations)
        assert (result.sizes > 0).all()
        assert_consistent(ops, points, result)


@settings(max_examples=40, deadline=None)
@given(
    problems=st.integers(1, 4),
    count=st.integers(1, 60),
    width=st.integers(1, 19),
    distinct=st.integers(1, 60),
    tolerance=st.sampled_from([0.0, 1e-4]),
    data=st.data(),
)
def test_kmeans_any_problem(problems, count, width, distinct, tolerance, data, ops):
    k = data.draw(st.integers(1, count))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    points = torch.randn(problems, min(distinct, count), width, generator=generator)
    points = points[:, torch.arange(count) % points.shape[1]]
    result = ops.kmeans(points, k, tolerance=tolerance)
    assert_consistent(ops, points, result)
    assert ((result.sizes > 0).sum(1) == min(k, distinct)).all()  # else clusters stay empty
    if distinct <= k:
        assert (result.inertia == 0).all()


def test_kmeans_is_the_same_alone_and_in_a_batch(generator, ops):
    points = blobs(5, 2100, 17, generator)
    seeds = torch.tensor([5, 3, 8, 1, 9])
    together = ops.kmeans(points, 40, seeds=seeds)
    for b in range(5):
        alone = ops.kmeans(points[b : b + 1], 40, seeds=seeds[b : b + 1])
        assert all(torch.equal(whole[b : b + 1], one) for whole, one in zip(together, alone, strict=True))


def test_kmeans_of_no_problems_and_of_equal_seeds(generator, ops):
    points = blobs(2, 300, 4, generator)[:1].expand(2, -1, -1)
    none = ops.kmeans(torch.zeros(0, 5, 3), 2)
    assert none.centroids.shape == (0, 2, 3) and none.offsets.shape == (0, 3)
    same = ops.kmeans(points, 20, seeds=torch.tensor([7, 7]))
    assert torch.equal(same.centroids[0], same.centroids[1])
    other = ops.kmeans(points, 20, seeds=torch.tensor([7, 8]))
    assert torch.equal(other.centroids[0], same.centroids[0])
    assert not torch.equal(other.centroids[1], same.centroids[1])


def rows_of(points, rows):
    return points.gather(1, rows.long()[..., None].expand(-1, -1, points.shape[2]))


def test_kmeans_plusplus_is_as_good_as_scikit_learn(generator, ops):
    points = blobs(1, 2000, 8, generator).expand(20, -1, -1).contiguous()
    chosen = rows_of(points, ops.kmeans_init(points, 12))
    ours = ops.kmeans(points, 12, init=chosen, iterations=0).inertia.mean().item()
    x = points[0].double()
    peers = [kmeans_plusplus(x.numpy(), 12, random_state=seed)[0] for seed in range(20)]
    theirs = np.mean([reference.kmeans_assign(x[None], torch.tensor(c)[None])[1].sum().item() for c in peers])
    assert ours == pytest.approx(theirs, rel=0.25)


def test_kmeans_plusplus_survives_an_outlier(generator, ops):
    """Weights keep their precision after the outlier is chosen."""
    points = torch.randn(1, 300, 2, generator=generator)
    points[0, 7] = 1e15
    chosen = ops.kmeans_init(points, 100)
    assert len(set(chosen[0].tolist())) == 100
