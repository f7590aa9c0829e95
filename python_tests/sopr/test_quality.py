"""How well trained models rank policies they have not seen; random and collapsed models fail these bounds."""

import halfcheetah
import numpy as np
import pytest

import sopr_fast
from sopr_fast import metrics

pytestmark = pytest.mark.quality

LEAST_SPEARMAN = 0.75  # random order of ten policies exceeds it once in 120 times; collapsed models have about 0


@pytest.mark.parametrize("split", [0, 1, 2])
def test_a_model_ranks_unseen_policies_of_other_splits(split):
    policies, returns, states = halfcheetah.policies(), halfcheetah.returns(), halfcheetah.states()
    returns = dict(zip(policies, returns, strict=True))
    names = np.array(list(policies))[np.random.default_rng(split).permutation(50)]
    training, validation, unseen = ({name: policies[name] for name in part} for part in np.split(names, [30, 40]))
    config = sopr_fast.Config(subset_size=2048, clusters=32, subsets=80, steps=80)
    ranker = sopr_fast.fit(training, states, returns, validation=(validation, returns), config=config)
    ranking = ranker.rank(unseen, states)
    assert not ranker.history["collapsed"]
    assert metrics.spearman([returns[name] for name in ranking.names], ranking.scores) > LEAST_SPEARMAN
