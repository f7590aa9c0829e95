"""A Gaussian process of returns over action distance."""

import numpy as np
import pytest
from estimators import small_log
from mdps import LinearGain

from sopr_fast.estimators import GaussianProcess
from sopr_fast.estimators.gaussian_process_posterior import fit
from sopr_fast.ranking.metrics import policy_distances


@pytest.fixture(scope="module")
def log():
    return small_log()


def line(*gains):
    """Return policies that differ in one number."""
    return {f"gain {gain}": LinearGain(np.array([gain, 0.0])) for gain in gains}


def returns_of(known, policies, returns, log):
    """Return means and deviations by the model of `select` without a simulator."""
    columns = np.stack([policy(log.states) for policy in [*known.values(), *policies.values()]])
    unknown = np.full(len(policies), np.nan)
    posterior = fit(policy_distances(columns, columns), np.append(returns, unknown), np.zeros(len(columns)))
    return posterior.mean[len(known) :], posterior.deviation[len(known) :]


def test_values_are_those_of_the_process(log):
    known, policies = line(0.2, 0.5, 0.6, 1.2, 1.7), line(0.3, 0.9, 3.0)
    returns = [1.0, 2.0, 2.2, 3.0, 2.0]
    estimates = GaussianProcess().estimate(policies, log, known=known, returns=returns)
    mean, deviation = returns_of(known, policies, returns, log)
    np.testing.assert_allclose(estimates.values, mean, rtol=1e-4)
    np.testing.assert_allclose(estimates.standard_errors, deviation, rtol=1e-4)


def test_known_policy_is_valued_by_the_others(log):
    known, returns = line(0.2, 0.5, 0.6, 1.2, 1.7), np.array([1.0, 2.0, 2.2, 3.0, 2.0])
    first = GaussianProcess().estimate(known, log, known=known, returns=returns)
    spread = np.ptp(returns)
    for i, name in enumerate(known):
        others = {other: policy for other, policy in known.items() if other != name}
        mean, _ = returns_of(others, {name: known[name]}, np.delete(returns, i), log)
        assert first.values[i] == pytest.approx(mean[0], abs=0.2 * spread)  # but for the weights of the grid
        assert abs(first.values[i] - returns[i]) > 1e-3


def test_the_process_recovers_smooth_and_noisy_returns(log):
    """Returns that follow the actions are interpolated; returns that do not are averaged."""
    gains = np.linspace(0.1, 2, 30).round(3)
    known, candidates = line(*gains), line(0.55, 1.45)
    smooth = GaussianProcess().estimate(candidates, log, known=known, returns=gains * 10)
    np.testing.assert_allclose(smooth.values, [5.5, 14.5], rtol=0.02)
    noise = np.random.default_rng(0).normal(7, 1, len(gains))
    noisy = GaussianProcess().estimate(candidates, log, known=known, returns=noise)
    np.testing.assert_allclose(noisy.values, noise.mean(), atol=0.7)
    assert np.ptp(noisy.values) < 0.1 * noise.std()


def test_values_scale_with_the_returns(log):
    known, candidates, returns = line(0.2, 0.5, 0.6, 1.2), line(0.3, 0.9), np.array([1.0, 2.0, 2.2, 3.0])
    plain, scaled = (
        GaussianProcess().estimate(candidates, log, known=known, returns=each) for each in (returns, 100 * returns - 7)
    )
    np.testing.assert_allclose(scaled.values, 100 * plain.values - 7, rtol=1e-9)
    np.testing.assert_allclose(scaled.standard_errors, 100 * plain.standard_errors, rtol=1e-9)


def test_equal_returns_and_copies_of_a_policy(log):
    copies = {f"copy {i}": LinearGain(np.array([0.5, 0.0])) for i in range(3)}
    estimates = GaussianProcess().estimate(line(0.2), log, known=copies, returns=[1.0, 1.0, 1.0])
    assert estimates.values == pytest.approx(1) and estimates.standard_errors < 1
    both = GaussianProcess().estimate(line(0.2), log, known=copies, returns=[1.0, 2.0, 3.0])
    assert both.values == pytest.approx(2) and both.standard_errors < 2


def test_few_known_policies(log):
    one = GaussianProcess().estimate(line(0.3), log, known=line(0.2), returns=[5.0])
    assert one.values == pytest.approx(5) and one.standard_errors > 1
    with pytest.raises(ValueError, match="is the only known policy"):
        GaussianProcess().estimate(line(0.2), log, known=line(0.2), returns=[5.0])
    two = GaussianProcess().estimate(line(0.2, 0.4), log, known=line(0.2, 0.4), returns=[5.0, 6.0])
    np.testing.assert_allclose(two.values, [6, 5], rtol=2e-3)
