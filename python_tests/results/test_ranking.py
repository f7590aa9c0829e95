"""Rankings: their order, probabilities, tables and plots."""

import dataclasses
import json

import numpy as np
import pytest
from scipy.stats import t

from sopr_fast import Ranking


def ranking_of(names, scores, **fields):
    return Ranking(list(names), np.array(scores, float), np.ones(len(scores)), **fields)


def test_win_probability_is_that_of_paired_differences():
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((4, 9)) + rng.standard_normal(9)
    scores[2] = scores[1]
    distances = np.array([1.0, np.nan, 3.0, 9.0])
    ranking = Ranking.from_subsets(list("abcd"), scores, distances=distances, distance_limit=8.0)
    wins, d = ranking.win_probability[:3, :3], scores[0] - scores[1]
    assert wins[0, 1] == pytest.approx(t.cdf(d.mean() / (d.std(ddof=1) / 3), df=8))
    np.testing.assert_allclose(wins + wins.T, 1)
    assert wins[1, 2] == 0.5
    assert np.isnan(ranking.win_probability[3]).all() and np.isnan(ranking.win_probability[:, 3]).all()  # foreign
    single = Ranking.from_subsets(["a", "b"], rng.standard_normal((2, 1)))
    assert np.isnan(single.win_probability).all() and np.isnan(single.standard_errors).all()
    assert np.isnan(ranking_of("ab", [1, 2]).win_probability).all()


def test_scores_that_differ_by_rounding_do_not_win():
    rng = np.random.default_rng(0)
    equal = 22.2 * (1 + np.finfo(float).eps * np.stack([np.arange(8) % 3, rng.integers(2, 5, 8)]))
    samples = np.vstack([equal, equal[0] - 1e-6])
    for ranking in (ranking_of("abc", samples.mean(1), replicates=samples), Ranking.from_subsets(list("abc"), samples)):
        wins = ranking.win_probability
        assert (ranking.scores[1] > ranking.scores[0]) and wins[0, 1] == wins[1, 0] == 0.5
        assert wins[0, 2] == 1 and wins[2, 1] < 1e-12


def test_rank_correlations_and_regret_go_by_name(tmp_path):
    ranking = ranking_of("abcd", [4, 3, 2, 1])
    returns = {"d": 10.0, "c": 40.0, "b": 20.0, "a": 30.0, "unused": 50.0}
    path = tmp_path / "returns.json"
    path.write_text(json.dumps(returns))
    for source in (returns, path, [30, 20, 40, 10]):
        assert ranking.spearman(source) == pytest.approx(0.4)
        assert ranking.regret(source) == pytest.approx(1 / 3) and ranking.regret(source, 3) == 0


def test_a_ranking_is_text_a_dict_and_a_frame():
    ranking = Ranking.from_subsets(
        ["a", "b", "c"],
        np.array([[2.0, 6.0], [1.0, 5.0], [-1.0, 3.0]]),
        distances=np.array([7.0, 9.0, 0.0]),
        distance_limit=8.0,
    )
    assert ranking.table().splitlines() == [
        "rank  policy  score  ± error  distance",
        "   1  a         4.0      2.0      7.00",
        "   2  b         3.0  foreign      9.00",
        "   3  c         1.0      2.0      0.00",
    ]
    assert str(ranking) == repr(ranking) == ranking.table()
    assert json.loads(json.dumps(ranking.to_dict()))["order"] == ranking.order
    frame = ranking.to_pandas()
    assert frame["policy"].tolist() == ranking.order and frame.index.tolist() == [1, 2, 3]
    assert list(frame) == ["policy", "score", "standard_error", "distance", "foreign"]
    unknown = dataclasses.replace(ranking, distances=np.array([9.0, np.nan, 7.0]))
    assert (
        unknown.foreign.tolist()
        == unknown.to_dict()["foreign"]
        == unknown.to_pandas()["foreign"].tolist()
        == [True, False, False]
    )
    without = ranking_of("zam", [1, 2, 1])
    assert without.order == ["a", "z", "m"] and without.best == "a"  # ties in input order
    assert "foreign" not in without.to_pandas() and not without.foreign.any()


def test_plots_mark_foreign_candidates_without_error_bars():
    ranking = ranking_of("ab", [2, 1], distances=np.array([9.0, 1.0]), distance_limit=8.0)
    axes = ranking.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["candidate", "foreign"]
    assert {line.get_label(): line.get_xydata().tolist() for line in axes.lines} == {
        "candidate": [[1, 1]],
        "foreign": [[2, 0]],
    }
    assert axes.collections[0].get_segments()[0].tolist() == [[0, 1], [2, 1]]
    assert not len(axes.collections[1].get_segments()[0])  # no error of a foreign one
    axes = ranking.plot([30, 10])
    marks = {line.get_marker(): line.get_xydata().tolist() for line in axes.lines if line.get_linestyle() == "None"}
    assert marks == {"o": [[2, 30]], "x": [[2, 30]]} and axes.containers[0][0].get_xydata().tolist() == [[1, 10]]
    assert [bar.tolist() for bar in axes.containers[0][2][0].get_segments()] == [[[0, 10], [2, 10]]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["foreign: a"]
    axes = ranking_of("abcd", [4, 3, 2, 1]).plot({"d": 1.0, "c": 2.0, "b": 3.0, "a": 0.0, "unused": 40.0})
    assert axes.containers[0][0].get_ydata().tolist() == [0, 3, 2, 1] and axes.get_legend() is None


def test_an_outlier_is_an_arrow_at_the_side_of_a_plot():
    axes = ranking_of("abcde", [1.0, 1.5, 2.0, 2.5, -1e6]).plot()
    assert axes.get_xlim() == (0.0, 3.0)
    assert [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "<"] == [[[0.02, 4]]]


def test_a_long_ranking_is_shortened_in_the_middle():
    names = [f"sac/rl_model_{i}_steps" for i in range(1000)]
    ranking = ranking_of(names, -np.arange(1000))
    lines = repr(ranking).splitlines()
    assert len(lines) == 12 and max(map(len, lines)) <= 80
    places = [line.split()[0] for line in lines[1:]]
    assert places == ["1", "2", "3", "4", "5", "...", "996", "997", "998", "999", "1000"]
    assert len(ranking.table().splitlines()) == 1001
    assert len(repr(ranking_of(names[:60], range(60))).splitlines()) == 61
    assert ranking._repr_html_().count("<tr") == 12
    assert len(ranking.plot().get_yticklabels()) == 50
