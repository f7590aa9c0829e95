import dataclasses
import errno
import json
import os
import re
import tempfile
import warnings

import numpy as np
import pytest
import torch
from support.problems import TINY, LinearPolicy, ladder, log, training_gains

import sopr_fast

QUICK = dataclasses.replace(TINY, steps=2, subsets=2)
GAINS, TWO = training_gains(5), ladder([0.3, 0.4])


def fit(**changes):
    arguments = {"policies": ladder(GAINS), "returns": GAINS, "states": log(), "config": QUICK} | changes
    return sopr_fast.fit(**arguments)


def quick(**options):
    return {"config": dataclasses.replace(QUICK, **options)}


def broken(gain, change):
    return lambda states: change(LinearPolicy(gain)(states))


def with_nan(actions):
    return np.where((np.arange(len(actions)) == 3)[:, None], np.nan, actions)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"returns": None}, "returns are needed"),
        ({"returns": np.ones(5)}, "returns of all training policies are equal"),
        ({"states": np.ma.masked_equal(log(), log()[3, 0])}, "states is not finite .* at row 3"),
        ({"policies": ladder(GAINS[:4]) | {"bad": broken(1, lambda a: a * 1e30)}}, "'bad' .* exceeds the magnitude"),
        ({"config": {}}, r"config must be a sopr_fast.Config, got dict; pass Config\(name=value"),
        ({"preferences": np.eye(5)}, "returns or preferences, not both"),
        ({"policies": ladder(GAINS[:1]), "returns": GAINS[:1]}, "at least two training policies"),
        ({"policies": {}}, "polic"),
        ({"policies": [np.zeros((599, 2))] * 5}, "'policy-000' has actions for 599 states, the data has 600"),
        ({"states": with_nan(log())}, "states is not finite .* at row 3"),
        ({"validation": ladder([0.3])}, "validation must be a pair"),
        ({"validation": (ladder([0.3]), [0.3])}, "at least two validation policies"),
        ({"validation": (TWO, [1, 1])}, "validation policies are equal"),
        ({"seed": -1}, "seed must be an integer, 0 or more, got -1"),
        ({"checkpoint": "nowhere/run"}, "cannot write nowhere/run: the folder nowhere does not"),
        ({"checkpoint": "."}, "cannot write .: it is a folder"),
        *(
            ({"policies": ladder(GAINS[:4]) | {"bad": policy}}, "'bad'")
            for policy in (
                lambda states: 1 / 0,
                broken(1, with_nan),
                broken(1, lambda a: np.where(len(a) > 16, np.nan, a)),
            )
        ),
        ({"policies": {np.str_(name): lambda states: states[:, :0] for name in "abcde"}}, "^policy 'a'"),
        ({"policies": [np.ma.masked_equal(np.arange(600), 3)] * 5, **quick(subset_size=600)}, "nan at state row 3"),
        ({"validation": (ladder([0.3]) | {"wide": lambda s: s[:, :3]}, [1, 2])}, "'wide'"),
    ],
)
def test_bad_input_is_refused_before_clustering(changes, message, monkeypatch):
    monkeypatch.setattr(sopr_fast.ops, "kmeans", None)
    with pytest.raises((OSError, RuntimeError, TypeError, ValueError), match=message):
        fit(**changes)


LEFT_OUT = {"gain-0.45": LinearPolicy(0.45)} | ladder(GAINS) | {"other": LinearPolicy(0.6)}
SAME = {  # situation → changes, warning
    "huge returns": ({"returns": (GAINS - GAINS.mean()) * 1.5e308}, ""),
    "policies without a return": (
        {"policies": LEFT_OUT, "returns": dict(zip(ladder(GAINS), GAINS, strict=True))},
        r"left out: returns hold nothing for policy 'gain-0.45' and 1 more",
    ),
}


@pytest.mark.parametrize(("changes", "message"), SAME.values(), ids=SAME)
def test_what_gives_the_same_model(changes, message):
    with warnings.catch_warnings(record=True, action="always") as caught:
        ranker, expected = fit(**changes), fit()
    told = [each.filename for each in caught if re.search(message or "left out", str(each.message))]
    assert told == [__file__] * bool(message)
    assert ranker.config == QUICK and ranker.training_policies.names == expected.training_policies.names
    weights = expected.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in ranker.model.state_dict().items())
    assert np.array_equal(ranker.rank(ladder([0.3])).scores, expected.rank(ladder([0.3])).scores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 129}, "clusters 129 is more than subset_size 128"),
        ({"width": 15}, "width 15 is not a multiple of low_heads 2"),
        ({"encoder": "cnn"}, "encoder is 'cnn'; choose 'transformer' or 'mlp'"),
        ({"dropout": 1.0}, "dropout must be a finite number, 0 or more, less than 1, got 1.0"),
        ({"steps": True}, "steps must be an integer"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TINY, **options)


@pytest.mark.parametrize(("count", "config"), [(900, "subset_size=450, clusters=16"), (9, "subset_size=4, clusters=4")])
def test_options_for_a_small_log_are_offered_and_work(count, config):
    message = f"subset_size is 1024, but there are {count} states: pass more, or train with Config({config})"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fit(states=log(count), config=sopr_fast.Config())
    changes = eval(f"dict({config})")
    with warnings.catch_warnings(action="error", category=UserWarning):
        warnings.simplefilter("ignore", sopr_fast.DoubtfulPolicyWarning)
        assert fit(states=log(count), **quick(**changes)).config.subset_size == changes["subset_size"]


def test_actions_train_like_functions():
    actions = {name: policy(log()) for name, policy in ladder(GAINS).items()}
    np.testing.assert_allclose(fit(policies=actions).history["loss"], fit().history["loss"], rtol=1e-5)


def test_rank_refuses_inputs_that_do_not_fit_the_model():
    ranker, chooser = fit(), lambda states: torch.distributions.Categorical(torch.full((len(states), 2), 0.5))
    for candidates, arguments, message in [
        (ladder([0.3]), {"states": log(dim=3)}, "states have 3 columns, the model was trained on 4"),
        (ladder([0.3]), {"states": log(100)}, "subset_size is 128, but there are 100 states"),
        ({"chooser": chooser}, {}, "'chooser' has discrete actions, the model continuous ones"),
        ({"wide": lambda s: s[:, :3]}, {}, "'wide'"),
        ([], {}, "polic"),
        (ladder([0.3]), {"seed": -1}, "seed must be an integer, 0 or more, got -1"),  # though kept subsets need none
        (ladder([0.3]), {"subsets": 0}, "subsets must be an integer, 1 or more, got 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            ranker.rank(candidates, **arguments)


def test_numpy_options_and_seeds_are_plain_ones_and_columns_may_be_on_disk(tmp_path, monkeypatch):
    options = {"steps": np.int64(7), "dropout": np.float32(0.5)}
    kept = json.loads(json.dumps(dataclasses.replace(TINY, **options).to_dict()))
    assert {name: kept[name] for name in options} == {"steps": 7, "dropout": 0.5}
    fit(seed=3).save(tmp_path / "expected")
    monkeypatch.setattr("sopr_fast.inputs.policies.acting._MEMORY_TILES", 0)
    ranker = fit(seed=np.int64(3))
    ranker.save(tmp_path / "actual")
    assert (tmp_path / "expected").read_bytes() == (tmp_path / "actual").read_bytes()
    ranking = ranker.rank(ladder([0.3]), log(), seed=np.int64(3))
    assert {"seed": 3}.items() <= json.loads(json.dumps(ranking.settings)).items()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the platform cannot reserve space on a disk")
def test_disk_space_of_columns_is_reserved_before_writing(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sopr_fast.inputs.policies.acting._MEMORY_TILES", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=rf"^columns need .* GiB in {tmp_path}: No space left on device; set TMPDIR"):
        fit()


MANY = training_gains()
NOISY = {"noisy": broken(1, lambda actions: actions + np.random.default_rng().standard_normal(actions.shape))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": ladder(MANY[:11]), "returns": MANY[:11]}, "only 11 training policies: about a dozen or more"),
        ({"policies": ladder(GAINS) | NOISY, "returns": [*GAINS, 1]}, "actions of noisy differ when"),
        ({"validation": (ladder([0.3]) | NOISY, [1, 2])}, "actions of noisy differ when"),
        ({"validation": (ladder([0.42, 0.88]), [1, 2])}, ""),
    ],
)
def test_what_may_be_wrong_of_policies_is_told(changes, message):
    with warnings.catch_warnings(record=True, action="always") as caught:
        fit(**{"policies": ladder(MANY), "returns": MANY} | changes)
    assert [each.filename for each in caught if message in str(each.message)] == [__file__] * bool(message)
    assert {each.category for each in caught} == ({sopr_fast.DoubtfulPolicyWarning} if message else set())


def test_one_cluster_one_state_a_cluster_and_fewer_distinct_states_than_clusters():
    for clusters in (1, 128):
        ranker = fit(config=dataclasses.replace(QUICK, clusters=clusters))
        assert np.isfinite(ranker.rank(ladder([0.3]), log()).scores).all()
    states = np.repeat(log(5), 40, 0)
    assert np.isfinite(fit(states=states).rank(ladder([0.3, 0.5]), states).scores).all()
