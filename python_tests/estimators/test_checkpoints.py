"""Runs of estimators that resume from a checkpoint, and checkpoints that they refuse."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from support.estimators import METHODS, SMALL, each_method, gains, unwarned, with_other
from support.mdps import LinearGain

from sopr_fast.estimators import BehaviourQ, learning
from sopr_fast.runtime import checkpoints
from sopr_fast.runtime.tensor_files import save_tensors

pytestmark = unwarned


@each_method
def test_resumed_run_ends_the_same(method, log, tmp_path, monkeypatch):
    whole = method.estimate(gains(), log)
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", -1.0)
    steps = itertools.count()
    batches = learning.Batches.__call__

    def interrupted(self, update):
        if next(steps) == 25:
            raise KeyboardInterrupt
        return batches(self, update)

    path = tmp_path / "run.safetensors"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(learning.Batches, "__call__", interrupted)
        method.estimate(gains(), log, checkpoint=path)
    resumed = method.estimate(gains(), log, checkpoint=path)
    np.testing.assert_array_equal(whole.values, resumed.values)
    assert resumed.diagnostics["curve"] == whole.diagnostics["curve"]
    with pytest.raises(ValueError, match="is of a run with other policies"):
        method.estimate(gains(), log, seed=1, checkpoint=path)


@each_method
def test_unusable_checkpoint_fails_before_training(method, log, tmp_path, monkeypatch):
    monkeypatch.setattr(learning.Batches, "__call__", None)
    save_tensors(foreign := tmp_path / "foreign", {}, "model", {})
    with pytest.raises(ValueError, match="foreign"):
        method.estimate(gains(), log, checkpoint=foreign)
    with pytest.raises(FileNotFoundError, match="cannot write"):
        method.estimate([None], log, checkpoint=tmp_path / "none" / "run")  # before policies are read


@each_method
def test_checkpoint_is_refused_for_another_log(method, log, tmp_path):
    path = tmp_path / "run.safetensors"
    method.estimate(gains(), log, checkpoint=path)
    last = np.arange(len(log)) == len(log) - 1
    others = [
        with_other(log, terminals=log.timeouts, timeouts=log.terminals),
        with_other(log, episodes=log.episodes[[0, *range(2, len(log.episodes))]]),
        *(
            with_other(log, **{part: getattr(log, part) + last.reshape(-1, *[1] * (getattr(log, part).ndim - 1))})
            for part in ("states", "actions", "rewards", "next_states")
        ),
    ]
    for other in others:
        with pytest.raises(ValueError, match="is of a run with other policies, transitions"):
            method.estimate(gains(), other, checkpoint=path)


def test_checkpoint_of_a_shared_critic_serves_other_policies(log, tmp_path, monkeypatch):
    path, method = tmp_path / "run.safetensors", BehaviourQ(**SMALL)
    whole = method.estimate(gains(), log)
    method.estimate({"other": LinearGain(np.array([0.3, 0.1]), 0.3)}, log, checkpoint=path)
    monkeypatch.setattr(learning.Batches, "__call__", None)
    estimates = method.estimate(gains(), log, checkpoint=path)
    np.testing.assert_array_equal(estimates.values, whole.values)
    assert estimates.diagnostics["curve"] == whole.diagnostics["curve"]


def test_checkpoint_is_refused_for_a_policy_that_acts_differently_in_one_state(log, tmp_path):
    path, policy, method = tmp_path / "run.safetensors", gains()["gain-1"], METHODS["fqe"]
    method.estimate({"policy": policy}, log, checkpoint=path)
    for row in (2, 59):

        def other(states, changed=log.states[row]):
            return policy(np.where((states == changed).all(1, keepdims=True), states + 1, states))

        with pytest.raises(ValueError, match="is of a run with other policies"):
            method.estimate({"policy": other}, log, checkpoint=path)


def test_message_of_a_diverged_run_names_the_estimator(log, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", -1.0)
    path = tmp_path / "run.safetensors"
    with pytest.raises(FloatingPointError, match="^FQE: the loss is not finite after"):
        replace(METHODS["fqe"], learning_rate=1e30).estimate(gains(), log, checkpoint=path)
    assert path.exists()
