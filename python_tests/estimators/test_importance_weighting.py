"""Weights of importance weighting on logs of a few rows."""

import math

import numpy as np
import pytest
import torch
from support.estimators import disjoint, gains, loud, unwarned, with_other
from support.mdps import TablePolicy, Tabular
from support.problems import transitions
from torch import distributions as dist
from torch.distributions import Normal, TanhTransform

from sopr_fast.estimators import ImportanceWeighting, UncertainEstimateWarning

pytestmark = unwarned


def test_importance_weighting_keeps_ended_episodes_and_drops_cut_ones():
    """One episode ends after reward 1, the other has rewards 1 and 3."""
    states, rewards = np.zeros((3, 1)), np.array([1.0, 1.0, 3.0])
    density = -math.log(0.1 * math.sqrt(2 * math.pi))  # of the policy, so that all weights are 1
    for flags, expected in ((([1, 0, 0], [0, 0, 1]), 1 + 0.5 * 1.5), (([0, 0, 0], [1, 0, 1]), 1 + 0.5 * 3)):
        log = transitions(states, states, rewards, states, *flags, log_probs=np.full(3, density))
        estimates = ImportanceWeighting(discount=0.5).estimate([lambda s: 0 * s], log)
        assert estimates.values[0] == pytest.approx(expected)


@pytest.mark.parametrize("largest", [1.0, 1.1], ids=["within", "beyond"])
def test_noise_of_deterministic_policies_is_before_tanh_within_its_range(largest):
    """Logged actions are the policy's own plus noise. Saturated ones are clipped and have full weight."""
    random = np.random.default_rng(0)
    states, noise = np.repeat([0.0, 0.5, 30.0], 20)[:, None], 0.2 * random.standard_normal((60, 1))
    actions = np.float32(largest * np.tanh(states + noise))
    rewards = random.standard_normal(60).astype(np.float32)
    log = transitions(states, actions, rewards, states, np.ones(60), None, np.zeros(60))
    estimates = ImportanceWeighting(discount=0.9, noise=0.3).estimate([lambda states: largest * np.tanh(states)], log)
    acted, logged = largest * np.tanh(states), actions.astype(np.float64)
    if largest == 1:
        acted, logged = (torch.from_numpy(x).clamp(-1 + 1e-4, 1 - 1e-4) for x in (acted, logged))
        density = torch.distributions.TransformedDistribution(Normal(acted.atanh(), 0.3), TanhTransform())
    else:
        acted, logged = map(torch.from_numpy, (acted, logged))
        density = Normal(acted, 0.3)
        normal = ImportanceWeighting().estimate([lambda s: Normal(1.1 * torch.from_numpy(np.tanh(s)), 0.3)], log)
        assert normal.values == pytest.approx(estimates.values, rel=1e-4)
    weights = density.log_prob(logged).exp().numpy()[:, 0]
    assert estimates.values[0] == pytest.approx(weights @ rewards / weights.sum(), rel=1e-4)


def test_log_ratios_are_clipped(log):
    log = with_other(log, log_probs=np.zeros(len(log), np.float32))
    clipped = ImportanceWeighting(discount=0.9, clip=(-1e-9, 1e-9)).estimate(gains(), log)
    rewards = log.rewards.reshape(12, 10).mean(0)
    np.testing.assert_allclose(clipped.values, float(0.9 ** np.arange(10) @ rewards), rtol=1e-6)


def test_errors_are_those_of_a_bootstrap_over_episodes():
    """Densities are 1 under the policy, so that weights are one over those of the log."""
    random = np.random.default_rng(0)
    rewards, log_probs = random.standard_normal((2, 400, 3)) * [[[1.0]], [[0.3]]]
    states, cut = np.zeros((1200, 1)), np.tile([0, 0, 1], 400)
    log = transitions(
        states, states, rewards.ravel(), states, None, cut, log_probs.ravel() - 0.5 * math.log(2 * math.pi)
    )
    estimates = ImportanceWeighting(discount=0.5, noise=1.0).estimate([lambda s: 0 * s], log)
    weights = np.exp(-log_probs.cumsum(1))
    counts = random.multinomial(400, np.full(400, 1 / 400), 2000)
    values = (counts @ (weights * rewards)) / (counts @ weights) @ [1, 0.5, 0.25]
    assert estimates.standard_errors == pytest.approx(values.std(), rel=0.1)
    assert estimates.values == pytest.approx((weights * rewards).sum(0) / weights.sum(0) @ [1, 0.5, 0.25])


def test_an_episode_without_density_has_no_weight():
    """One of four episodes has a normal of standard deviation 0 at its first step."""
    states = np.repeat([[0.0], [1.0], [1.0], [1.0]], 2, axis=0)
    rewards = np.array([5.0, 7.0, 1.0, 2.0, 1.0, 3.0, 1.0, 4.0])
    log_probs = np.full(8, -0.5 * math.log(2 * math.pi))
    log = transitions(states, 0 * states, rewards, states, None, [0, 1] * 4, log_probs)

    def normal(states):
        return dist.Normal(torch.from_numpy(0 * states), torch.from_numpy(states), validate_args=False)

    estimates = ImportanceWeighting(discount=0.5).estimate([normal], log)
    assert estimates.values[0] == pytest.approx(1 + 0.5 * 3)
    assert estimates.diagnostics["effective_sample_size"] == pytest.approx(3)


@loud
@pytest.mark.parametrize("fitted", [False, True])
def test_importance_weighting_warns_of_disjoint_support(fitted):
    policies, log = disjoint()
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
    message = r"hardly covers 'other' \(0\), 'both' \([\d.]+\): fewer"
    with pytest.warns(UncertainEstimateWarning, match=message) as warned:
        estimates = ImportanceWeighting(discount=0.9).estimate(policies, log)
    assert "these do: 95 % of their decisions are unlike" in str(warned[0].message) and len(warned) == 2
    # Steps 15 to 19 have 0.096 of the weight, 14 to 19 0.122.
    expected = [0, 200 * 0.7**14, 200 / (0.4**2 + 1.6**2) * 2]
    np.testing.assert_allclose(estimates.diagnostics["effective_sample_size"], expected, rtol=0.1)
    np.testing.assert_array_equal(np.isnan(estimates.standard_errors), [True, True, False])
