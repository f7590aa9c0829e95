import re

import numpy as np
import pytest

import sopr_fast
from sopr_fast.estimators import NearestPolicy
from sopr_fast.inputs.policies import as_policies, load
from sopr_fast.inputs.returns import check_positions, read_returns, with_returns

NAMES = ["a", "b", "12"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("name,return\na,1\nb,-2.5\n", {"a": 1, "b": -2.5}),
        ("\ufeffreturn,seed,name\n1e3,0, b \n\n2,0,12\n", {"b": 1000, "12": 2}),
        ("Policy,RETURN\na,1\n", {"a": 1}),
        ("policy,steps,return_mean\n0,6000,3\n1,12000,4\n", {"a": 3, "b": 4}),
        ("1,1\n2,5\n", {"b": 1, "12": 5}),
        ("a,1\n2,5\n", {"a": 1, "2": 5}),  # a row of another policy, not a position
        ("00,1\n01,5\n", {"00": 1, "01": 5}),
        (",return,steps\na,1,7\n", {"a": 1}),
        (",policy,return\n1,a,5\n", {"a": 5}),
        (",0\nb,1\na,2.5\n", {"b": 1, "a": 2.5}),
        ("name,return\na,1,\n", {"a": 1}),
        ("a,1\nc,2\n3,4\n", {"a": 1, "c": 2, "3": 4}),
    ],
)
def test_returns_in_csv(tmp_path, text, expected):
    path = tmp_path / "r.csv"
    path.write_text(text, encoding="utf-8")
    assert read_returns(path, NAMES) == expected


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "r.csv: no returns in it"),
        ("policy,score\na,1\n", "r.csv: expected columns name and return, found policy, score"),
        ("name;return\na;1\n", "r.csv: expected columns name and return, found name;return, separated by ';' instead"),
        ("name\treturn\na\t1\n", "r.csv: expected columns name and return, found name\\treturn, separated by tabs"),
        ("\t0\na\t1\n", "r.csv: expected columns name and return, found \\t0, separated by tabs instead"),
        (",score\na,1\n", "r.csv: expected columns name and return, found , score"),
        ("name,return\na,1\nb,high\n", "r.csv, line 3: expected a name and a number, found b,high"),
        ("name,return\na\n", "r.csv, line 2: expected a name and a number, found a"),
        ("a,1\na,1\n", "r.csv, line 2: a second return of 'a'"),
        ("name,return\na,1\nb,1,234.5\n", "r.csv, line 3: has 3 cells, the first line has 2; quote cells with a comma"),
        ("a,1\nb,2,3\n", "r.csv, line 2: has 3 cells, the first line has 2"),
        ("a,12,5\nb,13,7\n", "r.csv, line 1: has 3 cells and no header; begin the file with a line like name,return"),
        ("\na,1,234.5\n", "r.csv, line 2: has 3 cells and no header"),
    ],
)
def test_broken_returns(tmp_path, text, message):
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_returns(tmp_path / "r.csv", NAMES)


def test_positions_are_refused_where_a_policy_was_skipped(tmp_path):
    policies, path = tmp_path / "policies", tmp_path / "r.csv"
    policies.mkdir()
    for name in "ace":
        np.save(policies / f"{name}.npy", np.zeros((5, 2)))
    (policies / "b.npz").write_bytes(b"no archive")
    path.write_text("name,return\n0,1\n3,2\n")
    with pytest.warns(UserWarning, match="skipped"):
        loaded = load(policies, skip=True)
    for source in (loaded, list(loaded.values()), as_policies(loaded, states_count=5)):
        with pytest.raises(ValueError, match=r"r\.csv, line 2: '0' is no policy's name.*b\.npz was skipped; give"):
            with_returns(as_policies(source), path)
    (policies / "b.npz").unlink()
    path.write_text("name,return\n0,1\n1,2\n2,3\n")
    assert with_returns(as_policies(policies), path)[1] == {"a": 1, "c": 2, "e": 3}


STATES = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
ORDERED = {
    "fit": lambda folder, returns: sopr_fast.fit(folder, returns, STATES),
    "preferences": lambda folder, returns: sopr_fast.fit(folder, states=STATES, preferences=np.eye(len(returns))),
    "validation": lambda folder, returns: sopr_fast.fit([np.tanh] * 2, [1, 2], STATES, validation=([folder], returns)),
    "evaluate": lambda folder, returns: sopr_fast.evaluate(STATES, folder, returns),
    "select": lambda folder, returns: sopr_fast.select({}, STATES, folder, returns),
    "estimate": lambda folder, returns: NearestPolicy().estimate([np.tanh], STATES, known=folder, returns=returns),
}


@pytest.mark.parametrize("call", ORDERED.values(), ids=ORDERED)
def test_returns_in_order_need_names_where_paths_do_not_ascend_with_their_numbers(call, tmp_path):
    for step in (10, 2, 30):
        np.save(tmp_path / f"step_{step}.npy", np.zeros((5, 2)))
    message = r"are in order, but a folder is read in the order of its paths, step_10\.npy before step_2\.npy: give"
    for returns in ([1, 2, 3], np.arange(3)):
        with pytest.raises(ValueError, match=message):
            call(tmp_path, returns)


def test_returns_in_order_are_read_where_their_order_is_plain(tmp_path):
    for name in ("step_02", "step_10", "best", "best_3"):
        np.save(tmp_path / f"{name}.npy", np.zeros((5, 2)))
    check_positions("returns", range(4), tmp_path)
    np.save(tmp_path / "step_3.npy", np.zeros((5, 2)))
    check_positions("returns", {"step_3": 1}, tmp_path)
    check_positions("returns", "returns.csv", tmp_path)
    check_positions("rollouts", 20, tmp_path)
    check_positions("returns", range(5), load(tmp_path))  # whose names the caller sees
    with pytest.raises(ValueError, match="step_10"):
        check_positions("returns", range(5), tmp_path)


def test_positions_in_a_file_are_refused_where_names_do_not_ascend_with_their_numbers(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("name,return\n0,1\n1,2\n2,3\n")
    assert read_returns(path, ["p0", "p1", "p2"]) == {"p0": 1, "p1": 2, "p2": 3}
    with pytest.raises(ValueError, match=r"r\.csv, line 2: '0' is no policy's name, .* 'p10' comes before 'p2'; give"):
        read_returns(path, ["p1", "p10", "p2"])
    path = tmp_path / "r.json"
    path.write_text("[1, 2, 3]")
    assert read_returns(path, ["p0", "p1", "p2"]) == {"p0": 1, "p1": 2, "p2": 3}
    with pytest.raises(ValueError, match=r"r\.json: its returns are in order, .* 'p10' comes before 'p2'; map names"):
        read_returns(path, ["p1", "p10", "p2"])


@pytest.mark.parametrize(
    "names, text, doubt",
    [
        (["a", "b"], "0,1\n1,2\n2,3\n", "line 3: .2. is no policy.s name, and as a position it is too"),
        (["p1", "p2", "p3"], "1,1\n2,2\n", "line 1: .* is that of policy 'p2', counted from 0, not of 'p1'; give the"),
        (["p00", "p01", "p02"], "0,1\n2,3\n", None),
        (["ppo_1/last", "ppo_2/best", "ppo_2/last"], "0,1\n2,3\n", None),  # 2 is in the names of several
    ],
)
def test_positions_in_a_file_are_refused_where_they_may_be_counted_otherwise(tmp_path, names, text, doubt):
    path = tmp_path / "r.csv"
    path.write_text(text)
    if doubt is None:
        assert read_returns(path, names) == {names[0]: 1, names[2]: 3}
        return
    with pytest.raises(ValueError, match=doubt):
        read_returns(path, names)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "b": -2.5, "other": 3}', {"a": 1, "b": -2.5, "other": 3}),
        ("[1, 2, 3e3]", {"a": 1, "b": 2, "12": 3000}),
    ],
)
def test_returns_in_json(tmp_path, text, expected):
    path = tmp_path / "r.json"
    path.write_text(text)
    assert read_returns(path, NAMES) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "r.json: not a JSON file"),
        ("[1, 2]", "r.json: has 2 returns for 3 policies; map names to returns"),
        ("3", "r.json: expected an object of name and return, or a list of returns"),
        ('{"a": "1"}', "r.json: the return of 'a' is no number"),
        ('{"a": null}', "r.json: the return of 'a' is no number"),
        ('{"a": 1, "b": 2, "a": 3}', "r.json: a second return of 'a'"),
        ('{"a": [1, 1' + "0" * 400 + "]}", "r.json: the return of 'a' is too large"),
        ('{"a": 1' + "0" * 400 + "}", "r.json: the return of 'a' is too large"),
    ],
)
def test_broken_returns_in_json(tmp_path, text, message):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_returns(tmp_path / "r.json", NAMES)


@pytest.mark.parametrize("content", ["a,1\nß,2\n".encode("latin-1"), b"PK\x03\x04\xe6", b"a," + b"1" * 200_000])
def test_returns_that_are_no_text(tmp_path, content):
    (tmp_path / "r.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"r\.csv: not a CSV file in UTF-8"):
        read_returns(tmp_path / "r.csv", NAMES)
