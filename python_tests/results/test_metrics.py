import itertools
import math

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sopr_fast import metrics

# Small integers give many ties.
pairs = st.integers(1, 30).flatmap(lambda n: st.tuples(*[st.lists(st.integers(-4, 4), min_size=n, max_size=n)] * 2))


@settings(deadline=None)
@given(pairs)
@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_rank_correlations_match_scipy(pair):
    a, b = pair
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert math.isnan(metrics.spearman(a, b))
        return
    assert metrics.spearman(torch.tensor(a), b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1, 2], [1, 2, 3], "one length"),
        ([1, math.nan], [1, 2], "nan at position 1"),
        (np.ma.masked_array([1, 2, 30], [False, False, True]), [1, 2, 3], "got nan at position 2"),
    ],
)
def test_rank_correlation_refuses(a, b, message):
    with pytest.raises(ValueError, match=message):
        metrics.spearman(a, b)


def test_two_indexes_must_agree():
    a, b = pandas.Series([1, 2, 3], list("abc")), pandas.Series([3, 2, 1], list("cba"))
    regret = lambda returns, scores: metrics.regret_at_k(returns=returns, scores=scores, k=1)  # noqa: E731
    for name, metric in (("spearman", metrics.spearman), ("regret_at_k", regret)):
        with pytest.raises(ValueError, match=f"{name} goes by position, but the two indexes differ"):
            metric(a, b)
        assert metric(a, b[a.index]) == metric(a, [1, 2, 3]) == metric([1, 2, 3], b[a.index])


@given(pairs, st.randoms())
@settings(deadline=None)
def test_regret_of_ties_is_the_mean_over_orders(pair, random):
    returns, scores = (values[:6] for values in pair)
    k = random.randint(1, len(returns))
    orders = [sorted(order, key=lambda i: -scores[i]) for order in itertools.permutations(range(len(returns)))]
    spread = max(returns) - min(returns)
    regrets = [(max(returns) - max(returns[i] for i in order[:k])) / spread if spread else 0.0 for order in orders]
    assert metrics.regret_at_k(returns=returns, scores=scores, k=k) == pytest.approx(sum(regrets) / len(regrets))


@pytest.mark.parametrize("k", [0, 4, True, 1.0])
def test_regret_refuses_k(k):
    with pytest.raises(ValueError, match="k must be an integer from 1 to the number of policies, 3"):
        metrics.regret_at_k(returns=[1, 2, 3], scores=[1, 2, 3], k=k)


@pytest.mark.parametrize("offset", [0, 1000])
def test_policy_distance_matches_equation(offset, monkeypatch):
    monkeypatch.setattr(metrics, "_ROWS", 10)  # several chunks, the last one short
    rng = np.random.default_rng(0)
    train, test = rng.normal(offset, 1, (5, 37, 3)), rng.normal(offset, 1, (4, 37, 3))
    test[2] = train[3]
    expected = ((test[:, None] - train) ** 2).sum(3).mean(2)
    together = metrics.policy_distances(test, torch.from_numpy(train))
    np.testing.assert_allclose(together, expected, atol=1e-11)
    assert together[2, 3] == 0
    alone = [metrics.policy_distances(policy[None], train)[0] for policy in test]
    np.testing.assert_array_equal(together, alone)


def test_policy_distance_refuses_shapes():
    with pytest.raises(ValueError, match=r"got \(2, 5, 3\) and \(4, 6, 3\)"):
        metrics.policy_distances(np.zeros((2, 5, 3)), np.zeros((4, 6, 3)))
    with pytest.raises(ValueError, match=r"got \(2, 6, 3\) and \(0, 6, 3\)"):
        metrics.policy_distances(np.zeros((2, 6, 3)), np.zeros((0, 6, 3)))
