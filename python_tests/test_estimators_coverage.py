"""What estimators say of policies that the log hardly covers."""

import math

import numpy as np
import pytest
from estimators import SMALL, gains, loud, quiet, small_log, unwarned, with_other
from mdps import Linear, LinearGain, TablePolicy, Tabular

from sopr_fast.data import Transitions
from sopr_fast.estimators import FQE, BehaviourQ, DualDICE, ImportanceWeighting, ModelBased, UncertainEstimateWarning

ARRIVING = {**SMALL, "target_rate": 1.0}  # or their lag would be warned of too
critic = pytest.mark.parametrize("method", [FQE(**ARRIVING), BehaviourQ(**ARRIVING)], ids=["fqe", "behaviour-q"])

pytestmark = unwarned


@pytest.fixture(scope="module")
def log():
    return small_log()


@pytest.fixture
def disjoint():
    """A log that never takes the action that the first policy always takes."""
    behaviour = np.tile([0.5, 0.5, 0.0], (5, 1))
    never, often = np.tile([0.0, 0.0, 1.0], (5, 1)), np.tile([0.4, 0.6, 0.0], (5, 1))
    log = Tabular.random(seed=0).log(behaviour, 200, 5, seed=0, log_probs=True)
    return {"never": TablePolicy(never), "often": TablePolicy(often)}, log


@loud
@pytest.mark.parametrize("fitted", [False, True])
def test_disjoint_support_is_no_confident_weighting(fitted, disjoint):
    with pytest.warns(UncertainEstimateWarning, match=r"hardly covers 'never' \(0\): fewer"):
        found = ImportanceWeighting(fitted=fitted, updates=500, hidden=(16,)).estimate(*disjoint, **quiet)
    effective = found.diagnostics["effective_sample_size"]
    assert effective[0] == 0 and effective[1] > 100
    assert math.isnan(found.standard_errors[0]) and found.standard_errors[1] < 0.5


@loud
def test_support_lost_after_the_first_step_is_no_confident_weighting():
    """In the second state, where all stay, the log takes the first action only, a policy the other, and one both."""
    step = np.zeros((2, 2, 2))
    step[..., 1] = 1
    mdp = Tabular(step, np.zeros((2, 2)), np.array([[1.0, 1.0], [1.0, -100.0]]), np.array([1.0, 0.0]))
    log = mdp.log(np.array([[0.5, 0.5], [1.0, 0.0]]), 200, 20, seed=0, log_probs=True)
    asked = {
        "other": TablePolicy(np.array([[0.5, 0.5], [0.0, 1.0]])),
        "both": TablePolicy(np.array([[0.5, 0.5], [0.7, 0.3]])),
        "logged": TablePolicy(np.array([[0.2, 0.8], [1.0, 0.0]])),
    }
    with pytest.warns(
        UncertainEstimateWarning, match=r"hardly covers 'other' \(0\), 'both' \([\d.]+\): fewer"
    ) as warned:
        found = ImportanceWeighting().estimate(asked, log, **quiet)
    assert len(warned) == 1
    by_step = found.diagnostics["effective_by_step"]
    np.testing.assert_allclose(by_step[1], 200 * 0.7 ** np.arange(20), rtol=1e-5)
    effective = found.diagnostics["effective_sample_size"]
    # Steps 15 to 19 have 0.096 of the weight, 14 to 19 0.122.
    np.testing.assert_allclose(effective, [0, by_step[1, 14], 200 / (0.4**2 + 1.6**2) * 2], rtol=0.1)
    np.testing.assert_array_equal(np.isnan(found.standard_errors), [True, True, False])


@loud
@critic
def test_critics_warn_of_disjoint_support(method, disjoint, log):
    with pytest.warns(UncertainEstimateWarning, match=r"hardly covers 'never' \(100%\): in that share") as warned:
        found = method.estimate(*disjoint, **quiet)
    assert len(warned) == 1 and warned[0].filename == __file__
    np.testing.assert_allclose(found.diagnostics["uncovered"], [1, 0])
    far = {"far": lambda states: np.full((len(states), 1), 40.0, np.float32)}
    with pytest.warns(UncertainEstimateWarning, match=r"hardly covers 'far' \(100%\)"):
        method.estimate({**gains(), **far}, log, **quiet)


@loud
@critic
@pytest.mark.parametrize("std", [None, 0.5], ids=["deterministic", "stochastic"])
def test_critics_do_not_warn_of_covered_policies(method, std, recwarn):
    """A policy that acts as the log does is uncovered in as many states as the log itself, 1 %."""
    log = Linear.small().log(np.array([0.0, -0.3]), 0.5, 40, 50, seed=0)
    behaviour = {"behaviour": LinearGain(np.array([0.0, -0.3]), std)}
    found = method.estimate({**behaviour, **gains(std=std)}, log, **quiet)
    assert not recwarn.list
    assert found.diagnostics["uncovered"][0] == pytest.approx(0.01 if std else 0, abs=0.01)


def test_coverage_counts_what_policies_do_apart_from_the_nearest_rows(disjoint):
    """Half of the time an action that is never logged; an action that is logged in 30 % of the states only."""
    policies, log = disjoint
    half = {"half": TablePolicy(0.5 * sum(policy.table for policy in policies.values()))}
    assert FQE(**SMALL).estimate(half, log, **quiet).diagnostics["uncovered"] == pytest.approx(0.5)
    states = np.random.default_rng(0).uniform(0, 1, (400, 1))
    actions = np.where(states < 0.3, 1.0, 0.0)
    log = Transitions.from_arrays(states, actions, np.zeros(400), states)
    found = FQE(**SMALL).estimate({"ones": lambda states: np.ones((len(states), 1))}, log, **quiet)
    assert found.diagnostics["uncovered"] == pytest.approx(0.7, abs=0.1)


@loud
def test_dual_dice_warns_of_disjoint_support(disjoint):
    with pytest.warns(
        UncertainEstimateWarning, match=r"DualDICE cannot be trusted for 'never' \(\d+ effective[^)]*\):"
    ):
        DualDICE(hidden=(), updates=500, nu_rate=5e-2, zeta_rate=5e-2).estimate(*disjoint, **quiet)


@loud
def test_actions_far_from_the_log_are_no_confident_estimate(log):
    far = {"far": lambda states: np.full((len(states), 1), 40.0, np.float32)}
    with pytest.warns(UncertainEstimateWarning, match="'far'"):
        found = ImportanceWeighting(updates=300, hidden=(16,)).estimate(far, log, **quiet)
    assert found.diagnostics["effective_sample_size"][0] < 1
    with pytest.warns(UncertainEstimateWarning, match="leave the range of the log"):
        ModelBased(updates=300, hidden=(16,), ensemble=1, rollouts=4, horizon=20).estimate(far, log, **quiet)


@loud
def test_a_constant_column_is_not_left(log, recwarn):
    states, following = (np.pad(part, ((0, 0), (0, 1)), constant_values=7) for part in (log.states, log.next_states))
    method = ModelBased(updates=300, hidden=(16,), ensemble=1, rollouts=4, horizon=20)
    padded = with_other(log, states=states, next_states=following)
    found = method.estimate([lambda states: 0 * states[:, :1]], padded, **quiet)
    assert found.diagnostics["guarded"] < 0.1 and not recwarn.list
