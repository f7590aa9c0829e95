"""What the estimators share: seeds, units, kinds of policies, ends of episodes."""

import math
import re

import numpy as np
import pytest
import torch
from support.estimators import METHODS, SMALL, acting, each_method, gains, two_states, unwarned, with_other
from support.mdps import Linear, Tabular
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
KNOWN = {"known": [*gains(5).values()], "returns": range(5)}


@pytest.mark.parametrize("std", [None, 0.3], ids=["deterministic", "stochastic"])
@pytest.mark.parametrize("name", EVERY)
def test_the_same_seed_gives_the_same_bits_in_every_mode_of_torch(name, std, log):
    def measure(seed=3):
        estimates = EVERY[name].estimate(gains(std=std), log, seed=seed, **KNOWN)
        return np.stack([estimates.values, estimates.standard_errors])

    expected = measure()
    for label, mode in TORCH_MODES.items():
        with mode():
            np.testing.assert_array_equal(measure(), expected, label)
    if name not in ("importance-weighting", "nearest"):
        assert (measure(seed=4)[0] != expected[0]).all()


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
        ("dual-dice", ["acting", "DualDICE"]),
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

    with sopr_fast.options(batch_size=7):
        EVERY[name].estimate({name: seen(policy) for name, policy in gains().items()}, log, **KNOWN)
    assert max(sizes) == 7


@pytest.mark.parametrize("name", ["fqe", "behaviour-q", "dual-dice", "simulator"])
def test_values_are_in_the_units_of_rewards_whatever_those_of_states_and_actions(name, log):
    """Columns that are always 0, or constant up to rounding, change nothing either; nor do actions as set-points."""
    actions = np.pad(log.actions - log.actions.mean(), ((0, 0), (0, 1)))
    constant = np.where(np.arange(len(log)) % 2, 3.0, np.nextafter(np.float32(3), np.float32(4)))[:, None]

    def values(state, action, reward, offset=0.0):
        def act(policy):
            return lambda states: offset + np.pad(action * policy(states[:, :2] / state), ((0, 0), (0, 1)))

        parts = {
            "states": state * np.c_[log.states, constant],
            "next_states": state * np.c_[log.next_states, np.roll(constant, -1)],
            "actions": offset + action * actions,
            "rewards": reward * log.rewards,
        }
        scaled = with_other(log, **{part: np.float32(array) for part, array in parts.items()})
        return METHODS[name].estimate({name: act(policy) for name, policy in gains().items()}, scaled).values / reward

    expected = values(1.0, 2.0, 1.0)
    np.testing.assert_array_equal(values(1.0, 2.0**-13, 1.0), expected)
    np.testing.assert_allclose(values(2.0**-40, 2.0, 2.0**-40), expected, rtol=1e-4)
    np.testing.assert_allclose(values(1.0, 2.0, 1.0, offset=-20.0), expected, rtol=1e-3)


@pytest.mark.filterwarnings("error")
def test_columns_far_from_0_are_centred_at_their_mean():
    within = np.tile([-1.0, 0.5], 50)  # mean -0.25, standard deviation 0.75
    actions = np.stack([within, within + 3.2, within + 3.3, within * 1e-6 - 1, 0 * within - 3, 0 * within], 1)
    zero = np.zeros((100, 1))
    log = Log(transitions(zero, actions, zero[:, 0], zero, np.ones(100)))
    constant_but_for_rounding = -1 - 0.25e-6
    np.testing.assert_allclose(log.action_centre, [0, 0, 3.05, constant_but_for_rounding, -3, 0], rtol=1e-6)
    np.testing.assert_allclose(log.action_scale, [1, 3.7, 0.75, 1, 3, 1], rtol=1e-6)
    np.testing.assert_array_equal(log.actions[:, 4:], 0)


def test_one_episode_tells_no_standard_error(log):
    one = with_other(log, episodes=np.array([0, len(log)]), timeouts=np.arange(len(log)) == len(log) - 1)
    method = ImportanceWeighting(updates=30, hidden=(8,), clip=(-0.01, 0.01))
    assert np.isfinite(method.estimate(gains(), log).standard_errors).all()
    assert np.isnan(method.estimate(gains(), one).standard_errors).all()


@each_method
def test_values_are_zero_without_rewards(method, log):
    estimates = method.estimate(gains(), with_other(log, rewards=0 * log.rewards))
    np.testing.assert_allclose(estimates.values, 0, atol=1e-6)


@pytest.mark.parametrize("tabulated", [False, True], ids=["anew", "from-table"])
def test_sampled_actions_have_the_distribution_of_the_policy(tabulated):
    log = Linear.small().log(np.array([0.0, -0.3]), 0.5, 40, 50, seed=0)
    means = np.stack([policy(log.states)[:, 0] for policy in gains().values()])
    actions = acting(gains(std=0.3), log)
    if tabulated:
        actions.tabulate()
    assert actions.draws == 4
    drawn = torch.stack([actions(torch.arange(len(log)), draw) for draw in range(4)])[..., 0]  # (4, P, N)
    noise = (drawn.numpy() * actions.log.action_scale - means) / 0.3
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
    arrays = {name: policy(log.states) for name, policy in gains().items()}
    estimates = EVERY[name].estimate(arrays, data, **KNOWN)
    short = with_other(shifted, source=np.arange(108), source_count=108)
    cut = {name: array[shifted.source] for name, array in arrays.items()}
    np.testing.assert_allclose(estimates.values, EVERY[name].estimate(cut, short, **KNOWN).values, rtol=1e-6)


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
