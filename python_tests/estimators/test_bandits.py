"""Importance weighting and doubly robust values on logs of one-step episodes."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from support.estimators import bandit, bandits, softmax
from support.problems import transitions

from sopr_fast import UncertainEstimateWarning, load_policies
from sopr_fast.estimators import FQE, DoublyRobust, ImportanceWeighting, doubly_robust

POLICIES, TRUE = bandits(soft=1.0, uniform=0.0)
TRUTH = TRUE["soft"]


def test_one_step_values_are_weighted_means():
    log = bandit()
    estimates = ImportanceWeighting().estimate(POLICIES, log)
    actions = log.actions[:, 0].astype(int)
    weights = softmax(log.states, 1.0)[np.arange(len(log)), actions] / np.exp(log.log_probs)
    assert estimates.values[0] == pytest.approx(weights @ log.rewards / weights.sum(), rel=1e-5)
    effective = weights.sum() ** 2 / (weights**2).sum()
    assert estimates.diagnostics["effective_sample_size"][0] == pytest.approx(effective, rel=1e-4)


@pytest.mark.parametrize("estimator", [ImportanceWeighting(), DoublyRobust()])
def test_intervals_hold_as_often_as_they_say(estimator):
    ends = [estimator.estimate(POLICIES, bandit(seed, count=500)).intervals(0.9)[0] for seed in range(60)]
    assert 0.8 <= np.mean([low <= TRUTH <= high for low, high in ends]) <= 0.98


def test_a_reward_model_that_fits_makes_errors_small_and_one_that_does_not_keeps_values_right(monkeypatch):
    log = bandit(noise=0.0)
    robust, weighted = (kind().estimate(POLICIES, log) for kind in (DoublyRobust, ImportanceWeighting))
    assert robust.diagnostics["reward_error"] < 0.01
    assert robust.standard_errors[0] < 0.6 * weighted.standard_errors[0]
    monkeypatch.setattr(doubly_robust, "_PENALTY", 1e9)
    blind = DoublyRobust().estimate(POLICIES, log)  # predicts the mean
    assert blind.diagnostics["reward_error"] == pytest.approx(1, abs=0.01)
    for estimates in (robust, weighted, blind):
        assert abs(estimates.values[0] - TRUTH) < 3 * estimates.standard_errors[0]


def test_rows_are_predicted_by_models_that_have_not_seen_them(monkeypatch):
    """Rewards are noise, which a model without penalty would fit."""
    random = np.random.default_rng(0)
    states = random.standard_normal((60, 12)).astype(np.float32)
    log = transitions(states, np.zeros((60, 1)), random.standard_normal(60), states, np.ones(60), None, np.zeros(60))
    only = load_policies({"only": lambda s: np.tile([1.0, 0.0], (len(s), 1))}, action_count=2)
    monkeypatch.setattr(doubly_robust, "_PENALTY", 1e-6)
    assert DoublyRobust().estimate(only, log).diagnostics["reward_error"] > 1


def test_wrong_uses_are_refused():
    log = bandit(count=50)
    following = np.roll(log.states, -1, 0)
    longer = transitions(log.states, log.actions, log.rewards, following, np.arange(50) % 2, None, log.log_probs)
    for given in (longer, transitions(log.states, log.actions, log.rewards, log.states, np.ones(50))):
        with pytest.raises(ValueError, match="DoublyRobust needs discrete actions, episodes of one step"):
            DoublyRobust().estimate(POLICIES, given)
    many = bandit()
    for wrong in (many.log_probs - 0.3, np.where(many.actions[:, 0] == 1, -3, many.log_probs).astype(np.float32)):
        with pytest.raises(ValueError, match=r"action . is logged .* times as often as by its probabilities: give"):
            ImportanceWeighting().estimate(POLICIES, replace(many, log_probs=wrong))
    never = np.where(np.arange(len(many)) == 0, -800, many.log_probs).astype(np.float32)
    with pytest.warns(UncertainEstimateWarning), warnings.catch_warnings(action="error", category=RuntimeWarning):
        ImportanceWeighting().estimate(POLICIES, replace(many, log_probs=never))
    estimates = FQE(updates=2, hidden=(4,)).estimate(POLICIES, log)
    with pytest.raises(ValueError, match="level must be"):
        estimates.intervals(1.0)
