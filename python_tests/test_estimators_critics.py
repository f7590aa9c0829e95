"""Critics, asked about states and actions."""

import numpy as np
import pytest
import torch
from estimators import SMALL, gains, loud, quiet, small_log, two_states, unwarned

from sopr_fast.estimators import FQE, BehaviourQ, UncertainEstimateWarning, critics
from sopr_fast.estimators.log import Log

pytestmark = unwarned


@pytest.fixture(scope="module")
def log():
    return small_log()


def test_the_curve_of_a_shared_critic_ends_at_its_values(log):
    """The log has fewer rows than the curve looks at."""
    found = BehaviourQ(**SMALL, ensemble=2).estimate(gains(), log, **quiet)
    values = np.array(found.diagnostics["curve"]["values"])
    assert len(values) == len(found.diagnostics["curve"]["updates"]) > 1
    np.testing.assert_allclose(values[-1], found.values, rtol=1e-6)
    assert (values[0] != values[-1]).all()


def test_critics_evaluate_as_many_rows_at_once_as_their_chunk(log, monkeypatch):
    """Three critics of one policy each, or two that are asked about all three policies."""
    monkeypatch.setattr(critics, "_CHUNK", 600)
    for method, mean, states in (
        (FQE(**SMALL), "mean_values", 200),
        (BehaviourQ(**SMALL, ensemble=2), "shared_mean_values", 100),
    ):
        asked = []

        class Actions:
            policies, draws, log = [None] * 3, 1, Log(small_log())

            def __call__(self, rows, draw, asked=asked):
                asked.append(len(rows))
                return torch.zeros(3, len(rows), 1)

        critic = method.estimate(gains(), log, **quiet).diagnostics["critic"]
        getattr(critic, mean)(Actions(), torch.zeros(1000, dtype=torch.int64))
        assert set(asked) == {states}


def test_critic_answers_in_units_of_return(log):
    critic = BehaviourQ(**SMALL).critic(log, discount=0.9, progress=False)
    values = critic(log.states, log.actions)
    assert values.shape == (1, len(log))
    policy = gains()["gain-1"]
    found = BehaviourQ(**SMALL).estimate({"policy": policy}, log, **quiet)
    assert found.values[0] == pytest.approx(critic(log.states, policy(log.states)).mean(), rel=1e-4)


def test_critic_takes_tensors_of_any_device(log, device):
    critic = BehaviourQ(**SMALL).critic(log, discount=0.9, progress=False)
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
def test_critic_names_what_has_the_wrong_shape(states, actions, message, log):
    critic = BehaviourQ(**SMALL).critic(log, discount=0.9, progress=False)
    with pytest.raises(ValueError, match=message):
        critic(states, actions)


def test_fqe_arrives_at_its_values_at_its_default_rate():
    """1 + 3 γ / (1 - γ), within 3 %; targets that go 0.005 of the way would leave 78 % of it."""
    method = FQE(hidden=(16,), updates=5000, batch_size=32, learning_rate=1e-3)
    still = {"still": lambda states: np.zeros((len(states), 1))}
    found = method.estimate(still, two_states(False), discount=0.99, progress=False)
    np.testing.assert_allclose(found.values, 1 + 3 * 0.99 / 0.01, rtol=0.03)
    assert found.diagnostics["lag"] == pytest.approx(np.exp(-5))


@pytest.mark.parametrize(
    ("options", "discount", "rate"),
    [
        ({"updates": 20000}, 0.99, 0.025),
        ({"updates": 100}, 0.99, 0.1),
        ({"updates": 20000}, 0.5, 0.005),
        ({"updates": 100, "target_rate": 0.3}, 0.99, 0.3),
    ],
)
def test_target_rate(options, discount, rate):
    method = FQE(**options)
    assert critics.target_rate(method.target_rate, method.updates, discount) == pytest.approx(rate)


@loud
def test_fqe_says_what_is_left_of_the_way(log):
    """exp(-20 * 0.1 * 0.01) = 0.98 of it."""
    with pytest.warns(UncertainEstimateWarning, match="98% of the way to the values is left after 20 up") as caught:
        FQE(hidden=(8,), updates=20).estimate(gains(), log, discount=0.99, progress=False)
    assert caught[0].filename == __file__
