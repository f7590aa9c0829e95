"""The Gaussian process of `select` and its extrapolation, against plain linear algebra."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from sopr_fast.estimators import gaussian_process_posterior as process
from sopr_fast.selection.calibration import extrapolation
from sopr_fast.selection.compared import distance_ratios


def problem(known, seed=0, count=7):
    """Return distances, returns with `known` known ones, errors, and values by a simulator."""
    random = np.random.default_rng(seed)
    places = random.standard_normal((count, 2))
    truth = places.sum(1) * 3 + 10
    returns = np.full(count, np.nan)
    returns[:known] = truth[:known]
    errors = np.where(np.isnan(returns), 0, 0.2)
    return ((places[:, None] - places[None]) ** 2).sum(-1), returns, errors, truth + random.standard_normal(count)


def test_the_posterior_is_that_of_the_joint_normal_distribution(monkeypatch):
    monkeypatch.setattr(process, "_LENGTHS", np.array([2.0]))
    monkeypatch.setattr(process, "_SPREADS", np.array([0.8]))
    monkeypatch.setattr(process, "_OWN", np.array([0.1]))
    distances, returns, errors, values = problem(5)
    fitted = process.fit(distances, returns, errors, values)
    unit = np.sqrt((4 * returns[:5].var(ddof=1) + 3 * values.var()) / 7)
    feature = values - values[:5].mean()
    roots = np.sqrt(distances)
    typical = np.median((roots[:5, :5] + np.diag([np.inf] * 5)).min(1))
    prior = (10 * unit) ** 2 + np.outer(feature, feature)
    prior += (0.8 * unit) ** 2 * np.exp(-roots / (2 * typical)) + (0.1 * unit) ** 2 * np.eye(7)
    center = feature + returns[:5].mean()
    gain = prior[:, :5] @ np.linalg.inv(prior[:5, :5] + 0.04 * np.eye(5))
    np.testing.assert_allclose(fitted.mean, center + gain @ (returns[:5] - center[:5]), rtol=1e-8)
    np.testing.assert_allclose(fitted.covariance, prior - gain @ prior[:5], rtol=1e-6, atol=1e-8)


def test_the_grid_is_weighed_by_marginal_likelihood():
    distances, returns, errors, values = problem(6)
    known, unit = np.arange(6), returns[:6].std(ddof=1)
    feature = (values - values[:6].mean()) / unit
    target = (returns[:6] - returns[:6].mean()) / unit
    grid = process._Grid(np.sqrt(distances), known, feature, target, (errors[:6] / unit) ** 2, True)
    logs = []
    for length, spread, own in grid.points:
        cov = 100 + np.outer(feature, feature)[:6, :6] + spread**2 * np.exp(-np.sqrt(distances[:6, :6]) / length)
        cov += np.diag(own**2 + (errors[:6] / unit) ** 2)
        logs.append(multivariate_normal(feature[:6], cov).logpdf(target) - 0.5 * np.log(2 * spread) ** 2)
    expected = np.exp(np.array(logs) - max(logs))
    expected[expected < 1e-3] = 0
    np.testing.assert_allclose(grid.weights(), expected / expected.sum(), rtol=1e-6)


def test_left_out_returns_are_predicted_without_them(monkeypatch):
    monkeypatch.setattr(process, "_LENGTHS", np.array([2.0]))
    monkeypatch.setattr(process, "_SPREADS", np.array([0.8]))
    monkeypatch.setattr(process, "_OWN", np.array([0.1]))
    distances, returns, errors, _ = problem(7)
    roots, unit, level = np.sqrt(distances), returns.std(ddof=1), returns.mean()
    ((indices, error, deviation),) = process.fit(distances, returns, errors, folds=[np.array([1, 4])]).left_out
    typical = np.median((roots + np.diag([np.inf] * 7)).min(1))
    prior = (10 * unit) ** 2 + (0.8 * unit) ** 2 * np.exp(-roots / (2 * typical)) + (0.1 * unit) ** 2 * np.eye(7)
    rest = [0, 2, 3, 5, 6]
    gain = prior[np.ix_([1, 4], rest)] @ np.linalg.inv(prior[np.ix_(rest, rest)] + 0.04 * np.eye(5))
    assert indices.tolist() == [1, 4]
    np.testing.assert_allclose(error, returns[[1, 4]] - level - gain @ (returns[rest] - level), rtol=1e-6)
    variance = prior[np.ix_([1, 4], [1, 4])] - gain @ prior[np.ix_(rest, [1, 4])]
    np.testing.assert_allclose(deviation, np.sqrt(np.diag(variance) + 0.04), rtol=1e-6)


def test_exact_returns_are_kept_and_a_useless_simulator_is_not_followed():
    distances, returns, _, values = problem(30, count=40)
    exact = process.fit(distances, returns, np.zeros(40), values)
    np.testing.assert_allclose(exact.mean[:30], returns[:30], rtol=1e-5)
    assert exact.deviation[:30].max() < 1e-3 < exact.deviation[30:].min()
    noise = np.random.default_rng(5).standard_normal(40) * 5
    assert process.fit(distances, returns, np.zeros(40), noise).slope < 0.15 < 0.3 < exact.slope


def test_without_known_returns_the_simulator_speaks():
    distances, returns, errors, values = problem(0)
    fitted = process.fit(distances, returns, errors, values)
    np.testing.assert_allclose(fitted.mean, values)
    assert (fitted.deviation > 0.3 * values.std()).all()


@pytest.mark.parametrize("factor", [1e-3, 1e5])
def test_units_of_returns_do_not_matter(factor):
    distances, returns, errors, values = problem(4)
    first, second = (process.fit(distances, f * returns, f * errors, f * values) for f in (1, factor))
    np.testing.assert_allclose(second.mean, factor * first.mean, rtol=1e-6)
    np.testing.assert_allclose(second.deviation, factor * first.deviation, rtol=1e-5)


def test_distance_ratios_are_over_the_median_of_known_policies():
    places = np.array([0.0, 1, 2, 3, 4, 5, 0.5, 40])
    distances = (places[:, None] - places) ** 2
    ratios, nearest = distance_ratios(distances, np.arange(6))
    typical = np.median(distances[:6, :6][np.triu_indices(6, 1)])
    np.testing.assert_allclose(ratios, np.array([1, 1, 1, 1, 1, 1, 0.25, 35**2]) / typical)
    assert nearest.tolist() == [1, 0, 1, 2, 3, 4, 0, 5]
    assert np.isnan(distance_ratios(distances, np.array([], int))[0]).all()


def test_far_policies_may_err_more():
    places = np.array([0.0, 1, 2, 3, 4, 5, 2.5, 20, 20.1])
    distances, known = (places[:, None] - places) ** 2, np.arange(6)
    extra = extrapolation(distances, known, 10.0)
    assert (np.diag(extra)[:7] == 0).all() and np.diag(extra)[7] > 10**2
    assert extra[7, 8] > 0.5 * extra[7, 7]
    assert np.linalg.eigvalsh(extra).min() > -1e-6
