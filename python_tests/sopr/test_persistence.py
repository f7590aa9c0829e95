"""Models that are saved and loaded, and places where none can be written."""

import dataclasses

import numpy as np
import pytest
import torch
from support.problems import fit, ladder, log

import sopr_fast
from sopr_fast.runtime.tensor_files import load_tensors, save_tensors


@pytest.fixture(scope="module")
def ranker():
    return fit(validation=(ladder([0.3, 0.8]), [0.3, 0.8]), seed=3)


@pytest.fixture
def path(ranker, tmp_path):
    ranker.save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_a_loaded_model_ranks_the_same(ranker, path):
    loaded = sopr_fast.load(path)
    candidates = ladder([0.4, 0.9])
    for states in (None, log(seed=4)):
        expected, ranking = ranker.rank(candidates, states), loaded.rank(candidates, states)
        assert np.array_equal(expected.subset_scores, ranking.subset_scores)
        assert np.array_equal(expected.distances, ranking.distances)
        assert expected.distance_limit == ranking.distance_limit
    assert loaded.config == ranker.config and loaded.seed == 3 and loaded.history == ranker.history
    assert loaded.training_policies.names == ranker.training_policies.names


def test_subsets_can_be_left_out(ranker, tmp_path):
    path = tmp_path / "small.safetensors"
    dataclasses.replace(ranker, subsets=None).save(path)
    loaded = sopr_fast.load(path)
    with pytest.raises(ValueError, match="no subsets are kept with this model: pass the log as states=…"):
        loaded.rank(ladder([0.4]))
    loaded.rank(ladder([0.4]), log())


def rewrite(path, change):
    """Change the description and tensors of a model file, whose content hash stays right."""
    tensors, description = load_tensors(path, "model")
    change(description, tensors)
    save_tensors(path, tensors, "model", description)


def fill(name, value):
    return lambda d, t: t[name].fill_(value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, t: d.pop("layout"), "is damaged: KeyError: 'layout'"),
        (lambda d, t: d.pop("format"), "has format None"),
        (lambda d, t: d.update(format=99, sopr_fast="9.1"), r"has format 99, written by sopr_fast 9\.1"),
        (lambda d, t: d["config"].update(low_layers=10**30), "is damaged: config needs more weights than the .* file"),
        (lambda d, t: d["config"].update(width="64"), "is damaged: width must be an integer"),
        (lambda d, t: t.update({"history.loss": torch.tensor(1.0)}), "is damaged: tensor 'loss' must be torch.float64"),
        (lambda d, t: t["training_policies.states"].fill_(np.nan), "is damaged: tensor 'states' is not finite"),
        (lambda d, t: d.update(layout="none"), "is damaged: layout is 'none'; choose 'action' or"),
        (lambda d, t: d.update(training_policies=["one"]), "is damaged: tensor 'columns' must be torch.float32"),
        (lambda d, t: d.update(states_count=1), "is damaged: source must ascend from 0 to 0"),
        (lambda d, t: d.update(states_count=None), "is damaged: TypeError: int"),
        (lambda d, t: t.pop("model.norm.num_batches_tracked"), "is damaged: no tensor 'norm.num_batches_tracked'"),
        (fill("subsets.rows", 10**6), "is damaged: rows must be from 0 to"),
        (fill("subsets.source", 0), "is damaged: source must ascend from 0 to"),
        (fill("subsets.states", float("nan")), "is damaged: states are not finite"),
        (fill("training_policies.source", 0), "is damaged: training_policies must have names, and a source"),
    ],
)
def test_an_incomplete_model_is_refused(path, change, message):
    rewrite(path, change)
    with pytest.raises(ValueError, match=rf"{path.name} {message}"):
        sopr_fast.load(path)
