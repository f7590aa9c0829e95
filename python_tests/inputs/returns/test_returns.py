"""Returns of policies, from whatever holds them to one table by name."""

import json
import re
import warnings

import numpy as np
import pandas
import pytest
import torch

import sopr_fast
from sopr_fast import load_policies, load_returns
from sopr_fast.estimators import NearestPolicy
from sopr_fast.inputs.returns import check_returns, find_returns

NAMES = ["a", "b", "12"]
STATES = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


EXPECTED = "expected columns name and return (or cost), found"
YOURS = "name yours by load_returns(…, columns={'name': …, 'return': …})"


def of(table):
    return table["return"].to_dict()


@pytest.mark.parametrize(
    ("name", "text", "read"),  # what is read is returns by name, or a message
    [
        ("r.csv", "name,return\na,1\nb,-2.5\n", {"a": 1, "b": -2.5}),
        ("r.csv", ",name,return\n0,a,1\n1,b,-2.5\n", {"a": 1, "b": -2.5}),
        ("r.CSV", "\ufeffreturn,seed,name\n1e3,0, b \n\n2,0,12\n", {"b": 1000, "12": 2}),
        ("r.csv", "policy,return\na,1\n007,2\n", {"a": 1, "007": 2}),
        ("r.csv", "Policy,RETURN\na,1\n", f"{EXPECTED} Policy, RETURN, so no name and no return"),
        ("r.csv", "policy,steps,return\n0,6000,3\n1,12000,4\n", {"0": 3, "1": 4}),
        ("r.csv", 'name,return\r\n"x, y",1\r\nNA,2\r\n', {"x, y": 1, "NA": 2}),
        ("r.json", '{"a": 1, "b": [1, 3], "c": null}', {"a": 1, "b": 2}),
        ("r.csv", "name,return,\na,1,\nb,,\n", {"a": 1}),
        ("r.csv", "name;return\na;-1,5\n", "separated by ';': write commas, or open it by pandas"),
        ("r.csv", "name,return,rollouts\na,1,5\nb,,0\n", {"a": 1}),
        ("r.json", '{"a": {"return": 1, "error": 2}, "b": {"return": 2}}', {"a": 1, "b": 2}),
        ("r.csv", "", "its first line must name the columns"),
        ("r.csv", "agent,score\na,1\n", f"{EXPECTED} agent, score, so no name and no return; {YOURS}"),
        ("environment.csv", "1,1000,12.5\n2,2000,14\n", "its first line must name the columns, each once; it is '1,"),
        ("r.csv", "name,return,rollouts\na,1,0\n", "the rollouts of policy 'a' is '0', expected a whole number"),
        ("r.csv", "name,return,rollouts\na,1,2.5\n", "the rollouts of policy 'a' is '2.5', expected a whole"),
        ("r.csv", "name,step,return\na,1,1\na,2,1\n", "several rows of policy 'a': keep one, with the mean return"),
        ("r.csv", "name,return\na,1,2\n", "Length of header or names does not match length of data"),
        ("r.csv", "name,return\na,2 ± 1\n", "policy 'a' is '2 ± 1', expected a finite number, without error"),
        ("r.csv", "name,return\na,1\nb,1,234.5\n", "Error tokenizing data"),
        ("r.csv", "policy,name,return\na,b,1\n", {"b": 1}),
        ("r.csv", "name,return,error\na,1,-1\n", "the error of policy 'a' is '-1', expected 0 or more"),
        ("r.csv", b"name,return\n\0\xff", "not in UTF-8, or not a table"),
        ("r.json", "[1, 2]", "its returns have no names: write an object of name and return"),
        ("r.json", '{"a": []}', "the rollouts of policy 'a' must be one or more finite returns"),
        ("r.json", '{"a": 1, "b": 2, "a": 3}', "damaged, cut short, or not JSON: an object has the name 'a' twice"),
        ("r.json", '{"a": 1' + "0" * 400 + "}", "the return of policy 'a' is '1000"),
    ],
)
def test_returns_in_files(tmp_path, name, text, read):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    for source, names in ((path, NAMES), (path, None), (str(path), NAMES)):
        if isinstance(read, dict):
            assert of(load_returns(source, names)) == read
        else:
            with pytest.raises(ValueError, match=f"{name}: .*{re.escape(read)}"):
                load_returns(source, names)


FRAME = pandas.DataFrame({"name": NAMES, "return": [1.0, 2.0, 3.0]})


@pytest.mark.parametrize(
    "source",
    [
        dict(zip(NAMES, (1, np.float32(2), 3), strict=True)),
        FRAME.set_index("name")["return"][::-1],
        FRAME,
        FRAME.set_index("name"),
        load_returns(FRAME),
        [1, 2, 3],
        (1.0, 2.0, 3.0),
        np.array([1, 2, 3], np.uint8),
        torch.tensor([1, 2, 3], dtype=torch.float16),
        [[0.0, 2.0], [2.0], np.array([3.0, 3.0])],
    ],
)
def test_returns_in_memory(source):
    assert of(load_returns(source, NAMES)) == {"a": 1, "b": 2, "12": 3}
    np.testing.assert_array_equal(check_returns(source, NAMES), [1, 2, 3])


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (None, ValueError, "returns are needed: map names to returns, {name: return}"),
        ({"a": np.tanh}, ValueError, "the return of policy 'a' is \"<ufunc 'tanh'>\", expected a finite number"),
        ({"a": (9.0, 5.0, 20), "b": (9.0, 4.0)}, TypeError, "the return of policy 'a' is a tuple, perhaps of a mean"),
        ({"a": {"return": 1}, "b": 2}, ValueError, "a mapping for a, a number or a list for b: give all as {name: {"),
        ([1, 2], ValueError, "there are 2 returns for 3 policies: map names to returns"),
        ({1, 2, 3}, TypeError, "returns are a set: map names to returns"),
        (3.0, TypeError, "returns are a float: map names to returns"),
        ({0: 1.0}, TypeError, "names of policies must be strings, got 0"),
        (pandas.Series([1, 2, 3], [2, 1, 0]), ValueError, "found return, so no name; name yours"),
        (pandas.Series([1, 2], ["a", "a"]), ValueError, "several rows of policy 'a'"),
        (pandas.DataFrame({"name": ["a"], "return": ["1,2"]}), ValueError, "policy 'a' is '1,2', expected a finite"),
        ([1, np.inf, 2], ValueError, "the return of policy 'b' is 'inf', expected a finite number"),
        ([1, np.nan, 2], ValueError, "returns hold nothing for policy 'b'"),
        ([1, [1e308, 1e308], 2], ValueError, "the return of policy 'b' is 'inf', expected a finite number"),
        (np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]), ValueError, "returns hold nothing for policy 'b'"),
        ({"a": 1, "b": 2, "012": 1}, ValueError, "returns hold nothing for policy '12' (did you mean '012'?)"),
    ],
)
def test_returns_in_memory_are_checked(source, error, message):
    with pytest.raises(error, match=re.escape(message)):
        check_returns(source, NAMES)
    if isinstance(source, list):
        with pytest.raises(TypeError, match="these returns have no names: map names to returns"):
            load_returns(source)


def test_standard_errors(tmp_path):
    """A single rollout has none by itself."""
    (tmp_path / "r.csv").write_text("name,return,rollouts,error\na,1,1,\nb,2,9,\nc,1,,.5\nd,1,1,.25\n")
    frame = pandas.read_csv(tmp_path / "r.csv")
    by_name = frame.set_index("name")
    for source in (tmp_path / "r.csv", frame, by_name, by_name.to_dict("index")):
        table = load_returns(source)
        assert table["error"].dropna().to_dict() == {"c": 0.5, "d": 0.25}
        assert table["rollouts"].dropna().to_dict() == {"a": 1, "b": 9, "d": 1}
        pandas.testing.assert_frame_equal(load_returns(table), table)
    rollouts = {"a": [1.0], "b": [0.0, 2.0, 4.0], "c": [-4.0, 4.0], "d": 4.0}
    (tmp_path / "r.json").write_text(json.dumps(rollouts))
    for source in (rollouts, tmp_path / "r.json"):
        errors = load_returns(source)["error"].dropna().to_dict()
        assert errors == pytest.approx({"b": 2 / np.sqrt(3), "c": 4})


TABLE = pandas.DataFrame({"agent": ["a", "b"], "total": [30.0, 900.0], "mean_reward": [3.0, 0.9], "se": [2.0, 2.0]})
NAMED = {"name": "agent", "return": "total"}


@pytest.mark.parametrize("suffix", ["", ".csv"])
def test_columns_of_other_names_are_named(tmp_path, suffix):
    source = TABLE.assign(n=[4, 9])
    if suffix:
        source.to_csv(tmp_path / "r.csv")
        source = tmp_path / "r.csv"
    with pytest.raises(ValueError, match=r"expected columns name and return \(or cost\), found .*total.*columns=\{"):
        load_returns(source)
    with pytest.warns(UserWarning, match=r"columns not read: .*mean_reward, se, n; if they hold standard errors"):
        assert of(load_returns(source, columns=NAMED)) == {"a": 30, "b": 900}
    with warnings.catch_warnings(action="error"):
        table = load_returns(source, columns={**NAMED, "error": "se", "rollouts": "n"})
    assert table["error"].tolist() == [2, 2]
    for columns, message in (
        ({"return": "totl"}, r"no column 'totl' \(did you mean 'total'\?\)"),
        ({"reward": "total"}, r"load_returns\(…, columns=\{'reward': …\}\): expected one of name, return, cost"),
    ):
        with pytest.raises(ValueError, match=message):
            load_returns(source, columns=columns)


def test_costs_are_negated_and_must_be_declared():
    by_name = pandas.Series({"a": 3.0, "b": [1.0, 2.0]}, name="total_cost")
    frame = pandas.DataFrame({"name": ["a", "b"], "cost": [3.0, 1.5], "error": [0.5, 0.1]})
    for source, columns in ((frame, None), (by_name, {"cost": "total_cost"})):
        assert of(load_returns(source, columns=columns)) == {"a": -3, "b": -1.5}
    assert load_returns(frame)["error"].tolist() == [0.5, 0.1]
    for label in ("cost", "Total costs", "loss", "penalty_sum"):
        with pytest.raises(ValueError, match=f"but are called '{label}': pass load_returns"):
            load_returns(frame.rename(columns={"cost": label}), columns={"return": label})
    with pytest.raises(ValueError, match=r"found total_cost, so no return; name yours"):
        load_returns(by_name)
    with pytest.raises(ValueError, match=r"columns return \(of a, b\) and cost \(of a, b\): leave only one"):
        load_returns(frame.assign(**{"return": 1.0}))


def save_evaluations(folder, results):
    """As Stable-Baselines3 2.9.2, common/callbacks.py, EvalCallback; or arrays by name."""
    folder.mkdir(parents=True, exist_ok=True)
    steps, lengths = np.arange(1, len(results) + 1) * 1000, np.full(np.shape(results), 10)
    arrays = results if isinstance(results, dict) else {"timesteps": steps, "results": results, "ep_lengths": lengths}
    np.savez(folder / "evaluations.npz", **arrays)


RUNS = {"ppo_1": [[1.0, 3.0], [8.0, 12.0], [4.0, 4.0]], "ppo_1/b": [[3.0]], "sac_1": [[5.0], [7.0]]}
OF_RUNS = ["ppo_1/best_model", "ppo_1/rl_model_1000_steps", "ppo_1/b/c/x_1000_steps", "sac_1/best_model"]
OF_EITHER = "its returns could be those of a, b: pass the folder that contains all runs"
ONE, OF_TWO = {".": [[1.0], [5.0], [3.0]]}, ["a/m_1000_steps", "b/m_1000_steps"]


@pytest.mark.parametrize(
    ("runs", "source", "names", "read"),  # what is read is a return, or those of rollouts, of each name, or a message
    [
        (RUNS, ".", OF_RUNS, [[8, 12], [1, 3], [3], [7]]),
        ({".": np.ones((2, 3, 1))}, "", ["a_1000_steps"], [[1, 1, 1]]),
        (ONE, "", [f"rl_model_{500 * i}_steps" for i in range(1, 7)], [None, 1, None, 5, None, 3]),  # save_freq=500
        (ONE, "", ["m_2000_steps", "epoch_3000", "final", "a_1999_steps"], [5, None, None, None]),
        (ONE, "", ["best_model", "final"], [5, None]),
        (ONE, "", ["best_model", "m_2000_steps"], [None, 5]),  # its copy
        (ONE, "", ["policy_7", "best"], "none of its evaluations, in ., belongs to policy_7, best: policies are named"),
        *(({"a": [[1.0]]}, source, OF_TWO, OF_EITHER) for source in ("a", "a/evaluations.npz")),
        ({"runs/ppo": [[1.0]]}, ".", NAMES, "none of its evaluations, in runs/ppo, belongs to a, b, 12"),
        ({"a": [[1.0]]}, "none", NAMES, r"none: no returns: expected evaluations\.npz of runs"),
        (ONE, ".", None, "these returns have no names: map names to returns, {name: return}, or pass names="),
        ({".": {"timesteps": [1, 2]}}, "", NAMES, "not the evaluations of .*results.npy"),
        ({".": {"timesteps": [1, 2], "results": [1, 1]}}, "", NAMES, r"timesteps \(2,\) and results \(2,\), expected"),
        ({".": {"timesteps": [1], "results": [[np.nan]]}}, "", NAMES, "evaluations.npz: .* its results are not finite"),
    ],
)
def test_policies_get_the_evaluations_of_their_own_steps_or_none(tmp_path, runs, source, names, read):
    for run, results in runs.items():
        save_evaluations(tmp_path / run, results)
    (tmp_path / "none").mkdir()
    path = tmp_path / (source or "evaluations.npz")
    if isinstance(read, str):
        with pytest.raises((TypeError, ValueError), match=read):
            load_returns(path, names)
        return
    table = load_returns(path, names)
    rollouts = {name: np.atleast_1d(row) for name, row in zip(names, read, strict=True) if row is not None}
    pandas.testing.assert_frame_equal(table, load_returns(rollouts), check_like=True)


IN_ORDER = {
    "returns": lambda known: sopr_fast.fit(known, STATES, [1, 2, 3]),
    "preferences": lambda known: sopr_fast.fit(known, states=STATES, preferences=np.eye(3)),
    "validation": lambda known: sopr_fast.fit([np.tanh] * 2, STATES, [1, 2], validation=(known, np.arange(3))),
    "estimate": lambda known: NearestPolicy().estimate([np.tanh], STATES, known=known, returns=[1, 2, 3]),
    "evaluate": lambda known: sopr_fast.evaluate(known, STATES, (1, 2, 3)),
    "select": lambda known: sopr_fast.select(known, STATES, returns=[1, 2, 3]),
}


@pytest.mark.filterwarnings("ignore::sopr_fast.DoubtfulPolicyWarning")
@pytest.mark.parametrize("call", IN_ORDER.values(), ids=IN_ORDER)
def test_what_is_in_order_needs_names_where_policies_come_from_files(call, tmp_path):
    for step in (10, 2, 30):
        np.save(tmp_path / f"s_{step}.npy", np.zeros((5, 2)))
    for known in (tmp_path, [tmp_path / "s_2.npy", tmp_path / "s_10.npy"], load_policies(tmp_path)):
        with pytest.raises(ValueError, match="are in order, but policies come from files: give .* by their names"):
            call(known)


def test_returns_of_other_policies_are_warned_of():
    with pytest.warns(UserWarning, match="returns of c are of no policy"):
        table = find_returns(pandas.DataFrame({"name": ["a", "c"], "return": [1.0, 2.0]}), ["a", "b"])
    np.testing.assert_array_equal(table["return"], [1, np.nan])
    with pytest.raises(ValueError, match="no policy has a return: returns are given of c, the policies are a; name"):
        find_returns({"c": 1.0}, ["a"])
