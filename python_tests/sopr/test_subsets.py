import numpy as np
import pytest
import torch
from support.problems import log

from sopr_fast.inputs.logs import load_states
from sopr_fast.sopr.subsets import Drawing, Subsets


def draw(states, count=3, **options):
    return Subsets.draw(states, count, **{"size": 100, "clusters": 7, **options})


def states_and_centroids(subsets, s):
    """Return the states of a subset in the order of its rows, and the means of its clusters."""
    states = subsets.states[subsets.rows[s].long()].double()
    return states, torch.stack([own.mean(0) for own in states.tensor_split(subsets.offsets[s, 1:-1].long())])


def test_rows_are_distinct_states_sorted_by_cluster():
    states = log()
    subsets = draw(states)
    assert torch.equal(subsets.states, torch.from_numpy(states[subsets.source.numpy()]))
    for s in range(3):
        assert subsets.rows[s].unique().numel() == 100
        label = torch.cdist(*states_and_centroids(subsets, s)).argmin(1)
        assert torch.equal(label, label.sort().values)
        assert torch.equal(torch.bincount(label, minlength=7).cumsum(0).int(), subsets.offsets[s, 1:])
    assert subsets.source.numel() == subsets.rows.unique().numel()


def test_subsets_that_share_most_of_their_states_are_warned_of(recwarn):
    with pytest.warns(UserWarning, match="subsets of 100 of 199 states have most of them in common"):
        draw(log(199), 2)
    recwarn.clear()
    draw(log(200), 2)
    draw(log(100), 1)
    assert not recwarn


def test_a_subset_depends_on_seed_and_number_alone():
    states = log()
    few, many = draw(states, 2, seed=5), draw(states, 11, seed=5)
    for s in range(2):
        assert torch.equal(few.source[few.rows[s].long()], many.source[many.rows[s].long()])
        assert torch.equal(few.offsets[s], many.offsets[s])
    two, eleven = (Drawing.draw(load_states(states), count, size=100, seed=5) for count in (2, 11))
    taken = eleven.take(2).tensors()
    assert all(torch.equal(taken[name], tensor) for name, tensor in two.tensors().items())
    other = draw(states, 2, seed=6)
    assert not torch.equal(few.source[few.rows[0].long()], other.source[other.rows[0].long()])


@pytest.mark.parametrize("size", [1, 30, 299, 301, 600])
def test_drawing_is_uniform(size):
    log_states = np.arange(600, dtype=np.float32)[:, None]
    counts = np.zeros(600)
    for seed in range(200):
        drawing = Drawing.draw(load_states(log_states), 1, size=size, seed=seed)
        assert drawing.rows.unique().numel() == size
        counts[drawing.source.numpy()] += 1
    expected = 200 * size / 600
    assert abs(counts.mean() - expected) < 1e-9
    spread = np.sqrt(200 * size / 600 * (1 - size / 600))
    assert np.abs(counts - expected).max() <= 5 * spread


@pytest.mark.parametrize("option", [{"seed": -1}, {"seed": 0.5}, {"count": 0}], ids=str)
def test_subsets_that_cannot_be_drawn(option):
    with pytest.raises(ValueError, match="seed must be an|subsets must be an"):
        draw(log(), **option)
