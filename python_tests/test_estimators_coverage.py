"""Warnings about policies that the log hardly covers."""

import math

import numpy as np
import pytest
from estimators import SMALL, gains, loud, small_log, unwarned, with_other
from mdps import Linear, LinearGain, TablePolicy, Tabular
from problems import transitions

from sopr_fast.estimators import (
    FQE,
    BehaviourQ,
    DualDICE,
    ImportanceWeighting,
    UncertainEstimateWarning,
    covered_shares,
)

ARRIVING = {**SMALL, "target_rate": 1.0}  # without a warning about lag
critic = pytest.mark.parametrize("method", [FQE(**ARRIVING), BehaviourQ(**ARRIVING)], ids=["fqe", "behaviour-q"])

pytestmark = unwarned


@pytest.fixture(scope="module")
def log():
    return small_log()


@pytest.fixture
def disjoint():
    """Return two policies and a log without the only action of the first policy."""
    behaviour = np.tile([0.5, 0.5, 0.0], (5, 1))
    never, often = np.tile([0.0, 0.0, 1.0], (5, 1)), np.tile([0.4, 0.6, 0.0], (5, 1))
    log = Tabular.random(seed=0).log(behaviour, 200, 5, seed=0, log_probs=True)
    return {"never": TablePolicy(never), "often": TablePolicy(often)}, log


def test_covered_shares(disjoint):
    assert covered_shares(*disjoint) == {"never": 0.0, "often": 1.0}


def test_coverage_of_arrays_where_no_row_is_followed_by_another():
    random = np.random.default_rng(0)
    states = random.normal(size=(100, 2)).astype(np.float32)
    actions = np.where(states[:, :1] < 0, -1.0, 1.0).astype(np.float32)
    log = {"observations": states, "actions": actions, "rewards": states[:, 0], "next_observations": states + 1}
    log |= {"terminals": np.zeros(100, bool), "timeouts": np.ones(100, bool)}
    arrays = {"logged": actions, "far": actions + 9}
    assert covered_shares(arrays, log) == {"logged": 1.0, "far": 0.0}
    with pytest.raises(ValueError, match="'logged' is an array of actions, but no row of the log is followed"):
        FQE(**SMALL).estimate(arrays, log)


@loud
@pytest.mark.parametrize("fitted", [False, True])
def test_importance_weighting_warns_of_disjoint_support(fitted, disjoint):
    policies, log = disjoint
    log = with_other(log, log_probs=None) if fitted else log
    with pytest.warns(UncertainEstimateWarning, match=r"hardly covers 'never' \(0\): fewer"):
        estimates = ImportanceWeighting(discount=0.9, updates=500, hidden=(16,)).estimate(policies, log)
    effective = estimates.diagnostics["effective_sample_size"]
    assert effective[0] == 0 and effective[1] > 100
    assert math.isnan(estimates.standard_errors[0]) and estimates.standard_errors[1] < 0.5


@loud
def test_importance_weighting_warns_of_support_lost_after_the_first_step():
    """In the second, absorbing state, the log takes the first action, one policy the second, another policy both."""
    step = np.zeros((2, 2, 2))
    step[..., 1] = 1
    mdp = Tabular(step, np.zeros((2, 2)), np.array([[1.0, 1.0], [1.0, -100.0]]), np.array([1.0, 0.0]))
    log = mdp.log(np.array([[0.5, 0.5], [1.0, 0.0]]), 200, 20, seed=0, log_probs=True)
    policies = {
        "other": TablePolicy(np.array([[0.5, 0.5], [0.0, 1.0]])),
        "both": TablePolicy(np.array([[0.5, 0.5], [0.7, 0.3]])),
        "logged": TablePolicy(np.array([[0.2, 0.8], [1.0, 0.0]])),
    }
    with pytest.warns(
        UncertainEstimateWarning, match=r"hardly covers 'other' \(0\), 'both' \([\d.]+\): fewer"
    ) as warned:
        estimates = ImportanceWeighting(discount=0.9).estimate(policies, log)
    assert len(warned) == 1
    by_step = estimates.diagnostics["effective_by_step"]
    np.testing.assert_allclose(by_step[1], 200 * 0.7 ** np.arange(20), rtol=1e-5)
    effective = estimates.diagnostics["effective_sample_size"]
    # Steps 15 to 19 have 0.096 of the weight, 14 to 19 0.122.
    np.testing.assert_allclose(effective, [0, by_step[1, 14], 200 / (0.4**2 + 1.6**2) * 2], rtol=0.1)
    np.testing.assert_array_equal(np.isnan(estimates.standard_errors), [True, True, False])


@loud
@critic
def test_critics_warn_of_disjoint_support(method, disjoint, log):
    with pytest.warns(UncertainEstimateWarning, match=r"hardly covers 'never' \(100%\): in this share") as warned:
        estimates = method.estimate(*disjoint)
    assert len(warned) == 1 and warned[0].filename == __file__
    np.testing.assert_allclose(estimates.diagnostics["uncovered"], [1, 0])
    far = {"far": lambda states: np.full((len(states), 1), 40.0, np.float32)}
    with pytest.warns(UncertainEstimateWarning, match=r"hardly covers 'far' \(100%\)"):
        method.estimate({**gains(), **far}, log)


@loud
@critic
@pytest.mark.parametrize("std", [None, 0.5], ids=["deterministic", "stochastic"])
def test_critics_do_not_warn_of_covered_policies(method, std, recwarn):
    """A policy that acts as the log does is uncovered in 1 % of the states, as the log itself is."""
    log = Linear.small().log(np.array([0.0, -0.3]), 0.5, 40, 50, seed=0)
    behaviour = {"behaviour": LinearGain(np.array([0.0, -0.3]), std)}
    estimates = method.estimate({**behaviour, **gains(std=std)}, log)
    assert not recwarn.list
    assert estimates.diagnostics["uncovered"][0] == pytest.approx(0.01 if std else 0, abs=0.01)


def test_coverage_counts_actions_not_logged_in_similar_states(disjoint):
    """Policies: one takes an unlogged action half of the time; one an action logged in 30 % of the states."""
    policies, log = disjoint
    half = {"half": TablePolicy(0.5 * sum(policy.table for policy in policies.values()))}
    assert FQE(**SMALL).estimate(half, log).diagnostics["uncovered"] == pytest.approx(0.5)
    states = np.random.default_rng(0).uniform(0, 1, (400, 1))
    actions = np.where(states < 0.3, 1.0, 0.0)
    log = transitions(states, actions, np.zeros(400), states)
    estimates = FQE(**SMALL).estimate({"ones": lambda states: np.ones((len(states), 1))}, log)
    assert estimates.diagnostics["uncovered"] == pytest.approx(0.7, abs=0.1)


@loud
def test_dual_dice_warns_of_disjoint_support(disjoint):
    with pytest.warns(
        UncertainEstimateWarning, match=r"DualDICE cannot be trusted for 'never' \(\d+ effective[^)]*\):"
    ):
        DualDICE(discount=0.9, hidden=(), updates=500, nu_rate=5e-2, zeta_rate=5e-2).estimate(*disjoint)


@loud
def test_actions_far_from_the_log_are_warned_of(log):
    far = {"far": lambda states: np.full((len(states), 1), 40.0, np.float32)}
    with pytest.warns(UncertainEstimateWarning, match="'far'"):
        estimates = ImportanceWeighting(discount=0.9, updates=300, hidden=(16,)).estimate(far, log)
    assert estimates.diagnostics["effective_sample_size"][0] < 1
