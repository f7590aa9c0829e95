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


def named(*gains):
    return {f"gain {gain}": policy for gain, policy in zip(gains, line(*gains), strict=True)}


CANDIDATES = {"a": LinearGain(np.array([0.12, -0.2])), "b": LinearGain(np.array([0.41, -0.9]))}


def test_value_is_the_return_of_the_nearest(log, tmp_path):
    known, returns = gains(6), np.arange(6.0) ** 2
    estimates = NearestPolicy().estimate(CANDIDATES, log, known=known, returns=returns)
    columns = [np.stack([policy(log.states) for policy in group.values()]) for group in (CANDIDATES, known)]
    distances = policy_distances(*columns)
    nearest = distances.argmin(1)
    assert estimates.diagnostics["nearest"] == [f"gain-{i}" for i in nearest]
    np.testing.assert_array_equal(estimates.values, returns[nearest])
    np.testing.assert_allclose(estimates.diagnostics["distances"], distances.min(1), rtol=1e-4)
    np.save(tmp_path / "states.npy", log.states)
    for states in (log.states, {"observations": log.states}, tmp_path / "states.npy"):  # alone are a log
        again = NearestPolicy().estimate(CANDIDATES, states, known=known, returns=returns).diagnostics["distances"]
        np.testing.assert_array_equal(again, estimates.diagnostics["distances"])


def test_the_value_of_several_nearest_policies_is_their_mean(log):
    options = {"known": line(0.5, 0.5, 0.9), "returns": [10.0, 30.0, 90.0]}
    assert NearestPolicy().estimate(line(0.4), log, **options).values.tolist() == [20]


@pytest.mark.parametrize("method", [NearestPolicy(), GaussianProcess()], ids=["nearest", "process"])
def test_a_policy_of_the_name_and_acts_of_a_known_one_is_refused(method, log):
    """Policies in lists are named by position."""
    options = {"known": line(0.2, 0.5, 0.6, 1.2), "returns": [20, 50, 60, 120]}
    close = method.estimate(line(0.21, 0.51, 0.61, 1.21), log, **options).values
    np.testing.assert_allclose(method.estimate({"x": line(0.2)[0]}, log, **options).values, close[0], rtol=0.05)
    with pytest.raises(ValueError, match="'policy-001' is itself known: leave it out, or let `sopr_fast.evaluate`"):
        method.estimate(line(0.3, 0.5), log, **options)


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


def test_a_gaussian_process_of_equal_returns_of_copies_and_of_one_known_policy(log):
    copies = {f"copy {i}": LinearGain(np.array([0.5, 0.0])) for i in range(3)}
    equal, apart = (
        GaussianProcess().estimate(named(0.2), log, known=copies, returns=r) for r in ([1, 1, 1], [1, 2, 3])
    )
    assert equal.values == pytest.approx(1) and equal.standard_errors < 1
    assert apart.values == pytest.approx(2) and apart.standard_errors < 2
    one = GaussianProcess().estimate(named(0.3), log, known=named(0.2), returns=[5.0])
    assert one.values == pytest.approx(5) and one.standard_errors > 1
