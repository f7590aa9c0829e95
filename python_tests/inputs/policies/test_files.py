"""Files and folders of policies: which are read, what they are named, and what is said of those that cannot be."""

import numpy as np
import pandas
import pytest
import torch
from support.needs import to_parquet

from sopr_fast.inputs.policies import load_policies as load

DA = 3
ACTOR = {"mean.weight": np.ones((DA, 5)), "mean.bias": np.zeros(DA)}


NAMES = {  # what is loaded, in a folder of runs with files of equal names, one that is hidden, and others → names
    "everything": (["A", "B"], ["A/ppo_1/best", "A/ppo_2/best", "B/ppo_1/best"]),
    "a folder": ("A", ["ppo_1/best", "ppo_2/best"]),
    "folders": (["A/ppo_1", "A/ppo_2"], ["ppo_1/best", "ppo_2/best"]),
    "a folder of one": ("A/ppo_1", ["best"]),
    "a file": ("A/ppo_1/best.npz", ["best"]),
    "files": (["A/ppo_1/best.npz", "B/ppo_1/best.npz"], ["A/ppo_1/best", "B/ppo_1/best"]),
    "above": (["A/ppo_1/best.npz", "A/../B"], ["A/ppo_1/best", "B/ppo_1/best"]),
    "twice": (["A/ppo_1", "A/ppo_1/best.npz"], ["best"]),
    "a link": ("link", ["ppo_1/best", "ppo_2/best"]),
    "by name": ({"a": "A/ppo_1/best.npz", "b": "B/ppo_1"}, ["a", "b"]),
    "known suffixes, two of one stem": ("C", ["a", "b.npy", "b.npz", "c"]),
}


@pytest.mark.parametrize("paths, names", NAMES.values(), ids=NAMES)
def test_names_are_relative_to_the_folder_that_contains_everything(tmp_path, monkeypatch, paths, names):
    for name in ("A/ppo_1/best", "A/ppo_2/best", "B/ppo_1/best", "B/.hidden/best", "C/b", "C/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        np.savez(tmp_path / name, **ACTOR)
    (tmp_path / "C/c.npz").rename(tmp_path / "C/c.NPZ")
    for name in ("C/a.npy", "C/b.npy"):
        np.save(tmp_path / name, np.zeros((7, DA)))
    for name in ("C/notes.txt", "C/.hidden.npy", "C/vecnormalize.pkl"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "A")  # not followed below a folder: no endless circles
    monkeypatch.chdir(tmp_path)
    policies = load(paths)
    assert list(policies) == [policy.name for policy in policies.values()] == names
    if isinstance(paths, str):
        monkeypatch.chdir("A")
        assert list(load(tmp_path / paths)) == names


def test_folders_of_files_that_cannot_be_read(tmp_path):
    folder = tmp_path / "\x1b[2J\u202eevil"
    folder.mkdir()
    escaped = r"\\x1b\[2J\\u202eevil"
    with pytest.raises(ValueError, match="passed over: nothing, since it holds no files"):
        load(folder)
    for name in ("a.\x07", "notes.txt", "more.txt", "Makefile", ".hidden", "vecnormalize.pkl"):
        (folder / name).touch()
    with pytest.raises(ValueError, match=rf"{escaped}: no policies \(\.npz, .*passed over: .*2 \.txt") as caught:
        load(folder)
    assert str(caught.value).isprintable() and r"1 .\x07" in str(caught.value)
    for name in ("b\n.npz", "c\x9b.zip", "cut.pt"):
        (folder / name).write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"evil/b\\n\.npz: damaged"):
        load(folder)
    with pytest.raises(FileNotFoundError, match=rf"{escaped}/d\.npz: no such file"):
        load(folder / "d.npz")


BROKEN = {  # files of a folder → message
    "not all stacked": ({"x": ACTOR | {"mean.bias": np.zeros((2, DA))}}, r"x\.npz: .*one number of stacked"),
    "objects": ({"x": ACTOR | {"mean.bias": np.array([None] * DA)}}, r"x\.npz: Object arrays cannot be loaded"),
    "diverged": (
        {"x": ACTOR | {"mean.bias": np.full(DA, np.nan)}},
        "diverged, leave the file out",
    ),
    "one name": (
        {"a": {name: x[None] for name, x in ACTOR.items()}, "a-000": ACTOR},
        "2 policies .* 'a-000': .* rename their files",
    ),
}


@pytest.mark.parametrize("files, message", BROKEN.values(), ids=BROKEN)
def test_broken_actors(tmp_path, files, message):
    for name, arrays in files.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_half_written_and_other_files(tmp_path):
    torch.save({"mean.weight": torch.zeros(3, 4)}, tmp_path / "whole.pt")
    np.savez(tmp_path / "whole.npz", **ACTOR)
    np.save(tmp_path / "whole.npy", np.zeros((9, 3)))
    whole = {path.suffix: path.read_bytes() for path in tmp_path.iterdir()}
    random = np.random.default_rng(0).bytes(300)
    for suffix in (*whole, ".zip", ".d3", ".pkl", ".safetensors", ".onnx", ".parquet", ".cleanrl_model"):
        content, path = whole.get(suffix, b""), tmp_path / f"cut{suffix}"
        parts = [content[:part] for part in (0, 1, len(content) // 2, max(len(content) - 1, 0))]
        for damaged in (*parts, b"\x80\x04N.", b"PK\3\4 and then nothing", random):
            path.write_bytes(damaged)
            with pytest.raises((ValueError, ImportError), match=rf"cut\{suffix}: "):
                next(iter(load(path).values()))(np.zeros((1, 4)))
    (tmp_path / "notes.txt").write_text("no policy")
    with pytest.raises(ValueError, match=r"expected a file of \.npz, "):
        load(tmp_path / "notes.txt")


def test_a_log_among_policies_is_told_as_such(tmp_path):
    table = pandas.DataFrame({"obs_0": [0.0, 1.0], "actions_0": [0.0, 1.0]})
    to_parquet(table, tmp_path / "with-states.parquet")
    assert len(load(tmp_path)) == 1
    to_parquet(table.assign(reward=0.0), tmp_path / "table.parquet")
    with pytest.raises(ValueError, match=r"table\.parquet: a log \(it holds 'reward'\), not a policy: move it out"):
        load(tmp_path)
    np.savez(tmp_path / "table.npz", observations=np.zeros((2, 3)), actions=np.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"table\.npz: a log \(it holds 'observations'\), not a policy"):
        load(tmp_path / "table.npz")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"x": [1.0, 2.0]},
            r"expected one of the columns actions, action, act, acts, or actions_0, .*; found x;",
        ),
        ({"action": [1.0], "action_1": [1.0]}, "expected one of the columns .*; found action, action_1"),
        ({"action_0": [1.0], "action_2": [1.0]}, "numbers of the columns action_0, action_2 leave some out"),
        ({"action": [[1.0], [2.0, 3.0]]}, r"lists of equal length expected, got \(1,\) and \(2,\) at row 1"),
        ({"action": ["left", "right"]}, "give words as indices of discrete actions"),
    ],
)
def test_tables_without_a_column_of_actions_are_refused(tmp_path, columns, message):
    to_parquet(pandas.DataFrame(columns), tmp_path / "table.parquet")
    with pytest.raises(ValueError, match=rf"table\.parquet: .*{message}"):
        load(tmp_path)
