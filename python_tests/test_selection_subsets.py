"""Clustered subsets that `fit`, `rank`, `evaluate`, `select` and estimators use again, as objects and as files."""

import numpy as np
import pytest
from selection_problems import DISCOUNT, Scripted, gains, log, true_values

import sopr_fast
from sopr_fast import Config, Subsets
from sopr_fast.cli.main import main
from sopr_fast.estimators import SOPR
from sopr_fast.inputs.logs import Transitions

QUIET = {"discount": DISCOUNT, "progress": False}
POLICIES = gains(12)
RETURNS = true_values(POLICIES)
CONFIG = {
    "width": 16,
    "low_layers": 1,
    "low_feedforward": 16,
    "high_layers": 1,
    "high_heads": 2,
    "high_feedforward": 16,
}
OWN = SOPR(Config(**CONFIG, subset_size=48, clusters=4, subsets=3, steps=6), subsets=2)
OTHER = SOPR(Config(**CONFIG, subset_size=16, clusters=2, subsets=2, steps=6), subsets=2)


def subsets(states=None, **options):
    return Subsets.draw(log().states if states is None else states, 3, **{"size": 48, "clusters": 4, **options})


def evaluate(method, data=None, **options):
    return sopr_fast.evaluate(POLICIES, RETURNS, data or log(), methods={"own": method}, folds=2, **QUIET, **options)


def values(evaluation):
    return np.concatenate(evaluation.values["own"])


def test_subsets_replace_those_that_the_method_would_draw():
    drawn = values(evaluate(OWN))
    np.testing.assert_array_equal(values(evaluate(OTHER, subsets=subsets())), drawn)
    assert not np.array_equal(values(evaluate(OTHER)), drawn)


@pytest.mark.parametrize("as_file", [False, True])
def test_subsets_may_stand_in_for_the_log(tmp_path, as_file):
    given = subsets()
    given.save(tmp_path / "subsets.safetensors")
    evaluation = sopr_fast.evaluate(
        POLICIES,
        RETURNS,
        tmp_path / "subsets.safetensors" if as_file else given,
        methods={"own": OTHER, "critic": Scripted(RETURNS)},
        folds=2,
        **QUIET,
    )
    np.testing.assert_allclose(values(evaluation), values(evaluate(OWN)), rtol=1e-4, atol=1e-6)
    assert evaluation.dropped == {"critic": "the log holds no rewards"}


def test_select_uses_subsets_again():
    known = {name: POLICIES[name] for name in list(POLICIES)[:8]}
    candidates = {name: POLICIES[name] for name in list(POLICIES)[8:]}

    def predicted(method, **options):
        returns = {name: RETURNS[name] for name in known}
        found = sopr_fast.select(
            candidates, log(), known=known, returns=returns, methods={"own": method}, folds=2, **QUIET, **options
        )
        return found.predicted

    np.testing.assert_array_equal(predicted(OTHER, subsets=subsets()), predicted(OWN))


def test_subsets_of_transitions_that_lack_dropped_steps():
    """Without next states the last steps are dropped, so rows of transitions are not rows of the user's data."""
    whole = log()
    dropped = Transitions.from_arrays(whole.states, whole.actions, whole.rewards, timeouts=whole.timeouts)
    assert len(dropped) < dropped.source_count
    arrays = {name: policy(whole.states) for name, policy in POLICIES.items()}

    def by_arrays(given):
        found = sopr_fast.evaluate(arrays, RETURNS, dropped, methods={"own": OTHER}, subsets=given, folds=2, **QUIET)
        return values(found)

    expected = values(evaluate(OTHER, dropped, subsets=subsets(dropped)))
    np.testing.assert_allclose(by_arrays(subsets(dropped)), expected, rtol=1e-4, atol=1e-6)


def test_columns_of_other_subsets_are_refused(tmp_path):
    evaluate(OTHER, subsets=subsets(), checkpoints=tmp_path)
    assert evaluate(OTHER, subsets=subsets(), checkpoints=tmp_path).values
    with pytest.raises(ValueError, match=r"own\.json holds values of another log, other policies"):
        evaluate(OTHER, subsets=subsets(seed=1), checkpoints=tmp_path)


@pytest.mark.parametrize(
    ("given", "data", "message"),
    [
        (lambda: 3, log, "subsets must be Subsets or a .safetensors file that Subsets.save wrote, got int"),
        (subsets, subsets, "given twice"),
        (
            lambda: subsets(log().states[:100]),
            log,
            "drawn from 100 states of 2 columns, but the log has 600 of 2; draw subsets of this log",
        ),
        (lambda: subsets(log().states + 1), log, "other states than the log does at these rows; draw subsets of this"),
        (lambda: subsets(log().states + 1), lambda: log().states, "other states than the log does at these rows"),
        (lambda: subsets(np.pad(log().states, [(0, 0), (0, 1)])), log, "of 3 columns, but the log has 600 of 2"),
    ],
)
def test_subsets_that_do_not_fit_are_refused_before_policies_act(given, data, message):
    def act(states):
        raise AssertionError("a policy acted")

    policies = {name: act for name in POLICIES}
    with pytest.raises((TypeError, ValueError), match=message):
        sopr_fast.evaluate(policies, RETURNS, data(), methods={"own": OWN}, subsets=given(), folds=2, **QUIET)


def test_fit_and_rank_read_files_of_subsets(tmp_path):
    given, path = subsets(), tmp_path / "subsets.safetensors"
    given.save(path)
    options = {"config": OTHER.config, "progress": False}
    rankers = [sopr_fast.fit(POLICIES, RETURNS, states, **options) for states in (given, str(path))]
    others = gains(4, first=20)
    expected = rankers[0].rank(others, given).scores
    for ranker in rankers:
        np.testing.assert_array_equal(ranker.rank(others, path).scores, expected)
        np.testing.assert_array_equal(ranker.rank(others, subsets=path).scores, expected)


def test_the_commands_read_files_of_subsets(tmp_path, capsys):
    transitions = log()
    subsets().save(tmp_path / "subsets.safetensors")
    (tmp_path / "policies").mkdir()
    for name, policy in POLICIES.items():
        np.save(tmp_path / "policies" / f"{name}.npy", policy(transitions.states))
    parts = ("actions", "rewards", "next_states", "terminals", "timeouts")
    np.savez(
        tmp_path / "log.npz", observations=transitions.states, **{part: getattr(transitions, part) for part in parts}
    )
    returns = "".join(f"{name},{RETURNS[name]}\n" for name in list(POLICIES)[:8])
    (tmp_path / "returns.csv").write_text(f"name,return\n{returns}")

    def run(command, *more):
        policies = ["--policies", str(tmp_path / "policies")]
        assert main([command, *policies, *(str(tmp_path / part) if "." in part else part for part in more)]) == 0
        return capsys.readouterr().out

    config = ("--width", "8", "--low-layers", "1", "--high-layers", "1", "--high-heads", "1", "--steps", "2")
    fit = ("--returns", "returns.csv", "--out", "model.safetensors")
    assert "2 steps" in run("fit", *fit, *config, "--states", "subsets.safetensors")
    assert "rank  policy" in run("rank", "--model", "model.safetensors", "--states", "subsets.safetensors")
    panel = ("--returns", "returns.csv", "--folds", "2", "--methods", "nearest policy")
    assert "nearest policy" in run("evaluate", *panel, "--log", "subsets.safetensors")
    assert "nearest policy" in run("evaluate", *panel, "--log", "log.npz", "--subsets", "subsets.safetensors")
    assert "candidate" in run("select", *panel, "--log", "log.npz", "--subsets", "subsets.safetensors")
    nearest = ("--method", "nearest-policy", "--returns", "returns.csv", "--log", "subsets.safetensors")
    assert list(POLICIES)[8] in run("estimate", *nearest)
