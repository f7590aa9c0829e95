"""`Ranker.rank` and `sopr_fast.rank`: scores, foreign candidates, and what is refused or told."""

import dataclasses
import re
import warnings

import numpy as np
import pandas
import pytest
import torch
from support.problems import TINY, LinearPolicy, fit, ladder, log, training_gains

import sopr_fast
from sopr_fast import CollapsedTrainingWarning, ForeignPolicyWarning
from sopr_fast.results.warnings import warn_of_states
from sopr_fast.sopr.subsets import Subsets
from sopr_fast.sopr.training_policies import TrainingPolicies


@pytest.fixture(scope="module")
def ranker():
    return fit()


@pytest.fixture
def candidates():
    return ladder([0.3, 1.2, 0.7])


def test_rank_orders_and_averages_over_subsets(ranker, candidates):
    ranking = ranker.rank(candidates, log(seed=5), subsets=7)
    few = ranker.rank(candidates, log(seed=5))  # a prefix
    assert ranking.subset_scores.shape == (3, 7) and np.array_equal(few.subset_scores, ranking.subset_scores[:, :5])
    np.testing.assert_allclose(ranking.scores, ranking.subset_scores.mean(1))
    assert ranking.order == ["gain-1.200", "gain-0.700", "gain-0.300"]
    assert ranking.best == "gain-1.200" and ranking.ranks.tolist() == [3, 1, 2]
    errors = ranking.subset_scores.std(1, ddof=1) / np.sqrt(7)
    np.testing.assert_allclose(ranking.standard_errors, errors)


@pytest.mark.parametrize("spoil", [lambda a: a * np.nan, lambda a: a[:-1], lambda a: 1 / 0])
def test_a_candidate_that_fails_late_fails_before_clustering(ranker, candidates, spoil, monkeypatch):
    monkeypatch.setattr(sopr_fast.ops, "kmeans", None)
    monkeypatch.setattr("sopr_fast.sopr.ranker.score_grid", None)
    late = {"late": lambda states: spoil(states[:, :2]) if len(states) > 16 else states[:, :2]}
    with pytest.raises((ValueError, RuntimeError), match="policy 'late'"):
        ranker.rank(candidates | late, log())


def test_scores_that_are_not_finite_raise(ranker, candidates, monkeypatch):
    monkeypatch.setattr("sopr_fast.sopr.ranker.score_grid", lambda *_, **__: torch.full((3, 5), torch.nan))
    with pytest.raises(ValueError, match="scores that are not finite"):
        ranker.rank(candidates, log())


def test_rank_does_not_depend_on_tiling_or_threads(ranker, candidates, monkeypatch, on_threads):
    def scores():
        return ranker.rank(candidates, log(), subsets=6).subset_scores

    expected, *others = on_threads(scores, 1, 2, 5)
    monkeypatch.setattr("sopr_fast.runtime.resources.free_memory", lambda: 0.0)
    for tiles in (1 << 30, 0):  # columns of so many tiles stay in memory
        monkeypatch.setattr("sopr_fast.inputs.policies.acting._MEMORY_TILES", tiles)
        others.append(scores())
    assert all(np.array_equal(other, expected) for other in others)


def test_precisions_give_nearly_the_same_scores(ranker):
    candidates = ladder(np.linspace(0.15, 1.45, 12))
    exact = ranker.rank(candidates, log(), subsets=8)
    rough = fit(dataclasses.replace(TINY, precision="bf16")).rank(candidates, log(), subsets=8)
    assert np.abs(exact.scores - rough.scores).max() <= 0.01 * exact.scores.std()


def test_without_states_the_kept_subsets_are_used(ranker, candidates):
    assert len(ranker.subsets) == 5
    by_kept, by_drawn = ranker.rank(candidates), ranker.rank(candidates, log())
    assert np.array_equal(by_kept.subset_scores, by_drawn.subset_scores)
    assert ranker.rank(candidates, subsets=2).subset_scores.shape == (3, 2)
    with pytest.raises(ValueError, match="cannot take 6 subsets: there are 5; pass the log as states"):
        ranker.rank(candidates, subsets=6)


@pytest.mark.parametrize("batch_size", [100, 4096])
def test_a_candidate_acts_once_in_all_states(ranker, batch_size):
    shown = []

    def policy(states):
        shown.append(len(states))
        return LinearPolicy(0.4)(states)

    with sopr_fast.options(batch_size=batch_size):
        ranking = ranker.rank([policy], log(), subsets=4)
    drawn = Subsets.draw(log(), 4, size=TINY.subset_size, clusters=TINY.clusters, seed=0)
    states = len(drawn.states) + len(ranker.training_policies.states)
    *batches, again, once_more = shown  # whose last two see whether answers repeat
    assert sum(batches) == states and len(batches) == -(-states // batch_size) and max(batches) <= batch_size
    assert again == once_more == 6 and ranking.names == ["policy-000"]


def test_states_unlike_those_of_training_are_warned_of(ranker, candidates):
    for unit in (1e-30, 0.01, 100.0, 1e10):
        states = torch.as_tensor(log()) * torch.tensor([1, unit, 1, 1])
        with pytest.warns(UserWarning, match=r"unlike those of training, in 1 of 4 columns: 1 \(.*, in training"):
            ranker.rank(candidates, states, subsets=2)
    training = torch.stack([torch.linspace(0, 1, 500), torch.full((500,), 3.0), (torch.arange(500) < 5).float()], 1)
    with warnings.catch_warnings(action="error"):
        warn_of_states(training.flip(0).repeat(3, 1), training)
        warn_of_states(training[5:], training)  # a rare event that did not happen
    with pytest.warns(UserWarning, match=r"in 2 of 3 columns: 0 \(.*\), 1 \(0 to 1, in training 3 to 3\)"):
        warn_of_states(training[:, [1, 0, 2]], training)


def test_columns_of_states_in_another_order_are_refused(candidates, tmp_path):
    frame = pandas.DataFrame(log(), columns=["x", "v", "y", "w"])

    def states(*names):
        return sopr_fast.load_log(frame, columns={"states": names})

    fit(states=states("x", "v", "y", "w")).save(tmp_path / "model.safetensors")
    ranker = sopr_fast.load(tmp_path / "model.safetensors")
    expected = ranker.rank(candidates, log()).scores  # whose columns have no names
    assert np.array_equal(ranker.rank(candidates, states("x", "v", "y", "w")).scores, expected)
    with pytest.raises(
        ValueError, match="states have the columns v, x, y, w, those of training were x, v, y, w: choose"
    ):
        ranker.rank(candidates, states("v", "x", "y", "w"))


def test_foreign_candidates_are_named(ranker, candidates):
    with warnings.catch_warnings(action="error"):
        ranker.rank(candidates, log())
    odd = {"odd": lambda states: -np.sign(states[:, :2])}
    with pytest.warns(ForeignPolicyWarning, match=r"'odd' \(.*extrapolations") as caught:
        ranking = ranker.rank(candidates | odd, log())
        sopr_fast.rank(candidates | odd, log(), model=ranker)
    assert "gain" not in str(caught[0].message)
    assert [warning.filename for warning in caught] == [__file__] * 2
    assert ranking.foreign.tolist() == [False, False, False, True]
    states = ranker.training_policies.states.numpy()
    actions = np.stack([policy(states) for policy in ladder(training_gains()).values()])
    away = ((odd["odd"](states) - actions) ** 2).sum(-1).mean(-1)
    assert ranking.distances[3] == pytest.approx(away.min(), rel=1e-5)


@pytest.mark.parametrize(
    ("actions", "limit"),
    [
        ([0.0, 1.0, 2.0, 3.0, 100.0], 2),  # an odd one does not excuse foreign candidates: 1, 1, 1, 1 and 97 ** 2
        ([0.0, 0.0, 1.0, 0.0, 3.0, 3.0], 5),  # repeated ones count once: 1, 1 and 4
    ],
)
def test_the_limit_is_twice_the_upper_quartile_of_squared_distances(actions, limit):
    columns = torch.tensor(actions).reshape(-1, 1, 1)
    scores = torch.zeros(len(actions))
    assert TrainingPolicies([*map(str, actions)], scores[:1, None], scores[:1], columns, scores).distance_limit == limit


def test_a_collapsed_model_warns_when_it_ranks(ranker, candidates, tmp_path):
    path = tmp_path / "model.safetensors"
    dataclasses.replace(ranker, history=ranker.history | {"collapsed": True}).save(path)
    with pytest.warns(CollapsedTrainingWarning, match="scores all policies alike") as caught:
        sopr_fast.load(path).rank(candidates, log())
        sopr_fast.rank(candidates, log(), model=path)
    assert [warning.filename for warning in caught] == [__file__] * 2


def test_arrays_on_the_training_log_have_a_distance(ranker, candidates, tmp_path):
    grown = np.concatenate([log(), log(rows=50, seed=1)])
    np.save(tmp_path / "log.npy", grown)
    expected = ranker.rank(candidates)
    for states, given in [(None, log()), (log(), log()), (log().astype(float), log()), (tmp_path / "log.npy", grown)]:
        arrays = {name: policy(given) for name, policy in candidates.items()}
        with warnings.catch_warnings(action="error", category=ForeignPolicyWarning):
            ranking = ranker.rank(arrays, states)
        np.testing.assert_allclose(ranking.distances, expected.distances, rtol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        lambda states, row: states[:row],
        lambda states, row: states + 1e-3 * (np.arange(len(states)) == row)[:, None],
        lambda states, row: np.roll(states, 1, 0),
    ],
    ids=["shorter", "one row", "moved"],
)
def test_arrays_on_another_log_have_no_distance(ranker, candidates, change):
    states = change(log(), ranker.training_policies.source[-1].item())
    arrays = {name: policy(states) for name, policy in candidates.items()}
    with pytest.warns(ForeignPolicyWarning) as caught:
        ranking = ranker.rank(arrays | {"called": candidates["gain-0.700"]}, states)
    (warning,) = caught
    assert "unknown distance to the training policies: " + ", ".join(map(repr, arrays)) + ";" in str(warning.message)
    assert np.isnan(ranking.distances[:3]).all() and np.isfinite(ranking.distances[3])
    expected = ranker.rank(candidates, states)
    np.testing.assert_allclose(ranking.subset_scores[:3], expected.subset_scores, rtol=1e-6)


def test_equal_training_policies_are_warned_of():
    twins = dict.fromkeys("abcdefghijkl", LinearPolicy(0.2))
    with pytest.warns(UserWarning, match="all training policies act alike") as caught:
        ranker = sopr_fast.fit(twins, log(), range(12), config=TINY)
    assert caught[0].filename == __file__
    with pytest.warns(ForeignPolicyWarning):
        assert ranker.rank(ladder([0.2, 1.0])).foreign.tolist() == [False, True]


def test_rank_finds_its_model(ranker, candidates, tmp_path, monkeypatch):
    monkeypatch.delenv("SOPR_FAST_MODEL", raising=False)
    with pytest.raises(ValueError, match="pass model=.*set SOPR_FAST_MODEL"):
        sopr_fast.rank(candidates, log())
    with pytest.raises(TypeError, match=r"call ranker\.rank\(candidates\)"):
        sopr_fast.rank(candidates, ranker)
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
    with pytest.raises(TypeError, match="model must be a Ranker or the path of a saved one, got dict"):
        sopr_fast.rank(candidates, log(), model=candidates)
