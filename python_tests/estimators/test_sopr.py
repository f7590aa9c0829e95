"""SOPR as an estimator, and cross-fitting."""

import numpy as np
import pytest
from support.estimators import gains, unwarned
from support.mdps import LinearGain

import sopr_fast
from sopr_fast import Config
from sopr_fast.estimators import SOPR, NearestPolicy
from sopr_fast.estimators.estimator import Request
from sopr_fast.inputs.policies import load_policies

pytestmark = [unwarned, pytest.mark.filterwarnings("ignore")]

SMALL_MODEL = {"width": 8, "low_layers": 1, "high_layers": 1, "low_feedforward": 8, "high_feedforward": 8}
CONFIG = Config(**SMALL_MODEL, high_heads=2, subset_size=40, clusters=4, subsets=6, steps=6)
METHOD = SOPR(CONFIG)


@pytest.fixture(scope="module")
def known():
    return gains(8), np.arange(8.0) ** 2


def test_values_order_policies_as_rank_does(log, known, monkeypatch):
    policies, returns = known
    candidates = {"a": LinearGain(np.array([0.12, -0.2])), "b": LinearGain(np.array([0.41, -0.9]))}
    candidates["far"] = LinearGain(np.array([9.0, 9.0]))
    estimates = METHOD.estimate(candidates, log, known=policies, returns=returns, seed=3)
    ranker = sopr_fast.fit(policies, log.states, returns, config=CONFIG, seed=3)
    ranking = ranker.rank(candidates)
    # Policies may round differently in batches of other sizes.
    np.testing.assert_allclose(estimates.diagnostics["scores"], ranking.scores, rtol=1e-4)
    scale, same = np.diff(estimates.values) / np.diff(estimates.diagnostics["scores"])
    assert scale > 0 and same == pytest.approx(scale)
    np.testing.assert_allclose(estimates.standard_errors, scale * ranking.standard_errors, rtol=1e-3)
    assert np.isfinite(ranking.win_probability[0, 1]) and np.isnan(ranking.win_probability[2]).all()
    np.testing.assert_allclose(estimates.win_probability, ranking.win_probability, atol=1e-5)
    assert estimates.method == "SOPR" and estimates.names == ["a", "b", "far"]
    monkeypatch.setattr(sopr_fast.Ranker, "collapsed", True)  # scores differ by float noise
    estimates = METHOD.estimate(candidates, log, known=policies, returns=returns, seed=3)
    np.testing.assert_array_equal(estimates.values, returns.mean())


def test_values_of_known_policies_have_the_moments_of_their_returns(log, known):
    policies, returns = known
    estimates = METHOD.estimate(policies, log, known=policies, returns=returns)
    assert estimates.values.mean() == pytest.approx(returns.mean(), rel=1e-4)
    assert estimates.values.std() == pytest.approx(returns.std(), rel=1e-4)


@pytest.mark.parametrize("method", [METHOD, NearestPolicy()], ids=["sopr", "nearest-policy"])
def test_policies_act_once_for_all_folds(method, log, known):
    calls = []

    def counting(policy):
        def act(states):
            calls.append(len(states))
            return policy(states)

        return act

    policies = {name: counting(policy) for name, policy in known[0].items()}

    def on_the_log():
        return sum(rows > 13 for rows in calls)  # the rest are questions in a few states

    method.prepare(Request([*load_policies(policies).values()], log, seed=0))
    prepared, calls[:] = on_the_log(), []
    sopr_fast.evaluate(policies, log, known[1], methods=[method], cv=4)
    assert 0 < on_the_log() <= 2 * prepared


def test_known_returns_are_needed(log):
    for options in ({}, {"known": gains()}, {"returns": [1, 2, 3]}):
        with pytest.raises(ValueError, match="SOPR learns from known returns: pass known="):
            METHOD.estimate(gains(), log, **options)
