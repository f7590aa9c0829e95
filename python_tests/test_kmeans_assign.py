"""Nearest centroids of points."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sopr_fast.ops import reference


@pytest.mark.parametrize(
    "problems, count, width, k", [(1, 1, 1, 1), (3, 100, 17, 7), (2, 1025, 5, 33), (1, 64, 67, 64)]
)
def test_kmeans_assign_matches_float64(problems, count, width, k, generator, ops):
    points = torch.randn(problems, count, width, generator=generator)
    centroids = torch.randn(problems, k, width, generator=generator)
    labels, squared = ops.kmeans_assign(points, centroids)
    expected_labels, expected = reference.kmeans_assign(points.double(), centroids.double())
    torch.testing.assert_close(squared.double(), expected, rtol=1e-5, atol=0)
    assert torch.equal(labels, expected_labels)


@settings(max_examples=60, deadline=None)
@given(
    problems=st.integers(0, 3),
    count=st.integers(0, 70),
    width=st.integers(1, 20),
    k=st.integers(1, 40),
    grid=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_kmeans_assign_any_shape(problems, count, width, k, grid, seed, ops):
    """On a grid of small integers, float32 is exact and ties are frequent."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(problems, count, width, generator=generator)
    centroids = torch.randn(problems, k, width, generator=generator)
    if grid:
        points, centroids = points.round(), centroids.round()
    labels, squared = ops.kmeans_assign(points, centroids)
    expected_labels, expected = reference.kmeans_assign(points.double(), centroids.double())
    torch.testing.assert_close(squared.double(), expected, rtol=1e-5, atol=0)
    if grid:
        assert torch.equal(labels, expected_labels)
