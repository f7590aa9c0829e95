"""Evaluation of methods on policies whose returns are known."""

import itertools
import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from mdps import LinearGain, TablePolicy, Tabular
from scipy import stats
from selection_problems import DISCOUNT, Failing, Scripted, gains, log, true_values

from sopr_fast import Config
from sopr_fast.estimators import SOPR, BehaviourQ
from sopr_fast.inputs.logs import Transitions
from sopr_fast.runtime.progress import progress_bar
from sopr_fast.selection import evaluate
from sopr_fast.selection.columns import compute_columns, file_stem
from sopr_fast.selection.evaluation import Evaluation
from sopr_fast.selection.folds import Fold, random_folds
from sopr_fast.selection.workspace import Workspace, thin

QUIET = {"discount": DISCOUNT, "progress": False}
POLICIES = gains()
RETURNS = true_values(POLICIES)
TINY = Config(
    width=16, low_layers=1, low_feedforward=16, high_layers=1, high_heads=2, high_feedforward=16, subset_size=64,
    clusters=4, subsets=4, steps=8,
)  # fmt: skip


def noisy(seed: int, size: float) -> dict[str, float]:
    random = np.random.default_rng(seed)
    return {name: value + size * random.standard_normal() for name, value in RETURNS.items()}


def test_measures_agree_with_scipy_and_counting():
    method = Scripted(noisy(0, 0.3))
    evaluation = evaluate(POLICIES, RETURNS, log(), methods={"scripted": method}, folds=3, **QUIET)
    random = [fold for fold in evaluation.folds if fold.kind == "random"]
    names = list(POLICIES)
    spearman, gap, regret = [], [], []
    for fold in random:
        true = np.array([RETURNS[names[i]] for i in fold.test])
        says = np.array([method.says[names[i]] for i in fold.test])
        spearman.append(stats.spearmanr(true, says).statistic)
        pairs = list(itertools.combinations(range(len(true)), 2))
        total = sum(abs(true[i] - true[j]) for i, j in pairs)
        right = sum(abs(true[i] - true[j]) * np.sign((true[i] - true[j]) * (says[i] - says[j])) for i, j in pairs)
        gap.append(right / total)
        regret.append((true.max() - true[says.argmax()]) / np.ptp(true))
    measures = evaluation.measures("random")["scripted"]
    assert measures["spearman"][0] == pytest.approx(np.mean(spearman))
    assert measures["gap accuracy"][0] == pytest.approx(np.mean(gap))
    assert measures["regret@1"][0] == pytest.approx(np.mean(regret))


def test_unsupervised_methods_run_once_and_supervised_ones_never_see_the_fold():
    once, learner = Scripted(RETURNS), Scripted(RETURNS, supervised=True, needs_rewards=False)
    evaluation = evaluate(POLICIES, RETURNS, log(), methods={"once": once, "learner": learner}, folds=3, **QUIET)
    assert len(once.calls) == 1
    assert len(learner.calls) == len(evaluation.folds) == 5
    for asked, known in learner.calls:
        assert not set(asked) & set(known)
        assert set(asked) | set(known) == set(POLICIES)


def test_the_nearest_policy_leaves_one_out_in_random_folds_and_a_group_in_group_folds():
    gains = {f"{'ab'[i // 4]}-{i}": LinearGain(np.array([i // 4 * 9 + 1.01**i, 0.0])) for i in range(8)}
    returns = {name: float(i) for i, name in enumerate(gains)}
    evaluation = evaluate(gains, returns, log(), methods="nearest policy", folds=2, **QUIET)
    values = {"random": np.zeros(8), "group": np.zeros(8)}
    for fold, own in zip(evaluation.folds, evaluation.values["nearest policy"], strict=True):
        values[fold.kind][fold.test] = own
    assert all(abs(values["random"] - evaluation.returns) == 1)
    assert values["group"].tolist() == [4, 4, 4, 4, 3, 3, 3, 3]


def test_groups_are_found_by_name():
    evaluation = evaluate(POLICIES, RETURNS, log(), methods={"m": Scripted(RETURNS)}, folds=2, **QUIET)
    assert evaluation.group_source == "names"
    assert set(evaluation.groups) == {"left", "right"}
    assert [fold.name for fold in evaluation.folds if fold.kind == "group"] == ["right", "left"]


def test_a_method_that_is_right_everywhere_has_certain_measures():
    measures = evaluate(POLICIES, RETURNS, log(), methods={"m": Scripted(RETURNS)}, folds=2, **QUIET).measures()["m"]
    for name in ("spearman", "kendall", "gap accuracy"):
        assert measures[name] == pytest.approx((1, 1, 1))
    assert measures["regret@1"] == (0, 0, 0)


def test_intervals_hold_the_mean_and_widen_with_noise():
    methods = {"good": Scripted(noisy(1, 0.05)), "poor": Scripted(noisy(1, 2.0))}
    measures = evaluate(POLICIES, RETURNS, log(), methods=methods, folds=3, **QUIET).measures()
    widths = {}
    for method, each in measures.items():
        mean, low, high = each["spearman"]
        assert low <= mean <= high
        widths[method] = high - low
    assert widths["poor"] > widths["good"]


def evaluation_of(values, folds):
    """Return the evaluation of a method on folds of policies with returns 0, 1, …"""
    count = sum(map(len, folds))
    parts = [Fold("random", str(k), np.empty(0, int), np.array(test)) for k, test in enumerate(folds)]
    values = {"m": [np.asarray(values)[fold.test] for fold in parts]}
    names = [str(i) for i in range(count)]
    return Evaluation(names, np.arange(count), np.zeros(count), names, "given", parts, values, {}, {"m": 0.0})


def test_intervals_of_one_fold_have_the_width_of_the_correlation_s_error():
    rng = np.random.default_rng(0)
    mean, low, high = evaluation_of(np.arange(400) + 200 * rng.standard_normal(400), [range(400)]).measures()["m"][
        "spearman"
    ]
    assert high - low == pytest.approx(2 * stats.norm.ppf(0.95) * (1 - mean**2) / np.sqrt(399), rel=0.25)


def test_intervals_of_folds_that_differ_have_the_width_of_their_mean_s_error():
    folds = [range(10 * k, 10 * k + 10) for k in range(20)]
    values = np.concatenate([np.arange(10) * (-1) ** k for k in range(20)])  # every second order is reversed
    mean, low, high = evaluation_of(values, folds).measures()["m"]["spearman"]
    assert mean == 0
    assert high - low == pytest.approx(2 * stats.norm.ppf(0.95) / np.sqrt(20), rel=0.25)


def test_regret_of_all_policies_is_no_measure():
    measures = evaluation_of([3, 2, 1], [range(3)]).measures()["m"]
    assert measures["regret@1"][0] == 1 and np.isnan(measures["regret@3"]).all()


def test_policies_are_compared_on_states_of_the_whole_log():
    late = np.arange(5000) >= 4000
    workspace = Workspace.build({"a": np.zeros((5000, 1)), "b": late[:, None] * 1.0}, np.arange(5000.0)[:, None])
    assert workspace.distances[0, 1] == pytest.approx(0.2, abs=1e-3)


def test_coverage_is_the_share_of_states_in_which_a_policy_acts_as_the_log_does():
    policies = {"logged": LinearGain(np.array([0.0, -0.3])), "far": LinearGain(np.array([50.0, 50.0]))}
    coverage = Workspace.build(policies, log()).coverage()
    assert coverage[0] > 0.9 and coverage[1] < 0.1


@pytest.mark.parametrize("count", [10, 14])
def test_regret_of_a_reversed_order_is_certain(count):
    """A resample of one policy has no order, so it says nothing of regret."""
    policies = dict(list(POLICIES.items())[:count])
    method = Scripted({name: -value for name, value in RETURNS.items()}, needs_rewards=False)
    evaluation = evaluate(policies, [RETURNS[name] for name in policies], log(), methods={"m": method}, **QUIET)
    assert evaluation.measures("random")["m"]["regret@1"] == (1, 1, 1)


def test_copies_of_a_policy_are_noted():
    policies = POLICIES | {"twin": LinearGain(POLICIES["left-03"].gain)}
    returns = RETURNS | {"twin": RETURNS["left-03"]}
    options = {"methods": {"m": Scripted(returns)}, "folds": 3, **QUIET}
    [note] = [note for note in evaluate(policies, returns, log(), **options).notes if "acts as" in note]
    assert note.endswith("leave out twin (acts as left-03)")
    assert not any("acts as" in note for note in evaluate(POLICIES, RETURNS, log(), **options).notes)


def test_columns_of_another_version_are_refused(tmp_path, monkeypatch):
    options = {"methods": {"m": Scripted(RETURNS)}, "folds": 2, "checkpoints": tmp_path, **QUIET}
    evaluate(POLICIES, RETURNS, log(), **options)
    monkeypatch.setattr("sopr_fast.selection.columns.__version__", "999.0")
    with pytest.raises(ValueError, match=r"m\.json holds .* or of another version of sopr_fast; delete it or name"):
        evaluate(POLICIES, RETURNS, log(), **options)


def test_columns_of_policies_that_act_otherwise_at_the_same_distances_are_refused(tmp_path):
    options = {"methods": {"m": Scripted(RETURNS)}, "folds": 2, "checkpoints": tmp_path, **QUIET}
    evaluate(POLICIES, RETURNS, log(), **options)
    mirrored = {name: LinearGain(-policy.gain) for name, policy in POLICIES.items()}
    with pytest.raises(ValueError, match=r"m\.json holds values of another log, other policies"):
        evaluate(mirrored, RETURNS, log(), **options)


def test_gaps_within_standard_errors_are_ties():
    order = sorted(RETURNS, key=RETURNS.get)
    spaced = {name: float(10 * (place // 2) + place % 2) for place, name in enumerate(order)}
    swapped = {name: float(10 * (place // 2) - place % 2) for place, name in enumerate(order)}
    method = Scripted(swapped, needs_rewards=False)
    options = {"methods": {"m": method}, "folds": 2, "groups": ["g"] * len(POLICIES), **QUIET}
    sure = evaluate(POLICIES, spaced, log(), **options)
    unsure = evaluate(POLICIES, spaced, log(), return_errors=2.0, **options)
    assert sure.measures()["m"]["gap accuracy"][0] < 1
    assert unsure.measures()["m"]["gap accuracy"][0] == 1


def test_returns_may_be_rollouts_or_have_numbers_of_rollouts():
    rollouts = {name: [value - 1, value + 1, value] for name, value in RETURNS.items()}
    options = {"methods": {"m": Scripted(RETURNS)}, "folds": 2, **QUIET}
    by_list = evaluate(POLICIES, rollouts, log(), **options)
    by_number = evaluate(POLICIES, RETURNS, log(), return_errors=1.0, rollouts=3, **options)
    np.testing.assert_allclose(by_list.returns, list(RETURNS.values()))
    np.testing.assert_allclose(by_list.return_errors, 1 / np.sqrt(3))
    np.testing.assert_allclose(by_number.return_errors, 1 / np.sqrt(3))


def test_sopr_and_critics_evaluate_a_real_problem(tmp_path):
    methods = {"SOPR-T": SOPR(TINY, subsets=4), "nearest": "nearest policy"}
    methods["critic"] = BehaviourQ(updates=200, batch_size=64, hidden=(32,), learning_rate=3e-3)
    evaluation = evaluate(POLICIES, RETURNS, log(), methods=methods, folds=3, checkpoints=tmp_path, **QUIET)
    assert evaluation.methods == list(methods)
    assert evaluation.measures()["critic"]["gap accuracy"][0] > 0.3
    again = evaluate(POLICIES, RETURNS, log(), methods=methods, folds=3, checkpoints=tmp_path, **QUIET)
    assert again.to_dict() == evaluation.to_dict()


def test_columns_in_files_are_not_computed_again(tmp_path):
    options = {"folds": 2, "checkpoints": tmp_path, **QUIET}
    evaluate(POLICIES, RETURNS, log(), methods={"m": Scripted(RETURNS)}, **options)
    second = Scripted(RETURNS)
    evaluate(POLICIES, RETURNS, log(), methods={"m": second}, **options)
    assert second.calls == []


def test_what_a_killed_run_left_is_removed(tmp_path):
    options = {"folds": 2, "checkpoints": tmp_path, **QUIET}
    evaluate(POLICIES, RETURNS, log(), methods={"m": Scripted(RETURNS)}, **options)
    (tmp_path / "m.safetensors").write_bytes(b"checkpoint of a run killed between its column and its end")
    evaluate(POLICIES, RETURNS, log(), methods={"m": Scripted(RETURNS)}, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


def test_labels_have_files_of_their_own(tmp_path):
    labels = ["m", "M", "m-", "m!", "m?", "é", "ü", "!", "a b", "a-b", "a_b", "x" * 90, "x" * 91]
    stems = [file_stem(label) for label in labels]
    assert len(set(stems)) == len(labels) and {"m", "a-b"} < set(stems)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]{,90}", stem) for stem in stems)
    order = sorted(RETURNS, key=RETURNS.get)
    reversed_values = {name: RETURNS[other] for name, other in zip(order, order[::-1], strict=True)}
    methods = {"é": Scripted(RETURNS), "ü": Scripted(reversed_values)}
    for _ in range(2):  # the second time from files
        evaluation = evaluate(POLICIES, RETURNS, log(), methods=methods, folds=2, checkpoints=tmp_path, **QUIET)
        correlations = [evaluation.measures("random")[label]["spearman"][0] for label in methods]
        np.testing.assert_allclose(correlations, [1, -1])


@pytest.mark.parametrize("damage", [lambda text: text.replace("1", "2", 1), lambda text: text[:-9], lambda _: "[[[["])
def test_damaged_columns_are_refused(damage, tmp_path):
    options = {"methods": {"m": Scripted(RETURNS)}, "folds": 2, "checkpoints": tmp_path, **QUIET}
    evaluate(POLICIES, RETURNS, log(), **options)
    path = tmp_path / "m.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=r"m\.json is damaged, or of an older version .*; delete it"):
        evaluate(POLICIES, RETURNS, log(), **options)


def test_columns_of_another_run_are_refused(tmp_path):
    options = {"methods": {"m": Scripted(RETURNS, supervised=True)}, "folds": 2, "checkpoints": tmp_path, **QUIET}
    evaluate(POLICIES, RETURNS, log(), **options)
    with pytest.raises(ValueError, match=r"m\.json holds values of another log, other policies.*name another folder"):
        evaluate(POLICIES, {name: -value for name, value in RETURNS.items()}, log(), **options)


def test_methods_that_fail_are_dropped_with_the_reason():
    methods = {
        "fine": Scripted(RETURNS),
        "diverging": Failing(FloatingPointError("the loss is not finite")),
        "broken": Failing(KeyError("x")),
        "nan": Scripted(dict.fromkeys(RETURNS, float("nan"))),
        "constant": Scripted(dict.fromkeys(RETURNS, 1.0)),
    }
    evaluation = evaluate(POLICIES, RETURNS, log(), methods=methods, folds=2, **QUIET)
    assert evaluation.methods == ["fine"]
    assert evaluation.dropped == {
        "diverging": "the loss is not finite",
        "broken": "KeyError 'x'",
        "nan": "diverged: values are not finite",
        "constant": "gives all policies the same value",
    }
    assert "diverging was dropped: the loss is not finite" in evaluation.table()


def test_a_method_beyond_its_time_limit_is_dropped():
    class Slow(Scripted):
        def estimate(self, policies, log, **options):
            with progress_bar(1, "slow", "step", show=False) as bar:
                bar.update()
            return super().estimate(policies, log, **options)

    methods = {"fine": Scripted(RETURNS), "slow": Slow(RETURNS)}
    evaluation = evaluate(POLICIES, RETURNS, log(), methods=methods, folds=2, time_limit=1e-9, **QUIET)
    assert evaluation.dropped == {"slow": "stopped after its time limit of 1e-09 s"}


def test_an_error_says_so_if_no_method_is_left():
    with pytest.raises(ValueError, match=r"no method is left.*broken: out of luck"):
        evaluate(POLICIES, RETURNS, log(), methods={"broken": Failing(RuntimeError("out of luck"))}, folds=2, **QUIET)


def test_values_beyond_what_rewards_allow_are_clipped():
    wild = RETURNS | {next(iter(RETURNS)): 1e9}
    workspace = Workspace.build(POLICIES, log())
    folds = random_folds(len(POLICIES), 2, 0)
    values = np.array(list(RETURNS.values()))
    columns = compute_columns(
        workspace, {"m": Scripted(wild)}, values, folds, discount=DISCOUNT, seed=0, progress=False
    )
    assert columns.clipped == {"m": [next(iter(RETURNS))]}
    highest = workspace.log.rewards.max()  # rewards are negative: one step costs least
    assert max(each.max() for each in columns.values["m"]) == pytest.approx(highest)


def test_sums_over_a_horizon_are_not_clipped_where_rewards_are_positive():
    """Without terminals, an endless return is at least the smallest reward over 1 - γ; a sum over ten steps is less."""
    transitions = log()
    transitions = replace(transitions, rewards=transitions.rewards - transitions.rewards.min() + 1)
    workspace = Workspace.build(POLICIES, transitions)
    share = 1 - DISCOUNT**10
    says = {name: share * (1 + 0.1 * i) / (1 - DISCOUNT) for i, name in enumerate(POLICIES)}
    folds, values = random_folds(len(POLICIES), 2, 0), np.array(list(RETURNS.values()))
    columns = compute_columns(
        workspace, {"m": Scripted(says)}, values, folds, discount=DISCOUNT, seed=0, progress=False
    )
    assert columns.clipped == {}
    np.testing.assert_allclose(columns.column("m", len(POLICIES), "random"), list(says.values()))


def test_units_of_returns_drop_no_method():
    evaluations = [
        evaluate(
            POLICIES,
            {name: unit * value for name, value in RETURNS.items()},
            log(),
            methods={"m": Scripted({name: unit * said for name, said in noisy(0, 0.3).items()}, needs_rewards=False)},
            folds=2,
            **QUIET,
        )
        for unit in (1.0, 2.0**-40)
    ]
    assert evaluations[0].measures() == evaluations[1].measures()


def test_logs_without_rewards_leave_methods_that_need_none():
    methods = {"nearest": "nearest policy", "critic": "SARSA critic"}
    evaluation = evaluate(POLICIES, RETURNS, log().states, methods=methods, folds=2, **QUIET)
    assert evaluation.methods == ["nearest"]
    assert evaluation.dropped == {"critic": "the log holds no rewards"}


@pytest.mark.parametrize("discrete", [False, True])
def test_stochastic_and_discrete_policies(discrete):
    process = Tabular.random()
    policies = {f"table-{i}": TablePolicy(process.policy(i)) for i in range(6)}
    returns = {name: process.value(process.policy(i), DISCOUNT) for i, name in enumerate(policies)}
    transitions = process.log(process.policy(9), 20, 10, seed=0)
    if not discrete:
        policies = {name: LinearGain(np.array([0.1 * i, -0.3]), 0.2) for i, name in enumerate(policies)}
        transitions = log()
    methods = {"nearest": "nearest policy", "SOPR-T": SOPR(TINY, subsets=4)}
    evaluation = evaluate(policies, returns, transitions, methods=methods, folds=2, **QUIET)
    assert evaluation.methods == ["nearest", "SOPR-T"]


def test_remembered_actions_equal_those_of_the_policies():
    transitions = log()
    workspace = Workspace.build(POLICIES, transitions)
    states = torch.from_numpy(np.concatenate([transitions.states[:5], transitions.next_states[19:20]]))
    source = torch.tensor([0, 1, 2, 3, 4, 19])  # the last is the state after an episode's end
    for policy, own in zip(workspace.policies, POLICIES.values(), strict=True):
        np.testing.assert_allclose(policy.act(states, source).numpy(), own(states.numpy()), rtol=1e-5)


@pytest.mark.parametrize("mode", [partial(torch.device, "meta"), torch.inference_mode], ids=["device", "inference"])
def test_modes_of_torch_change_no_value(mode):
    def values():
        methods = {"critic": BehaviourQ(updates=8, hidden=(8,)), "SOPR-T": SOPR(TINY, subsets=4)}
        return evaluate(
            POLICIES, RETURNS, log(), methods=methods, folds=2, groups=["a"] * len(POLICIES), **QUIET
        ).values

    expected = values()
    with mode():
        actual = values()
    for method, each in expected.items():
        np.testing.assert_array_equal(np.concatenate(actual[method]), np.concatenate(each))


def test_thinned_logs_keep_whole_episodes():
    transitions = log(episodes=30, length=20)
    thinned = thin(transitions, 200)
    assert len(thinned) == 200
    np.testing.assert_array_equal(np.diff(thinned.episodes), 20)
    np.testing.assert_array_equal(transitions.states[thinned.source], thinned.states)
    assert thinned.timeouts.sum() == 10
    # Three policies that logged in turn: a third of the episodes is not a single policy's.
    assert len(np.unique(thinned.source // 20 % 3)) == 3


@pytest.mark.parametrize("rows", [599, 500, 301])
def test_thinning_keeps_about_as_many_rows_as_asked(rows):
    thinned = thin(log(episodes=30, length=20), rows)
    assert rows - 20 < len(thinned) <= rows
    assert len(np.unique(thinned.source)) == len(thinned)


def test_thinned_logs_of_one_long_episode_are_cut():
    count = 5000
    states = np.arange(count + 1.0)[:, None]
    one = Transitions.from_arrays(states[:-1], np.zeros((count, 1)), np.ones(count), states[1:])
    thinned = thin(one, 1000)
    assert 900 <= len(thinned) <= 1100
    np.testing.assert_array_equal(np.diff(thinned.episodes), 10)
    assert thinned.timeouts[thinned.episodes[1:] - 1].all()


def test_tables_and_dictionaries_hold_every_method():
    evaluation = evaluate(POLICIES, RETURNS, log(), methods={"m": Scripted(RETURNS)}, folds=2, **QUIET)
    assert "2 random folds of 14 policies" in evaluation.table()
    assert "one of 2 groups left out (found by name)" in evaluation.table()
    content = json.loads(json.dumps(evaluation.to_dict()))
    assert content["measures"]["group"]["m"]["spearman"]["mean"] == 1
    frame = evaluation.to_pandas()
    assert set(frame.columns) == {"folds", "method", "measure", "mean", "low", "high"}
    assert len(frame) == 2 * 5
    axes = evaluation.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["m"]


def test_one_group_is_noted():
    evaluation = evaluate(
        POLICIES, RETURNS, log(), methods={"m": Scripted(RETURNS)}, groups=["g"] * 14, folds=2, **QUIET
    )
    assert evaluation.kinds == ["random"]
    assert "nothing is known about foreign candidates" in evaluation.table()


def test_returns_that_are_ranks_are_noted():
    ranks = dict(zip(POLICIES, range(1, 15), strict=True))
    evaluation = evaluate(POLICIES, ranks, log(), methods={"m": Scripted(RETURNS)}, folds=2, **QUIET)
    assert "returns look like ranks" in evaluation.table()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"folds": 8}, "8 folds need 16 policies with known returns.*got 14; set folds=7 or fewer"),
        ({"folds": 1}, "folds must be an integer, 2 or more"),
        ({"methods": "no such"}, "no method 'no such'; choose from SOPR-T"),
        ({"methods": []}, "no methods given"),
        ({"methods": {"a": 3}}, "a method must be a name or an estimator, got 3"),
        ({"methods": BehaviourQ}, r"name or an estimator, got the class BehaviourQ; pass BehaviourQ\(\)"),
        ({"methods": [BehaviourQ(), BehaviourQ(updates=3)]}, "two methods are called 'BehaviourQ'"),
        ({"groups": ["a"]}, "groups must be one for each of 14 policies"),
        ({"groups": {"left-01": "a"}}, "groups hold nothing for policy 'right-00'"),
        ({"returns": dict.fromkeys(POLICIES, 1.0)}, "the returns of all policies are equal"),
        ({"returns": np.eye(14)}, "preferences.*sopr_fast.fit"),
        ({"returns": {**RETURNS, "left-01": float("nan")}}, "the return of policy 'left-01' is nan"),
        ({"return_errors": -1.0}, "return_errors of policy 'right-00' must be finite and not negative"),
        ({"rollouts": 3}, r"rollouts need return_errors.*load_returns\(table, names, rollouts=...\)"),
        ({"discount": 1.0}, "discount"),
        ({"rows": 0}, "rows must be an integer, 1 or more"),
        ({"time_limit": -1.0}, "time_limit must be a finite number, above 0"),
        ({"time_limit": float("nan")}, "time_limit must be a finite number, above 0"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"returns": RETURNS, "methods": {"m": Scripted(RETURNS)}, "folds": 2, **QUIET, **change}
    with pytest.raises((TypeError, ValueError), match=message):
        evaluate(POLICIES, arguments.pop("returns"), log(), **arguments)


def test_logged_actions_of_another_width_are_refused_before_methods_run():
    transitions = log()
    wide = Transitions.from_arrays(
        transitions.states,
        np.repeat(transitions.actions, 3, 1),
        transitions.rewards,
        transitions.next_states,
        transitions.terminals,
        transitions.timeouts,
    )
    critic = Scripted(RETURNS)
    with pytest.raises(
        ValueError, match=r"actions have 3 columns, but those of policy 'right-00' need 1 columns: name"
    ):
        evaluate(POLICIES, RETURNS, wide, methods={"critic": critic}, folds=2, **QUIET)
    assert not critic.calls
    assert evaluate(POLICIES, RETURNS, wide, methods="nearest policy", folds=2, **QUIET).values


def test_too_few_policies_say_how_many_are_needed():
    few = dict(list(POLICIES.items())[:3])
    with pytest.raises(ValueError, match="at least 4 policies with known returns are needed, got 3"):
        evaluate(few, [RETURNS[name] for name in few], log(), methods={"m": Scripted(RETURNS)}, folds=2, **QUIET)
