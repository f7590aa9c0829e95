"""Critics and their targets, and warnings of critics that extrapolate."""

import numpy as np
import pytest
from support.estimators import SMALL, disjoint, gains, loud, two_states, unwarned, with_other
from support.mdps import Linear, LinearGain, TablePolicy
from support.problems import transitions

from sopr_fast.estimators import FQE, BehaviourQ, DualDICE, UncertainEstimateWarning, critics
from sopr_fast.estimators.reward_estimator import value_range

pytestmark = unwarned

ARRIVING = FQE(**SMALL, target_rate=1.0)  # without a warning about lag


@pytest.mark.parametrize(
    ("terminal", "discount", "to_go", "bounds"),
    [
        (True, 0.5, [1 + 0.5 * 3, 3], (1 / (1 - 0.5), 3)),  # the reward of a terminal is earned once
        (True, 1, [1 + 3, 3], (3, 1 + 3)),
        (False, 0.5, [1 + 0.5 * 3 + 0.25 * 4, 3 + 0.5 * 4], (1 / (1 - 0.5), 3 / (1 - 0.5))),  # 4: the mean for ever
    ],
    ids=["terminals", "undiscounted", "timeouts"],
)
def test_the_scale_of_values_is_that_of_returns_to_go(terminal, discount, to_go, bounds):
    log = two_states(terminal)
    assert critics.value_scale(log, discount) == pytest.approx((np.mean(to_go), max(np.std(to_go), 1)))
    assert value_range(log, discount) == pytest.approx(bounds)


@pytest.mark.parametrize("method", [FQE(**SMALL), BehaviourQ(**SMALL)], ids=["own", "shared"])
def test_values_do_not_depend_on_how_many_states_are_evaluated_at_once(method, log, monkeypatch):
    whole = method.estimate(gains(), log)
    monkeypatch.setattr(critics, "_CHUNK", 1)
    np.testing.assert_allclose(method.estimate(gains(), log).values, whole.values, rtol=1e-6)


def test_fqe_reaches_its_values_with_the_default_target_rate():
    """The value is 1 + 3 γ / (1 - γ), within 3 %. A rate of 0.005 would leave 78 % of the way to it."""
    method = FQE(hidden=(16,), updates=5000, batch_size=32, learning_rate=1e-3)
    estimates = method.estimate([lambda states: np.zeros((len(states), 1))], two_states(False))
    np.testing.assert_allclose(estimates.values, 1 + 3 * 0.99 / 0.01, rtol=0.03)
    assert estimates.diagnostics["lag"] == pytest.approx(np.exp(-5))


@loud
@pytest.mark.parametrize("method", [FQE, BehaviourQ])
def test_critics_warn_of_lag(method, log):
    """The lag is exp(-20 * 0.1 * 0.01) = 0.98."""
    message = "20 updates took critics only 2 % of the way to their values"
    with pytest.warns(UncertainEstimateWarning, match=message) as caught:
        estimates = method(hidden=(8,), updates=20).estimate(gains(), log)
    assert caught[0].filename == __file__
    assert message in estimates.notes[-1] and estimates.diagnostics["lag"] == pytest.approx(np.exp(-0.02))


@loud
@pytest.mark.parametrize("sign", [1, -1], ids=["high", "low"])
def test_values_beyond_what_rewards_allow_are_warned_of(sign):
    """Rewards are proportional to actions from -1 to 1; a linear critic extrapolates to an action of 5."""
    random = np.random.default_rng(0)
    states, actions = random.standard_normal((2, 400, 1))
    log = transitions(states, np.clip(actions, -1, 1), sign * np.clip(actions, -1, 1)[:, 0], states, np.ones(400))
    policies = {"far": lambda s: np.full((len(s), 1), 5.0), "near": lambda s: np.full((len(s), 1), 0.5)}
    method = FQE(hidden=(), updates=600, learning_rate=1e-2, target_rate=1.0, discount=0.5)
    message = r"values of 'far' \(-?\d.*\) lie outside what rewards allow, -1 to 1"
    with pytest.warns(UncertainEstimateWarning, match=message):
        estimates = method.estimate(policies, log)
    np.testing.assert_allclose(estimates.values, [sign * 5, sign * 0.5], rtol=0.1)


@loud
def test_bounds_of_rewards_include_values_of_short_episodes(log, recwarn):
    """Rewards are 1 at each of 10 steps; the value of ten steps is less than that of endless ones."""
    FQE(**SMALL).estimate(gains(), with_other(log, rewards=np.ones_like(log.rewards)))
    assert not any("rewards allow" in str(warning.message) for warning in recwarn.list)


@loud
def test_critics_warn_of_disjoint_support(log):
    with pytest.warns(UncertainEstimateWarning, match="100 % of their decisions are unlike .*: never") as warned:
        estimates = ARRIVING.estimate(*disjoint())
    assert len(warned) == 1 and warned[0].filename == __file__
    np.testing.assert_allclose(estimates.diagnostics["unsupported"], [1, 0])
    far = {"far": lambda states: np.full((len(states), 1), 40.0, np.float32)}
    with pytest.warns(UncertainEstimateWarning, match="100 % of their decisions are unlike .*: far"):
        ARRIVING.estimate({**gains(), **far}, log)


@loud
@pytest.mark.parametrize("std", [None, 0.5], ids=["deterministic", "stochastic"])
def test_critics_do_not_warn_of_covered_policies(std, recwarn):
    """Of a policy that acts as the log does, 5 % of the decisions are not supported, as of the log itself."""
    log = Linear.small().log(np.array([0.0, -0.3]), 0.5, 40, 50, seed=0)
    behaviour = {"behaviour": LinearGain(np.array([0.0, -0.3]), std)}
    estimates = ARRIVING.estimate({**behaviour, **gains(std=std)}, log)
    assert not any("unlike" in str(warning.message) for warning in recwarn.list)
    assert estimates.diagnostics["unsupported"][0] == pytest.approx(0.05 if std else 0, abs=0.03)


def test_coverage_counts_actions_not_logged_in_similar_states():
    """Policies: one takes an unlogged action half of the time; one an action logged in 30 % of the states."""
    policies, log = disjoint()
    half = {"half": TablePolicy(0.5 * sum(policy.table for policy in policies.values()))}
    assert FQE(**SMALL).estimate(half, log).diagnostics["unsupported"] == pytest.approx(0.5)
    states = np.random.default_rng(0).uniform(0, 1, (400, 1))
    actions = np.where(states < 0.3, 1.0, 0.0)
    log = transitions(states, actions, np.zeros(400), states, episodes=np.arange(400), ends="cut")
    estimates = FQE(**SMALL).estimate({"ones": lambda states: np.ones((len(states), 1))}, log)
    assert estimates.diagnostics["unsupported"] == pytest.approx(0.7, abs=0.1)


@loud
def test_dual_dice_warns_of_disjoint_support():
    message = r"DualDICE cannot be trusted for 'never' \(\d+ effective[^)]*\):"
    with pytest.warns(UncertainEstimateWarning, match=message):
        DualDICE(discount=0.9, hidden=(), updates=500, nu_rate=5e-2, zeta_rate=5e-2).estimate(*disjoint())
