"""Folds: random ones, one group left out, and those that a user gives."""

import dataclasses

import numpy as np
import pytest
from scipy import stats
from selection_problems import DISCOUNT, Scripted, gains, log, true_values

from sopr_fast.reports import report
from sopr_fast.selection import evaluate
from sopr_fast.selection.folds import given_folds, group_folds, random_folds

NAMES = ["a", "b", "c", "d", "e"]
POLICIES = gains(8)
RETURNS = true_values(POLICIES)


def test_random_folds_partition_the_policies():
    folds = random_folds(13, 5, seed=3)
    assert sorted(np.concatenate([fold.test for fold in folds])) == list(range(13))
    for fold in folds:
        assert sorted([*fold.train, *fold.test]) == list(range(13))
        assert len(fold.test) in (2, 3)


def test_random_folds_depend_on_the_seed():
    tested = [[fold.test.tolist() for fold in random_folds(12, 3, seed)] for seed in (0, 0, 1)]
    assert tested[0] == tested[1] != tested[2]


def test_group_folds_leave_out_one_group_each():
    folds = group_folds(["a", "b", "a", "c", "b"])
    assert [(fold.name, fold.test.tolist(), fold.train.tolist()) for fold in folds] == [
        ("a", [0, 2], [1, 3, 4]),
        ("b", [1, 4], [0, 2, 3]),
    ]  # a single policy has no order


def test_one_group_has_no_group_folds():
    assert group_folds(["a", "a", "a"]) == []


@pytest.mark.parametrize(("others", "left_out"), [(2, ["b"]), (3, ["b"]), (4, ["a", "b"])])
def test_group_folds_leave_a_quarter_to_learn_from(others, left_out):
    assert [fold.name for fold in group_folds(["a"] * 10 + ["b"] * others)] == left_out


def test_given_folds_name_policies_or_their_positions():
    folds = given_folds({"I": (["c", "a"], ["e", "d"]), "II": (np.array([0, 1]), range(2, 5))}, NAMES)
    assert [(fold.kind, fold.name, fold.train.tolist(), fold.test.tolist()) for fold in folds] == [
        ("given", "I", [2, 0], [4, 3]),
        ("given", "II", [0, 1], [2, 3, 4]),
    ]
    assert [fold.name for fold in given_folds([([0, 1], [2, 3]), ([2, 3], [0, 1])], NAMES)] == ["1", "2"]


@pytest.mark.parametrize(
    ("folds", "error", "message"),
    [
        ([], ValueError, "no folds given"),
        (["ab"], TypeError, "fold '1' must be a pair .policies to learn from, policies to value., got 'ab'"),
        ([[0, 1, 2]], TypeError, "fold '1' must be a pair"),
        ([(0, 1), (2, 3)], TypeError, "fold '1' must be a pair"),
        ([("ab", "cd")], TypeError, "fold '1' must be a pair"),
        ([{(0, 1), (2, 3)}], TypeError, "fold '1' must be a pair"),
        ({"I": (["a", "x"], ["b", "c"])}, ValueError, "fold 'I' holds 'x', but its policies must be names"),
        ([([0, 1], [2, 5])], ValueError, "fold '1' holds 5, but .* positions below 5"),
        ([([0, -1], [2, 3])], ValueError, "fold '1' holds -1"),
        ([([0, 1.0], [2, 3])], ValueError, "fold '1' holds 1.0"),
        ([([0, 1], [2])], ValueError, "fold '1' has 1 policies to value; at least two are needed"),
        ([([0], [2, 1])], ValueError, "fold '1' has 1 policies to learn from"),
        ([([0, 1], [2, "b"])], ValueError, "fold '1' holds policy 'b' more than once"),
    ],
)  # fmt: skip
def test_bad_folds_are_named(folds, error, message):
    with pytest.raises(error, match=message):
        given_folds(folds, NAMES)


def test_given_folds_replace_all_others_and_share_models_of_equal_training_policies():
    names, returns = list(POLICIES), np.array(list(RETURNS.values()))
    folds = {"I": (names[:4], names[4:6]), "II": (names[:4], names[5:]), "III": (names[4:], names[:4])}
    says = dict(zip(names, np.random.default_rng(0).permutation(8).tolist(), strict=True))
    learner = Scripted(says, supervised=True, needs_rewards=False)
    options = {"discount": DISCOUNT, "progress": False}
    evaluation = evaluate(POLICIES, RETURNS, log(), methods={"m": learner}, folds=folds, **options)
    assert learner.calls == [(names[4:], names[:4]), (names[:4], names[4:])]
    assert evaluation.kinds == ["given"]
    assert [fold.name for fold in evaluation.folds] == list(folds)
    own = [stats.spearmanr(returns[test], [says[names[i]] for i in test]).statistic for test in ([5, 6, 7], range(4))]
    assert evaluation.measures(fold="II")["m"]["spearman"][0] == pytest.approx(own[0])
    assert evaluation.measures("given", "III")["m"]["spearman"][0] == pytest.approx(own[1])
    assert "3 given folds of 8 policies" in evaluation.table()
    with pytest.raises(ValueError, match="no fold 'given' 'IV'; choose from given 'I', given 'II', given 'III'"):
        evaluation.measures(fold="IV")


def test_given_folds_do_not_resume_from_random_ones_in_which_each_policy_is_left_out_alone(tmp_path):
    options = {"discount": DISCOUNT, "progress": False, "checkpoints": tmp_path, "methods": ["nearest policy"]}
    groups = ["all"] * len(POLICIES)
    random = evaluate(POLICIES, RETURNS, log(), folds=2, groups=groups, **options)
    with pytest.raises(ValueError, match="holds values of another log, other policies, returns, folds or options"):
        evaluate(POLICIES, RETURNS, log(), folds=[(fold.train, fold.test) for fold in random.folds], **options)


@pytest.mark.parametrize("changed", ["rewards", "actions", "next_states"])
def test_columns_of_another_log_are_not_resumed(changed, tmp_path):
    options = {"discount": DISCOUNT, "progress": False, "checkpoints": tmp_path, "methods": {"m": Scripted(RETURNS)}}
    evaluate(POLICIES, RETURNS, log(), folds=2, **options)
    array = getattr(log(), changed).copy()
    array[7] += 0.5
    with pytest.raises(ValueError, match="holds values of another log, other policies, returns, folds or options"):
        evaluate(POLICIES, RETURNS, dataclasses.replace(log(), **{changed: array}), folds=2, **options)


def test_a_report_of_given_folds(tmp_path):
    names = list(POLICIES)
    folds = [(names[:4], names[4:7])]
    options = {"discount": DISCOUNT, "progress": False}
    evaluation = evaluate(POLICIES, RETURNS, log(), methods={"m": Scripted(RETURNS)}, folds=folds, **options)
    report(evaluation, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "Candidates of 1 given fold" in text
    assert "folds=folds" in text
    assert "left out by given folds" in text
