"""`select`: one model from no known return to many, its data and its result."""

from dataclasses import replace

import numpy as np
import pandas
import pytest
from support.estimators import bandit, bandits
from support.problems import transitions
from support.selection_problems import BEST, CANDIDATES, KNOWN, RETURNS, TRUTH, Scripted, choose, log, simulator

import sopr_fast
from sopr_fast import Config, UncertainEstimateWarning, fit, load_log
from sopr_fast.estimators import BehaviourQ, ImportanceWeighting
from sopr_fast.estimators.action_distance import mutual_distances
from sopr_fast.results.metrics import policy_distances
from sopr_fast.selection import select
from sopr_fast.selection.compared import possible_returns
from sopr_fast.selection.measured import Measured


def test_predictions_stay_within_what_rewards_and_lengths_allow():
    name = next(iter(CANDIDATES))
    selection = choose(simulator=simulator(**{name: 1e4}))
    low, high = possible_returns(log())
    assert high <= 0
    ends = selection.intervals(0.99)[~selection.known]
    assert ((ends >= low) & (ends <= max(high, max(RETURNS.values())))).all()
    assert (selection.predicted[~selection.known] <= max(high, max(RETURNS.values()))).all()


@pytest.mark.parametrize(
    ("rewards", "terminals", "timeouts", "limit", "expected"),
    [
        ([1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1], None, (2, 2)),  # all episodes last two steps
        ([1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 0], None, (1, 3)),  # the time limit is three
        ([1, 2, 1, 1], [1, 0, 0, 1], [0, 0, 0, 0], None, (1, np.inf)),  # the time limit is unknown
        ([-1, -2, -1, -1], [1, 0, 0, 1], [0, 0, 0, 0], None, (-np.inf, -1)),
        ([0, 0, 0, 1], [1, 0, 0, 1], [0, 0, 0, 0], None, (0, 1)),  # a goal is reached once
        ([0, -1, -1, 9], [0, 0, 0, 1], [0, 1, 0, 0], None, (-2, 9)),
        ([-1, 0, 0, 3], [1, 1, 1, 1], [0, 0, 0, 0], None, (-1, 3)),
        ([-1, 2, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], None, (-np.inf, np.inf)),
        ([1, 2, 1, 1], [1, 0, 0, 1], [0, 0, 0, 0], 5, (1, 10)),  # policies may reach a limit that no episode reached
        ([1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0], 3, (1, 3)),
        ([1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 0], 2, (1, 3)),  # the log shows that the limit is three
        ([1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1], 3, (2, 3)),  # last steps were dropped
        ([-1, 0, 0, 3], [1, 1, 1, 1], [0, 0, 0, 0], 1, (-1, 3)),
    ],
)
def test_possible_returns(rewards, terminals, timeouts, limit, expected):
    states, ends = np.arange(5.0)[:, None], np.add(terminals, timeouts)[:, None]
    given = states[:4], states[:4], np.array(rewards), states[1:] + 0.5 * ends, terminals, timeouts
    assert possible_returns(replace(transitions(*given), max_episode_steps=limit)) == expected


def test_costs_are_shown_as_costs():
    steps = log()
    arrays = {"states": steps.states, "actions": steps.actions, "next_states": steps.next_states}
    arrays |= {"timeouts": steps.timeouts, "terminals": steps.terminals, "cost": -steps.rewards}
    returns = {name: RETURNS[name] for name in list(RETURNS)[:2]}
    costs = pandas.DataFrame({"name": [*returns], "cost": [-value for value in returns.values()]})
    of_costs = select(KNOWN, arrays, costs, simulator=simulator())
    plain = select(KNOWN, log(), returns, simulator=simulator())
    assert of_costs.verdict.policies == plain.verdict.policies
    np.testing.assert_allclose(of_costs.predicted, plain.predicted)
    assert "may cost as much as " in of_costs.verdict.reason and "may return as little as -" in plain.verdict.reason
    heading, first = str(of_costs).split("\n\n")[1].splitlines()[:2]
    assert heading.split()[:4] == ["policy", "cost", "low", "high"]
    cost, low, high = map(float, first.split()[1:4])
    assert 0 < low <= cost <= high and cost == pytest.approx(-of_costs.predicted.max(), rel=0.01)
    table, frame = of_costs.to_dict()["table"], of_costs.to_pandas()
    assert "return" not in table and table["cost"] == sorted(-plain.predicted) == frame["cost"].tolist()
    np.testing.assert_allclose(np.transpose([table["low"], table["high"]]), -plain.intervals()[plain.order, ::-1])
    np.testing.assert_allclose(table["Simulator"], -plain.values[plain.order])
    measured = of_costs.update({name: TRUTH[name] for name in KNOWN})
    assert f"Deploy {BEST}" in measured.verdict.text and f"; measured cost {-TRUTH[BEST]:.3g}" in measured.verdict.text
    dear = of_costs.update({BEST: {"cost": 1e6}}).doubts[0]
    assert dear.startswith(f"The cost of {BEST}, 1,000,000") and ", the highest that the logged costs and" in dear
    with pytest.raises(
        ValueError, match=r"return of policy .* is 40.0, but returns are the negative of the log's costs.*'cost': 40"
    ):
        of_costs.update(dict.fromkeys(KNOWN, 40.0))
    with pytest.raises(ValueError, match="rewards are named 'cost', as if less were better.*columns={'costs': 'cost'}"):
        load_log(arrays, columns={"rewards": "cost"})


@pytest.mark.parametrize("options", [{"incumbent": "x"}, {"progress": {"x": 1}}, {"returns": {"x": 1}}])
def test_names_are_checked_before_the_log_is_read(options):
    with pytest.raises(ValueError, match=r"\bx\b"):
        select(CANDIDATES, "no-such-log.npz", **options)


BANDITS, VALUES = bandits(best=9.0, good=1.0, worst=-9.0, uniform=0.0)


def test_a_bandit_s_values_and_errors_are_those_of_importance_weighting():
    selection = select(BANDITS, bandit())
    estimates = ImportanceWeighting().estimate(BANDITS, bandit())
    assert selection.method == "ImportanceWeighting" and selection.rankable.all()
    np.testing.assert_allclose(selection.predicted, estimates.values)
    np.testing.assert_allclose(selection.posterior.deviation, estimates.standard_errors)
    (low, high), true = selection.intervals(0.99).T, np.array([*VALUES.values()])
    assert ((low <= true) & (true <= high)).all() and selection.verdict.policies == ("best",)
    assert selection.doubts == ["No return is known: the order is by ImportanceWeighting"]


def test_a_bandit_s_measured_return_decides_alone_and_moves_others_that_act_alike():
    measured = {"uniform": [VALUES["uniform"]] * 500 + [VALUES["uniform"] + 1e-3] * 500}
    before, selection = select(BANDITS, bandit()), select(BANDITS, bandit(), returns=measured)
    assert selection.verdict.text.startswith("Deploy best; predicted ")
    assert selection.posterior.deviation[1] < before.posterior.deviation[1]
    np.testing.assert_allclose(before.update(measured).predicted, selection.predicted)
    assert selection.doubts == []
    strange = select(BANDITS, bandit(), returns={"uniform": 2.0})
    assert "standard errors away from ImportanceWeighting: check the log's probabilities" in strange.doubts[0]


@pytest.mark.parametrize("lucky", [[2.6, 2.2, 2.6, 2.2, 0.0], [2.5] * 5])
def test_a_few_lucky_episodes_do_not_make_a_policy_the_one_to_beat(lucky):
    """Several equal episodes have no deviation of their own, but that of other policies."""
    spread = {"good": VALUES["good"] + 0.6 * np.tile([-1, 1], 50)}
    selection = select(BANDITS, bandit(), {"best": VALUES["best"], "uniform": lucky} | spread)
    assert selection.verdict.policies == ("best",)
    assert np.nanargmax(selection.returns) == 3 and selection.return_errors[3] > 0.2
    assert selection.verdict.reason.startswith("uniform returned more, but probably by chance")
    alone = select(BANDITS, bandit(), {"best": VALUES["best"], "uniform": [2.5] * 5})
    assert alone.return_errors[3] == pytest.approx(bandit().rewards.std() / np.sqrt(5))
    few = select(BANDITS, bandit(), {"best": VALUES["best"] + 0.5 * np.array([-1, 1, -1, 1, -1, 1])})
    assert str(few.verdict).startswith("Measure best, 1,000 episodes. Its return is known to ± 0.2")


def test_a_method_without_errors_of_policies_is_told():

    steps = replace(log(), log_probs=np.zeros(len(log())))
    selection = select(KNOWN, steps, simulator="ImportanceWeighting")
    with pytest.warns(UncertainEstimateWarning, match="the log hardly covers"):
        errors = ImportanceWeighting().estimate(KNOWN, steps).standard_errors
    assert np.isnan(errors).any()
    [note] = [note for note in selection.notes if note.startswith("ImportanceWeighting knows no error of ")]
    assert next(name for name, error in zip(KNOWN, errors, strict=True) if np.isnan(error)) in note


def test_a_bandit_s_policy_that_the_log_hardly_covers_is_not_ranked():
    steps = bandit()
    tossed = np.random.default_rng(0).integers(2, size=(len(steps), 1)).astype(np.float32)
    steps = replace(steps, actions=tossed, log_probs=np.full(len(steps), np.log(0.5)))
    acts = {"covered": lambda s: np.full((len(s), 3), [0.5, 0.5, 0]), "not": lambda s: np.eye(3)[[2] * len(s)]}
    selection = select(sopr_fast.load_policies(acts, action_count=3), steps)
    assert selection.flags == ["", "cannot be ranked"]
    low, high = selection.intervals()[1]
    assert high - low > 0.5
    assert selection.unrankable() == ["This log says nothing of not: it hardly takes their actions"]


def test_copies_have_one_row_and_one_pooled_return():
    twins = {f"twin-{i}": lambda states: KNOWN[BEST](states) for i in range(3)}
    rollouts = {BEST: [RETURNS[BEST] - 1, RETURNS[BEST] + 1], "twin-1": [RETURNS[BEST] + 2] * 2}
    selection = choose(CANDIDATES | twins, KNOWN | twins, RETURNS | rollouts, simulator=simulator())
    place = selection.names.index(BEST)
    assert selection.measured.copies[place] == [BEST, *twins] and not {*twins} & {*selection.names}
    together = np.concatenate(list(rollouts.values()))
    assert selection.returns[place] == pytest.approx(together.mean())
    assert selection.return_errors[place] == pytest.approx(together.std(ddof=1) / 2)
    assert selection.flags[place] == "measured, 4 copies"
    assert "3 policies are copies: they act as another one in all 600 states, so they share" in str(selection)
    assert selection.measure_next(9) == [name for name in selection.measure_next(9) if name in CANDIDATES]
    told = simulator(**dict.fromkeys(twins, 0.0))
    again = choose(CANDIDATES | twins, KNOWN | twins, RETURNS | rollouts, incumbent="twin-2", simulator=told)
    assert again.names[place] == "twin-2"
    assert again.probability_better("twin-2", "twin-0") == 0.5


def test_whole_numbers_are_warned_of_once_and_noted_and_so_are_rollouts():
    policies = {name: lambda s, a=a: np.where(s[:, :1] > 0, a, 1.0) for name, a in {"a": 2.0, "b": 3.0}.items()}
    with pytest.warns(UserWarning, match="are whole numbers") as caught:
        selection = select(policies, log(), simulator=BehaviourQ(updates=5, hidden=(4,)))
    (warned,) = [str(each.message) for each in caught if "whole" in str(each.message)]
    assert warned in selection.notes
    note = "Returns are means of up to 3 rollouts: of a learning curve, give its last evaluation"
    assert note in choose(returns={BEST: [1.0, 2, 3]}).notes and note not in choose().notes


@pytest.mark.parametrize("offset", [0, 1000])
def test_mutual_distances_are_action_distances_and_equal_policies_have_none(offset):
    columns = offset + np.random.default_rng(0).standard_normal((9, 5000, 3)).astype(np.float32)
    columns[4] = columns[2]
    columns[5] = columns[2] + np.float32(1e-2) * (np.arange(3) == 1)
    distances = mutual_distances(columns)
    np.testing.assert_allclose(distances, policy_distances(columns, columns), rtol=1e-9)
    np.testing.assert_array_equal(distances, distances.T)
    assert distances[2, 4] == 0 and (np.diagonal(distances) == 0).all() and distances[2, 5] > 0


def test_a_candidate_that_differs_in_rare_states_alone_is_valued():
    """The states in which it differs are not among those compared."""
    transitions = log(300, 20)
    states = transitions.states
    rare = np.setdiff1d(np.arange(len(states)), np.linspace(0, len(states) - 1, 4096).astype(int))[:15]
    places = {row.tobytes() for row in states[rare]}

    def override(asked):
        asked = np.asarray(asked, np.float32)
        acted = np.array(KNOWN[BEST](asked))
        acted[[row.tobytes() in places for row in asked]] = -5
        return acted

    method = simulator(override=TRUTH[BEST] - 1)
    selection = select(KNOWN | {"override": override}, transitions, RETURNS, simulator=method)
    assert selection.predicted[selection.names.index("override")] != RETURNS[BEST]


@pytest.mark.parametrize("seed", range(6))
def test_update_equals_a_new_selection(seed):
    """Some returns are plain numbers, some of one rollout, some of several; some policies are copies of others."""
    random = np.random.default_rng(seed)
    policies = KNOWN | CANDIDATES
    names = list(random.permutation(list(policies)))
    copies = {f"copy-{i}": policies[names[i]] for i in range(random.integers(4))}
    policies |= copies
    says = Scripted(TRUTH | {f"copy-{i}": TRUTH[names[i]] for i in range(len(copies))})
    everyone = list(random.permutation([*policies]))

    def measure(name):
        kind = random.integers(3)
        rollouts = says.says[name] + random.standard_normal(1 if kind < 2 else random.integers(2, 6))
        return float(rollouts[0]) if kind == 0 else rollouts.tolist()

    first = {name: measure(name) for name in everyone[: random.integers(1, len(everyone))]}
    later = [{name: measure(name) for name in random.permutation(everyone)[: random.integers(1, 9)]} for _ in range(2)]
    options = {"incumbent": str(random.choice(everyone)) if seed % 3 == 0 else None, "simulator": says}
    updated = select(policies, log(), returns=first, **options).update(later[0]).update(later[1])
    anew = select(policies, log(), returns=first | later[0] | later[1], **options)
    assert updated.names == anew.names and updated.verdict == anew.verdict and updated.doubts == anew.doubts
    for part in ("returns", "return_errors", "predicted", "probability_best"):
        np.testing.assert_array_equal(getattr(updated, part), getattr(anew, part))
    np.testing.assert_array_equal(updated.intervals(), anew.intervals())


def test_update_trains_nothing():
    method, name = simulator(), "left-21"
    first = choose(simulator=method)
    updated = first.update({name: [TRUTH[name] - 0.1, TRUTH[name] + 0.1]})
    assert len(method.calls) == 1
    assert updated.flags[updated.names.index(name)] == "measured"
    assert "Only 1 return is known" in select(CANDIDATES, log(), simulator=method).update({name: -1.0}).doubts[0]
    assert first.flags[first.names.index(name)] == ""
    frame = pandas.DataFrame({"name": [name, "right-22"], "return": [-1.0, -2.0]})
    assert first.update(frame).verdict == first.update({name: -1.0, "right-22": -2.0}).verdict


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"returns": [1.0, 2.0]}, "there are 2 returns for 16 policies: map names to returns"),
        ({"returns": {"right-00": [1.0, np.inf]}}, "the return of policy 'right-00' is 'inf', expected a finite"),
        ({"simulator": simulator(**{"left-21": np.nan})}, "the simulator gives policy 'left-21' no finite value"),
        ({"simulator": "fq"}, "no method 'fq' .did you mean 'FQE'"),
        ({"simulator": "SOPR"}, "simulator: SOPR learns from known returns, as select does itself: name a method"),
        ({"simulator": 3}, "a method must be a name, or an estimator such as"),
        ({"groups": {"right-00": 1}}, "groups are the runs of progress=…: pass both"),
        ({"progress": {"right-00": 0}}, "progress of 'right-00' must be a number of"),
        ({"progress": {"right-00": "late"}}, "progress of 'right-00' must be a number of steps above 0, got 'late'"),
        ({"progress": [1]}, "progress must be by name, {policy: step}, got list"),
        ({"incumbent": "run1/left-21"}, "the incumbent run1/left-21 is none of the policies .did you mean 'left-21'"),
        ({"seed": -1}, "seed must be an integer, 0 or more"),
        ({"update": [1.0, 2.0]}, "returns must be by name"),
        ({"update": {"left-21": np.nan}}, "all are NaN or empty; if none is known, leave returns out"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        choose().update(**{"returns": options["update"]}) if "update" in options else choose(**options)


def test_tables_of_actions_without_known_returns_need_a_critic():
    tables = {name: policy(log().states) for name, policy in CANDIDATES.items()}
    tables["far"] = np.full_like(log().actions, 3)
    with pytest.raises(ValueError, match="o return is known.*simulator='BehaviourQ'"):
        select(tables, log())
    with pytest.raises(ValueError, match="BehaviourQ learns from rewards, and the log holds none: .*, or give returns"):
        select(CANDIDATES, log().states, simulator=BehaviourQ())
    selection = select(tables, log(), simulator=BehaviourQ(updates=500, hidden=(16,), discount=0.9))
    assert selection.names[selection.predicted.argmin()] == "far"
    assert "Values by BehaviourQ are not returns of episodes" in str(selection)


def test_tables_of_actions_are_in_the_order_of_the_data():
    """Loaded rows may be fewer."""
    steps = log()
    data = {key: getattr(steps, key) for key in ("states", "actions", "rewards", "terminals", "timeouts")}
    loaded = load_log(data)
    with pytest.raises(ValueError, match="actions for 570 states, the data has 600; log"):
        select({name: policy(loaded.states) for name, policy in CANDIDATES.items()}, loaded)
    known = {name: policy(steps.states) for name, policy in KNOWN.items()}
    with pytest.raises(ValueError, match=r"the data has 570; log.source holds the row in the data"):
        fit(known, loaded, RETURNS, config=Config(subset_size=64, clusters=4, steps=1))


def test_only_known_returns_count_where_rewards_are_missing():
    with pytest.raises(ValueError, match="holds no rewards.*o return is known.*columns={'rewards'"):
        select(CANDIDATES, {"observations": log().states})
    selection = select(KNOWN | CANDIDATES, {"observations": log().states}, RETURNS)
    assert selection.values is None and "The log holds no rewards, so only known returns and action" in str(selection)
    assert selection.evidence["left out"] > 0.5


def test_returns_may_be_in_the_order_of_policies_and_errors_widen():
    named, ordered = choose(), choose(returns=[*RETURNS.values(), *[np.nan] * len(CANDIDATES)])
    np.testing.assert_array_equal(named.predicted, ordered.predicted)
    noisy = choose(returns={name: [value - 1, value + 1] for name, value in RETURNS.items()})
    assert noisy.return_errors[:12] == pytest.approx(np.ones(12))
    assert np.diff(noisy.intervals()[:12])[:, 0] == pytest.approx(np.full(12, 2 * 1.2816), rel=1e-3)


def test_the_order_of_policies_does_not_matter():
    first = choose()
    second = choose(dict(reversed(CANDIDATES.items())), dict(reversed(KNOWN.items())))
    places = [second.names.index(name) for name in first.names]
    np.testing.assert_allclose(second.predicted[places], first.predicted, rtol=1e-9)
    np.testing.assert_allclose(second.probability_best[places], first.probability_best, atol=0.02)
    assert second.verdict.text == first.verdict.text


def test_plain_returns_of_copies_show_their_noise():
    """The first two differ only by noise, so the return of the third is as noisy."""
    table = pandas.DataFrame(
        {"return": [1.0, 3, 7, 9], "error": [np.nan] * 3 + [0.5], "rollouts": np.nan}, list("abcd")
    )
    returns, errors = Measured(list("abcd"), np.array([0, 0, 2, 3]), table).pooled
    assert returns.tolist() == [2, 7, 9] and errors == pytest.approx([1, np.sqrt(2), 0.5])
    returns, errors = Measured(list("abcd"), np.array([0, 1, 2, 2]), table).pooled
    assert returns.tolist() == [1, 3, 8] and errors == pytest.approx([np.sqrt(2)] * 2 + [1])
    both = table.assign(error=[0.3, 0.4, 0, 0])
    assert Measured(list("abcd"), np.array([0, 0, 2, 3]), both).pooled[1] == pytest.approx([0.25, 0, 0])
