import dataclasses
import json
import os
import re
import warnings

import numpy as np
import pytest
import torch
from problems import TINY, LinearPolicy, ladder, log, training_gains
from scipy.stats import norm

import sopr_fast
from sopr_fast import Ranking, Subsets
from sopr_fast.sopr.ranker import ForeignPolicyWarning
from sopr_fast.sopr.training_policies import TrainingPolicies


@pytest.fixture(scope="module")
def ranker():
    gains = training_gains()
    return sopr_fast.fit(ladder(gains), gains, log(), config=TINY, progress=False)


@pytest.fixture
def candidates():
    return ladder([0.3, 1.2, 0.7])


def test_rank_orders_and_averages_over_subsets(ranker, candidates):
    ranking = ranker.rank(candidates, log(seed=5), subsets=7)
    assert ranking.subset_scores.shape == (3, 7)
    np.testing.assert_allclose(ranking.scores, ranking.subset_scores.mean(1))
    assert ranking.order == ["gain-1.200", "gain-0.700", "gain-0.300"]
    assert ranking.best == "gain-1.200" and ranking.ranks.tolist() == [3, 1, 2]
    errors = ranking.subset_scores.std(1, ddof=1) / np.sqrt(7)
    np.testing.assert_allclose(ranking.standard_errors, errors)


def test_a_score_does_not_depend_on_the_other_candidates(ranker, candidates):
    together = ranker.rank(candidates, log())
    for name, policy in candidates.items():
        alone = ranker.rank({name: policy}, log())
        assert np.array_equal(alone.subset_scores[0], together.subset_scores[together.names.index(name)])


@pytest.mark.parametrize("spoil", [lambda a: a * np.nan, lambda a: a[:-1], lambda a: 1 / 0])
def test_a_candidate_that_fails_late_fails_before_clustering(ranker, candidates, spoil, monkeypatch):
    monkeypatch.setattr(sopr_fast.ops, "kmeans", None)
    monkeypatch.setattr("sopr_fast.sopr.ranker.score_grid", None)
    late = {"late": lambda states: spoil(states[:, :2]) if len(states) > 16 else states[:, :2]}
    with pytest.raises((ValueError, RuntimeError), match="policy 'late'"):
        ranker.rank(candidates | late, log())


def test_a_model_that_gives_no_numbers_says_so(ranker, candidates, monkeypatch):
    monkeypatch.setattr("sopr_fast.sopr.ranker.score_grid", lambda *_, **__: torch.full((3, 5), torch.nan))
    with pytest.raises(ValueError, match="scores that are not finite"):
        ranker.rank(candidates, log())


def test_five_subsets_are_a_prefix_of_twelve(ranker, candidates):
    few, many = ranker.rank(candidates, log(), subsets=5), ranker.rank(candidates, log(), subsets=12)
    assert np.array_equal(few.subset_scores, many.subset_scores[:, :5])


def test_rank_does_not_depend_on_tiling_or_threads(ranker, candidates, monkeypatch):
    before = torch.get_num_threads()
    expected = ranker.rank(candidates, log(), subsets=6).subset_scores
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            assert np.array_equal(ranker.rank(candidates, log(), subsets=6).subset_scores, expected)
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr("sopr_fast.sopr.scoring._TILE_BYTES", 1)
    monkeypatch.setattr("sopr_fast.sopr.columns._TILE_BYTES", 1)
    for memory in (1 << 30, 0):
        monkeypatch.setattr("sopr_fast.sopr.columns._MEMORY_BYTES", memory)
        assert np.array_equal(ranker.rank(candidates, log(), subsets=6).subset_scores, expected)


def test_precisions_keep_the_order(ranker):
    candidates = ladder(np.linspace(0.15, 1.45, 12))
    exact = ranker.rank(candidates, log(), subsets=8, precision="fp32")
    rough = ranker.rank(candidates, log(), subsets=8, precision="bf16")
    error = np.abs(exact.scores - rough.scores).max()
    assert error <= 0.01 * exact.scores.std()
    apart = np.abs(exact.scores[:, None] - exact.scores) > 2 * error
    order = np.sign(exact.scores[:, None] - exact.scores)
    assert (np.sign(rough.scores[:, None] - rough.scores) == order)[apart].all()
    with pytest.raises(ValueError, match="precision is 'fp16'"):
        ranker.rank(candidates, log(), precision="fp16")


def test_without_states_the_kept_subsets_serve(ranker, candidates):
    assert len(ranker.subsets) == 5
    again = Subsets.draw(log(), 5, size=TINY.subset_size, clusters=TINY.clusters, seed=0)
    kept, given = ranker.rank(candidates), ranker.rank(candidates, subsets=again)
    assert np.array_equal(kept.subset_scores, given.subset_scores)
    assert ranker.rank(candidates, subsets=2).subset_scores.shape == (3, 2)
    with pytest.raises(ValueError, match="6 subsets asked for, there are 5"):
        ranker.rank(candidates, subsets=6)


def test_each_drawn_state_is_shown_once_in_batches(ranker):
    shown = []

    def policy(states):
        shown.append(len(states))
        return ladder([0.4]).popitem()[1](states)

    ranking = ranker.rank([policy], log(), subsets=4, batch_size=100)
    drawn = Subsets.draw(log(), 4, size=TINY.subset_size, clusters=TINY.clusters, seed=0)
    assert max(shown) <= 100
    # A probe and the sample of the training's states come on top.
    assert shown[0] == 13
    assert sum(shown) == len(drawn.states) + 13 + len(ranker.training_policies.states)
    assert ranking.names == ["policy-000"]


def test_timings_cover_the_stages(ranker, candidates):
    timings = ranker.rank(candidates, log()).timings
    assert set(timings) == {"drawing", "clustering", "policies", "encoding"}
    assert all(seconds >= 0 for seconds in timings.values())


def test_foreign_candidates_are_named(ranker, candidates):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ForeignPolicyWarning)
        ranker.rank(candidates, log())
    odd = {"odd": lambda states: -np.sign(states[:, :2])}
    with pytest.warns(ForeignPolicyWarning, match=r"'odd' \(.*exceeds") as caught:
        ranking = ranker.rank(candidates | odd, log())
        sopr_fast.rank(candidates | odd, log(), model=ranker)
    assert "gain" not in str(caught[0].message)
    assert [warning.filename for warning in caught] == [__file__] * 2
    limit, distance = ranking.distance_limit, ranking.distances[3]
    assert distance > limit and "foreign" in ranking.table()
    known = ranker.training_policies
    actions = np.stack([policy(known.states.numpy()) for policy in ladder(training_gains()).values()])
    own = ((actions[:, None] - actions[None]) ** 2).sum(-1).mean(-1)
    np.fill_diagonal(own, np.inf)
    assert limit == pytest.approx(2 * np.quantile(own.min(1), 0.75), rel=1e-5)
    away = ((odd["odd"](known.states.numpy()) - actions) ** 2).sum(-1).mean(-1)
    assert distance == pytest.approx(away.min(), rel=1e-5)


def test_an_odd_training_policy_does_not_excuse_foreign_candidates():
    columns = torch.tensor([0.0, 1.0, 2.0, 3.0, 100.0]).reshape(5, 1, 1)
    known = TrainingPolicies(list("abcde"), torch.zeros(1, 1), torch.zeros(1), columns, torch.zeros(5))
    assert known.distance_limit == 2  # of squared distances 1, 1, 1, 1 and 97 ** 2


@pytest.mark.filterwarnings("ignore::sopr_fast.ForeignPolicyWarning")
def test_scores_are_drawn_to_that_of_the_nearest_training_policy(ranker, candidates, tmp_path):
    candidates |= {"odd": lambda states: -np.sign(states[:, :2])}
    plain, half, whole = (ranker.rank(candidates, log(), shrinkage=x) for x in (0, 0.5, None))
    assert plain.shrinkage is None

    known = ladder(training_gains())
    states = ranker.training_policies.states.numpy()
    actions, asked = (np.stack([policy(states) for policy in group.values()]) for group in (known, candidates))
    away, own = (((x[:, None] - actions[None].astype(float)) ** 2).sum(-1).mean(-1) for x in (asked, actions))
    np.fill_diagonal(own, np.inf)
    share = plain.distances / (plain.distances + np.median(own.min(1)))
    nearest = ranker.rank(known, shrinkage=0).scores[away.argmin(1)]
    for found, amount in ((half, 0.5), (whole, 1)):
        np.testing.assert_allclose(found.shrinkage, amount * share, rtol=1e-5)
        expected = plain.subset_scores + found.shrinkage[:, None] * (nearest[:, None] - plain.subset_scores)
        np.testing.assert_allclose(found.subset_scores, expected, rtol=1e-5)
    assert whole.shrinkage.argmax() == 3 and "shrinkage" in whole.table() and "shrinkage" not in plain.table()

    ranker.save(tmp_path / "model.safetensors")
    loaded = sopr_fast.load(tmp_path / "model.safetensors").rank(candidates, log())
    assert np.array_equal(loaded.scores, whole.scores)


def test_training_policies_keep_their_scores(ranker):
    known = ladder(training_gains())
    assert np.array_equal(ranker.rank(known).scores, ranker.rank(known, shrinkage=0).scores)


def test_a_score_is_the_models_own_where_its_distance_is_unknown(ranker, candidates, monkeypatch):
    states = log(seed=8)
    given = candidates | {"array": candidates["gain-0.700"](states)}
    with pytest.warns(ForeignPolicyWarning, match="unknown distance to the training policies: 'array';"):
        ranking = ranker.rank(given, states)
    assert ranking.shrinkage[-1] == 0 and (ranking.shrinkage[:-1] > 0).all()
    assert np.array_equal(ranking.scores[:-1], ranker.rank(candidates, states).scores)
    own = ranker.rank(candidates, states, shrinkage=0).subset_scores[ranking.names.index("gain-0.700")]
    np.testing.assert_allclose(ranking.subset_scores[-1], own, rtol=1e-6)
    monkeypatch.setattr("sopr_fast.sopr.ranker.Tiles", None)
    with pytest.raises(ValueError, match="shrinkage needs the distance of 'array'"):
        ranker.rank(given, states, shrinkage=1)


def test_arrays_on_the_kept_subsets_have_a_distance(ranker, candidates):
    given = {name: policy(log()) for name, policy in candidates.items()}
    expected = ranker.rank(candidates)
    found = ranker.rank(given)
    np.testing.assert_allclose(found.distances, expected.distances, rtol=1e-5)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
    assert (expected.shrinkage > 0).all()


def test_arrays_on_the_training_log_have_a_distance(ranker, candidates, tmp_path):
    grown = np.concatenate([log(), log(rows=50, seed=1)])
    np.save(tmp_path / "log.npy", grown)
    expected = ranker.rank(candidates)
    for states in (log(), torch.from_numpy(log()).double(), grown, tmp_path / "log.npy"):
        actions = grown if isinstance(states, str | os.PathLike) else np.asarray(states, np.float32)
        given = {name: policy(actions) for name, policy in candidates.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("error", ForeignPolicyWarning)
            ranking = ranker.rank(given, states)
        np.testing.assert_allclose(ranking.distances, expected.distances, rtol=1e-5)
        np.testing.assert_allclose(ranking.shrinkage, expected.shrinkage, rtol=1e-5)


@pytest.mark.parametrize("change", ["shorter", "other", "moved"])
def test_a_log_that_differs_in_a_remembered_row_is_another(ranker, candidates, change):
    states, last = log(), ranker.training_policies.source[-1]
    if change == "shorter":
        states = states[:last]
    elif change == "other":
        states[last, 0] += 1e-3
    else:
        states = np.roll(states, 1, 0)
    given = {name: policy(states) for name, policy in candidates.items()}
    with pytest.warns(ForeignPolicyWarning) as caught:
        ranking = ranker.rank(given | {"called": candidates["gain-0.700"]}, states)
    (warning,) = caught
    assert "unknown distance to the training policies: " + ", ".join(map(repr, given)) + ";" in str(warning.message)
    assert np.isnan(ranking.distances[:3]).all() and np.isfinite(ranking.distances[3])


@pytest.mark.parametrize("shrinkage", [-1, np.nan, 1.5, "much"])
def test_shrinkage_must_be_a_share(ranker, candidates, shrinkage):
    with pytest.raises(ValueError, match="shrinkage must be (a finite number, 0 or more|from 0 to 1)"):
        ranker.rank(candidates, log(), shrinkage=shrinkage)


def test_equal_training_policies_leave_nothing_to_measure_shrinkage_by():
    twins = dict.fromkeys("abcd", LinearPolicy(0.2))
    with pytest.warns(UserWarning, match="all training policies act alike") as caught:
        ranker = sopr_fast.fit(twins, range(4), log(), config=TINY, progress=False)
    assert "act alike" in str(caught[0].message) and caught[0].filename == __file__
    with pytest.warns(ForeignPolicyWarning):
        assert ranker.rank(ladder([0.2, 1.0])).shrinkage.tolist() == [0, 0]


def test_repeated_training_policies_count_once():
    columns = torch.tensor([0.0, 0.0, 1.0, 0.0, 3.0, 3.0]).reshape(6, 1, 1)
    known = TrainingPolicies(list("abcdef"), torch.zeros(1, 1), torch.zeros(1), columns, torch.zeros(6))
    assert known.distance_limit == 5  # twice the upper quartile of squared distances 1, 1 and 4
    assert known.shrinkage(np.array([0.0, 1.0, 3.0, np.nan])).tolist() == [0, 0.5, 0.75, 0]


def test_arrays_of_actions_follow_the_states(ranker, candidates):
    states = log(seed=8)
    arrays = {name: policy(states) for name, policy in candidates.items()}
    by_call = ranker.rank(candidates, states, shrinkage=0)
    with pytest.warns(ForeignPolicyWarning, match="unknown distance"):
        by_array = ranker.rank(arrays, states)
    np.testing.assert_allclose(by_array.subset_scores, by_call.subset_scores, rtol=1e-6)
    assert np.isnan(by_array.distances).all() and np.isfinite(by_call.distances).all()


def test_arrays_of_actions_on_the_subsets_of_another_log(ranker, candidates):
    states = log(rows=200, seed=8)  # too few for the row numbers of the training's log
    arrays = {name: policy(states) for name, policy in candidates.items()}
    subsets = Subsets.draw(states, 3, size=TINY.subset_size, clusters=TINY.clusters)
    with pytest.warns(ForeignPolicyWarning, match="unknown distance"):
        by_array = ranker.rank(arrays, subsets=subsets)
    by_call = ranker.rank(candidates, subsets=subsets, shrinkage=0)
    np.testing.assert_allclose(by_array.subset_scores, by_call.subset_scores, rtol=1e-6)
    assert np.isnan(by_array.distances).all()

    logged = {name: policy(log()) for name, policy in candidates.items()}
    expected = ranker.rank(candidates).distances
    for kept in (None, 2, ranker.subsets):
        np.testing.assert_allclose(ranker.rank(logged, subsets=kept).distances, expected, rtol=1e-5)


def test_only_a_model_that_sorts_clusters_needs_as_many(ranker, candidates, monkeypatch):
    config = dataclasses.replace(TINY, steps=2, subsets=2, score="sort")
    gains = training_gains()
    sorting = sopr_fast.fit(ladder(gains), gains, log(), config=config, progress=False)
    fewer = Subsets.draw(log(), 2, size=TINY.subset_size, clusters=TINY.clusters - 1)
    assert np.isfinite(ranker.rank(candidates, subsets=fewer).scores).all()
    monkeypatch.setattr("sopr_fast.sopr.ranker.Tiles", None)
    with pytest.raises(ValueError, match="subsets have 7 clusters, but a model with score='sort' needs the 8 it was"):
        sorting.rank(candidates, subsets=fewer)


@pytest.mark.filterwarnings("ignore::sopr_fast.ForeignPolicyWarning")
def test_discrete_candidates_may_return_indices():
    def softmax(gain):
        return lambda states: torch.distributions.Categorical(logits=gain * torch.from_numpy(states))

    gains = training_gains()
    config = dataclasses.replace(TINY, steps=2, subsets=2)
    trained = sopr_fast.fit([softmax(gain) for gain in gains], gains, log(), config=config, progress=False)
    ranking = trained.rank([softmax(1.0), lambda states: states.argmax(1)], log(seed=5), progress=False)
    assert np.isfinite(ranking.scores).all()
    with pytest.raises(ValueError, match="policy-000.*no probabilities"):
        trained.rank([lambda states: states], log())
    with pytest.raises(ValueError, match="policy-000.*continuous distribution"):
        trained.rank([lambda states: torch.distributions.Normal(torch.from_numpy(states), 1.0)], log())


def test_win_probability_is_that_of_paired_differences():
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((3, 9)) + rng.standard_normal(9)
    scores[2] = scores[1]
    found = Ranking(["a", "b", "c"], scores).win_probability
    d = scores[0] - scores[1]
    assert found[0, 1] == pytest.approx(norm.cdf(d.mean() / (d.std(ddof=1) / 3)))
    np.testing.assert_allclose(found + found.T, 1)
    assert found[1, 2] == 0.5
    single = Ranking(["a", "b"], rng.standard_normal((2, 1)))
    assert np.isnan(single.win_probability).all() and np.isnan(single.standard_errors).all()


def test_ties_stand_in_input_order():
    ranking = Ranking(["z", "a", "m"], np.array([[1.0], [2.0], [1.0]]))
    assert ranking.order == ["a", "z", "m"]


def test_ranking_as_text_dict_and_frame(ranker, candidates):
    ranking = ranker.rank(candidates, log())
    lines = ranking.table().splitlines()
    assert len(lines) == 4 and "gain-1.200" in lines[1]
    assert str(ranking) == repr(ranking) == ranking.table()
    plain = json.loads(json.dumps(ranking.to_dict()))
    assert plain["order"] == ranking.order and plain["win_probability"] == ranking.win_probability.tolist()
    frame = ranking.to_pandas()
    assert frame["policy"].tolist() == ranking.order and frame.index.tolist() == [1, 2, 3]
    assert list(frame) == ["policy", "score", "standard_error", "shrinkage", "distance", "foreign"]


def test_shrinkage_stands_beside_the_scores_that_hold_it():
    ranking = Ranking(["a", "b"], np.array([[3.0, 5.0], [1.0, 3.0]]), np.array([0.25, 0.5]), np.array([7.0, 9.0]), 8.0)
    assert ranking.table().splitlines() == [
        "rank  policy      score    ± error  shrinkage   distance",
        "   1  a          4.0000     1.0000     0.2500     7.0000",
        "   2  b          2.0000     1.0000     0.5000     9.0000  foreign",
    ]
    frame = ranking.to_pandas()
    assert frame["shrinkage"].tolist() == [0.25, 0.5] and frame["foreign"].tolist() == [False, True]
    without = Ranking(["a", "b"], ranking.subset_scores)
    assert "shrinkage" not in without.table() and "shrinkage" not in without.to_pandas()
    assert "foreign" not in without.to_pandas() and without.to_dict()["foreign"] is None


def test_an_unknown_distance_is_neither_foreign_nor_not():
    scores = np.array([[3.0], [2.0], [1.0]])
    ranking = Ranking(["a", "b", "c"], scores, distances=np.array([9.0, np.nan, 7.0]), distance_limit=8.0)
    assert ranking.foreign == ranking.to_dict()["foreign"] == [True, None, False]
    text = ranking.to_pandas().to_csv()
    assert [line.rsplit(",", 1)[1] for line in text.splitlines()] == ["foreign", "True", "", "False"]


def test_plot_shows_every_policy(ranker, candidates, tmp_path):
    ranking = ranker.rank(candidates, log())
    axes = ranking.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == ranking.order[::-1]
    axes = ranking.plot(returns=[0.3, 1.2, 0.7])
    axes.figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_plot_writes_each_return_beside_its_policy():
    pandas = pytest.importorskip("pandas")
    ranking = Ranking(["a", "b", "c"], np.array([[2.0], [3.0], [1.0]]))
    by_name = {"c": 30.0, "b": 20.0, "a": 10.0, "unused": 40.0}
    for returns in ([10, 20, 30], by_name, pandas.Series(by_name)):
        right = ranking.plot(returns).figure.axes[1]
        assert [label.get_text() for label in right.get_yticklabels()] == ["30", "10", "20"]
    with pytest.raises(ValueError, match=r"shape \(3,\), one for each policy, got \(2,\)"):
        ranking.plot([10, 20])
    with pytest.raises(ValueError, match="returns hold nothing for policy 'b'"):
        ranking.plot({"a": 1.0})


def test_rank_finds_its_model(ranker, candidates, tmp_path, monkeypatch):
    monkeypatch.delenv("SOPR_FAST_MODEL", raising=False)
    with pytest.raises(ValueError, match="pass model=.*set SOPR_FAST_MODEL"):
        sopr_fast.rank(candidates, log())
    path = tmp_path / "model.safetensors"
    ranker.save(path)
    expected = sopr_fast.rank(candidates, log(), model=ranker).subset_scores
    assert np.array_equal(sopr_fast.rank(candidates, log(), model=path).subset_scores, expected)
    monkeypatch.setenv("SOPR_FAST_MODEL", str(path))
    assert np.array_equal(sopr_fast.rank(candidates, log()).subset_scores, expected)
    (tmp_path / "other").write_text("no model")
    for name, error in (("nofile", FileNotFoundError), ("other", ValueError), (".", IsADirectoryError)):
        monkeypatch.setenv("SOPR_FAST_MODEL", str(tmp_path / name))
        with pytest.raises(error, match=f"SOPR_FAST_MODEL: .*{re.escape(str(tmp_path / name))}"):
            sopr_fast.rank(candidates, log())
