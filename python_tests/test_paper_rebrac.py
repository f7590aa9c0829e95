"""ReBRAC of `bench.paper`: losses and gradients next to those of plain torch."""

import numpy as np
import pytest
import torch
from paper import rebrac

from sopr_fast.inputs.logs import Transitions

jax = pytest.importorskip("jax", reason="needs the extra [paper]")

OPTIONS = rebrac.Options(hidden=8, batch=16, critics=3, actor_penalty=0.3, critic_penalty=0.2, learning_rate=1e-3)


@pytest.fixture
def log():
    rng = np.random.default_rng(0)
    states = rng.standard_normal((61, 4)).astype(np.float32)
    ends = np.arange(60) % 20 == 19
    following = np.where(ends[:, None], -1, states[1:])
    return Transitions.from_arrays(
        states[:-1],
        np.tanh(rng.standard_normal((60, 2))).astype(np.float32),
        rng.standard_normal(60).astype(np.float32),
        following,
        terminals=ends & (np.arange(60) < 20),
        timeouts=ends & (np.arange(60) >= 20),
    )


def networks(rows):
    """Four networks, all different, as the learner holds them."""
    learners = [rebrac.new_learner(seed, rows, OPTIONS) for seed in (1, 2)]
    perturbed = jax.tree.map(lambda leaf: leaf + 0.3 * np.sin(np.arange(leaf.size).reshape(leaf.shape)), learners)
    return perturbed[0].actor, perturbed[0].critics, perturbed[1].actor, perturbed[1].critics


def in_torch(network):
    return jax.tree.map(lambda array: torch.tensor(np.asarray(array), dtype=torch.float64), network)


def act(network, states):
    for layer in network[:-1]:
        states = torch.relu(states @ layer["weight"] + layer["bias"])
    return torch.tanh(states @ network[-1]["weight"] + network[-1]["bias"])


def values_of(network, states, actions):
    hidden = torch.cat([states, actions], -1)
    for layer in network[:-1]:
        hidden = torch.relu(hidden @ layer["weight"] + layer["bias"][:, None])
        hidden = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])
    return (hidden @ network[-1]["weight"] + network[-1]["bias"][:, None])[..., 0]


def assert_same_gradient(slope, network):
    for own, layer in zip(slope, network, strict=True):
        for part, expected in layer.items():
            np.testing.assert_allclose(own[part], expected.grad, rtol=2e-3, atol=1e-5)


@pytest.mark.slow
def test_losses_and_gradients_are_those_of_plain_torch(log):
    rows, _, _ = rebrac._rows(log)
    batch = rebrac.Rows(*(column[:32] for column in rows))
    noise = 0.4 * np.random.default_rng(1).standard_normal((32, 2)).astype(np.float32)
    own = networks(rows)
    actor, critics, actor_target, critics_target = map(in_torch, own)
    states, actions, rewards, next_states, next_actions, goes_on, has_next = (
        torch.tensor(np.asarray(column), dtype=torch.float64) for column in batch
    )
    assert goes_on.tolist().count(0) == 1 and has_next.tolist().count(0) == 1

    for layer in critics:
        layer.update({part: array.requires_grad_() for part, array in layer.items()})
    acted = (act(actor_target, next_states) + torch.tensor(noise)).clamp(-1, 1)
    penalty = 0.2 * ((acted - next_actions) ** 2).sum(1) * has_next
    target = rewards + 0.99 * goes_on * (values_of(critics_target, next_states, acted).min(0).values - penalty)
    loss = ((values_of(critics, states, actions) - target) ** 2).mean(1).sum()
    loss.backward()
    value, slope = jax.value_and_grad(rebrac.critics_loss)(own[1], own[2], own[3], batch, noise, OPTIONS)
    assert float(value) == pytest.approx(loss.item(), rel=1e-4)
    assert_same_gradient(slope, critics)

    for layer in actor:
        layer.update({part: array.requires_grad_() for part, array in layer.items()})
    acted = act(actor, states)
    values = values_of(critics, states, acted).min(0).values
    loss = (0.3 * ((acted - actions) ** 2).sum(1) - values / values.abs().mean().detach()).mean()
    loss.backward()
    value, slope = jax.value_and_grad(rebrac.actor_loss)(own[0], own[1], batch, OPTIONS)
    assert float(value) == pytest.approx(loss.item(), rel=1e-4)
    assert_same_gradient(slope, actor)
