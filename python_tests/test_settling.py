"""`rank(subsets="auto")`: subsets are added until the top of the order is settled."""

import numpy as np
import pytest
from problems import TINY, LinearPolicy, ladder, log, training_gains
from scipy.stats import ttest_rel

import sopr_fast
from sopr_fast import UntilSettled
from sopr_fast.ranking.paired_tests import doubt

EQUAL = {"a": LinearPolicy(1.2), "b": LinearPolicy(1.2)}  # never settled


@pytest.fixture(scope="module")
def ranker():
    gains = training_gains()
    return sopr_fast.fit(ladder(gains), gains, log(), config=TINY)


def test_doubt_is_the_sum_of_paired_tests():
    scores = np.random.default_rng(0).standard_normal((4, 6)) + np.array([[0.5], [2], [1], [0.4]])
    order = np.argsort(-scores.mean(1))

    def tail(i, j):
        return ttest_rel(scores[order[i]], scores[order[j]], alternative="greater").pvalue

    first = sum(tail(0, j) for j in (1, 2, 3))
    assert doubt(scores, 1) == pytest.approx(first)
    assert doubt(scores, 2) == pytest.approx(first + tail(1, 2) + tail(1, 3))
    assert doubt(scores, 3) == doubt(scores, 9) == pytest.approx(first + tail(1, 2) + tail(1, 3) + tail(2, 3))


def test_doubt_of_few_and_of_equal_scores():
    assert doubt(np.ones((2, 1)), 1) == np.inf
    assert doubt(np.ones((1, 1)), 1) == 0
    assert doubt(np.ones((3, 4)), 1) == 1.0
    assert doubt(np.array([[2.0, 2.0], [1.0, 1.0]]), 1) == 0


def test_as_many_places_are_settled_as_the_rule_asks_for():
    scores = np.array([[9.0, 9.1, 9.2], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])  # the second and the third are equal
    assert UntilSettled(confidence=0.9).is_settled(scores, looks=1)
    assert not UntilSettled(confidence=0.9, top=2).is_settled(scores, looks=1)


def test_the_stated_confidence_holds_over_all_looks():
    rng, rule = np.random.default_rng(0), UntilSettled(confidence=0.8, most=80)
    counts, wrong, settled = rule.counts(), 0, 0
    for _ in range(400):
        scores = np.array([[0.05], [0.0]]) + rng.standard_normal((2, 80))
        for count in counts:
            if rule.is_settled(scores[:, :count], len(counts)):
                settled += 1
                wrong += scores[0, :count].mean() < scores[1, :count].mean()
                break
    assert settled > 20 and wrong / 400 <= 0.2


def test_counts_double_up_to_the_most_or_all_available():
    assert UntilSettled().counts() == [5, 10, 20, 40, 80, 160, 200]
    assert UntilSettled(most=3).counts() == [3]
    assert UntilSettled().counts(available=12) == [5, 10, 12]


def test_added_subsets_are_those_of_one_larger_draw(ranker):
    near = EQUAL | ladder([0.7])
    ranking = ranker.rank(near, log(), subsets=UntilSettled(most=12), seed=3)
    assert ranking.settled is False
    expected = ranker.rank(near, log(), subsets=12, seed=3)
    assert np.array_equal(ranking.subset_scores, expected.subset_scores)
    assert np.array_equal(ranking.scores, expected.scores) and expected.settled is None


def test_a_clear_order_needs_few_subsets(ranker):
    ranking = ranker.rank(ladder([0.3, 1.2, 0.7]), log(), subsets="auto")
    assert ranking.settled and ranking.subset_scores.shape == (3, 5)
    assert ranking.to_dict()["settled"] is True and ranking.take(2).settled is None
    everything = ranker.rank(ladder([0.3, 1.2, 0.7]), log(), subsets=UntilSettled(top=3))
    assert everything.order == ["gain-1.200", "gain-0.700", "gain-0.300"]


def test_subsets_kept_with_the_model_are_added_too(ranker):
    ranking = ranker.rank(EQUAL, subsets="auto")
    assert len(ranker.subsets) == 5 and ranking.subset_scores.shape == (2, 5)
    states = log()
    kept = sopr_fast.fit(ladder(training_gains()), training_gains(), states, config=TINY, keep_subsets=8)
    ranking = kept.rank(EQUAL, subsets="auto")
    assert np.array_equal(ranking.subset_scores, kept.rank(EQUAL).subset_scores)


def test_wrong_rules_are_refused(ranker):
    with pytest.raises(ValueError, match="subsets is 'all'; give a number, 'auto', or a .safetensors file"):
        ranker.rank(ladder([0.3]), log(), subsets="all")
    for options in ({"top": 0}, {"confidence": 1.0}, {"most": 1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            UntilSettled(**options)
