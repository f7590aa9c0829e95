"""Every estimator on processes whose values have a closed form.

Linear functions of one-hot states are tables. They converge to the values of the process that the log's counts
describe, which differ from the true values by the sampling error of the log.
"""

import numpy as np
import pytest
from support.mdps import Linear, LinearGain, TablePolicy, Tabular

from sopr_fast.estimators import FQE, BehaviourQ, DualDICE, ImportanceWeighting

DISCOUNT = 0.9
STEPS = {"updates": 1500, "batch_size": 1024, "learning_rate": 1e-2, "target_rate": 0.05}
TABLE = {"hidden": (), "discount": DISCOUNT, **STEPS}
DICE = DualDICE(hidden=(), updates=3000, batch_size=512, nu_rate=1e-2, zeta_rate=1e-2, discount=DISCOUNT)


@pytest.fixture(scope="module", params=[0.0, 0.05], ids=["timeouts", "terminals"])
def tabular(request):
    """Return a process, the one that a log's counts describe, policies, the log, and shares (S, A) of pairs in it."""
    mdp = Tabular.random(seed=1, end=request.param)
    log = mdp.log(0.5 * mdp.policy(10) + 0.5 / 3, 400, 40, seed=0)
    pairs = np.zeros(mdp.reward.shape)
    np.add.at(pairs, (log.states.argmax(1), log.actions.argmax(1)), 1 / len(log))
    return mdp, mdp.estimated(log), [mdp.policy(i) for i in range(3)], log, pairs


@pytest.mark.parametrize("method", [FQE(**TABLE), DICE], ids=["fqe", "dual-dice"])
def test_values_of_a_table(tabular, method):
    """Values are within 1 % of the log's process and 4 % of the truth; effective rows within 5 % of the exact ones."""
    mdp, known, tables, log, pairs = tabular
    estimates = method.estimate(list(map(TablePolicy, tables)), log)
    np.testing.assert_allclose(estimates.values, [known.value(table, DISCOUNT) for table in tables], rtol=0.01)
    np.testing.assert_allclose(estimates.values, [mdp.value(table, DISCOUNT) for table in tables], rtol=0.04)
    for table, size in zip(tables, estimates.diagnostics.get("effective_sample_size", []), strict=False):
        ratios = known.occupancy(table, DISCOUNT) / pairs
        assert size == pytest.approx(len(log) * (ratios * pairs).sum() ** 2 / (ratios**2 * pairs).sum(), rel=0.05)


def test_behaviour_q_of_a_table(tabular):
    """Values are within 1 % of the mean of the behaviour's action values."""
    _, known, tables, log, pairs = tabular
    states = pairs.sum(1)
    q = known.q(pairs / states[:, None], DISCOUNT)
    expected = [float(states @ (table * q).sum(1)) for table in tables]
    estimates = BehaviourQ(**TABLE).estimate(list(map(TablePolicy, tables)), log)
    np.testing.assert_allclose(estimates.values, expected, rtol=0.01)


def test_behaviour_q_leaves_out_timeouts():
    """Many episodes are cut in the state in which the next one begins, so their rows seem to follow each other."""
    step = np.array([[[0.5, 0.5]], [[0.0, 1.0]]])
    mdp = Tabular(step, np.zeros((2, 1)), np.array([[1.0], [-10.0]]), np.array([1.0, 0.0]))
    log = mdp.log(np.ones((2, 1)), 2000, 3, seed=0)
    method = BehaviourQ(**TABLE | {"updates": 500, "discount": 0.5})
    estimates = method.estimate([lambda states: np.ones((len(states), 1))], log)
    expected = log.states.mean(0) @ mdp.q(np.ones((2, 1)), 0.5)[:, 0]
    np.testing.assert_allclose(estimates.values, [expected], rtol=0.04)


@pytest.mark.parametrize("fitted", [False, True])
def test_importance_weighting_of_a_table(tabular, fitted):
    """Values are within three standard errors, which are under 4 % of the values."""
    mdp, _, tables, _, _ = tabular
    log = mdp.log(0.5 * mdp.policy(10) + 0.5 / 3, 2000, 8, seed=0, log_probs=not fitted)
    method = ImportanceWeighting(updates=1000, hidden=(), discount=DISCOUNT)
    estimates = method.estimate(list(map(TablePolicy, tables)), log)
    expected = np.array([mdp.value_within(table, DISCOUNT, 8) for table in tables])
    assert (estimates.standard_errors < 0.04 * expected).all()
    assert (np.abs(estimates.values - expected) < 3 * estimates.standard_errors).all()


@pytest.mark.parametrize("std", [None, 0.3], ids=["deterministic", "stochastic"])
def test_fqe_of_the_linear_process(std):
    """Values, which differ by 28 %, are within 8 %."""
    process, gains = Linear.small(), [np.array(gain) for gain in ([-0.2, -0.8], [0.3, -0.3], [0.2, 0.1])]
    log = process.log(np.array([0.0, -0.3]), 0.5, 200, 50, seed=0)
    method = FQE(updates=800, batch_size=256, hidden=(64, 64), learning_rate=3e-3, target_rate=0.05, discount=DISCOUNT)
    expected = [process.value(gain, DISCOUNT, log.states[log.episodes[:-1]], std or 0.0) for gain in gains]
    estimates = method.estimate([LinearGain(gain, std) for gain in gains], log)
    np.testing.assert_allclose(estimates.values, expected, rtol=0.08)
