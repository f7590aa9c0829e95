"""ReBRAC of `bench.paper`: losses and gradients beside plain torch, snapshots beside the actor, a killed run."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from paper import rebrac
from paper.actors import Actor, read_stack
from paper.games import find_game
from paper.manifest import Task
from paper.scales import SCALES

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


def test_next_actions_are_those_of_the_next_rows_within_an_episode(log):
    rows, mean, deviation = rebrac._rows(log)
    inside = np.flatnonzero(np.asarray(rows.has_next))
    assert inside.tolist() == [i for i in range(60) if i % 20 != 19]
    np.testing.assert_array_equal(np.asarray(rows.next_actions)[inside], log.actions[inside + 1])
    np.testing.assert_allclose(np.asarray(rows.states) * deviation + mean, log.states, atol=1e-5)


def test_a_snapshot_acts_as_the_actor(log):
    rows, mean, deviation = rebrac._rows(log)
    actor = networks(rows)[0]
    expected = rebrac.act(actor, rows.states)
    actions, _ = Actor(rebrac.layers_of(actor, mean, deviation)).act(log.states)
    np.testing.assert_allclose(actions, expected, atol=1e-4)


def test_a_killed_run_ends_as_one_that_was_not(log, tmp_path, monkeypatch):
    monkeypatch.setattr(rebrac, "_UPDATES_AT_ONCE", 4)
    scale = replace(SCALES["smoke"], offline_updates=20, offline_snapshots=2, offline_batch=16, offline_hidden=8)
    task = Task(find_game("hopper"), scale, tmp_path, checkpoint_seconds=0)
    whole, killed = tmp_path / "whole.npz", tmp_path / "killed.npz"
    rebrac.train(task, whole, log, "log")
    draw = rebrac._draw

    def interrupted(seed, first, *rest):
        if first == 12:
            raise KeyboardInterrupt
        return draw(seed, first, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(rebrac, "_draw", interrupted)
        rebrac.train(task, killed, log, "log")
    assert not killed.exists() and (tmp_path / "killed.partial.npz").exists()
    rebrac.train(task, killed, log, "log")
    assert not (tmp_path / "killed.partial.npz").exists()
    stacks = read_stack(whole), read_stack(killed)
    for one, other in zip(*stacks, strict=True):
        for key, values in one.items():
            np.testing.assert_array_equal(values, other[key])
    assert len(stacks[0]) == 2 and any((stacks[0][0][key] != stacks[0][1][key]).any() for key in stacks[0][0])
    assert json.loads((tmp_path / "killed.npz.json").read_text())["snapshot_updates"] == [10, 20]
