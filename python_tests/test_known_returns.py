"""Returns, standard errors and groups of known policies, by name or in order."""

import numpy as np
import pytest

from sopr_fast.estimators.cross_fit import _groups as fold_groups
from sopr_fast.selection.groups import read_groups
from sopr_fast.selection.known_returns import are_ranks, read_known_returns

NAMES = ["a", "b", "c", "d"]


def reversed_series(values):
    """Return a pandas series of values of `NAMES`, listed the other way round."""
    pandas = pytest.importorskip("pandas")
    return pandas.Series(values, NAMES)[::-1]


def test_series_are_read_by_name():
    returns = reversed_series([1.0, 2.0, 3.0, 4.0])
    values, errors = read_known_returns(
        returns, NAMES, reversed_series([2.0, 4.0, 6.0, 8.0]), reversed_series([1, 4, 4, 16])
    )
    np.testing.assert_array_equal(values, [1, 2, 3, 4])
    np.testing.assert_array_equal(errors, [2, 2, 3, 2])  # standard deviations over the roots of 1, 4, 4, 16 rollouts
    groups = reversed_series(["x", "y", "x", "y"])
    assert read_groups(groups, NAMES, np.zeros((4, 4))) == (["x", "y", "x", "y"], "given")
    groups["a"] = "z"
    np.testing.assert_array_equal(fold_groups(groups, NAMES), [0, 1, 2, 1])


@pytest.mark.parametrize(
    ("returns", "ranks"),
    [
        ([3, 1, 2], True),
        ([2, 0, 1], True),
        ([4, 2, 3], False),
        ([2, 0, 1.5], False),
        ([1, 1, 2], False),
        ([1, 2], False),
    ],
)
def test_ranks_are_the_numbers_from_0_or_1_on(returns, ranks):
    assert are_ranks(np.array(returns, float)) == ranks


def test_series_by_number_must_be_in_order():
    pandas = pytest.importorskip("pandas")
    ordered = pandas.Series([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(read_known_returns([0] * 4, NAMES, ordered)[1], [1, 2, 3, 4])
    assert read_groups(ordered.map(str), NAMES, np.zeros((4, 4)))[0] == ["1.0", "2.0", "3.0", "4.0"]
    for what, read in {
        "return_errors": lambda series: read_known_returns([0] * 4, NAMES, series),
        "rollouts": lambda series: read_known_returns([0] * 4, NAMES, 1.0, series),
        "groups": lambda series: read_groups(series, NAMES, np.zeros((4, 4))),
        "groups have": lambda series: fold_groups(series, NAMES),
    }.items():
        with pytest.raises(ValueError, match=f"^{what} .*neither names of policies nor 0 to 3"):
            read(ordered[::-1])


def test_values_that_policies_lack_are_named():
    with pytest.raises(ValueError, match="return_errors hold nothing for policy 'd'"):
        read_known_returns([0] * 4, NAMES, reversed_series([1.0] * 4)[1:])
    with pytest.raises(ValueError, match="groups must be one for each of 4 policies"):
        read_groups({"w", "x", "y", "z"}, NAMES, np.zeros((4, 4)))


@pytest.mark.parametrize("kind", [list, iter, dict, "series", "named series"])
def test_returns_may_be_lists_of_rollouts(kind):
    lists = [[1.0, 3.0], [2.0], [4.0, 4.0, 7.0], np.array([5.0, 5.0])]
    if kind is dict:
        lists = dict(zip(NAMES, lists, strict=True))
    elif isinstance(kind, str):
        lists = pytest.importorskip("pandas").Series(lists, NAMES if kind == "named series" else None)
    else:
        lists = kind(lists)
    values, errors = read_known_returns(lists, NAMES)
    np.testing.assert_array_equal(values, [2, 2, 5, 5])
    # The variance of 4, 4 and 7 is 3, over 3 rollouts; that of the single one is pooled, (2 + 2 * 3 + 0) / 4.
    np.testing.assert_allclose(errors, [1, np.sqrt(2), 1, 0])


def test_single_rollouts_have_the_error_of_others():
    deviations, rollouts = [0.0, 2.0, 4.0, 3.0], [1, 3, 2, 1]
    pooled = np.sqrt((2 * 4 + 1 * 16) / 3)
    np.testing.assert_allclose(
        read_known_returns([0] * 4, NAMES, deviations, rollouts)[1], [pooled, 2 / np.sqrt(3), 4 / np.sqrt(2), 3]
    )
    np.testing.assert_array_equal(read_known_returns([[1.0], [2.0], [3.0], [4.0]], NAMES)[1], 0)  # nothing tells


@pytest.mark.parametrize(
    ("returns", "options", "error", "message"),
    [
        ([[1, 2]] * 4, {"return_errors": 1.0}, ValueError, "leave out return_errors and rollouts"),
        (np.ones((4, 2)), {"rollouts": 2}, ValueError, "leave out return_errors and rollouts"),
        ([[1, 2]] * 3, {}, ValueError, "returns hold the rollouts of 3 policies, expected 4"),
        ([[1, 2], [], [1], [2]], {}, ValueError, "the rollouts of policy 'b' must be one or more finite returns"),
        ([[1, 2], 1, [1], [2]], {}, ValueError, "the rollouts of policy 'b' must be one or more finite returns"),
        ([[1, 2], [1], ["x"], [2]], {}, TypeError, "the rollouts of policy 'c' must be numbers"),
        ([[np.nan, 1, 1, 1], *[[0, 0.5, 1, 0]] * 3], {}, ValueError, "returns hold preferences between policies"),
    ],
)
def test_rollouts_that_cannot_be_are_refused(returns, options, error, message):
    with pytest.raises(error, match=message):
        read_known_returns(returns, NAMES, **options)
