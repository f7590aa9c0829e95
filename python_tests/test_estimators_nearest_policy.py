"""The return of the nearest training policy."""

import numpy as np
import pytest
from estimators import gains, small_log
from mdps import LinearGain

from sopr_fast.estimators import NearestPolicy
from sopr_fast.metrics import policy_distance


@pytest.fixture(scope="module")
def log():
    return small_log()


def test_nearest_policy_takes_the_return_of_the_nearest(log):
    known, returns = gains(6), np.arange(6.0) ** 2
    asked = {"a": LinearGain(np.array([0.12, -0.2])), "b": LinearGain(np.array([0.41, -0.9]))}
    found = NearestPolicy(known, returns).estimate(asked, log)
    columns = [np.stack([policy(log.states) for policy in group.values()]) for group in (known, asked)]
    distances, nearest = policy_distance(*columns)
    assert found.diagnostics["nearest"] == [f"gain-{i}" for i in nearest]
    np.testing.assert_array_equal(found.values, returns[nearest])
    np.testing.assert_allclose(found.diagnostics["distances"], distances, rtol=1e-4)


def test_a_training_policy_is_not_its_own_nearest(log):
    known = {name: LinearGain(np.array([gain, 0.0])) for name, gain in zip("abcd", [0.2, 0.5, 0.6, 1.2], strict=True)}
    found = NearestPolicy(known, [20, 50, 60, 120]).estimate(known, log)
    assert found.diagnostics["nearest"] == ["b", "c", "b", "c"] and found.values.tolist() == [50, 60, 50, 60]
    assert (found.diagnostics["distances"] > 0).all()


def test_a_training_policy_is_known_by_more_than_its_name(log):
    """Policies in lists are named by position, so that equal names say nothing."""
    policies = [LinearGain(np.array([gain, 0.0])) for gain in [0.2, 0.5, 0.6, 1.2]]
    close = [LinearGain(policy.gain + 0.01) for policy in policies]
    known = NearestPolicy(policies, [20, 50, 60, 120])
    assert known.estimate(close, log).values.tolist() == [20, 50, 60, 120]
    again = [LinearGain(policy.gain) for policy in policies]
    assert known.estimate(again, log).values.tolist() == [50, 60, 50, 60]
    draws = np.random.default_rng(0)
    noisy = [lambda s, p=policy: p(s) + draws.normal(0, 1e-3, (len(s), 1)).astype(np.float32) for policy in policies]
    assert NearestPolicy(noisy, [20, 50, 60, 120]).estimate(noisy, log).values.tolist() == [50, 60, 50, 60]


def test_the_only_training_policy_has_no_nearest(log):
    known = gains(1)
    with pytest.raises(ValueError, match="'gain-0' is the only training policy"):
        NearestPolicy(known, [7.0]).estimate(gains(2), log)
    assert NearestPolicy(known, [7.0]).estimate({"other": known["gain-0"]}, log).values == 7
