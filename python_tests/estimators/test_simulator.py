"""The simulator on processes whose undiscounted returns are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.estimators import unwarned
from support.mdps import Linear, LinearGain, TablePolicy, Tabular
from support.problems import transitions

import sopr_fast
from sopr_fast import native
from sopr_fast.estimators import Simulator, UncertainEstimateWarning, simulator
from sopr_fast.estimators.dynamics import Dynamics
from sopr_fast.estimators.log import Log
from sopr_fast.ops import mlp

QUICK = Simulator(updates=600, hidden=(64, 64), members=2)
GAINS = {"strong": np.array([-0.2, -0.8]), "weak": np.array([0.3, -0.3]), "none": np.array([0.2, 0.1])}


def drift(steps=4000, *, end=None, length=40, seed=0, noise=0.0, **options):
    """Return a log of a point that actions move, from 0; its episodes end beyond `end`, where they do not time out."""
    random = np.random.default_rng(seed)
    states, actions, following, ends = [], [], [], []
    at = t = 0.0
    for _ in range(steps):
        action = random.uniform(-0.1, 0.3)
        after = at + action + noise * random.standard_normal()
        t += 1
        states.append(at), actions.append(action), following.append(after)
        ended = end is not None and after > end
        ends.append((ended, t == length and not ended))
        if ended or t == length:
            after = t = 0.0
        at = after
    columns = (np.array(x)[:, None] for x in (states, actions))
    return transitions(*columns, np.ones(steps), np.array(following)[:, None], *np.array(ends).T, **options)


def constant(action):
    return lambda states: np.full((len(states), 1), action)


@pytest.mark.parametrize("episodes", [200, 1])
def test_returns_of_a_linear_process(episodes):
    """Returns, which differ by 100 %, are within 10 %; without noise, and also from a log of one episode."""
    process = replace(Linear.small(), noise=0.0)
    log = process.log(np.array([0.0, -0.3]), 0.5, episodes, 10000 // episodes, seed=0)
    if episodes == 1:
        log = replace(log, episodes=np.array([0, len(log)]))
    method = replace(QUICK, horizon=20)
    estimates = method.estimate({name: LinearGain(gain) for name, gain in GAINS.items()}, log)
    starts = log.states[log.episodes[:-1]]
    expected = [process.value(gain, 1.0, starts, horizon=20) for gain in GAINS.values()]
    np.testing.assert_allclose(estimates.values, expected, rtol=0.1)
    np.testing.assert_allclose(estimates.diagnostics["length"], 20)
    assert (estimates.diagnostics["inside"] > 0.99).all() and estimates.diagnostics["state_error"] < 1e-2


@pytest.mark.parametrize("seen", [True, False], ids=["ends-seen", "ends-unknown"])
def test_episodes_end_in_the_states_that_end_them(seen):
    """The reward is 1 a step until the point is beyond 2: after 11 steps of 0.19, after 21 of 0.098, or never."""
    log = drift(end=2.0)
    if not seen:
        log = replace(log, next_states=np.where(log.terminals[:, None], log.states, log.next_states))
    policies = {"fast": constant(0.19), "slow": constant(0.098), "rests": constant(0.0)}
    estimates = QUICK.estimate(policies, log)
    np.testing.assert_allclose(estimates.replicates, np.tile([[11], [21], [40]], 2), rtol=0.1)
    np.testing.assert_allclose(estimates.standard_errors, 1.5 * estimates.replicates.std(1, ddof=1))
    assert estimates.agreement == pytest.approx(1)
    np.testing.assert_allclose(estimates.diagnostics["length"], [11, 21, 40], rtol=0.05 if seen else 0.1)
    np.testing.assert_allclose(estimates.diagnostics["unlived"], [29, 19, 0], atol=1.5)
    np.testing.assert_allclose(estimates.values, [11, 21, 40], rtol=0.1)


def test_the_last_updates_also_learn_from_states_that_the_models_reach():
    """The loss and its gradient next to plain torch in float64."""
    log = Log(drift(400, end=2.0))
    model = Dynamics(log, members=2, hidden=(8, 8), updates=8, seed=0)
    for update in range(6):
        model.step(update)
    models = model.networks["models"]
    weights = models.parameters.detach().double().requires_grad_()
    rows, starts = model.batches(6)[:, :128], model._unrolls(6)
    (before, *_) = (state.clone() for name, state in models.adam.tensors("adam").items() if "mean" in name)
    losses = model.step(6)

    def loss(states, rows):
        predicted = mlp(torch.cat([states, log.actions[rows].double()], -1), weights, models.sizes)
        _, target, weight = model._read(rows)
        change = (log.states(log.next[rows]) - states) / model.change_scale
        missed = predicted - torch.cat([change, target[..., 1:]], -1)
        each = [
            torch.nn.functional.huber_loss(missed[..., :1], 0 * missed[..., :1], reduction="none"),
            missed[..., 1:] ** 2 / 2,
        ]
        return (weight * torch.cat(each, -1)).sum(-1).mean(1), states + predicted[..., :1] * model.change_scale

    expected, states = loss(log.states(rows).double(), rows)[0], log.states(starts).double()
    for step in range(5):
        own, states = loss(states, starts + step)
        expected = expected + own / 5
    (expected / 2).sum().backward()
    torch.testing.assert_close(losses, (expected / 2).detach().float(), rtol=1e-5, atol=1e-7)
    (after, *_) = (state for name, state in models.adam.tensors("adam").items() if "mean" in name)
    torch.testing.assert_close((after - 0.9 * before) / 0.1, weights.grad.float(), rtol=1e-3, atol=1e-6)
    followed = np.flatnonzero(log.next.numpy() == np.arange(1, 401))
    assert all(np.isin(starts + step, followed).all() for step in range(4))
    assert not np.isin([starts + step for step in range(5)], model.held_out).any()


@pytest.mark.parametrize("limit, steps", [(None, 40), (60, 60)])
def test_without_terminals_episodes_last_to_the_time_limit_or_as_long_as_the_longest_of_the_log(limit, steps):
    log = drift(max_episode_steps=limit).take(np.arange(90))
    estimates = replace(QUICK, updates=300).estimate({"rests": constant(0.0)}, log)
    assert estimates.diagnostics["length"] == [steps] and estimates.diagnostics["unfinished"] == [0]
    np.testing.assert_allclose(estimates.values, [steps], rtol=0.02)


@unwarned
def test_policies_that_go_on_after_the_longest_episode_are_named_if_no_time_limit_is_known():
    """A terminal state ends every logged episode; a policy that rests reaches none."""
    policies = {"ends": constant(0.19), "rests": constant(0.0)}
    log = drift(end=2.0, length=1000)
    method, message = QUICK, "rests is still running where the log's longest episode"
    with pytest.warns(UncertainEstimateWarning, match=message):
        assert method.estimate(policies, log).diagnostics["unfinished"] == pytest.approx([0, 1], abs=0.1)
    assert message in " ".join(sopr_fast.select(policies, log, simulator=method).notes)
    log = replace(log, max_episode_steps=60)
    assert method.estimate(policies, log).diagnostics["length"] == pytest.approx([11, 60], rel=0.1)
    assert message not in " ".join(sopr_fast.select(policies, log, simulator=method).notes)


def test_episodes_of_one_step_and_rare_rewards():
    """Rewards are 1 in 2 % or 8 % of the steps, else 0. Values are within 0.01, so rewards are means, not medians."""
    random = np.random.default_rng(0)
    states, actions = random.uniform(-1, 1, (2, 20000, 1))
    rewards = random.random(20000) < np.where(actions[:, 0] > 0, 0.08, 0.02)
    log = transitions(states, actions, rewards, states, np.ones(20000, bool))
    estimates = QUICK.estimate({"rare": constant(-0.5), "common": constant(0.5)}, log)
    np.testing.assert_allclose(estimates.values, [0.02, 0.08], atol=0.01)


def test_short_episodes_start_from_many_states():
    """The reward is 1 where the sign of the action is that of the state: two contexts would show 0, 0.5 or 1 alone."""
    random = np.random.default_rng(0)
    states, actions = random.uniform(-1, 1, (2, 8000, 1))
    log = transitions(states, actions, (states * actions > 0)[:, 0], states, np.ones(8000, bool))
    policies = {"above": lambda s: np.where(s > 0.5, s, -s), "right": lambda s: s, "wrong": lambda s: -s}
    estimates = QUICK.estimate(policies, log)
    np.testing.assert_allclose(estimates.values, [0.25, 1, 0], atol=0.1)


def test_rewards_of_the_end_are_earned_once():
    """The reward is 100 where an episode ends, beyond 2. A policy that hovers before it was promised a share a step."""
    log = drift(end=2.0)
    log = replace(log, rewards=np.where(log.terminals, 100.0, -1.0).astype(np.float32))
    policies = {"ends": constant(0.19), "hovers": lambda states: np.clip(1.95 - states, -0.1, 0.19)}
    estimates = QUICK.estimate(policies, log)
    assert estimates.values[0] == pytest.approx(90, abs=5) and estimates.values[1] < 90


def test_a_stochastic_environment_is_simulated_with_its_noise():
    """Noise of 0.2 a step takes a point that rests beyond 1 in half of the episodes of 40 steps, or earlier."""
    log = drift(20000, end=1.0, noise=0.2)
    estimates = QUICK.estimate({"rests": constant(0.0)}, log)
    random = np.random.default_rng(1)
    beyond = random.normal(0, 0.2, (4000, 40)).cumsum(1) > 1
    length = np.where(beyond.any(1), beyond.argmax(1) + 1, 40).mean()
    assert length < 34
    np.testing.assert_allclose(estimates.diagnostics["length"], [length], rtol=0.1)
    assert estimates.diagnostics["state_error"] == pytest.approx(0.63, abs=0.1)  # of a mean squared change of 0.0633
    assert "On held-out rows the simulator misses " in str(estimates.notes)


def test_a_few_glitches_of_a_sensor_are_no_noise():
    """Of 0.4 % of the rows, the next state is logged 3 too high. The reward of a step is the state."""
    log = drift(20000)
    following = log.next_states.copy()
    following[np.random.default_rng(1).random(len(log)) < 0.004] += 3
    log = replace(log, rewards=log.states[:, 0], next_states=following)
    estimates = QUICK.estimate({"rests": constant(0.0)}, log)
    assert abs(estimates.values[0]) < 3  # about 10 if every simulated step may be a glitch
    assert "held-out" not in str(estimates.notes)


def test_discrete_actions_of_stochastic_policies():
    """Actions move one, two or four states along a ring of five. Returns, which differ by 10 %, are within 5 %."""
    mdp = Tabular.random(seed=1)
    mdp = replace(mdp, step=np.eye(5)[(np.arange(5)[:, None] + [1, 2, 4]) % 5])
    tables = [mdp.policy(i) for i in range(3)]
    log = mdp.log(0.5 * mdp.policy(10) + 0.5 / 3, 400, 40, seed=0)
    estimates = QUICK.estimate([TablePolicy(table) for table in tables], log)
    np.testing.assert_allclose(estimates.values, [mdp.value_within(t, 1.0, 40) for t in tables], rtol=0.05)


def test_stochastic_policies_sample():
    """Noise of the actions costs effort, and moves states that cost."""
    process = replace(Linear.small(), noise=0.0)
    log = process.log(np.array([0.0, -0.3]), 0.5, 200, 50, seed=0)
    policies = {"mean": LinearGain(GAINS["weak"], 1e-3), "sampled": LinearGain(GAINS["weak"], 0.4)}
    values = replace(QUICK, horizon=20).estimate(policies, log).values
    starts = log.states[log.episodes[:-1]]
    expected = [process.value(GAINS["weak"], 1.0, starts, std, horizon=20) for std in (0.0, 0.4)]
    np.testing.assert_allclose(values, expected, rtol=0.1)


@pytest.mark.filterwarnings("default::sopr_fast.estimators.UncertainEstimateWarning")
def test_policies_that_leave_the_log_are_named_and_lose_value(monkeypatch):
    """The log's points stay below 9. The reward of a step is the cosine of the state."""
    log = drift()
    log = replace(log, rewards=np.cos(log.states[:, 0]))
    policies = {"far": constant(0.3), "near": constant(0.02)}
    message = r"rollouts of 'far' \(\d+ % of steps\) leave the range of the log"
    with pytest.warns(UncertainEstimateWarning, match=message):
        estimates = replace(QUICK, horizon=100).estimate(policies, log)
    monkeypatch.setattr(simulator, "_MOST_PENALTY", 0.0)
    far, near = replace(QUICK, horizon=100).estimate(policies, log).values - estimates.values
    assert far > 1 and near == pytest.approx(0, abs=0.5)
    assert estimates.values[1] == pytest.approx(np.cos(0.02 * np.arange(100)).sum(), rel=0.05)


@unwarned
def test_threads_change_no_bit(monkeypatch):
    log, values = drift(end=2.0, steps=500), []
    for count in (1, 2, 3):
        monkeypatch.setattr(native, "threads", lambda count=count: count)
        estimates = Simulator(updates=20, hidden=(16, 16)).estimate([constant(0.1)], log)
        values.append((estimates.values[0], estimates.diagnostics["curve"]["loss"]))
    assert values[0] == values[1] == values[2]
    assert native.threads() >= 1
