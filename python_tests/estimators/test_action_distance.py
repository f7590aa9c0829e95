"""Values by action distance to known policies: the return of the nearest, and a Gaussian process."""

import numpy as np
import pandas
import pytest
from support.estimators import SMALL, gains, unwarned
from support.mdps import LinearGain

from sopr_fast.estimators import FQE, GaussianProcess, NearestPolicy
from sopr_fast.estimators.gaussian_process_posterior import fit
from sopr_fast.results.metrics import policy_distances


def line(*gains):
    return [LinearGain(np.array([gain, 0.0])) for gain in gains]


def test_value_is_the_return_of_the_nearest(log):
    known, returns = gains(6), np.arange(6.0) ** 2
    candidates = {"a": LinearGain(np.array([0.12, -0.2])), "b": LinearGain(np.array([0.41, -0.9]))}
    estimates = NearestPolicy().estimate(candidates, log, known=known, returns=returns)
    columns = [np.stack([policy(log.states) for policy in group.values()]) for group in (candidates, known)]
    distances = policy_distances(*columns)
    nearest = distances.argmin(1)
    assert estimates.diagnostics["nearest"] == [f"gain-{i}" for i in nearest]
    np.testing.assert_array_equal(estimates.values, returns[nearest])
    np.testing.assert_allclose(estimates.diagnostics["distances"], distances.min(1), rtol=1e-4)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_the_value_of_several_nearest_policies_is_their_mean(log, order):
    known, returns = line(0.5, 0.5, 0.9), np.array([10.0, 30.0, 90.0])
    estimates = NearestPolicy().estimate(line(0.4), log, known=[known[i] for i in order], returns=returns[order])
    assert estimates.values.tolist() == [20]


def test_equal_names_do_not_make_policies_the_same(log):
    """Policies in lists are named by position."""
    known, options = line(0.2, 0.5, 0.6, 1.2), {"returns": [20, 50, 60, 120]}
    close = line(0.21, 0.51, 0.61, 1.21)
    assert NearestPolicy().estimate(close, log, known=known, **options).values.tolist() == [20, 50, 60, 120]
    copies = line(0.2, 0.5, 0.6, 1.2)
    assert NearestPolicy().estimate(copies, log, known=known, **options).values.tolist() == [50, 60, 50, 60]


def test_the_only_known_policy_has_no_nearest(log):
    known = gains(1)
    with pytest.raises(ValueError, match="'gain-0' is the only known policy"):
        NearestPolicy().estimate(gains(2), log, known=known, returns=[7.0])
    assert NearestPolicy().estimate({"other": known["gain-0"]}, log, known=known, returns=[7.0]).values == 7


def test_states_alone_are_a_log(log, tmp_path):
    options = {"known": gains(6), "returns": range(6)}
    candidates = {"a": LinearGain(np.array([0.12, -0.2])), "b": LinearGain(np.array([0.41, -0.9]))}
    expected = NearestPolicy().estimate(candidates, log, **options).diagnostics["distances"]
    np.save(tmp_path / "states.npy", log.states)
    for states in (log.states, {"observations": log.states}, tmp_path / "states.npy"):
        estimates = NearestPolicy().estimate(candidates, states, **options)
        np.testing.assert_array_equal(estimates.diagnostics["distances"], expected)


def named(*gains):
    return {f"gain {gain}": LinearGain(np.array([gain, 0.0])) for gain in gains}


def returns_of(known, policies, returns, log, errors=None, values=None):
    """Return means and deviations by the model of `select`."""
    columns = np.stack([policy(log.states) for policy in [*known.values(), *policies.values()]])
    unknown = np.full(len(policies), np.nan)
    errors = np.append(np.zeros(len(known)) if errors is None else errors, np.zeros(len(policies)))
    posterior = fit(policy_distances(columns, columns), np.append(returns, unknown), errors, values)
    return posterior.mean[len(known) :], posterior.deviation[len(known) :]


def test_a_gaussian_process_has_the_values_of_its_posterior(log):
    known, policies = named(0.2, 0.5, 0.6, 1.2, 1.7), named(0.3, 0.9, 3.0)
    returns = [1.0, 2.0, 2.2, 3.0, 2.0]
    estimates = GaussianProcess().estimate(policies, log, known=known, returns=returns)
    mean, deviation = returns_of(known, policies, returns, log)
    np.testing.assert_allclose(estimates.values, mean, rtol=1e-4)
    np.testing.assert_allclose(estimates.standard_errors, deviation, rtol=1e-4)


@unwarned
def test_the_mean_of_a_gaussian_process_is_an_estimator(log):
    known, policies, mean = named(0.2, 0.5, 0.6, 1.2, 1.7), named(0.3, 0.9), FQE(**SMALL)
    table = pandas.DataFrame({"return": [1.0, 2.0, 2.2, 3.0, 2.0], "error": [0.3, 0, 0.1, 0, 0.2]}, index=[*known])
    estimates = GaussianProcess(mean=mean).estimate(policies, log, known=known, returns=table)
    assert estimates.method == "GaussianProcess(FQE)"
    values = mean.estimate(known | policies, log).values
    expected, deviation = returns_of(known, policies, table["return"], log, table["error"], values)
    np.testing.assert_allclose(estimates.values, expected, rtol=1e-3)
    np.testing.assert_allclose(estimates.standard_errors, deviation, rtol=1e-3)
    for wrong in ("Simulator", NearestPolicy()):
        with pytest.raises(ValueError, match="mean must be an estimator that learns from no returns"):
            GaussianProcess(mean=wrong)


def test_a_gaussian_process_values_a_known_policy_by_the_others(log):
    known, returns = named(0.2, 0.5, 0.6, 1.2, 1.7), np.array([1.0, 2.0, 2.2, 3.0, 2.0])
    first = GaussianProcess().estimate(known, log, known=known, returns=returns)
    spread = np.ptp(returns)
    for i, name in enumerate(known):
        others = {other: policy for other, policy in known.items() if other != name}
        mean, _ = returns_of(others, {name: known[name]}, np.delete(returns, i), log)
        assert first.values[i] == pytest.approx(mean[0], abs=0.2 * spread)  # but for the weights of the grid
        assert abs(first.values[i] - returns[i]) > 1e-3


def test_a_gaussian_process_of_equal_returns_and_of_copies(log):
    copies = {f"copy {i}": LinearGain(np.array([0.5, 0.0])) for i in range(3)}
    estimates = GaussianProcess().estimate(named(0.2), log, known=copies, returns=[1.0, 1.0, 1.0])
    assert estimates.values == pytest.approx(1) and estimates.standard_errors < 1
    both = GaussianProcess().estimate(named(0.2), log, known=copies, returns=[1.0, 2.0, 3.0])
    assert both.values == pytest.approx(2) and both.standard_errors < 2


def test_a_gaussian_process_of_few_known_policies(log):
    one = GaussianProcess().estimate(named(0.3), log, known=named(0.2), returns=[5.0])
    assert one.values == pytest.approx(5) and one.standard_errors > 1
    with pytest.raises(ValueError, match="is the only known policy"):
        GaussianProcess().estimate(named(0.2), log, known=named(0.2), returns=[5.0])
    two = GaussianProcess().estimate(named(0.2, 0.4), log, known=named(0.2, 0.4), returns=[5.0, 6.0])
    np.testing.assert_allclose(two.values, [6, 5], rtol=2e-3)
