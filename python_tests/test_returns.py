import re

import pytest

from sopr_fast.returns import read_returns

NAMES = ["a", "b", "12"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("name,return\na,1\nb,-2.5\n", {"a": 1, "b": -2.5}),
        ("\ufeffreturn,seed,name\n1e3,0, b \n\n2,0,12\n", {"b": 1000, "12": 2}),
        ("Policy,RETURN\na,1\n", {"a": 1}),
        ("policy,steps,return_mean\n0,6000,3\n1,12000,4\n", {"a": 3, "b": 4}),
        ("a,1\n2,5\n", {"a": 1, "12": 5}),
        (",return,steps\na,1,7\n", {"a": 1}),
        (",policy,return\n1,a,5\n", {"a": 5}),
        (",0\nb,1\na,2.5\n", {"b": 1, "a": 2.5}),
        ("a,1\nc,2\n3,4\n", {"a": 1, "c": 2, "3": 4}),
    ],
)
def test_returns(tmp_path, text, expected):
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
        ("a,1\n0,1\n", "r.csv, line 2: a second return of 'a'"),
    ],
)
def test_broken_returns(tmp_path, text, message):
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_returns(tmp_path / "r.csv", NAMES)


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
