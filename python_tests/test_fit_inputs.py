import dataclasses
import errno
import json
import os
import tempfile
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from problems import KINDS_OF_ARRAYS, TINY, LinearPolicy, ladder, log, training_gains

import sopr_fast
from sopr_fast import Config, Subsets
from sopr_fast.inputs.policies import Probabilities
from sopr_fast.inputs.returns import check_returns

QUICK = dataclasses.replace(TINY, steps=2, subsets=2)
GAINS = training_gains(5)


def fit(**changes):
    arguments = {
        "policies": ladder(GAINS),
        "returns": GAINS,
        "states": log(),
        "config": QUICK,
    } | changes
    return sopr_fast.fit(**arguments)


def one_state_at_a_time(gain):
    def act(states):
        assert len(states) == 1
        return LinearPolicy(gain)(states)

    return act


def broken(gain, change):
    return lambda states: change(LinearPolicy(gain)(states))


def raises(states):
    raise RuntimeError("no weights")


def with_nan(actions):
    actions = actions.copy()
    actions[3, 1] = np.nan
    return actions


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"returns": None}, ValueError, "returns are needed"),
        ({"states": None}, ValueError, "states are needed"),
        ({"returns": GAINS[:4]}, ValueError, "there are 4 returns for 5 policies: map names to returns"),
        ({"returns": np.ones(5)}, ValueError, "returns of all training policies are equal"),
        (
            {"returns": GAINS, "config": dataclasses.replace(QUICK, tie_margin=9.0)},
            ValueError,
            "are equal within 1.4, which is no more than tie_margin=9; lower it: there is no order",
        ),
        *(
            ({"returns": GAINS * scale, "config": dataclasses.replace(QUICK, loss=loss)}, ValueError, f"{std}.*{loss}")
            for loss in ("mse", "listwise")
            for scale, std in (
                (1e307, "deviation of the returns is (inf|nan)"),
                (1e-200, "deviation of the returns is 0"),
            )
        ),
        (
            {"returns": [1, 2, np.inf, 4, 5]},
            ValueError,
            "return of policy 'gain-.*' is 'inf', expected a finite number",
        ),
        *(
            ({"returns": returns}, ValueError, "returns: the return of policy 'gain-.*', expected a finite number")
            for returns in (
                ["a"] * 5,
                [1, 2, 3, 4, 10**400],
                [1, 2, 3, 4, 5j],
                torch.tensor([1, 2, 3, 4, 5j]),
                ["1", "2", "3", "4", "5"],
            )
        ),
        ({"states": np.ma.masked_equal(log(), log()[3, 0])}, ValueError, "states are not finite .* at row 3"),
        (
            {"policies": ladder(GAINS[:4]) | {"bad": broken(1, lambda a: a * 1e30)}},
            ValueError,
            "'bad' .* supported magnitude",
        ),
        ({"returns": {"gain-0.100": 1.0}}, ValueError, "at least two training policies are needed, got 1"),
        ({"config": {}}, TypeError, r"config must be a sopr_fast.Config, got dict; pass Config\(name=value"),
        ({"preferences": np.eye(5)}, ValueError, "returns or preferences, not both"),
        (
            {"preferences": np.eye(5), "returns": None, "config": dataclasses.replace(QUICK, loss="mse")},
            ValueError,
            "preferences need loss='pairwise'",
        ),
        (
            {"preferences": np.eye(5), "returns": None, "config": dataclasses.replace(QUICK, tie_margin=0.1)},
            ValueError,
            "preferences are not returns, so tie_margin=0.1 has no use: mark ties by 0.5",
        ),
        ({"policies": ladder(GAINS[:1]), "returns": GAINS[:1]}, ValueError, "at least two training policies"),
        ({"policies": {}}, ValueError, "polic"),
        (
            {"states": log(100)},
            ValueError,
            r"there are 100 states: choose fewer with Config\(subset_size=…, clusters=…\) \(--subset-size",
        ),
        ({"states": with_nan(log())}, ValueError, "states are not finite .* at row 3"),
        ({"validation": ladder([0.3])}, TypeError, "validation must be a pair"),
        ({"validation": (ladder([0.3]), [0.3])}, ValueError, "at least two validation policies"),
        ({"validation": (ladder([0.3, 0.4]), [1, 1])}, ValueError, "validation policies are equal"),
        (
            {
                "validation": (ladder([0.3, 0.4]), [1, 1.1]),
                "config": dataclasses.replace(QUICK, tie_margin=0.2, validation_metric="loss"),
            },
            ValueError,
            "validation policies are equal, or within tie_margin",
        ),
        *(
            (
                {"validation": (ladder([0.3, 0.4]), [1, 1e300]), "config": dataclasses.replace(QUICK, loss=loss)},
                ValueError,
                rf"validation returns from 1 to 1e\+300 are too far .* loss='{loss}'",
            )
            for loss in ("mse", "listwise")
        ),
        ({"seed": -1}, ValueError, "seed must be an integer, 0 or more, got -1"),
        ({"keep_subsets": -1}, ValueError, "keep_subsets must be an integer, 0 or more, got -1"),
        ({"keep_subsets": 1.5}, ValueError, "keep_subsets must be an integer"),
        ({"checkpoint": "nowhere/run"}, FileNotFoundError, "cannot write nowhere/run: the folder nowhere does not"),
        ({"checkpoint": "."}, IsADirectoryError, "cannot write .: it is a folder"),
        ({"policies": ladder(GAINS[:4]) | {"bad": raises}}, RuntimeError, "'bad'"),
        ({"policies": ladder(GAINS[:4]) | {"bad": broken(1, with_nan)}}, ValueError, "'bad'"),
        ({"policies": ladder(GAINS[:4]) | {"bad": broken(1, lambda a: a[:, :1])}}, ValueError, "'bad'"),
        ({"policies": ladder(GAINS[:4]) | {"bad": broken(1, lambda a: a[:-1])}}, ValueError, "'bad'"),
        ({"policies": ladder(GAINS[:4]) | {"bad": broken(1, lambda a: a.astype(object))}}, ValueError, "'bad'"),
        ({"validation": (ladder([0.3]) | {"wide": lambda s: s[:, :3]}, [1, 2])}, ValueError, "'wide'"),
    ],
)
def test_bad_input_is_refused_before_clustering(changes, error, message, monkeypatch):
    monkeypatch.setattr(sopr_fast.ops, "kmeans", None)
    with pytest.raises(error, match=message):
        fit(**changes)


@pytest.mark.filterwarnings("error:overflow")
def masked_in_row_3(values):
    return np.ma.masked_array(values, np.arange(len(values)) == 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": dict.fromkeys("abcde", masked_in_row_3(np.ones(600)))}, "policy 'a' returned nan at state row 3"),
    ],
)
def test_masked_numbers_are_not_read(changes, message):
    config = dataclasses.replace(QUICK, subset_size=600)
    with pytest.raises(ValueError, match=message):
        fit(**changes, config=config)


def test_huge_returns_train_the_same_model():
    centred = GAINS - GAINS.mean()
    assert centred.max() - centred.min() > 1.3
    ordered, huge = (fit(returns=centred * scale).model.state_dict() for scale in (1.0, 1.5e308))
    assert all(torch.equal(ordered[name], value) for name, value in huge.items())


def test_policies_without_a_return_are_left_out():
    returns = dict(zip(ladder(GAINS), GAINS, strict=True))
    policies = {"gain-0.45": LinearPolicy(0.45)} | ladder(GAINS) | {"other": LinearPolicy(0.6)}
    nearest = r"'gain-0.45' \(nearest names: 'gain-0.450'.*\) and 1 more"
    with pytest.warns(UserWarning, match=f"left out: returns hold nothing for policy {nearest}") as caught:
        ranker = fit(policies=policies, returns=returns)
    assert caught[0].filename == __file__
    assert ranker.training_policies.names == list(returns)
    expected = fit().model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in ranker.model.state_dict().items())


def test_returns_may_be_in_a_file(tmp_path):
    returns = dict(zip(ladder(GAINS), GAINS.tolist(), strict=True))
    (tmp_path / "returns.json").write_text(json.dumps(returns))
    (tmp_path / "returns.csv").write_text(
        "name,return\n" + "\n".join(f"{name},{value!r}" for name, value in returns.items())
    )
    expected = fit(validation=(ladder(GAINS), returns)).history
    for name in ("returns.json", "returns.csv"):
        path = tmp_path / name
        assert fit(returns=path, validation=(ladder(GAINS), str(path))).history == expected


def test_few_training_policies_warn():
    gains = training_gains(12)
    with pytest.warns(UserWarning, match="only 11 training policies: about a dozen or more") as caught:
        fit(policies=ladder(gains[:11]), returns=gains[:11])
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(policies=ladder(gains), returns=gains)


def test_training_and_validation_policies_that_sample_warn():
    rng = np.random.default_rng(0)

    def sampler(gain):
        return broken(gain, lambda actions: actions + rng.standard_normal(actions.shape))

    with pytest.warns(UserWarning, match="policies 'noisy' give different actions when asked twice"):
        fit(policies=ladder(GAINS) | {"noisy": sampler(1)}, returns=[*GAINS, 1.0])
    with pytest.warns(UserWarning, match="policies 'held out' give different actions when asked twice"):
        fit(validation=(ladder([0.3]) | {"held out": sampler(1)}, [1, 2]))


def test_clustered_subsets_take_the_place_of_states():
    subsets = Subsets.draw(log(), 2, size=TINY.subset_size, clusters=TINY.clusters, seed=3)
    drawn = fit(seed=3)
    for config in (QUICK, dataclasses.replace(QUICK, subset_size=500, clusters=20, subsets=7)):
        ranker = fit(states=subsets, seed=3, config=config)
        assert ranker.config == QUICK
        weights = drawn.model.state_dict()
        assert all(torch.equal(weights[name], value) for name, value in ranker.model.state_dict().items())
    assert np.array_equal(ranker.rank(ladder([0.3])).scores, drawn.rank(ladder([0.3])).scores)
    arrays = {name: policy(log()) for name, policy in ladder(GAINS).items()}
    again = fit(policies=arrays, states=subsets, seed=3)
    np.testing.assert_allclose(again.history["loss"], drawn.history["loss"], rtol=1e-5)


def test_names_of_numpy_are_shown_as_pythons():
    policies = {np.str_(name): policy for name, policy in ladder(GAINS).items()}
    with pytest.raises(ValueError, match="^policy 'gain-"):
        fit(policies=policies | {np.str_("gain-0.100"): lambda states: states[:, :0]})


def test_returns_may_be_any_iterable_in_order():
    by_name = dict(zip("abcde", GAINS, strict=True))
    for returns in (by_name.values(), iter(GAINS), (gain for gain in GAINS), tuple(GAINS)):
        np.testing.assert_array_equal(check_returns(returns, list("abcde")), GAINS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"returns": GAINS[:4]}, "there are 4 returns for 5 policies"),
        ({"policies": ladder(GAINS[:1]), "returns": GAINS[:1]}, "at least two training policies"),
        ({"validation": (ladder([0.3]), [0.3])}, "at least two validation policies"),
        ({"policies": [np.zeros((599, 2))] * 5}, "'policy-000' has actions for 599 states, the data has 600"),
    ],
)
def test_other_arguments_are_checked_before_states_are_read(changes, message, monkeypatch):
    monkeypatch.setattr("sopr_fast.inputs.logs.StoredStates.read", None)
    with pytest.raises(ValueError, match=message):
        fit(**changes)


def test_a_policy_that_fails_late_still_fails_before_clustering(monkeypatch):
    monkeypatch.setattr(sopr_fast.ops, "kmeans", None)
    states = log()
    late = {"late": lambda s: np.where(len(s) > 16, np.nan, 1.0) * LinearPolicy(1)(s)}
    with pytest.raises(ValueError, match="'late'.*row"):
        fit(policies=ladder(GAINS[:4]) | late, states=states)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 129}, "clusters 129 is more than subset_size 128"),
        ({"width": 15}, "width 15 is not a multiple of low_heads 2"),
        ({"loss": "hinge"}, "loss is 'hinge'; choose 'pairwise' or 'listwise' or 'mse'"),
        ({"steps": 0}, "steps must be an integer, 1 or more"),
        ({"dropout": 1.0}, "dropout must be a finite number, 0 or more, less than 1, got 1.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number"),
        ({"class_token": True, "score": "sort"}, "class_token needs"),
        ({"tie_margin": 0.1, "loss": "mse"}, "tie_margin needs loss='pairwise', got 'mse'"),
        ({"tie_margin": 0.1, "loss": "listwise"}, "tie_margin needs loss='pairwise', got 'listwise'"),
        ({"subsets": 2.0}, "subsets must be an integer"),
        ({"steps": True}, "steps must be an integer"),
        ({"dropout": False}, "dropout must be a finite number"),
        ({"class_token": "no"}, "class_token must be True or False"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TINY, **options)


def test_numpy_options_are_kept_as_plain_ones():
    options = {"steps": np.int64(7), "dropout": np.float32(0.5), "class_token": np.True_}
    kept = json.loads(json.dumps(dataclasses.replace(TINY, **options).to_dict()))
    assert {name: kept[name] for name in options} == {"steps": 7, "dropout": 0.5, "class_token": True}


def test_unknown_options_are_named():
    with pytest.raises(ValueError, match="unknown option depth"):
        Config.from_dict({"depth": 3})


@pytest.mark.parametrize("change", KINDS_OF_ARRAYS)
def test_kinds_of_states_and_actions_give_the_same_model(change, tmp_path):
    states = log()
    arrays = {name: policy(states) for name, policy in ladder(GAINS).items()}
    kinds = {name: change(a, tmp_path) for name, a in arrays.items()}
    expected, actual = fit(policies=arrays), fit(policies=kinds, states=change(states, tmp_path))
    weights = expected.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in actual.model.state_dict().items())
    for arguments in ((None,), (states,)):
        a, b = expected.rank(arrays, *arguments), actual.rank(kinds, *arguments)
        assert np.array_equal(a.subset_scores, b.subset_scores)


def test_rank_refuses_inputs_that_do_not_fit_the_model():
    ranker = fit()
    with pytest.raises(ValueError, match="states have 3 columns, the model was trained on 4"):
        ranker.rank(ladder([0.3]), log(dim=3))
    with pytest.raises(ValueError, match="there are 100 states: the model was trained on subsets of that size"):
        ranker.rank(ladder([0.3]), log(100))
    with pytest.raises(ValueError, match="states have 3 columns, the model was trained on 4"):
        ranker.rank(ladder([0.3]), subsets=Subsets.draw(log(dim=3), 1, size=128, clusters=8))
    twins = list(ladder([0.3, 0.4]).values())
    for twin in twins:
        twin.name = "twin"
    with pytest.raises(ValueError, match=r"policies\[0\] and policies\[1\] are both named 'twin'"):
        ranker.rank(twins, log())
    with pytest.raises(ValueError, match="'chooser' has discrete actions, the model continuous ones"):
        ranker.rank({"chooser": lambda s: Probabilities(np.full((len(s), 2), 0.5))}, log())
    with pytest.raises(ValueError, match="'wide'"):
        ranker.rank({"wide": lambda s: s[:, :3]}, log())
    with pytest.raises(ValueError, match="give states or clustered subsets"):
        ranker.rank(ladder([0.3]), log(), subsets=ranker.subsets)
    for count in (0, 2.5):
        for states in (log(), None):
            with pytest.raises(ValueError, match=f"subsets must be an integer, 1 or more, got {count}"):
                ranker.rank(ladder([0.3]), states, subsets=count)
    with pytest.raises(ValueError, match="polic"):
        ranker.rank([], log())


def test_numpy_seeds_are_accepted(tmp_path):
    expected, actual = fit(seed=3, keep_subsets=1), fit(seed=np.int64(3), keep_subsets=np.uint8(1))
    for name, ranker in (("expected", expected), ("actual", actual)):
        ranker.save(tmp_path / name)
    assert (tmp_path / "expected").read_bytes() == (tmp_path / "actual").read_bytes()
    ranking = actual.rank(ladder([0.3]), log(), seed=np.int64(3))
    assert {"seed": 3}.items() <= json.loads(json.dumps(ranking.settings)).items()
    with pytest.raises(ValueError, match="seed must be an integer, 0 or more, got -1"):
        actual.rank(ladder([0.3]), seed=-1)  # even where the subsets kept with the model need none


def test_columns_on_disk_train_the_same_model(monkeypatch):
    expected = fit().model.state_dict()
    monkeypatch.setattr("sopr_fast.sopr.columns._MEMORY_TILES", 0)
    actual = fit().model.state_dict()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the platform cannot reserve space on a disk")
def test_disk_space_of_columns_is_reserved_before_writing(monkeypatch, tmp_path):
    reserved = []

    def watch(states):
        reserved.extend(file.stat().st_blocks * 512 >= file.stat().st_size for file in tmp_path.iterdir())
        return LinearPolicy(0.3)(states)

    monkeypatch.setattr("sopr_fast.sopr.columns._MEMORY_TILES", 0)
    monkeypatch.setattr(
        tempfile, "NamedTemporaryFile", partial(tempfile.NamedTemporaryFile, dir=tmp_path, delete=False)
    )
    fit(policies={"watch": watch} | ladder(GAINS[:4]))
    assert reserved == [True]

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=rf"^columns need .* GiB in {tmp_path}: No space left on device; set TMPDIR"):
        fit()


@pytest.mark.parametrize("validation", [None, ({"c": one_state_at_a_time(0.2), "d": one_state_at_a_time(0.4)}, [1, 2])])
def test_a_policy_is_never_shown_more_states_than_the_batch_size(validation):
    policies = {f"gain-{gain}": one_state_at_a_time(gain) for gain in GAINS}
    with sopr_fast.options(batch_size=1):
        ranker = fit(policies=policies, validation=validation)
        assert np.isfinite(ranker.rank({"x": one_state_at_a_time(0.3)}).scores).all()


def test_validation_policies_that_train_are_warned_of():
    gains = training_gains()
    held_out = {"copy": LinearPolicy(gains[3]), "other": LinearPolicy(0.42), "again": LinearPolicy(gains[0])}
    inputs = {"policies": ladder(gains), "returns": gains}
    with pytest.warns(sopr_fast.TrainingPolicyWarning, match="exactly like them: 'copy', 'again'. The") as caught:
        fit(**inputs, validation=(held_out, [1, 2, 3]))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(**inputs, validation=(ladder([0.42, 0.88]), [1, 2]))


def test_one_cluster_and_one_state_a_cluster():
    for clusters in (1, 128):
        ranker = fit(config=dataclasses.replace(QUICK, clusters=clusters))
        assert np.isfinite(ranker.rank(ladder([0.3]), log()).scores).all()


def test_states_with_fewer_distinct_values_than_clusters():
    states = np.repeat(log(5), 40, 0)
    for score in ("mean", "sort"):
        ranker = fit(states=states, config=dataclasses.replace(QUICK, score=score))
        assert np.isfinite(ranker.rank(ladder([0.3, 0.5]), states).scores).all()
