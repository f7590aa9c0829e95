import re

import h5py
import numpy as np
import pytest

from sopr_fast.inputs import read_returns, read_states

STATES = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
NAMES = ["a", "b", "12"]


def write_states(path, key):
    if path.suffix == ".npy":
        np.save(path, STATES)
    elif path.suffix == ".npz":
        np.savez(path, **{key: STATES, "rewards": np.zeros(3)})
    else:
        with h5py.File(path, "w") as file:
            file[key] = STATES
            file["rewards"] = np.zeros(3)


@pytest.mark.parametrize("name", ["s.npy", "s.npz", "s.hdf5", "s.h5"])
@pytest.mark.parametrize("key", ["observations", "states"])
def test_states(tmp_path, name, key):
    write_states(tmp_path / name, key)
    np.testing.assert_array_equal(read_states(tmp_path / name), STATES)


@pytest.mark.parametrize("name", ["s.npz", "s.hdf5"])
def test_states_missing_from_file(tmp_path, name):
    write_states(tmp_path / name, "actions")
    with pytest.raises(ValueError, match=r"no array 'observations' or 'states', found actions, rewards"):
        read_states(tmp_path / name)


@pytest.mark.parametrize("name", ["s.npy", "s.npz", "s.hdf5"])
def test_damaged_states(tmp_path, name):
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=re.escape(f"{name}: damaged, or not")):
        read_states(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_states(tmp_path / f"other{name}")


def test_states_of_another_kind(tmp_path):
    (tmp_path / "s.csv").write_text("1,2\n")
    with pytest.raises(ValueError, match=r"expected states in an \.npy, \.npz or \.hdf5 file"):
        read_states(tmp_path / "s.csv")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("name,return\na,1\nb,-2.5\n", {"a": 1, "b": -2.5}),
        ("\ufeffreturn,seed,name\n1e3,0, b \n\n2,0,12\n", {"b": 1000, "12": 2}),
        ("policy,steps,return_mean\n0,6000,3\n1,12000,4\n", {"a": 3, "b": 4}),
        ("a,1\n2,5\n", {"a": 1, "12": 5}),
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
        ("name,return\na,1\nb,high\n", "r.csv, line 3: expected a name and a number, found b,high"),
        ("name,return\na\n", "r.csv, line 2: expected a name and a number, found a"),
        ("a,1\nc,1\n", "r.csv, line 2: no policy is named 'c'"),
        ("a,1\n0,1\n", "r.csv, line 2: a second return of 'a'"),
        ("a,1\n3,1\n", "r.csv, line 2: no policy is named '3'"),
    ],
)
def test_broken_returns(tmp_path, text, message):
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_returns(tmp_path / "r.csv", NAMES)
