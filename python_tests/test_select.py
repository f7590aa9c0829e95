"""Selection of candidates: the table, the verdict, measuring, and bad input."""

import json

import numpy as np
import pytest
from mdps import LinearGain, TablePolicy, Tabular
from selection_problems import DISCOUNT, Failing, Scripted, gains, log, true_values

from sopr_fast.estimators import BehaviourQ
from sopr_fast.inputs.policies import Gaussian
from sopr_fast.runtime.progress import progress_bar
from sopr_fast.selection import select
from sopr_fast.selection.columns import Columns
from sopr_fast.selection.folds import Fold
from sopr_fast.selection.selecting import assemble

QUIET = {"discount": DISCOUNT, "progress": False}
KNOWN = gains(16)
RETURNS = true_values(KNOWN)
CANDIDATES = gains(6, first=20)
TRUTH = RETURNS | true_values(CANDIDATES)


def said(size: float, seed: int = 0) -> dict[str, float]:
    """Return the true values with noise."""
    random = np.random.default_rng(seed)
    return {name: value + size * random.standard_normal() for name, value in TRUTH.items()}


def chosen(candidates=None, **options):
    """Select by three good stand-ins unless told otherwise."""
    methods = {f"m{i}": Scripted(said(0.05, i)) for i in range(3)}
    options = {"known": KNOWN, "returns": RETURNS, "methods": methods, "folds": 4, **QUIET, **options}
    return select(CANDIDATES if candidates is None else candidates, options.pop("log", None) or log(), **options)


def test_good_methods_order_candidates_and_name_the_best():
    selection = chosen()
    assert set(selection.candidates) == set(CANDIDATES)
    best = max(CANDIDATES, key=TRUTH.get)
    assert selection.candidates[0] == best
    assert selection.verdict.kind in ("deploy", "undecided", "measure first")
    assert sum(selection.probability_best.values()) == pytest.approx(1)
    assert selection.undecided[0] == best


def test_known_policies_keep_their_returns():
    selection = chosen()
    table = selection.to_pandas()
    for name, value in RETURNS.items():
        assert table.loc[name, "return"] == pytest.approx(value)
        assert table.loc[name, "known"]
    assert not table.loc[list(CANDIDATES), "known"].any()
    assert table["return"].is_monotonic_decreasing


def test_supervised_methods_value_every_policy_by_models_that_have_not_seen_it():
    learner = Scripted(said(0.05), supervised=True, needs_rewards=False)
    selection = chosen(methods={"learner": learner, "m": Scripted(said(0.05, 1))})
    for asked, known in learner.calls:
        assert not set(asked) & set(known)
    assert set(learner.calls[-1][0]) == set(CANDIDATES)
    assert set(learner.calls[-1][1]) == set(KNOWN)
    assert np.isfinite(selection.panel.columns["learner"]).all()


def test_values_of_left_out_groups_stand_beside_those_of_random_folds():
    folds = [
        Fold("random", "1", np.array([2, 3]), np.array([0, 1])),
        Fold("random", "2", np.array([0, 1]), np.array([2, 3])),
        Fold("group", "x", np.array([2, 3]), np.array([0, 1])),
        Fold("candidates", "", np.arange(4), np.array([4])),
    ]
    values = {"m": [np.array(own) for own in ([1.0, 2.0], [3.0, 4.0], [10.0, 20.0], [5.0])]}
    columns = Columns(folds, values, {"m": np.full(5, np.nan)})
    panel = assemble(
        list("abcde"), np.array([1.0, 2, 3, 4, np.nan]), np.ones(4), [*"xxyz", ""], columns, np.zeros((5, 5))
    )
    assert panel.columns["m"].tolist() == [1, 2, 3, 4, 5]
    assert panel.grouped_columns["m"].tolist() == [10, 20, 3, 4, 5]
    assert panel.return_errors.tolist() == [1, 1, 1, 1, 0]


def test_useless_methods_are_not_trusted():
    random = np.random.default_rng(0)
    methods = {f"m{i}": Scripted({name: float(random.standard_normal()) for name in TRUTH}) for i in range(3)}
    assert chosen(methods=methods).verdict.kind in ("measure first", "cannot rank these")


def test_each_candidate_has_a_probability_to_beat_the_incumbent():
    incumbent = min(KNOWN, key=RETURNS.get)
    beats = chosen(incumbent=incumbent).beats_incumbent
    assert set(beats) == set(CANDIDATES)
    assert beats[max(CANDIDATES, key=TRUTH.get)] > 0.8
    with pytest.raises(ValueError, match="no incumbent: pass incumbent= to select"):
        _ = chosen().beats_incumbent


def test_measuring_moves_a_candidate_among_the_known_ones():
    selection = chosen()
    [name] = selection.measure_next(1)
    updated = selection.update({name: TRUTH[name]})
    assert name not in updated.candidates
    assert updated.predicted[updated.names.index(name)] == TRUTH[name]
    assert "measured" in updated.flags[name]
    assert selection.candidates != updated.candidates  # the first selection is as it was
    assert len(selection.measure_next(10)) == len(CANDIDATES)
    with pytest.raises(ValueError, match="k must be an integer, 1 or more, got 0"):
        selection.measure_next(0)
    with pytest.raises(ValueError, match="level must be a finite number, above 0, less than 1, got 80"):
        selection.intervals(80)


def test_measuring_moves_the_prediction_of_a_candidate_that_acts_alike():
    twin = LinearGain(CANDIDATES["right-20"].gain + 1e-3)
    methods = {f"m{i}": Scripted(said(0.5, i) | {"twin": said(0.5, i)["right-20"]}) for i in range(3)}
    selection = chosen(CANDIDATES | {"twin": twin}, methods=methods)
    twin_at = selection.names.index("twin")
    raised = selection.update({"right-20": selection.predicted[twin_at] + 2})
    assert raised.predicted[raised.names.index("twin")] > selection.predicted[twin_at] + 0.5


def test_a_measured_candidate_that_none_exceeds_is_deployed():
    selection = chosen()
    best = max(CANDIDATES, key=TRUTH.get)
    updated = selection.update({best: TRUTH[best] + 100})
    assert updated.verdict.kind == "deploy"
    assert updated.verdict.policies == (best,)
    assert "It was measured at" in updated.verdict.reason


def test_update_refuses_unknown_names():
    with pytest.raises(ValueError, match="'nobody' is not in the selection"):
        chosen().update({"nobody": 1.0})


def test_update_refuses_returns_without_names():
    with pytest.raises(TypeError, match="returns must be by name, or a file or data frame, got list"):
        chosen().update([1.0, 2.0])


def test_update_keeps_the_errors_of_known_policies():
    errors = {name: 0.01 * i for i, name in enumerate(KNOWN, 1)}
    selection = chosen(return_errors=errors)
    [name] = selection.measure_next(1)
    first, second, *_ = KNOWN
    updated = selection.update({name: 1.0, first: 2.0, second: 3.0}, {second: 0.5})
    expected = errors | {name: 0, second: 0.5}
    known = updated.names[: len(KNOWN) + 1]
    np.testing.assert_array_equal(updated.panel.return_errors[: len(known)], [expected[each] for each in known])
    frame = pytest.importorskip("pandas").DataFrame({"name": [first, "other"], "return": 2.0, "return_se": 0.25})
    assert selection.update(frame).panel.return_errors[0] == 0.25


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        (
            {"lef-20": 1.0},
            r"errors hold policy 'lef-20' \(nearest names: 'left-20'\), which has no return; pass it too",
        ),
        ({"left-20": -1.0}, "the error of policy 'left-20' is -1.0; pass a finite number that is not negative"),
        ({"left-20": np.nan}, "the error of policy 'left-20' is nan"),
        ({"left-20": np.inf}, "the error of policy 'left-20' is inf"),
    ],
)
def test_update_refuses_errors_that_cannot_be(errors, message):
    with pytest.raises(ValueError, match=message):
        chosen().update({"left-20": 1.0}, errors)


def test_tables_and_dictionaries_say_the_same():
    selection = chosen(incumbent="left-01")
    text = selection.table()
    assert text.startswith(str(selection.verdict))
    for name in [*KNOWN, *CANDIDATES]:
        assert name in text
    content = json.loads(json.dumps(selection.to_dict()))
    assert content["verdict"] == selection.verdict.kind
    for name in ("expected_regret", "sure", "trust", "success", "agreement", "probability_best"):
        assert content["evidence"][name] == pytest.approx(getattr(selection.verdict, name), nan_ok=True)
    assert content["table"]["policy"] == list(selection.to_pandas().index)
    assert set(content["panel"]) == {"m0", "m1", "m2"}
    axes = selection.plot()
    assert len(axes.get_yticklabels()) == len(KNOWN) + len(CANDIDATES)


def test_one_candidate_is_best_yet_undecided():
    selection = chosen({"left-21": CANDIDATES["left-21"]})
    assert selection.candidates == ["left-21"]
    assert selection.probability_best == {"left-21": 1.0}
    assert selection.undecided == ["left-21"]


def test_candidates_that_repeat_known_policies_are_left_out():
    again = {"copy": LinearGain(KNOWN["left-01"].gain), "left-03": KNOWN["left-03"]}
    methods = {f"m{i}": Scripted(said(0.05, i) | {"copy": RETURNS["left-01"]}) for i in range(2)}
    selection = chosen(CANDIDATES | again, methods=methods)
    assert set(selection.candidates) == set(CANDIDATES)
    assert any("copy (acts as left-01)" in note for note in selection.notes)
    assert any("left-03" in note for note in selection.notes)


def test_one_of_several_candidates_that_act_alike_is_used():
    best = max(CANDIDATES, key=TRUTH.get)
    copies = {f"copy-{i}": LinearGain(CANDIDATES[best].gain) for i in range(2)}
    options = {"methods": ["nearest policy"], "groups": {name: name.split("-")[0] for name in [*KNOWN, *CANDIDATES]}}
    selection, expected = chosen(CANDIDATES | copies, **options), chosen(**options)
    assert selection.probability_best == expected.probability_best
    assert f"copies of candidates were left out: copy-0 (acts as {best}), copy-1 (acts as {best})" in selection.notes
    claimed = {name: selection.panel.groups[selection.names.index(name)] for name in CANDIDATES}
    assert claimed == {name: name.split("-")[0] for name in CANDIDATES}


@pytest.mark.parametrize(("first", "second", "claimed"), [(None, "b", "b"), ("a", "b", "a"), ("a", None, "a")])
def test_a_candidate_has_the_group_of_its_copies_unless_it_has_one_itself(first, second, claimed):
    name = "left-21"
    candidates = CANDIDATES | {"copy": LinearGain(CANDIDATES[name].gain)}
    given = {name: first, "copy": second}
    groups = {known: known.split("-")[0] for known in KNOWN} | {k: group for k, group in given.items() if group}
    selection = chosen(candidates, methods=["nearest policy"], groups=groups)
    assert selection.panel.groups[selection.names.index(name)] == claimed


@pytest.mark.parametrize(("incumbent", "left_out"), [(None, "twin"), ("twin", "left-03")])
def test_one_of_two_known_policies_that_act_alike_is_used(incumbent, left_out):
    known = KNOWN | {"twin": LinearGain(KNOWN["left-03"].gain)}
    returns = RETURNS | {"twin": RETURNS["left-03"] + 1}
    methods = {f"m{i}": Scripted(said(0.05, i) | {"twin": RETURNS["left-03"]}) for i in range(2)}
    selection = chosen(known=known, returns=returns, methods=methods, incumbent=incumbent)
    assert set(selection.names) == {*known, *CANDIDATES} - {left_out}
    [kept] = {"twin", "left-03"} - {left_out}
    assert selection.predicted[selection.names.index(kept)] == returns[kept]
    assert any(f"{left_out} (acts as {kept})" in note for note in selection.notes)
    assert len(selection.evaluation.names) == len(selection.evaluation.returns) == len(KNOWN)


def test_the_incumbent_is_kept_where_no_candidate_is_likely_to_exceed_it():
    best = max(KNOWN, key=RETURNS.get)
    returns = RETURNS | {best: RETURNS[best] + 100}
    selection = chosen(returns=returns, incumbent=best)
    assert (selection.verdict.kind, selection.verdict.policies) == ("keep", (best,))
    assert str(selection).startswith(f"keep {best}. The incumbent returns")


def test_one_method_alone_does_not_agree_with_itself():
    verdict = chosen(methods={"m": Scripted(said(0.05, 0))}).verdict
    assert np.isnan(verdict.agreement)
    assert verdict.trust == pytest.approx(np.clip(verdict.success, 0, 1))


def test_nothing_but_repeats_is_refused():
    with pytest.raises(ValueError, match="every candidate is a known policy"):
        chosen({"left-03": KNOWN["left-03"]})


def test_one_name_for_two_policies_is_refused():
    with pytest.raises(ValueError, match="both named 'left-03', but are different objects; rename one"):
        chosen({"left-03": LinearGain(np.array([9.0, 9.0]))})


def test_few_known_policies_take_fewer_folds():
    few = dict(list(KNOWN.items())[:6])
    selection = chosen(known=few, returns=[RETURNS[name] for name in few], groups=list("ababab"))
    assert len(selection.candidates) == len(CANDIDATES)
    assert any("only 6 known policies" in note for note in selection.notes)


def test_too_few_known_policies_say_how_many_are_needed():
    few = dict(list(KNOWN.items())[:3])
    with pytest.raises(ValueError, match="select needs at least 4 policies with known returns, got 3"):
        chosen(known=few, returns=[RETURNS[name] for name in few])


def test_copies_of_known_policies_do_not_count():
    names = list(KNOWN)[:4]
    returns = {name: float(i) for i, name in enumerate(names)}
    twins = {f"twin-{i}": LinearGain(KNOWN[names[0]].gain) for i in range(2)}
    few = {name: KNOWN[name] for name in names[:3]} | twins
    with pytest.raises(ValueError, match="at least 4 policies with known returns that act differently, got 3"):
        chosen(known=few, returns=returns | dict.fromkeys(twins, 5.0))
    equal = {name: KNOWN[name] for name in names} | twins
    with pytest.raises(ValueError, match="the returns of all known policies are equal"):
        chosen(known=equal, returns=dict.fromkeys(names, 1.0) | dict.fromkeys(twins, 5.0))


def test_one_group_is_noted_and_foreign_candidates_are_not_deployed():
    far = {f"far-{i}": LinearGain(np.array([3.0 + i, 3.0])) for i in range(5)}
    methods = {f"m{i}": Scripted(said(0.05, i) | dict.fromkeys(far, -3.0) | {"far-0": -2.0}) for i in range(2)}
    selection = chosen(far, groups=["g"] * len(KNOWN), methods=methods)
    assert any("form one group" in note for note in selection.notes)
    assert selection.verdict.kind in ("measure first", "cannot rank these")
    assert all("foreign" in selection.flags[name] for name in far)
    assert not selection.calibrated


def test_failing_methods_are_dropped_with_the_reason():
    methods = {"m": Scripted(said(0.05)), "bad": Failing(FloatingPointError("the loss is not finite"))}
    selection = chosen(methods=methods)
    assert selection.to_dict()["dropped"] == {"bad": "the loss is not finite"}
    assert "bad was dropped: the loss is not finite" in selection.table()


def test_constant_columns_are_dropped():
    methods = {"m": Scripted(said(0.05)), "flat": Scripted(dict.fromkeys(TRUTH, 2.0))}
    assert "flat" in chosen(methods=methods).panel.dropped


def test_logs_without_rewards_say_so():
    methods = {"nearest": "nearest policy", "critic": "SARSA critic"}
    selection = select(CANDIDATES, log().states, known=KNOWN, returns=RETURNS, methods=methods, **QUIET)
    assert selection.panel.methods == ["nearest"]
    assert any("the log holds no rewards" in note for note in selection.notes)
    assert selection.verdict.reason.endswith("The log holds no rewards, so no method used any.")


def test_methods_beyond_their_time_limit_are_dropped():
    class Slow(Scripted):
        def estimate(self, policies, log, **options):
            with progress_bar(1, "slow", "step", show=False) as bar:
                bar.update()
            return super().estimate(policies, log, **options)

    selection = chosen(methods={"m": Scripted(said(0.05)), "slow": Slow(said(0.05))}, time_limit=1e-9)
    assert selection.panel.dropped == {"slow": "stopped after its time limit of 1e-09 s"}


def test_discrete_actions():
    process = Tabular.random()
    policies = {f"table-{i}": TablePolicy(process.policy(i)) for i in range(8)}
    returns = {name: process.value(process.policy(i), DISCOUNT) for i, name in enumerate(policies)}
    known = dict(list(policies.items())[:6])
    candidates = {name: policies[name] for name in policies if name not in known}
    critic = BehaviourQ(updates=100, batch_size=64, hidden=(16,), learning_rate=3e-3)
    selection = select(
        candidates,
        process.log(process.policy(9), 20, 10, seed=0),
        known=known,
        returns={name: returns[name] for name in known},
        methods={"nearest": "nearest policy", "critic": critic},
        **QUIET,
    )
    assert set(selection.candidates) == set(candidates)
    assert selection.panel.methods == ["nearest", "critic"]


def test_a_series_of_groups_may_hold_candidates():
    pandas = pytest.importorskip("pandas")
    groups = {name: name.partition("-")[0] for name in [*KNOWN, *CANDIDATES]}
    series = pandas.Series(groups).sample(frac=1, random_state=0)
    assert chosen(groups=series).panel.groups == chosen(groups=groups).panel.groups


def test_ranks_are_noted():
    order = sorted(KNOWN, key=RETURNS.get)
    selection = chosen(returns={name: place + 1 for place, name in enumerate(order)})
    assert any("look like ranks" in note for note in selection.notes)


def test_stochastic_candidates_beside_deterministic_known_policies():
    noisy = {name: LinearGain(policy.gain, 0.1) for name, policy in CANDIDATES.items()}
    assert set(chosen(noisy).candidates) == set(CANDIDATES)


def test_arrays_of_actions():
    transitions = log()
    known = {name: policy(transitions.states) for name, policy in KNOWN.items()}
    candidates = {name: Gaussian(policy(transitions.states), np.full((600, 1), 0.1)) for name, policy in
                  CANDIDATES.items()}  # fmt: skip
    selection = chosen(candidates, known=known, log=transitions)
    assert set(selection.candidates) == set(CANDIDATES)


def test_columns_in_files_are_used_again(tmp_path):
    first = chosen(checkpoints=tmp_path)
    methods = {f"m{i}": Scripted(said(0.05, i)) for i in range(3)}
    second = chosen(checkpoints=tmp_path, methods=methods)
    assert all(method.calls == [] for method in methods.values())
    np.testing.assert_array_equal(first.predicted, second.predicted)


def test_columns_of_other_candidates_are_refused(tmp_path):
    chosen(checkpoints=tmp_path)
    with pytest.raises(ValueError, match="name another folder"):
        chosen({"left-21": CANDIDATES["left-21"]}, checkpoints=tmp_path)


def test_a_candidate_that_claims_a_known_group():
    claimed = {name: name.split("-")[0] for name in [*KNOWN, "left-21"]}
    selection = chosen(groups=claimed)
    assert selection.panel.groups[selection.names.index("left-21")] == "left"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"incumbent": "nobody"}, "the incumbent 'nobody' is none of the known policies"),
        ({"incumbent": "left-21"}, "the incumbent 'left-21' is none of the known policies"),
        ({"returns": dict.fromkeys(KNOWN, 1.0)}, "the returns of all known policies are equal"),
        ({"returns": np.eye(16)}, "preferences"),
        ({"returns": [1.0, 2.0]}, r"returns must have shape \(16,\)"),
        ({"groups": ["a", "b"]}, "groups must be one for each of 16 policies"),
        ({"groups": {"left-01": "a"}}, "groups hold nothing for policy"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        chosen(**change)
