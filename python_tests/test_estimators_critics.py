"""Critics and their targets."""

import numpy as np
import pytest
import torch
from estimators import SMALL, gains, loud, small_log, two_states, unwarned, with_other
from problems import transitions

from sopr_fast.estimators import FQE, BehaviourQ, UncertainEstimateWarning, critics
from sopr_fast.estimators.log import Log

pytestmark = unwarned


@pytest.fixture(scope="module")
def log():
    return small_log()


def test_the_curve_of_a_shared_critic_ends_at_its_values(log):
    """The curve watches all rows of a log as small as this one."""
    estimates = BehaviourQ(**SMALL, ensemble=2).estimate(gains(), log)
    values = np.array(estimates.diagnostics["curve"]["values"])
    assert len(values) == len(estimates.diagnostics["curve"]["updates"]) > 1
    np.testing.assert_allclose(values[-1], estimates.values, rtol=1e-6)
    assert (values[0] != values[-1]).all()


@pytest.mark.parametrize(
    ("terminal", "to_go", "low"),
    [(True, [1 + 0.5 * 3, 3], 1), (False, [1 + 0.5 * 3 + 0.25 * 4, 3 + 0.5 * 4], 2)],  # 4: the mean reward for ever
    ids=["terminals", "timeouts"],
)
def test_the_scale_of_values_is_that_of_returns_to_go(terminal, to_go, low):
    """With terminals, the value of a last step may be only its reward."""
    scale = critics.ValueScale.of(Log(two_states(terminal)), 0.5)
    assert (scale.mean, scale.low, scale.high) == pytest.approx((np.mean(to_go), low, 3 / (1 - 0.5)))
    assert scale.restore(scale.normalise(7.0)) == pytest.approx(7)


@pytest.mark.parametrize(
    ("method", "most"), [(FQE(**SMALL), 64), (BehaviourQ(**SMALL, ensemble=2), 2 * 64)], ids=["own", "shared"]
)
def test_critics_evaluate_one_chunk_at_a_time(method, most, log, monkeypatch):
    """A chunk has 64 states; shared critics evaluate one policy, then two."""
    whole, sizes, evaluate = method.estimate(gains(), log), [], critics.ActionValue.__call__

    def sized(self, states, actions):
        sizes.append(states.shape[-2])
        return evaluate(self, states, actions)

    monkeypatch.setattr(critics, "_CHUNK", 1)
    monkeypatch.setattr(critics.ActionValue, "__call__", sized)
    np.testing.assert_allclose(method.estimate(gains(), log).values, whole.values, rtol=1e-6)
    assert max(sizes) == most


def test_critic_returns_values_in_units_of_return(log):
    policy = gains()["gain-1"]
    estimates = BehaviourQ(**SMALL).estimate({"policy": policy}, log)
    critic = estimates.diagnostics["critic"]
    assert critic(log.states, log.actions).shape == (1, len(log))
    assert estimates.values[0] == pytest.approx(critic(log.states, policy(log.states)).mean(), rel=1e-4)


def test_critic_accepts_tensors_on_any_device(log, device):
    critic = BehaviourQ(**SMALL).estimate(gains(), log).diagnostics["critic"]
    states, actions = (torch.from_numpy(part).to(device) for part in (log.states, log.actions))
    np.testing.assert_array_equal(critic(states, actions), critic(log.states, log.actions))


@pytest.mark.parametrize(
    ("states", "actions", "message"),
    [
        (np.zeros((4, 3)), np.zeros((4, 1)), r"states have shape \(4, 3\), expected \(4, 2\)"),
        (np.zeros((4, 2)), np.zeros((3, 1)), r"actions have shape \(3, 1\), expected \(4, 1\)"),
        (np.zeros((4, 2)), np.zeros(4), r"actions have shape \(4,\), expected \(4, 1\)"),
    ],
)
def test_message_names_the_argument_of_the_wrong_shape(states, actions, message, log):
    critic = BehaviourQ(**SMALL).estimate(gains(), log).diagnostics["critic"]
    with pytest.raises(ValueError, match=message):
        critic(states, actions)


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
    message = "critics have 98% of the way to their values left after 20 updates"
    with pytest.warns(UncertainEstimateWarning, match=message) as caught:
        estimates = method(hidden=(8,), updates=20).estimate(gains(), log)
    assert caught[0].filename == __file__
    assert estimates.diagnostics["lag"] == pytest.approx(np.exp(-0.02))


@loud
@pytest.mark.parametrize("sign", [1, -1], ids=["high", "low"])
def test_values_beyond_what_rewards_allow_are_warned_of(sign):
    """Rewards are proportional to actions from -1 to 1; a linear critic extrapolates to an action of 5."""
    random = np.random.default_rng(0)
    states, actions = random.standard_normal((2, 400, 1))
    log = transitions(states, np.clip(actions, -1, 1), sign * np.clip(actions, -1, 1)[:, 0], states, np.ones(400))
    policies = {"far": lambda s: np.full((len(s), 1), 5.0), "near": lambda s: np.full((len(s), 1), 0.5)}
    method = FQE(hidden=(), updates=600, learning_rate=1e-2, target_rate=1.0, discount=0.5)
    message = r"values of 'far' \(-?\d.*\) lie outside what rewards allow, -2 to 2"
    with pytest.warns(UncertainEstimateWarning, match=message):
        estimates = method.estimate(policies, log)
    np.testing.assert_allclose(estimates.diagnostics["allowed"], [-2, 2])
    np.testing.assert_allclose(estimates.values, [sign * 5, sign * 0.5], rtol=0.1)


def test_bounds_of_rewards_include_values_of_short_episodes(log, recwarn):
    """Rewards are 1 at each of 10 steps; the value of ten steps is less than that of endless ones."""
    ones = with_other(log, rewards=np.ones_like(log.rewards))
    estimates = FQE(**SMALL).estimate(gains(), ones)
    np.testing.assert_allclose(estimates.diagnostics["allowed"], [0, 10])
    assert not any("rewards allow" in str(warning.message) for warning in recwarn.list)
