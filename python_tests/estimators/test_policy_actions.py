"""Centre and scale of the actions that networks read."""

import numpy as np
import pytest
import torch
from support.estimators import each_method, gains, small_log, unwarned, with_other
from support.problems import transitions
from torch import distributions as dist

from sopr_fast.estimators.log import Log

OFFSETS = (20, -300)  # the same actions as set-points
GRID = 512  # of actions, which float32 then adds to the offsets without rounding


def on_grid(actions):
    return np.float32(np.round(GRID * actions) / GRID)


@pytest.fixture(scope="module")
def centred():
    """Return a log of actions whose mean is 0, some of them beyond ±1."""
    log = small_log()
    actions = on_grid(2 * (log.actions - log.actions.mean()))
    actions[0] -= actions.sum()
    assert actions.sum() == 0 and np.abs(actions).max() > 1
    return with_other(log, actions=actions)


def shifted(log, offset):
    return with_other(log, actions=log.actions + np.float32(offset))


def set_points(offset, std=None):

    def act(policy):
        def mean(states):
            return on_grid(policy(states)) + np.float32(offset)

        return mean if std is None else lambda states: dist.Normal(torch.as_tensor(mean(states)), std)

    return {name: act(policy) for name, policy in gains().items()}


@unwarned
@each_method
@pytest.mark.parametrize(("std", "rounding"), [(None, 0), (0.3, 1e-3)], ids=["deterministic", "stochastic"])
def test_an_offset_of_actions_changes_nothing(method, std, rounding, centred):
    expected, *others = (method.estimate(set_points(offset, std), shifted(centred, offset)) for offset in (0, *OFFSETS))
    for estimates in others:
        np.testing.assert_allclose(estimates.values, expected.values, rtol=rounding)
        for key in ("unsupported", "effective_sample_size"):
            if key in expected.diagnostics:
                np.testing.assert_allclose(estimates.diagnostics[key], expected.diagnostics[key], rtol=rounding)


@pytest.mark.filterwarnings("error")
def test_columns_far_from_0_are_centred_at_their_mean():
    within = np.tile([-1.0, 0.5], 50)  # mean -0.25, standard deviation 0.75
    actions = np.stack([within, within + 3.2, within + 3.3, within * 1e-6 - 1, 0 * within - 3, 0 * within], 1)
    zero = np.zeros((100, 1))
    log = Log(transitions(zero, actions, zero[:, 0], zero, np.ones(100)))
    constant_but_for_rounding = -1 - 0.25e-6
    np.testing.assert_allclose(log.action_centre, [0, 0, 3.05, constant_but_for_rounding, -3, 0], rtol=1e-6)
    np.testing.assert_allclose(log.action_scale, [1, 3.7, 0.75, 1, 3, 1], rtol=1e-6)
    np.testing.assert_allclose(log.actions[:, 2], np.tile([-1.0, 1.0], 50), rtol=1e-6)
    np.testing.assert_array_equal(log.actions[:, 4:], 0)
    assert np.array_equal(log.actions[:, 0], np.float32(within))
