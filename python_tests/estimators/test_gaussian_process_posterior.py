"""The Gaussian process of `select`, against plain linear algebra."""

import itertools

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from sopr_fast.estimators import gaussian_process_posterior as process
from sopr_fast.estimators.member_errors import member_errors
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


@pytest.fixture
def one_point(monkeypatch):
    """Leave one point of the grid: the length is twice the typical one, f has half the deviation of g."""
    for name, value in {"_LENGTHS": 2, "_RETURN_SPREADS": 0.8, "_RETURN_OWN": 0.1, "_ERROR_SPREADS": 0.4}.items():
        monkeypatch.setattr(process, name, np.array([float(value)]))
    monkeypatch.setattr(process, "_ERROR_OWN", np.array([0.2]))


def scaled(returns, errors, values):
    """Return returns, errors and values on the scale of the model, and the way back of mean and covariance."""
    data = np.concatenate([returns[np.isfinite(returns)], values])
    center = np.median(data)
    size = np.abs(data - center).mean()
    own, all_values = np.arcsinh((returns - center) / size), np.arcsinh((values - center) / size)

    def back(mean, covariance):
        slope = np.diag(size * np.cosh(mean))
        return center + size * np.sinh(mean), slope @ covariance @ slope

    return own, errors / np.sqrt((returns - center) ** 2 + size**2), all_values, back


def joint(distances, returns, errors, values):
    """Return mean and covariance of returns, known returns and values in one normal distribution, level 0."""
    known = np.isfinite(returns)
    unit = np.sqrt(((known.sum() - 1) * returns[known].var(ddof=1) + 3 * values.var()) / (known.sum() + 2))
    roots = np.sqrt(distances)
    among = roots[np.ix_(known, known)]
    kernel = np.exp(-roots / 2 / np.median((among + np.diag([np.inf] * len(among))).min(1)))
    own = np.eye(len(returns))
    true = unit**2 * (100 + 0.64 * kernel + 0.01 * own)
    measured = true[np.ix_(known, known)] + np.diag(errors[known] ** 2)
    simulated = true + unit**2 * (100 + 0.16 * kernel + 0.04 * own)
    observed = np.block([[measured, true[known]], [true[:, known], simulated]])
    data = np.concatenate([returns[known] - returns[known].mean(), values - values[known].mean()])
    return np.concatenate([true[:, known], true], 1), observed, data, true


@pytest.mark.parametrize("known", [3, 5])
def test_the_posterior_is_that_of_the_joint_normal_distribution(one_point, known):
    distances, returns, errors, values = problem(known)
    fitted = process.fit(distances, returns, errors, values)
    returns, errors, values, back = scaled(returns, errors, values)
    cross, observed, data, true = joint(distances, returns, errors, values)
    gain = cross @ np.linalg.inv(observed)
    mean, covariance = back(returns[:known].mean() + gain @ data, true - gain @ cross.T)
    np.testing.assert_allclose(fitted.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(fitted.covariance, covariance, rtol=1e-6, atol=1e-8)


def test_left_out_returns_are_predicted_without_them_but_with_their_value(one_point):
    distances, returns, errors, values = problem(5)
    fitted = process.fit(distances, returns, errors, values).left_out
    returns, errors, values, back = scaled(returns, errors, values)
    cross, observed, data, true = joint(distances, returns, errors, values)
    rest = np.delete(np.arange(12), 1)
    gain = cross[1, rest] @ np.linalg.inv(observed[np.ix_(rest, rest)])
    variance = true[1, 1] - gain @ cross[1, rest] + errors[1] ** 2
    mean, covariance = back(np.array([returns[:5].mean() + gain @ data[rest]]), np.array([[variance]]))
    assert fitted[0, 1] == pytest.approx(mean[0])
    assert fitted[1, 1] == pytest.approx(np.sqrt(covariance[0, 0]))
    assert np.isnan(fitted[:, 5:]).all()


def test_returns_that_differ_by_factors_leave_the_order_of_small_ones_to_the_simulator():
    random = np.random.default_rng(0)
    truth = np.concatenate([[9000.0, 7000, 4000], np.linspace(40, 400, 17)])
    values = truth * random.uniform(0.95, 1.05, 20)
    values[:3] = 600, 500, 450  # rollouts that leave the log end early
    returns = np.where(np.arange(20) < 10, truth, np.nan)
    places = random.standard_normal((20, 3))
    distances = ((places[:, None] - places) ** 2).sum(2)
    mean = process.fit(distances, returns, np.zeros(20), values).mean
    assert np.corrcoef(np.argsort(np.argsort(mean[10:])), np.arange(10))[0, 1] > 0.85


def test_the_grid_is_weighed_by_the_likelihood_of_known_returns_and_values(monkeypatch):
    monkeypatch.setattr(process, "_LENGTHS", np.array([0.5, 4.0]))
    distances, _, _, feature = problem(6)
    random = np.random.default_rng(1)
    target, noise, trained, sizes = random.standard_normal(6), np.full(6, 0.01), random.random(7), random.random(7)
    doubts = np.outer(sizes, sizes)
    evidence = process._Evidence(distances, np.arange(6), target, noise, feature, sizes, trained, doubts)
    grid = process._RETURN_SPREADS, process._RETURN_OWN, process._ERROR_SPREADS, process._ERROR_OWN
    roots, logs = np.sqrt(distances), {}
    nearest = np.median((roots[:6, :6] + np.diag([np.inf] * 6)).min(1))
    for length in nearest * process._LENGTHS:
        kernel = np.exp(-roots / length)
        for spread, own, error_spread, error_own in itertools.product(*grid):
            true = 100 + 0.25 * np.outer(trained, trained) + spread**2 * kernel + own**2 * np.eye(7)
            valued = true + 100 + error_spread**2 * np.outer(sizes, sizes) * kernel + error_own**2 * np.eye(7) + doubts
            covariance = np.block([[true[:6, :6] + np.diag(noise), true[:6]], [true[:, :6], valued]])
            prior = -0.5 * np.log(spread) ** 2 - 0.5 * np.log(2 * error_spread) ** 2
            density = multivariate_normal(np.zeros(13), covariance).logpdf(np.concatenate([target, feature]))
            logs[length, (spread, own), (error_spread, error_own)] = prior + density
    weights = np.exp(np.array([*logs.values()]) - max(logs.values()))
    weights = dict(zip(logs, weights / weights.sum(), strict=True))
    found = {point: share for share, point in evidence.weighed(1000)}
    assert sum(found.values()) == pytest.approx(1)
    assert all(abs(found.get(point, 0) - weight) <= 1.001e-3 for point, weight in weights.items())


def test_many_policies_take_few_points_which_tell_nearly_the_same(monkeypatch):
    distances, returns, errors, values = problem(20, count=100)
    whole = process.fit(distances, returns, errors, values)
    monkeypatch.setattr(process, "_WORK", 400)
    few = process.fit(distances, returns, errors, values)
    assert (np.abs(few.mean - whole.mean) < 0.2 * whole.deviation)[20:].all()
    np.testing.assert_allclose(few.deviation[20:], whole.deviation[20:], rtol=0.2)


def test_exact_returns_are_kept_and_a_useless_simulator_is_not_followed():
    distances, returns, _, values = problem(30, count=40)
    exact = process.fit(distances, returns, np.zeros(40), values)
    np.testing.assert_allclose(exact.mean[:30], returns[:30], rtol=1e-5)
    assert exact.deviation[:30].max() < 1e-3 < exact.deviation[30:].min()
    noise = np.random.default_rng(5).standard_normal(40) * 5
    misled, alone = process.fit(distances, returns, np.zeros(40), noise), process.fit(distances, returns, np.zeros(40))
    np.testing.assert_allclose(misled.mean, alone.mean, atol=0.5 * returns[:30].std())


def test_without_known_returns_the_simulator_speaks():
    distances, returns, errors, values = problem(0)
    fitted = process.fit(distances, returns, errors, values)
    np.testing.assert_allclose(fitted.mean, values)
    assert (fitted.deviation > 0.3 * values.std()).all()


def test_without_known_returns_training_counts_where_members_disagree():
    distances, returns, errors, values = problem(0)
    members = values[:, None] + np.random.default_rng(1).standard_normal((7, 4))
    trained = np.array([1.0, -1, 0, 0, 0.5, -0.5, 0])
    unit, alike = values.std(), process.likeness(distances, np.zeros(7, bool))
    true = unit**2 * (100 + 0.25 * np.outer(trained, trained) + 4 * alike + 0.09 * np.eye(7))
    gain = true @ np.linalg.inv(true + member_errors(members, alike) + unit**2 * (0.04 + 0.0009 * alike))
    expected = values.mean() + 1.5 * unit * trained
    fitted = process.fit(distances, returns, errors, values, members=members, progress=trained)
    np.testing.assert_allclose(fitted.mean, expected + gain @ (values - expected), rtol=1e-8)
    np.testing.assert_allclose(fitted.covariance, true - gain @ true, rtol=1e-6, atol=1e-8)


def test_known_returns_show_what_training_is_worth():
    distances, _, _, _ = problem(0, count=40)
    trained = np.tile([-1.5, -0.5, 0.5, 1.5], 10)
    for slope in (3.0, 0.0):
        truth = slope * trained + np.random.default_rng(2).standard_normal(40)
        returns = np.where(np.arange(40) < 20, truth, np.nan)
        mean = process.fit(distances, returns, np.zeros(40), progress=trained).mean
        assert np.polyfit(trained[20:], mean[20:], 1)[0] == pytest.approx(slope, abs=0.6)


@pytest.mark.parametrize("factor", [1e-3, 1e5])
@pytest.mark.parametrize("known", [0, 4])
@pytest.mark.parametrize("has_members", [False, True])
def test_units_of_returns_do_not_matter(factor, known, has_members):
    distances, returns, errors, values = problem(known)
    members = values[:, None] + np.random.default_rng(1).standard_normal((7, 4))
    first, second = (
        process.fit(distances, f * returns, f * errors, f * values, f, f * members if has_members else None)
        for f in (1, factor)
    )
    np.testing.assert_allclose(second.mean, factor * first.mean, rtol=1e-6)
    np.testing.assert_allclose(second.deviation, factor * first.deviation, rtol=1e-5)


def test_distance_ratios_are_over_the_median_of_known_policies():
    places = np.array([0.0, 1, 2, 3, 4, 5, 0.5, 40])
    distances = (places[:, None] - places) ** 2
    ratios = distance_ratios(distances, np.arange(6))
    typical = np.median(distances[:6, :6][np.triu_indices(6, 1)])
    np.testing.assert_allclose(ratios, np.array([1, 1, 1, 1, 1, 1, 0.25, 35**2]) / typical)
    assert np.isnan(distance_ratios(distances, np.array([], int))).all()
