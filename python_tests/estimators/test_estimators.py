"""What the estimators share: seeds, units, kinds of policies, ends of episodes."""

import json
import math
import re

import numpy as np
import pytest
import torch
from support.estimators import METHODS, SMALL, acting, each_method, gains, two_states, unwarned, with_other
from support.mdps import Linear, LinearGain, Tabular
from support.problems import TORCH_MODES, transitions

import sopr_fast
from sopr_fast.estimators import FQE, BehaviourQ, DualDICE, ImportanceWeighting, NearestPolicy
from sopr_fast.estimators.learning import held_out_rows
from sopr_fast.estimators.log import Log
from sopr_fast.inputs.logs import load_log
from sopr_fast.inputs.policies import load_policies as load
from sopr_fast.runtime import progress

pytestmark = unwarned

EVERY = {**METHODS, "nearest": NearestPolicy()}
KNOWN = {"known": gains(5), "returns": range(5)}


@each_method
@pytest.mark.parametrize("std", [None, 0.3], ids=["deterministic", "stochastic"])
def test_same_seed_same_result(method, std, log):
    first, second = (method.estimate(gains(std=std), log, seed=3) for _ in range(2))
    assert first.names == ["gain-0", "gain-1", "gain-2"]
    np.testing.assert_array_equal(first.values, second.values)
    np.testing.assert_array_equal(first.standard_errors, second.standard_errors)
    other = method.estimate(gains(std=std), log, seed=4)
    if not isinstance(method, ImportanceWeighting):
        assert (other.values != first.values).all()
    assert json.loads(json.dumps(first.to_dict()))["names"] == first.names


@pytest.mark.parametrize("std", [None, 0.3], ids=["deterministic", "stochastic"])
@pytest.mark.parametrize("name", EVERY)
def test_modes_of_torch_change_no_bit(name, std, log):
    def measure():
        estimates = EVERY[name].estimate(gains(std=std), log, **KNOWN)
        return np.stack([estimates.values, estimates.diagnostics.get("distances", estimates.values)])

    expected = measure()
    for label, mode in TORCH_MODES.items():
        with mode():
            assert np.array_equal(measure(), expected), label


@each_method
def test_estimates_do_not_depend_on_the_other_policies(method, log):
    together = method.estimate(gains(3), log).values
    alone = method.estimate({"gain-1": gains()["gain-1"]}, log).values
    np.testing.assert_allclose(together[1], alone[0], rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("fqe", ["acting", "FQE", "evaluating"]),
        ("behaviour-q", ["BehaviourQ", "evaluating"]),
        ("dual-dice", ["acting", "DualDICE", "evaluating"]),
        ("importance-weighting", ["behaviour", "weighting"]),
        ("simulator", ["simulator", "rolling out"]),
    ],
)
def test_progress_of_each_phase_reaches_its_end(name, phases, log, monkeypatch, caplog):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0)
    with caplog.at_level("INFO", "sopr_fast"):
        METHODS[name].estimate(gains(), log)
    lines = [re.match(r"(.*): \S+ (\d+) of (\d+)", record.getMessage()) for record in caplog.records]
    done = {line[1]: int(line[2]) / int(line[3]) for line in lines if line}
    assert done == dict.fromkeys(phases, 1) and [*done] == phases


@pytest.mark.parametrize("name", EVERY)
def test_policies_see_at_most_a_batch_of_states(name, log):
    sizes = []

    def seen(policy):
        def act(states):
            sizes.append(len(states))
            return policy(states)

        return act

    policies = {name: seen(policy) for name, policy in gains().items()}
    with sopr_fast.options(batch_size=7):
        values = EVERY[name].estimate(policies, log, **KNOWN).values
    assert max(sizes) == 7
    np.testing.assert_allclose(values, EVERY[name].estimate(gains(), log, **KNOWN).values, rtol=1e-4)


@pytest.mark.parametrize("name", ["fqe", "behaviour-q", "dual-dice", "simulator"])
def test_values_are_in_the_units_of_rewards_whatever_those_of_states_and_actions(name, log):
    """Columns that are always 0, or constant up to the rounding of float32, change nothing either."""
    constant = np.where(np.arange(len(log)) % 2, 3.0, np.nextafter(np.float32(3), np.float32(4)))[:, None]

    def values(state, action, reward):
        def act(policy):
            return lambda states: np.pad(action * policy(states[:, :2] / state), ((0, 0), (0, 1)))

        parts = {
            "states": state * np.c_[log.states, constant],
            "next_states": state * np.c_[log.next_states, np.roll(constant, -1)],
            "actions": action * np.pad(log.actions, ((0, 0), (0, 1))),
            "rewards": reward * log.rewards,
        }
        scaled = with_other(log, **{part: np.float32(array) for part, array in parts.items()})
        return METHODS[name].estimate({name: act(policy) for name, policy in gains().items()}, scaled).values / reward

    expected = values(1.0, 2.0, 1.0)
    np.testing.assert_array_equal(values(1.0, 2.0**-13, 1.0), expected)
    np.testing.assert_allclose(values(2.0**-40, 2.0, 2.0**-40), expected, rtol=1e-4)


def test_one_episode_tells_no_standard_error(log):
    one = with_other(log, episodes=np.array([0, len(log)]), timeouts=np.arange(len(log)) == len(log) - 1)
    method = ImportanceWeighting(updates=30, hidden=(8,), clip=(-0.01, 0.01))
    assert np.isfinite(method.estimate(gains(), log).standard_errors).all()
    assert np.isnan(method.estimate(gains(), one).standard_errors).all()


@each_method
def test_values_are_zero_without_rewards(method, log):
    estimates = method.estimate(gains(), with_other(log, rewards=0 * log.rewards))
    np.testing.assert_allclose(estimates.values, 0, atol=1e-6)


def sampled(policies, log, tabulated):
    """Return four samples (4, P, N) of what policies do in the logged states."""
    actions = acting(policies, log)
    if tabulated:
        actions.tabulate()
    assert actions.draws == 4
    drawn = torch.stack([actions(torch.arange(len(log)), draw) for draw in range(4)])[..., 0]
    return drawn.numpy() * actions.log.action_scale


@pytest.mark.parametrize("tabulated", [False, True], ids=["anew", "from-table"])
def test_sampled_actions_have_the_distribution_of_the_policy(tabulated):
    log = Linear.small().log(np.array([0.0, -0.3]), 0.5, 40, 50, seed=0)
    means = np.stack([policy(log.states)[:, 0] for policy in gains().values()])
    noise = (sampled(gains(std=0.3), log, tabulated) - means) / 0.3
    np.testing.assert_allclose(noise.mean(2), 0, atol=4 / math.sqrt(2000))
    np.testing.assert_allclose(noise.std(2), 1, atol=4 / math.sqrt(4000))
    for p in range(3):
        np.testing.assert_allclose(np.corrcoef(noise[:, p]), np.eye(4), atol=4 / math.sqrt(2000))


@pytest.mark.parametrize(
    "method",
    [
        FQE(updates=1000, hidden=(), learning_rate=1e-2, target_rate=0.1, discount=0.8),
        DualDICE(updates=1000, hidden=(), nu_rate=1e-2, zeta_rate=1e-2, discount=0.8),
    ],
    ids=["fqe", "dual-dice"],
)
@pytest.mark.parametrize(("terminal", "value"), [(True, 1 + 0.8 * 3), (False, 1 + 0.8 * 3 / 0.2)])
def test_episodes_end_at_terminals_and_continue_after_timeouts(method, terminal, value):
    policies = [lambda states: 0 * states[:, :1]]
    assert method.estimate(policies, two_states(terminal)).values == pytest.approx(value, rel=0.02)


@pytest.mark.parametrize("name", ["fqe", "dual-dice", "simulator"])
def test_arrays_of_actions_tell_nothing_of_other_states(name, log):
    with pytest.raises(ValueError, match="'array' is an array of actions"):
        METHODS[name].estimate({"array": gains()["gain-2"](log.states)}, log)


@pytest.mark.parametrize("name", ["behaviour-q", "importance-weighting", "nearest"])
def test_arrays_of_actions_have_the_rows_of_the_data(name, log):
    """Without next states, the last rows of episodes are dropped from the log, but not from the arrays."""
    data = {key: getattr(log, key) for key in ("states", "actions", "rewards", "terminals", "timeouts")}
    shifted = load_log(data)
    assert len(shifted) == 108 and shifted.source_count == 120
    arrays = {name: policy(log.states) for name, policy in gains().items()}
    for part in ("states", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(shifted, part), getattr(log, part)[shifted.source])
    known = {"other": LinearGain(np.array([0.1, 0.0])), "far": LinearGain(np.array([0.9, 0.0]))}
    method, options = EVERY[name], {"known": known, "returns": [1.0, 2.0]}
    estimates = method.estimate(arrays, data, **options)
    short = with_other(shifted, source=np.arange(108), source_count=108)
    expected = method.estimate({name: array[shifted.source] for name, array in arrays.items()}, short, **options)
    np.testing.assert_allclose(estimates.values, expected.values, rtol=1e-6)
    with pytest.raises(ValueError, match="'gain-0' has actions for 108 states, the data has 120"):
        method.estimate({"gain-0": arrays["gain-0"][:108]}, data, **options)


def test_discrete_actions_as_indices_or_one_hot():
    mdp = Tabular.random(seed=0)
    log = mdp.log(np.full((5, 3), 1 / 3), 10, 5, seed=0)
    indices = with_other(log, actions=log.actions.argmax(1)[:, None].astype(np.float32))
    choose = list(load({"second": lambda states: np.ones(len(states), int)}, action_count=3).values())
    for method in (FQE(**SMALL), BehaviourQ(**SMALL), DualDICE(**SMALL), METHODS["simulator"]):
        values = [method.estimate(choose, data).values for data in (log, indices)]
        np.testing.assert_array_equal(*values)
    wrong = with_other(log, actions=log.actions + 3)
    with pytest.raises(ValueError, match="must be indices"):
        FQE(**SMALL).estimate(choose, wrong)


@pytest.mark.parametrize(
    ("lengths", "count"), [([10] * 40, 20), ([1000], 50), ([999, 1], 50), ([10] * 9 + [910], 50), ([1, 1], 1)]
)
def test_few_rows_are_held_out_of_training(lengths, count):
    """These are whole episodes, or the end of an episode that is a large part of the log."""
    ends, total = np.cumsum(lengths), sum(lengths)
    states = np.zeros((total, 1))
    given = transitions(states, states, states[:, 0], states, np.isin(np.arange(total), ends - 1))
    rows = [held_out_rows(Log(given), seed) for seed in range(8)]
    assert max(map(len, rows)) == count
    for chosen in rows:
        episode = np.searchsorted(ends, chosen, side="right")
        assert np.isin(ends[episode] - 1, chosen).all() and (np.diff(chosen) > 0).all()
        np.testing.assert_array_equal(np.diff(chosen)[np.diff(episode) == 0], 1)


@pytest.mark.parametrize("name", ["importance-weighting", "simulator"])
def test_a_log_of_one_row_is_refused_where_rows_are_held_out(name):
    zero = np.zeros((1, 1))
    with pytest.raises(ValueError, match="log: one row is too few"):
        METHODS[name].estimate([np.tanh], transitions(zero, zero, zero, zero))


@each_method
def test_values_are_computed_on_the_cpu_if_options_name_a_gpu(method, log, cuda):
    expected = method.estimate(gains(std=0.3), log).values
    with sopr_fast.options(device=cuda):
        np.testing.assert_array_equal(method.estimate(gains(std=0.3), log).values, expected)
