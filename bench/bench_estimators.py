"""Compare FQE of ten policies with ten runs of d3rlpy.

The log has 300,000 rows like those of HalfCheetah: real states, noisy actions of a real policy, and invented rewards.
All contenders have equal networks, batches and updates per policy; a whole run has more updates.
"""

from __future__ import annotations

import halfcheetah
import numpy as np
import pytest
import torch

from sopr_fast.estimators import FQE
from sopr_fast.estimators.critics import CriticLearner
from sopr_fast.estimators.log import read
from sopr_fast.estimators.policy_actions import PolicyActions
from sopr_fast.inputs.logs import load_log
from sopr_fast.inputs.policies import load_policies
from sopr_fast.native import torch_on_one_thread

ROWS, POLICIES, UPDATES, DISCOUNT = 300_000, 10, 10, 0.99


@pytest.fixture(scope="module")
def log():
    random = np.random.default_rng(0)
    states = np.tile(halfcheetah.states(), (5, 1))[:ROWS]
    states = states + 0.01 * random.standard_normal(states.shape, np.float32)
    actions = next(iter(halfcheetah.policies().values())).act(torch.from_numpy(states)).numpy()
    actions = np.clip(actions + 0.3 * random.standard_normal(actions.shape, np.float32), -1, 1)
    rewards = states[:, 8] - 0.1 * np.square(actions).sum(1)
    timeouts = np.arange(1, ROWS + 1) % 1000 == 0
    arrays = {"states": states, "actions": actions, "rewards": rewards, "timeouts": timeouts}
    return load_log(arrays, ends="cut")


@pytest.mark.parametrize("batch_size", [100, 256], ids=["d3rlpy's batch of 100", "batch of 256"])
def test_fqe_of_ten_policies(log, contend, batch_size):
    import d3rlpy

    method = FQE(discount=DISCOUNT, batch_size=batch_size, learning_rate=1e-4)
    policies = list(load_policies(halfcheetah.policies()).values())[:POLICIES]
    actions = PolicyActions(policies, *read(policies, log))
    actions.tabulate()
    step = CriticLearner(method, actions, target_rate=0.005).step
    flags = [part.astype(np.float32) for part in (log.terminals, log.timeouts)]
    dataset = d3rlpy.dataset.MDPDataset(log.states, log.actions, log.rewards, *flags)
    # Its actor has two layers of 256, as the candidates have.
    actor = d3rlpy.algos.SACConfig().create(device="cpu:0")
    actor.build_with_dataset(dataset)
    peers = []
    for _ in range(POLICIES):
        peer = d3rlpy.ope.FQE(algo=actor, config=d3rlpy.ope.FQEConfig(batch_size=batch_size))
        peer.build_with_dataset(dataset)
        peers.append(peer)

    def ours() -> None:
        with torch_on_one_thread():  # as `learn` does
            for update in range(UPDATES):
                step(update)

    def theirs() -> None:
        for peer in peers:
            for _ in range(UPDATES):
                peer.update(dataset.sample_transition_batch(batch_size))

    contend(ours, {f"ten of d3rlpy {d3rlpy.__version__}": theirs})
