"""Small estimators, logs and policies shared by the tests of the estimators."""

import numpy as np
import pytest
from support.mdps import Linear, LinearGain, TablePolicy, Tabular
from support.problems import transitions

from sopr_fast.estimators import FQE, BehaviourQ, DualDICE, ImportanceWeighting, Simulator
from sopr_fast.estimators.log import read
from sopr_fast.estimators.policy_actions import PolicyActions
from sopr_fast.inputs.logs import Transitions, load_transitions
from sopr_fast.inputs.policies import load_policies

SMALL = {"updates": 30, "batch_size": 32, "hidden": (8,), "discount": 0.9}
METHODS = {
    "fqe": FQE(**SMALL),
    "behaviour-q": BehaviourQ(**SMALL),
    "dual-dice": DualDICE(**SMALL),
    "importance-weighting": ImportanceWeighting(updates=30, hidden=(8,), discount=0.9),
    "simulator": Simulator(updates=30, hidden=(8,), members=2, horizon=5),
}
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
unwarned = pytest.mark.filterwarnings("ignore::sopr_fast.estimators.UncertainEstimateWarning")
loud = pytest.mark.filterwarnings("default::sopr_fast.estimators.UncertainEstimateWarning")


def small_log() -> Transitions:
    """Return twelve episodes of ten steps."""
    return Linear.small().log(np.array([0.0, -0.3]), 0.5, 12, 10, seed=0)


def gains(count=3, std=None):
    return {f"gain-{i}": LinearGain(np.array([0.1 * i, -0.2 * i]), std) for i in range(count)}


def acting(policies, log, seed=0) -> PolicyActions:
    """Return what policies do in the states of a log, loaded as estimators do."""
    loaded, steps = list(load_policies(policies).values()), load_transitions(log)
    return PolicyActions(loaded, *read(loaded, steps), seed=seed)


def with_other(log, **parts):
    return Transitions(**{**vars(log), **parts})


def two_states(terminal: bool, episodes: int = 40) -> Transitions:
    """Return episodes with reward 1 in one state, then 3 in another, which is terminal or goes on forever."""
    ends = np.tile([False, True], episodes)
    states, following = np.tile(np.eye(2), (episodes, 1)), np.tile([0.0, 1.0], (2 * episodes, 1))
    parts = states, np.zeros((len(ends), 1)), np.tile([1.0, 3.0], episodes), following
    return transitions(*parts, ends & terminal, ends & (not terminal))


def disjoint():
    """Return two policies and a log without the only action of the first policy."""
    behaviour = np.tile([0.5, 0.5, 0.0], (5, 1))
    never, often = np.tile([0.0, 0.0, 1.0], (5, 1)), np.tile([0.4, 0.6, 0.0], (5, 1))
    log = Tabular.random(seed=0).log(behaviour, 200, 5, seed=0, log_probs=True)
    return {"never": TablePolicy(never), "often": TablePolicy(often)}, log


WEIGHTS = np.random.default_rng(0).standard_normal((2, 3))  # of rewards, by column of the states and action


def softmax(states, gain):
    """Return probabilities of three actions (N, 3), the higher for larger rewards, the larger the gain."""
    scores = np.exp(gain * (np.asarray(states) @ WEIGHTS))
    return scores / scores.sum(1, keepdims=True)


def bandit(seed=0, count=2000, noise=0.5) -> Transitions:
    """Return a log of one-step episodes with probabilities, whose rewards are linear in the states."""
    random, rows = np.random.default_rng(seed), np.arange(count)
    states = random.standard_normal((count, 2)).astype(np.float32)
    logged = softmax(states, 0.3)
    actions = (logged.cumsum(1) > random.random((count, 1))).argmax(1)
    rewards = 1 + (states @ WEIGHTS)[rows, actions] + noise * random.standard_normal(count)
    return transitions(states, actions[:, None], rewards, states, np.ones(count), None, np.log(logged[rows, actions]))


def bandits(**gains):
    """Return policies that act by `softmax`, and their true values in `bandit`."""
    policies = load_policies({name: lambda s, g=g: softmax(s, g) for name, g in gains.items()}, action_count=3)
    many = np.random.default_rng(1).standard_normal((500_000, 2))
    return policies, {name: float((softmax(many, g) * (1 + many @ WEIGHTS)).sum(1).mean()) for name, g in gains.items()}
