"""Estimates equal those of independent implementations on the same data; skipped where these are not installed."""

import logging
import warnings

import numpy as np
import pytest
import torch
from mdps import Linear, LinearGain, TablePolicy, Tabular

from sopr_fast.estimators import FQE, DualDICE, ImportanceWeighting

pytestmark = pytest.mark.slow


def scope_rl(module: str):
    with warnings.catch_warnings(action="ignore"):
        return pytest.importorskip(
            f"scope_rl.ope.{module}", reason="no SCOPE-RL: pip install '.[test-peers]'", exc_type=ImportError
        )


def test_importance_weighting_equals_scope_rl():
    peer = scope_rl("discrete")
    mdp = Tabular.random(seed=2)
    behaviour = 0.5 * mdp.policy(10) + 0.5 / 3
    tables = {f"table-{i}": mdp.policy(i) for i in range(3)}
    log = mdp.log(behaviour, 100, 8, seed=0, log_probs=True)
    estimates = ImportanceWeighting().estimate({name: TablePolicy(table) for name, table in tables.items()}, log)
    for value, table in zip(estimates.values, tables.values(), strict=True):
        theirs = peer.SelfNormalizedPDIS().estimate_policy_value(
            step_per_trajectory=8,
            action=log.actions.argmax(1),
            reward=log.rewards.astype(float),
            pscore=np.exp(log.log_probs.astype(float)),
            evaluation_policy_action_dist=table[log.states.argmax(1)],
            gamma=0.9,
        )
        assert value == pytest.approx(theirs, rel=1e-4)


def test_dual_dice_equals_scope_rl():
    """Values, which differ by 20 %, agree within 3 %."""
    learning = scope_rl("weight_value_learning")
    networks = scope_rl("weight_value_learning.function")
    discount, length, size = 0.9, 50, {"n_actions": 3, "state_dim": 5, "device": "cpu"}
    mdp = Tabular.random(seed=2)
    tables = [mdp.policy(i) for i in (1, 2)]
    log = mdp.log(0.5 * mdp.policy(10) + 0.5 / 3, 400, length, seed=0)
    ours = DualDICE(discount=discount, hidden=(), updates=3000, batch_size=512, nu_rate=1e-2, zeta_rate=1e-2).estimate(
        {f"table-{i}": TablePolicy(table) for i, table in enumerate(tables)}, log
    )
    states, actions = log.states.astype(np.float32), log.actions.argmax(1)
    for value, table in zip(ours.values, tables, strict=True):
        torch.manual_seed(0)
        learner = learning.DiscreteDiceStateActionWightValueLearning(
            networks.DiscreteQFunction(**size),
            networks.DiscreteStateActionWeightFunction(**size, enable_gradient_reversal=True),
            gamma=discount,
            method="dual_dice",
            batch_size=512,
            device="cpu",
        )
        probabilities = table[log.states.argmax(1)]
        data = length, states, actions, log.rewards, probabilities
        # A rate that converges in time is noisy, so a lower one follows.
        for rate, steps in ((0.1, 4000), (0.01, 2000)):
            learner.q_lr = learner.w_lr = rate
            learner.fit(*data, n_steps=steps, n_steps_per_epoch=steps, random_state=0)
        ratios = learner.predict_weight(states, actions)
        theirs = (ratios * log.rewards).sum() / ratios.sum() / (1 - discount)
        assert value == pytest.approx(theirs, rel=0.03)


def test_fqe_equals_d3rlpy():
    """Mean values agree within the spread of three seeds each."""
    d3rlpy = pytest.importorskip("d3rlpy", exc_type=ImportError)
    logging.getLogger("d3rlpy").setLevel(logging.ERROR)
    discount, updates = 0.9, 3000
    gain = np.array([0.3, -0.3])
    log = Linear.small().log(np.array([0.0, -0.3]), 0.5, 100, 50, seed=0)
    ours = [
        FQE(discount=discount, updates=updates, batch_size=100, hidden=(64, 64), learning_rate=1e-3, target_rate=0.02)
        .estimate({"gain": LinearGain(gain)}, log, seed=seed)
        .values[0]
        for seed in range(3)
    ]
    theirs = [_d3rlpy_value(d3rlpy, log, gain, discount, updates, seed) for seed in range(3)]
    spread = np.std(ours) + np.std(theirs)
    assert abs(np.mean(ours) - np.mean(theirs)) < 3 * spread + 0.02 * abs(np.mean(theirs))


def _d3rlpy_value(d3rlpy, log, gain, discount, updates, seed) -> float:
    d3rlpy.seed(seed)
    dataset = d3rlpy.dataset.MDPDataset(
        log.states, log.actions, log.rewards, log.terminals.astype(np.float32), log.timeouts.astype(np.float32)
    )
    algorithm = d3rlpy.algos.BCConfig().create(device="cpu:0")
    algorithm.build_with_dataset(dataset)
    weight = torch.from_numpy(gain.astype(np.float32))
    # d3rlpy evaluates only its own algorithms, so the policy replaces the best action of one.
    algorithm.impl.predict_best_action = lambda states: (states @ weight)[:, None]
    fqe = d3rlpy.ope.FQE(
        algo=algorithm,
        config=d3rlpy.ope.FQEConfig(
            learning_rate=1e-3,
            gamma=discount,
            target_update_interval=50,
            encoder_factory=d3rlpy.models.VectorEncoderFactory([64, 64]),
        ),
    )
    fqe.build_with_dataset(dataset)
    for _ in range(updates):
        fqe.update(dataset.sample_transition_batch(100))
    starts = log.initial_states
    return float(fqe.predict_value(starts, (starts @ weight.numpy())[:, None]).mean())
