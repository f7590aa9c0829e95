"""Order of rows by cluster."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=40, deadline=None)
@given(problems=st.integers(0, 3), count=st.integers(0, 70), k=st.integers(1, 40), seed=st.integers(0, 1000))
def test_sort_by_cluster_is_a_stable_sort(problems, count, k, seed, ops):
    labels = torch.randint(k, (problems, count), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    rows, offsets = ops.sort_by_cluster(labels, k)
    assert rows.shape == (problems, count) and offsets.shape == (problems, k + 1)
    for problem in range(problems):
        expected = [[row for row in range(count) if labels[problem, row] == cluster] for cluster in range(k)]
        bounds = offsets[problem].tolist()
        assert [rows[problem, a:b].tolist() for a, b in itertools.pairwise(bounds)] == expected


@pytest.mark.parametrize("labels, k", [([[0, 3]], 3), ([[-1, 0]], 3), ([[0]], 0)])
def test_sort_by_cluster_refuses(labels, k, ops):
    with pytest.raises(ValueError):
        ops.sort_by_cluster(torch.tensor(labels, dtype=torch.int32), k)
