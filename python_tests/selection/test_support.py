"""What a simulator's members and the support of the log say of values, with and without known returns."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr
from support.selection_problems import Scripted, gains, log, true_values

from sopr_fast.estimators.log_support import agreement_in_words, unsupported_in_words
from sopr_fast.estimators.member_errors import member_errors, relative_errors
from sopr_fast.selection import select
from sopr_fast.selection.selection import trained_shares
from sopr_fast.selection.widening import errors_far_from_known, widening

POLICIES = gains(14)
TRUTH = true_values(POLICIES)


def chosen(returns=None, says=TRUTH, **fields):
    return replace(select(POLICIES, log(), returns, simulator=Scripted(says)), **fields)


def members(*spreads, count=4, seed=0):
    """Return values (P, count) of members, whose mean is the truth, with standard deviations (P,)."""
    noise = np.random.default_rng(seed).standard_normal((len(spreads), count))
    noise = (noise - noise.mean(1, keepdims=True)) / noise.std(1, ddof=1, keepdims=True)
    return np.array([*TRUTH.values()])[: len(spreads), None] + np.array(spreads)[:, None] * noise


def test_errors_are_half_shared_as_members_show():
    values = members(0.1, 0.2, 0.4)
    correlations = spearmanr(values).statistic[np.triu_indices(4, 1)]
    counting = 1.5**2 * (1 - max(correlations.mean(), 0))
    covariance = member_errors(values, np.eye(3))
    np.testing.assert_allclose(covariance, counting * (0.5 * np.cov(values) + 0.5 * np.diag([0.01, 0.04, 0.16])))
    alike = member_errors(values, np.ones((3, 3)))  # three policies that act alike: their mean variance counts as half
    np.testing.assert_allclose(np.diagonal(alike), counting * (np.array([0.01, 0.04, 0.16]) + 0.07) / 2)


def test_errors_are_small_where_members_agree_on_the_order_and_whole_where_they_do_not():
    offsets = np.array([-1.0, 0, 0, 1])
    agreeing, reversed_ = np.arange(5.0)[:, None] + offsets, np.outer(np.arange(5.0), [1, -1, 1, -1]) + offsets
    np.testing.assert_allclose(member_errors(agreeing, np.eye(5)), 0, atol=1e-12)
    variances = np.diagonal(member_errors(reversed_, np.eye(5)))
    np.testing.assert_allclose(variances, 1.5**2 * reversed_.var(1, ddof=1))


def test_relative_errors_are_one_among_the_known_and_larger_where_members_disagree():
    errors = relative_errors(members(0.1, 0.1, 0.4), np.eye(3), np.array([0, 1]))
    np.testing.assert_allclose(errors, np.sqrt([1, 1, (0.16 + 0.09 * 0.06) / (0.01 + 0.09 * 0.06)]))
    np.testing.assert_array_equal(relative_errors(np.ones((3, 2)), np.eye(3), np.array([0])), 1)


def test_intervals_without_known_returns_follow_the_members():
    sure, unsure = (chosen(members=members(*[spread] * 14)) for spread in (0.01, 1.0))
    widths = [np.ptp(selection.intervals(), axis=1) for selection in (sure, unsure)]
    assert (widths[1] > 1.5 * widths[0]).all()
    np.testing.assert_allclose(sure.predicted, unsure.predicted)


def test_known_returns_count_more_where_members_disagree():
    """The values of two candidates err alike; that of which the members disagree is moved more by the known returns."""
    names = list(POLICIES)
    returns = {name: TRUTH[name] for name in names[:8]}
    selection = chosen(returns, members=members(*[0.02] * 12, 0.5, 0.02))
    deviations = selection.posterior.deviation
    assert deviations[12] > 1.3 * chosen(returns, members=members(*[0.02] * 14)).posterior.deviation[12]


def test_known_returns_show_errors_of_policies_that_act_alike_only():
    """Policy 0 is known; 1 acts the same, 2 half alike, 3 and 4 like each other and unlike it."""
    alike = np.eye(5)
    alike[0, 1] = alike[1, 0] = alike[3, 4] = alike[4, 3] = 1
    covariance = errors_far_from_known(members(*[0.1] * 3, 0.2, 0.2), np.array([0, 0, 0.5, 1, 1]), alike)
    expected = np.zeros((5, 5))
    expected[2, 2], expected[3:, 3:] = 0.15**2 / 2, 0.3**2
    np.testing.assert_allclose(covariance, expected, atol=1e-12)


def test_what_the_log_does_not_show_widens_by_the_returns_or_by_what_is_not_lived():
    """Policies 0 and 1 act alike; 1 is half supported, 2 early ended, 3 half like a known policy, 4 supported."""
    alike = np.eye(5)
    alike[0, 1] = alike[1, 0] = 1
    supports, unlike = np.array([0.9, 0.45, 0.9, 0.9, 0.4]), np.array([1, 1, 1, 0.25, 1])
    deviations = np.array([1.5 * 2, 1.5 * 2 / 2, 2.5 * 10, 1.5 * 2 / 2, 0])
    expected = np.outer(deviations, deviations) * (0.5 + 0.5 * alike)
    covariance = widening(supports, unlike, alike, unit=2.0, unlived=np.array([0, 0, 10.0, 0, 10]))
    np.testing.assert_allclose(covariance, expected, atol=1e-12)


UNSHOWN = {"unsupported": np.where(np.arange(14) == 3, 0.9, 0.05)}


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"members": members(*[0.01] * 14)}, "The simulators agree on the order: 1.00"),
        ({"members": members(*[50.0] * 14)}, "The simulators do not agree on the order: .*; this log does not tell"),
        ({"state_error": 0.93}, "On held-out rows the simulator misses 93 % of the change of state: are rows and"),
        (UNSHOWN, "The log does not show what these do: 90 % of their decisions are unlike logged ones; measure"),
        ({"outside": UNSHOWN["unsupported"]}, r"rollouts of 'left-03' \(90 % of steps\) leave the range of the log"),
    ],
)
def test_what_the_simulator_and_the_log_tell_is_noted(fields, note):
    selection, quiet = chosen(**fields), chosen(state_error=0.25)
    assert [bool(re.match(note, text)) for text in selection.to_dict()["notes"]].count(True) == 1
    assert note[:20] in selection.table() and note[:20] not in quiet.table()


def test_agreement_counts_as_whole_from_08_and_as_part_from_065():
    words = [agreement_in_words(value) for value in (0.8, 0.79, 0.65, 0.64, float("nan"))]
    assert [each and each[0].partition(":")[0].removeprefix("The simulators ") for each in words] == [
        "agree on the order",
        "agree on the order in part",
        "agree on the order in part",
        "do not agree on the order",
        [],
    ]


def test_what_the_log_does_not_show_is_flagged_and_uncertain():
    shares = UNSHOWN["unsupported"].copy()
    selection, supported = chosen(unsupported=shares), chosen(unsupported=np.full(14, 0.05))
    assert selection.flags[3] == "not in the log" and selection.columns()["unsupported"].count(0.9) == 1
    name = selection.names[3]
    wider = np.ptp(selection.intervals(), axis=1) > 1.05 * np.ptp(supported.intervals(), axis=1)
    assert np.flatnonzero(wider).tolist() == [3]
    measured = selection.update({name: TRUTH[name]})
    assert measured.flags[3] == "measured" and "The log does not show" not in str(measured.notes)
    shares[5] = 0.5
    (note,) = unsupported_in_words(selection.names, shares, selection.known)
    assert "these do: 50 % to 90 % of their decisions" in note


def test_values_that_order_the_known_policies_in_reverse_count_for_nothing():
    returns = {name: TRUTH[name] for name in list(POLICIES)[:8]}
    reversed_, alone = chosen(returns, {name: -value for name, value in TRUTH.items()}), chosen(returns, values=None)
    np.testing.assert_allclose(reversed_.predicted, alone.predicted)
    assert not np.allclose(chosen(returns).predicted, alone.predicted)


def test_the_probability_that_one_policy_is_better():
    selection = chosen({name: TRUTH[name] for name in list(POLICIES)[:8]})
    a, b = selection.names[9], selection.names[12]
    draws = np.random.default_rng(0).multivariate_normal(
        selection.posterior.mean[[9, 12]], selection.posterior.covariance[np.ix_([9, 12], [9, 12])], 100_000
    )
    assert selection.probability_better(a, b) == pytest.approx((draws[:, 0] > draws[:, 1]).mean(), abs=0.01)
    assert selection.probability_better(a, b) + selection.probability_better(b, a) == pytest.approx(1)
    with pytest.raises(ValueError, match="no policy 'x'"):
        selection.probability_better(a, "x")


def test_later_snapshots_count_as_better_until_known_returns_correct_that():
    """The values are right, and know nothing of training."""
    names, says = list(POLICIES), {name: 0.1 * (i % 5) - 5 for i, name in enumerate(POLICIES)}
    steps = {name: 1000 * (i // 2 + 1) for i, name in enumerate(names[:12])}  # of two runs; two policies have none
    runs = {name: name.split("-")[0] for name in names}
    plain, late = (
        select(POLICIES, log(), simulator=Scripted(says), **told) for told in ({}, {"progress": steps, "groups": runs})
    )
    order = [np.corrcoef(selection.predicted[:12], [*steps.values()])[0, 1] for selection in (plain, late)]
    assert order[1] > 0.6 > 0.4 > order[0]
    np.testing.assert_allclose(late.predicted[12:], plain.predicted[12:], atol=0.15)
    corrected = late.update({name: says[name] for name in names[:8]})
    errors = [np.abs(selection.predicted - [*says.values()])[8:12].mean() for selection in (corrected, late)]
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("known", [0, 3, 6])
def test_training_counts_for_more_where_the_log_does_not_show_what_policies_do(known):
    trained, agreeing, gained = np.tile([-1.0, 1.0], 7), members(*[0.01] * 14), []
    for share in (0.05, 0.9):
        told = chosen(dict([*TRUTH.items()][:known]) or None, members=agreeing, unsupported=np.full(14, share))
        change = (replace(told, progress=trained).predicted - told.predicted)[known:]
        gained.append(change[trained[known:] > 0].mean() - change[trained[known:] < 0].mean())
    assert gained[1] > 2 * gained[0] > 0
    of_some = replace(told, progress=np.where(np.arange(14) < 9, trained, np.nan)).posterior.covariance
    assert np.linalg.eigvalsh(of_some).min() > -1e-9


def test_progress_is_a_share_of_the_last_step_of_a_run():
    names = ["a1", "a2", "b1", "c1", "c2", "d"]
    steps = {"a1": 5, "a2": 10, "b1": 3, "c1": 2, "c2": 8}
    shares = trained_shares(steps, names, {name: name[0] for name in names})
    np.testing.assert_array_equal(shares, [0.5, 1, np.nan, 0.25, 1, np.nan])
    np.testing.assert_array_equal(trained_shares(steps, names), [0.5, 1, 0.3, 0.2, 0.8, np.nan])
