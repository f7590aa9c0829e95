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
    "fqe-ensemble": FQE(**SMALL, ensemble=3),
    "behaviour-q": BehaviourQ(**SMALL, ensemble=2),
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
