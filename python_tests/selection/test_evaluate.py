"""`evaluate`: methods on policies that they have not learned from."""

import numpy as np
import pandas
import pytest
from scipy import stats
from support.selection_problems import Failing, Scripted, gains, log, true_values

from sopr_fast.estimators import FQE, GaussianProcess, Simulator
from sopr_fast.estimators.gaussian_process_posterior import fit
from sopr_fast.results.metrics import policy_distances
from sopr_fast.selection import evaluate
from sopr_fast.selection.evaluation import group_folds
from sopr_fast.selection.values import checkpoint_file

POLICIES = gains(12)
RETURNS = true_values(POLICIES)
NAMES, VALUES = list(POLICIES), np.array(list(RETURNS.values()))
GROUPS = {name: name.split("-")[0] for name in NAMES}


def run(methods, policies=POLICIES, returns=RETURNS, **options):
    return evaluate(policies, log(), returns, **{"methods": methods, "cv": 3, **options})


def test_a_learner_never_sees_the_policies_it_is_asked_about_and_other_methods_value_each_once():
    learner, method = Scripted(RETURNS, supervised=True, needs_rewards=False), Scripted(RETURNS)
    evaluation = run({"m": learner, "all": method})
    asked = [names for names, _ in learner.calls]
    assert sorted(name for names in asked for name in names) == sorted(NAMES) and len(method.calls) == 1
    np.testing.assert_array_equal(evaluation.values["all"], VALUES)
    run({"m": learner}, groups=GROUPS)
    assert [names for names, _ in learner.calls[3:]] == [
        [name for name in NAMES if name.startswith(side)] for side in ("right", "left")
    ]
    assert all(not set(names) & set(known) for names, known in learner.calls)
    other = run({"m": learner}, seed=1)
    assert other.folds["1"].tolist() != evaluation.folds["1"].tolist()


def test_measures_are_taken_over_all_random_folds_together():
    random = np.random.default_rng(3)
    says = dict(zip(NAMES, VALUES + random.standard_normal(12), strict=True))
    measures = run({"m": Scripted(says)}, cv=6).measures["m"]
    values = np.array([says[name] for name in NAMES])
    assert measures["spearman"][0] == pytest.approx(stats.spearmanr(values, VALUES).statistic)
    regret = (VALUES.max() - VALUES[values.argmax()]) / np.ptp(VALUES)
    assert measures["regret@1"][0] == pytest.approx(regret)
    low, high = measures["spearman"][1:]
    assert low < measures["spearman"][0] < high < 1


def test_measures_of_groups_are_means_over_groups_of_three_or_more():
    says = dict(zip(NAMES, VALUES + np.random.default_rng(4).standard_normal(12), strict=True))
    groups = {name: "pair" if i < 2 else "ab"[i % 2] for i, name in enumerate(NAMES)}
    evaluation = run({"m": Scripted(says)}, groups=pandas.Series(groups)[::-1])
    parts = [[i for i, name in enumerate(NAMES) if groups[name] == group] for group in "ab"]
    expected = np.mean([stats.spearmanr(VALUES[p], [says[NAMES[i]] for i in p]).statistic for p in parts])
    assert evaluation.measures["m"]["spearman"][0] == pytest.approx(expected)
    assert "give groups" not in " ".join(evaluation.notes) and "give groups" in str(run({"m": Scripted(says)}))
    alone = run({"m": Scripted(says)}, groups=groups | {NAMES[0]: "alone"})
    [note] = {*alone.notes} - {*evaluation.notes}
    assert note == "Groups of one policy, or of nearly all, are not left out: alone, pair"
    pairs = run({"m": Scripted(says)}, groups={name: str(i // 2) for i, name in enumerate(NAMES)})
    assert np.isnan(pairs.measures["m"]["spearman"][0]) and "too few" in pairs.headline


def test_the_model_of_select_is_a_method_and_shares_its_simulator(monkeypatch):
    simulator, runs = Simulator(updates=30, hidden=(8,), members=1), []
    estimate = Simulator.estimate
    monkeypatch.setattr(Simulator, "estimate", lambda *given, **more: runs.append(1) or estimate(*given, **more))
    errors = np.linspace(0, 0.2, 12)
    returns = pandas.DataFrame({"name": NAMES, "return": VALUES, "error": errors})
    evaluation = run([GaussianProcess(mean=simulator), simulator], returns=returns)
    assert list(evaluation.values) == ["GaussianProcess(Simulator)", "Simulator"] and len(runs) == 1
    columns = np.stack([policy(log().states) for policy in POLICIES.values()])
    distances, simulated = policy_distances(columns, columns), evaluation.values["Simulator"]
    for test in evaluation.folds.values():
        known = np.where(np.isin(np.arange(12), test), np.nan, VALUES)
        expected = fit(distances, known, errors, simulated).mean[test]
        values = evaluation.values["GaussianProcess(Simulator)"][test]
        np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-3 * np.ptp(VALUES))


def test_a_tie_is_called_a_tie():
    random = np.random.default_rng(1)
    noisy = {name: value + 0.3 * random.standard_normal() for name, value in RETURNS.items()}
    wrong = {name: -value for name, value in RETURNS.items()}
    evaluation = run({"right": Scripted(RETURNS), "near": Scripted(noisy), "wrong": Scripted(wrong)})
    assert evaluation.tied == ["right", "near"]
    assert "no clear difference: right, near" in str(evaluation)


def test_methods_that_fail_or_say_nothing_are_dropped_with_a_reason():
    methods = {"fine": Scripted(RETURNS), "broken": Failing(RuntimeError("no memory\nleft"))}
    methods |= {"equal": Scripted(dict.fromkeys(NAMES, 1.0)), "diverged": Scripted(dict.fromkeys(NAMES, np.nan))}
    evaluation = run(methods)
    assert list(evaluation.values) == ["fine"]
    assert evaluation.dropped == {
        "broken": "no memory left",
        "equal": "it gives all policies the same value",
        "diverged": "it diverged: values are not finite",
    }
    with pytest.raises(ValueError, match="no method is left to value the policies .broken: no memory left"):
        run({"broken": methods["broken"]})
    states = {"observations": log().states}
    evaluation = evaluate(POLICIES, states, RETURNS, methods=["NearestPolicy", "FQE"], cv=2)
    assert evaluation.dropped == {"FQE": "it needs rewards, which the log lacks"}


def test_a_simulator_resumes_from_its_folder(tmp_path):
    options = {"methods": {"simulator": Simulator(updates=30, hidden=(8,), members=1)}, "checkpoints": tmp_path}
    first = run(**options)
    assert [path.name for path in tmp_path.iterdir()] == [
        checkpoint_file(tmp_path, options["methods"]["simulator"]).name
    ]
    again = run(**options)
    np.testing.assert_array_equal(first.values["simulator"], again.values["simulator"])
    (tmp_path / "returns.csv").touch()
    with pytest.raises(NotADirectoryError, match="returns.csv is a file: name another"):
        checkpoint_file(tmp_path / "returns.csv", options["methods"]["simulator"])


def test_policies_without_a_return_are_left_out():
    evaluation = run(["NearestPolicy"], returns=dict(list(RETURNS.items())[:6]))
    assert evaluation.names == NAMES[:6] and list(evaluation.values) == ["NearestPolicy"]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (["a", "b", "a", "c", "b"], ["a", "b"]),  # a single policy has no order
        (["a"] * 10 + ["b"] * 2, ["b"]),  # a quarter must be left to learn from
        (["a"] * 10 + ["b"] * 4, ["a", "b"]),
    ],
)
def test_group_folds(groups, expected):
    assert [*group_folds(groups)] == expected
    with pytest.raises(ValueError, match="groups leave no policies to learn from, or one to order: give larger groups"):
        group_folds(["a", "a", "a"])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"methods": ["magic"]}, ValueError, "no method 'magic'"),
        ({"methods": "magic"}, ValueError, "no method 'magic'"),
        ({"methods": []}, ValueError, "no methods given: name some of GaussianProcess"),
        ({"methods": [FQE]}, TypeError, r"an estimator such as FQE\(\), got <class"),
        ({"methods": ["FQE", FQE()]}, ValueError, "two methods are called 'FQE'"),
        ({"methods": ["NearestPolicy"], "returns": dict.fromkeys(NAMES, 1.0)}, ValueError, "returns .* are equal"),
        (
            {"methods": ["NearestPolicy"], "returns": {NAMES[0]: 1.0}},
            ValueError,
            "at least 4 .*, got 1; those that act alike count",
        ),
        ({"methods": ["NearestPolicy"], "cv": 1}, ValueError, "cv must be an integer, 2 or more"),
        ({"methods": ["NearestPolicy"], "groups": {"right-00": 1}}, ValueError, "hold nothing .* 10 more: name the"),
        (
            {"methods": ["NearestPolicy"], "groups": ["a"]},
            TypeError,
            "groups must be by name, .*, got list",
        ),
    ],
)
def test_bad_input_is_named(options, error, message):
    with pytest.raises(error, match=message):
        run(**options)
