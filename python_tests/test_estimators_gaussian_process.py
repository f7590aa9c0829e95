"""A Gaussian process of returns over action distance."""

import numpy as np
import pytest
from estimators import small_log
from mdps import LinearGain
from scipy import linalg, stats

from sopr_fast.estimators import GaussianProcess
from sopr_fast.ranking.metrics import policy_distances


@pytest.fixture(scope="module")
def log():
    return small_log()


def line(*gains):
    """Return policies that differ in one number."""
    return {f"gain {gain}": LinearGain(np.array([gain, 0.0])) for gain in gains}


def joint(known, policies, returns, log, diagnostics):
    """Return means and deviations over the deviation of the process, from the joint covariance with a vague mean."""
    everyone = [*known.values(), *policies.values()]
    columns = np.stack([policy(log.states) for policy in everyone])
    kernel = np.exp(-np.sqrt(policy_distances(columns, columns)) / diagnostics["length"])
    covariance = 1e8 + kernel + diagnostics["noise"] * np.eye(len(everyone))
    count = len(known)
    gain = np.linalg.solve(covariance[:count, :count], covariance[:count, count:]).T
    left = covariance[count:, count:] - gain @ covariance[:count, count:]
    return gain @ np.asarray(returns), np.sqrt(np.diagonal(left))


def test_values_are_those_of_the_joint_gaussian(log):
    known, policies = line(0.2, 0.5, 0.6, 1.2, 1.7), line(0.3, 0.9, 3.0)
    returns = [1.0, 2.0, 2.2, 3.0, 2.0]
    estimates = GaussianProcess().estimate(policies, log, known=known, returns=returns)
    mean, deviation = joint(known, policies, returns, log, estimates.diagnostics)
    np.testing.assert_allclose(estimates.values, mean, rtol=1e-4)
    ratio = estimates.standard_errors / deviation
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)


def test_known_policy_is_valued_by_the_others(log):
    known, returns = line(0.2, 0.5, 0.6, 1.2, 1.7), np.array([1.0, 2.0, 2.2, 3.0, 2.0])
    estimates = GaussianProcess().estimate(known, log, known=known, returns=returns)
    for i, name in enumerate(known):
        others = {other: policy for other, policy in known.items() if other != name}
        mean, _ = joint(others, {name: known[name]}, np.delete(returns, i), log, estimates.diagnostics)
        assert estimates.values[i] == pytest.approx(mean[0], rel=1e-4)


def test_restricted_likelihood_recovers_smooth_and_noisy_returns(log):
    """Returns that follow the actions are interpolated; returns that do not are averaged."""
    gains = np.linspace(0.1, 2, 30).round(3)
    known, candidates = line(*gains), line(0.55, 1.45)
    smooth = GaussianProcess().estimate(candidates, log, known=known, returns=gains * 10)
    np.testing.assert_allclose(smooth.values, [5.5, 14.5], rtol=0.02)
    noise = np.random.default_rng(0).normal(7, 1, len(gains))
    noisy = GaussianProcess().estimate(candidates, log, known=known, returns=noise)
    np.testing.assert_allclose(noisy.values, noise.mean(), atol=0.7)
    assert np.ptp(noisy.values) < 0.1 * noise.std()


@pytest.mark.parametrize("seed", range(4))
def test_length_noise_and_variance_maximise_the_likelihood_of_contrasts(log, seed):
    known, policies = line(0.2, 0.5, 0.6, 1.2, 1.7, 1.8), line(3.0)
    returns = np.random.default_rng(seed).standard_normal(6).cumsum()
    estimates = GaussianProcess().estimate(policies, log, known=known, returns=returns)
    columns = np.stack([policy(log.states) for policy in known.values()])
    roots = np.sqrt(policy_distances(columns, columns))
    contrasts = linalg.null_space(np.ones((1, 6))).T
    y = contrasts @ returns

    def fit(length, noise):
        covariance = contrasts @ (np.exp(-roots / length) + noise * np.eye(6)) @ contrasts.T
        variance = y @ np.linalg.solve(covariance, y) / 5
        return stats.multivariate_normal(cov=variance * covariance).logpdf(y), variance

    chosen = estimates.diagnostics
    best, variance = fit(chosen["length"], chosen["noise"])
    unit = np.median(np.sort(roots)[:, 1])
    for length in unit * 2.0 ** np.arange(-1, 10):
        for noise in (3, 1, 0.3, 0.1, 0.03, 0.01, 0.001):
            assert fit(length, noise)[0] <= best + 1e-5
    _, deviation = joint(known, policies, returns, log, chosen)
    np.testing.assert_allclose(estimates.standard_errors, np.sqrt(variance) * deviation, rtol=1e-4)


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
    assert estimates.values == pytest.approx(1) and estimates.standard_errors == pytest.approx(0, abs=1e-9)
    both = GaussianProcess().estimate(line(0.2), log, known=copies, returns=[1.0, 2.0, 3.0])
    assert both.values == pytest.approx(2) and both.standard_errors < 2


def test_few_known_policies(log):
    one = GaussianProcess().estimate(line(0.3), log, known=line(0.2), returns=[5.0])
    assert one.values == pytest.approx(5) and np.isnan(one.standard_errors)
    with pytest.raises(ValueError, match="is the only known policy"):
        GaussianProcess().estimate(line(0.2), log, known=line(0.2), returns=[5.0])
    two = GaussianProcess().estimate(line(0.2, 0.4), log, known=line(0.2, 0.4), returns=[5.0, 6.0])
    np.testing.assert_allclose(two.values, [6, 5])
