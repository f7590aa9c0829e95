"""Every estimator on processes whose values have a closed form.

Linear functions of one-hot states are tables. They converge to the values of the process that the log's counts
describe, which differ from the true values by the sampling error of the log.
"""

import numpy as np
import pytest
from support.mdps import Linear, LinearGain, TablePolicy, Tabular

from sopr_fast.estimators import FQE, BehaviourQ, DualDICE, ImportanceWeighting

DISCOUNT = 0.9
GAINS = [np.array([-0.2, -0.8]), np.array([0.3, -0.3]), np.array([0.2, 0.1])]
BEHAVIOUR = np.array([0.0, -0.3]), 0.5  # gain and standard deviation
STEPS = {"updates": 1500, "batch_size": 1024, "learning_rate": 1e-2, "target_rate": 0.05}
TABLE = {"hidden": (), "discount": DISCOUNT, **STEPS}


@pytest.fixture(scope="module", params=[0.0, 0.05], ids=["timeouts", "terminals"])
def tabular(request):
    mdp = Tabular.random(seed=1, end=request.param)
    tables = {f"table-{i}": mdp.policy(i) for i in range(3)}
    behaviour = 0.5 * mdp.policy(10) + 0.5 / 3
    log = mdp.log(behaviour, 400, 40, seed=0)
    return mdp, mdp.estimated(log), tables, log


def policies(tables):
    return {name: TablePolicy(table) for name, table in tables.items()}


def linear_policies(std):
    return {f"gain-{i}": LinearGain(gain, std) for i, gain in enumerate(GAINS)}


def frequency(log):
    """Return the shares (S, A) of state-action pairs in a log."""
    counts = np.zeros((log.states.shape[1], log.actions.shape[1]))
    np.add.at(counts, (log.states.argmax(1), log.actions.argmax(1)), 1)
    return counts / counts.sum()


@pytest.mark.parametrize("seed", [0, 1])
def test_fqe_of_a_table(tabular, seed):
    """Values are within 1 % of the log's process and 4 % of the truth."""
    mdp, known, tables, log = tabular
    estimates = FQE(**TABLE).estimate(policies(tables), log, seed=seed)
    np.testing.assert_allclose(estimates.values, [known.value(t, DISCOUNT) for t in tables.values()], rtol=0.01)
    np.testing.assert_allclose(estimates.values, [mdp.value(t, DISCOUNT) for t in tables.values()], rtol=0.04)


@pytest.mark.parametrize("seed", [0, 1])
def test_behaviour_q_of_a_table(tabular, seed):
    """Values are within 1 % of the mean of the behaviour's action values."""
    _, known, tables, log = tabular
    estimates = BehaviourQ(**TABLE).estimate(policies(tables), log, seed=seed)
    pairs = frequency(log)
    states = pairs.sum(1)
    q = known.q(pairs / states[:, None], DISCOUNT)
    expected = [float(states @ (table * q).sum(1)) for table in tables.values()]
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


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_dual_dice_of_a_table(tabular, seed):
    """Values are within 1 % of the log's process, effective rows within 5 % of those of the exact ratios."""
    _, known, tables, log = tabular
    method = DualDICE(hidden=(), updates=3000, batch_size=512, nu_rate=1e-2, zeta_rate=1e-2, discount=DISCOUNT)
    estimates = method.estimate(policies(tables), log, seed=seed)
    np.testing.assert_allclose(estimates.values, [known.value(t, DISCOUNT) for t in tables.values()], rtol=0.01)
    pairs = frequency(log)
    for table, size in zip(tables.values(), estimates.diagnostics["effective_sample_size"], strict=True):
        ratios = known.occupancy(table, DISCOUNT) / pairs
        assert size == pytest.approx(len(log) * (ratios * pairs).sum() ** 2 / (ratios**2 * pairs).sum(), rel=0.05)


@pytest.mark.parametrize("fitted", [False, True])
def test_importance_weighting_of_a_table(tabular, fitted):
    """Values are within three standard errors, which are under 4 % of the values."""
    mdp, _, tables, _ = tabular
    behaviour = 0.5 * mdp.policy(10) + 0.5 / 3
    for seed in (0, 1):
        log = mdp.log(behaviour, 2000, 8, seed=seed, log_probs=not fitted)
        method = ImportanceWeighting(updates=1000, hidden=(), discount=DISCOUNT)
        estimates = method.estimate(policies(tables), log, seed=seed)
        expected = np.array([mdp.value_within(t, DISCOUNT, 8) for t in tables.values()])
        errors = estimates.standard_errors
        assert (errors < 0.04 * expected).all()
        assert (np.abs(estimates.values - expected) < 3 * errors).all()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("std", [None, 0.3], ids=["deterministic", "stochastic"])
def test_fqe_of_the_linear_process(std, seed):
    """Values, which differ by 28 %, are within 8 %."""
    process = Linear.small()
    log = process.log(*BEHAVIOUR, 200, 50, seed)
    method = FQE(updates=800, batch_size=256, hidden=(64, 64), learning_rate=3e-3, target_rate=0.05, discount=DISCOUNT)
    expected = [process.value(gain, DISCOUNT, log.initial_states, std or 0.0) for gain in GAINS]
    estimates = method.estimate(linear_policies(std), log, seed=seed)
    np.testing.assert_allclose(estimates.values, expected, rtol=0.08)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("std", [None, 0.3], ids=["deterministic", "stochastic"])
def test_importance_weighting_of_the_linear_process(std, seed):
    """Values, which differ by 30 %, are within three standard errors, which are under 5 % of them."""
    process = Linear.small()
    log = process.log(*BEHAVIOUR, 5000, 6, seed, log_probs=True)
    method = ImportanceWeighting(noise=0.3, discount=DISCOUNT)
    estimates = method.estimate(linear_policies(std), log, seed=seed)
    expected = np.array([process.value(gain, DISCOUNT, log.initial_states, 0.3, horizon=6) for gain in GAINS])
    errors = estimates.standard_errors
    assert (errors < 0.05 * np.abs(expected)).all()
    assert (np.abs(estimates.values - expected) < 3 * errors).all()
