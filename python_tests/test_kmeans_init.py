"""Initial centroids of k-means."""

import numpy as np
import pytest
import reference
import torch
from problems import blobs
from sklearn.cluster import kmeans_plusplus


def rows_of(points, rows):
    return points.gather(1, rows.long()[..., None].expand(-1, -1, points.shape[2]))


def test_kmeans_plusplus_draws_as_the_reference(generator, ops):
    points = blobs(4, 700, 6, generator)
    seeds = torch.tensor([0, 1, -5, 2**40 + 3])
    for k in (1, 2, 30):
        expected = reference.kmeans_init(points.double(), k, seeds, 0, True)
        assert torch.equal(ops.kmeans_init(points, k, seeds), expected)


def test_kmeans_random_draws_as_the_reference(generator, ops):
    points = blobs(2, 50, 3, generator)
    seeds = torch.tensor([3, 4])
    for k in (1, 20, 50):
        expected = reference.kmeans_init(points, k, seeds, 0, False)
        assert torch.equal(ops.kmeans_init(points, k, seeds, method="random"), expected)
        result = ops.kmeans(points, k, init="random", seeds=seeds, iterations=0)
        assert torch.equal(result.centroids, rows_of(points, expected))
        assert all(len(set(rows)) == k for rows in expected.tolist())


def test_kmeans_plusplus_is_as_good_as_scikit_learn(generator, ops):
    points = blobs(1, 2000, 8, generator).expand(20, -1, -1).contiguous()
    chosen = rows_of(points, ops.kmeans_init(points, 12, 0))
    ours = ops.kmeans(points, 12, init=chosen, iterations=0).inertia.mean().item()
    x = points[0].double()
    peers = [kmeans_plusplus(x.numpy(), 12, random_state=seed)[0] for seed in range(20)]
    theirs = np.mean([reference.kmeans_assign(x[None], torch.tensor(c)[None])[1].sum().item() for c in peers])
    assert ours == pytest.approx(theirs, rel=0.25)


def test_kmeans_plusplus_survives_an_outlier(generator, ops):
    """Weights keep their precision after the outlier is chosen."""
    points = torch.randn(1, 300, 2, generator=generator)
    points[0, 7] = 1e15
    chosen = ops.kmeans_init(points, 100, 0)
    assert len(set(chosen[0].tolist())) == 100


def test_kmeans_init_draws_other_rows_in_every_restart(generator, ops):
    points = blobs(2, 400, 4, generator)
    for method in ("k-means++", "random"):
        rows = [ops.kmeans_init(points, 20, 3, method=method, restart=restart) for restart in range(2)]
        assert not torch.equal(*rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 31}, "k must be between 1 and 30"),
        ({"method": "means"}, "method must be 'k-means\\+\\+' or 'random'"),
        ({"restart": -1}, r"restart must be between 0 and 2\^32 - 1, got -1"),
        ({"restart": 2**32}, r"restart must be between 0 and 2\^32 - 1, got 4294967296"),  # would draw as restart 0
    ],
)
def test_kmeans_init_refuses(arguments, message, ops):
    with pytest.raises(ValueError, match=message):
        ops.kmeans_init(**{"points": torch.zeros(2, 30, 3), "k": 3} | arguments)
