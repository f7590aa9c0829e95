import math

import numpy as np
import pandas
import pytest
import torch

from sopr_fast.sopr import losses


def test_pairwise_in_chunks_has_the_gradient_of_all_pairs_at_once(generator, monkeypatch):
    count = 9
    returns = np.round(2 * np.random.default_rng(0).standard_normal(count))
    difference = torch.from_numpy(returns[:, None] - returns).float()
    targets = torch.where(difference == 0, 0.5, (difference > 0).float())
    monkeypatch.setattr(losses, "_PAIRS", 20)  # two rows at a time, then one
    scores = torch.randn(count, generator=generator, requires_grad=True)
    assert (targets == 0.5).sum() > count  # ties
    assert torch.equal(losses.pairwise(scores, torch.from_numpy(returns)), losses.pairwise(scores, targets))
    targets[torch.rand(count, count, generator=generator) < 0.3] = math.nan
    i, j = torch.triu_indices(count, count, 1)
    y = targets[i, j]
    difference = (scores[i] - scores[j])[~y.isnan()]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(difference, y[~y.isnan()])
    loss = losses.pairwise(scores, targets)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(3 * each, scores)[0] for each in (loss, expected)))


PREFERENCES = np.array([[0.5, 1.0, 1.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.5]])
CORNERS = np.eye(3, dtype=bool)[::-1] & ~np.eye(3, dtype=bool)


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (torch.tensor(PREFERENCES, requires_grad=True), PREFERENCES),
        (torch.tensor(PREFERENCES, dtype=torch.bfloat16), PREFERENCES),
        (np.ma.masked_array(PREFERENCES, CORNERS), np.where(CORNERS, np.nan, PREFERENCES)),
        (np.where(np.tri(3, k=-1), np.nan, PREFERENCES), PREFERENCES),  # the mirror image is filled in
    ],
    ids=["gradient", "bfloat16", "masked", "half"],
)
def test_preferences_of_all_kinds(y, expected):
    actual = losses.check_preferences(y, list("abc"))
    apart = ~np.eye(3, dtype=bool)
    np.testing.assert_array_equal(actual[apart], expected[apart])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([["a", "b"], ["c", "d"]], "preferences must be numbers"),
        ([[0, 1], [0]], "preferences must be numbers"),
        (np.zeros((2, 3)), r"shape \(2, 2\)"),
        ([[0, 1], [1, 0]], "'a' over 'b'.*mirror"),
        ([[0, 0.5], [0, 0]], "'a' over 'b'.*mirror"),
        ([[0, 0.7], [np.nan, 0]], r"preferences\[0, 1\].*is not 0, 0.5, 1 or NaN"),
        (np.full((2, 2), np.nan), "no pair"),
        ([[0, 0.5], [0.5, 0]], "no pair"),
    ],
)
def test_bad_preferences(y, message):
    with pytest.raises((TypeError, ValueError), match=message):
        losses.check_preferences(y, ["a", "b"])


def test_preferences_of_a_frame_are_matched_by_name():
    y = np.array([[np.nan, 1, 1], [0, np.nan, 0.5], [0, 0.5, np.nan]])
    expected = losses.check_preferences(y, ["b", "c", "a"])
    named = pandas.DataFrame(y, ["b", "c", "a"], ["b", "c", "a"])
    for frame in (named.sort_index(), named.sort_index(axis=1)):
        np.testing.assert_array_equal(losses.check_preferences(frame, ["b", "c", "a"]), expected)
    with pytest.raises(ValueError, match="preferences hold no column for policy 'c'"):
        losses.check_preferences(named.drop(columns="c"), ["b", "c", "a"])
    with pytest.raises(ValueError, match="preferences hold no row for policy 'b'"):
        losses.check_preferences(pandas.DataFrame(y, columns=list("bca")), ["b", "c", "a"])
