"""Estimates as tables, rankings, data frames and plots."""

import json

import numpy as np
import pytest
from scipy.stats import t

from sopr_fast.estimators import Estimates


def make(replicates=None, values=(1.0, 3.0, 2.0), **options):
    names = list("abc")[: len(values)]
    return Estimates(names, np.array(values), replicates=replicates, **options)


def test_table_lists_the_best_first():
    estimates = make(np.array([[0.0, 2.0], [3.0, 3.0]]), (1.0, 3.0), method="FQE")
    first, heading, *rows = estimates.table().splitlines()
    assert first == "Estimates of 2 policies by FQE"
    assert heading.split() == ["rank", "policy", "score", "±", "error"]
    assert [row.split() for row in rows] == [["1", "b", "3.0", "0.0"], ["2", "a", "1.0", "1.4"]]
    assert repr(estimates) == estimates.table()
    without = make(method="FQE")
    assert "error" not in str(without) and "nan" not in str(without)
    assert "b has the highest score of 3 candidates" in without._repr_html_()


def test_standard_errors_that_are_nan_stay_nan():
    replicates = np.array([[np.nan, np.nan, np.nan], [0.0, 1.0, 2.0], [1.0, 3.0, 2.0]])
    ranking = make(replicates, (5.0, 1.0, 2.0))
    assert ranking.order == ["a", "c", "b"]
    np.testing.assert_allclose(ranking.standard_errors, [np.nan, 1, 1])
    wins = ranking.win_probability
    assert np.isnan(wins[0]).all() and np.isnan(wins[:, 0]).all()
    assert wins[2, 1] == pytest.approx(t.cdf(1, df=2))  # the differences 1, 2 and 0 have standard deviation 1


def test_to_dict_is_json_without_callables():
    estimates = make(diagnostics={"mass": np.ones(3), "critic": len, "parts": (np.float32(2),)}, method="FQE")
    loaded = json.loads(json.dumps(estimates.to_dict()))
    assert loaded["names"] == ["a", "b", "c"] and loaded["values"] == [1, 3, 2]
    assert loaded["diagnostics"] == {"mass": [1, 1, 1], "parts": [2]}
