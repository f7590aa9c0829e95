"""Files and folders of policies: which are read, what they are named, and what is said of those that cannot be."""

import numpy as np
import pytest
import torch

from sopr_fast.inputs.policies import load_policies as load

DA = 3
ACTOR = {"mean.weight": np.ones((DA, 5)), "mean.bias": np.zeros(DA)}
NAMES = {  # what is loaded, in a folder of runs with files of equal names, one that is hidden, and others → names
    "everything": (["A", "B"], ["A/ppo_1/best", "A/ppo_2/best", "B/ppo_1/best"]),
    "a folder": ("A", ["ppo_1/best", "ppo_2/best"]),
    "folders": (["A/ppo_1", "A/ppo_2"], ["ppo_1/best", "ppo_2/best"]),
    "a file": ("A/ppo_1/best.npz", ["best"]),
    "files": (["A/ppo_1/best.npz", "B/ppo_1/best.npz"], ["A/ppo_1/best", "B/ppo_1/best"]),
    "above": (["A/ppo_1/best.npz", "A/../B"], ["A/ppo_1/best", "B/ppo_1/best"]),
    "twice": (["A/ppo_1", "A/ppo_1/best.npz"], ["best"]),
    "a link": ("link", ["ppo_1/best", "ppo_2/best"]),
    "by name": ({"a": "A/ppo_1/best.npz", "b": "B/ppo_1"}, ["a", "b"]),
    "known suffixes": ("C", ["a", "b", "c"]),
}


@pytest.mark.parametrize("paths, names", NAMES.values(), ids=NAMES)
def test_names_are_relative_to_the_folder_that_contains_everything(tmp_path, monkeypatch, paths, names):
    for name in ("A/ppo_1/best", "A/ppo_2/best", "B/ppo_1/best", "B/.hidden/best", "C/b", "C/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        np.savez(tmp_path / name, **ACTOR)
    (tmp_path / "C/c.npz").rename(tmp_path / "C/c.NPZ")
    np.save(tmp_path / "C/a.npy", np.zeros((7, DA)))
    for name in ("C/notes.txt", "C/.hidden.npy", "C/vecnormalize.pkl"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "A")  # not followed below a folder: no endless circles
    monkeypatch.chdir(tmp_path)
    policies = load(paths)
    assert list(policies) == [policy.name for policy in policies.values()] == names
    if isinstance(paths, str):
        monkeypatch.chdir("A")
        assert list(load(tmp_path / paths)) == names


def test_folders_and_paths_that_hold_no_policies(tmp_path):
    folder = tmp_path / "\x1b[2J\u202eevil"
    folder.mkdir()
    for name in ("notes.txt", ".hidden", "vecnormalize.pkl"):
        (folder / name).touch()
    for path, error, message in (
        (folder, ValueError, r"no policies \(\.npz, .*\) in this folder or below it"),
        (folder / "d.npz", FileNotFoundError, "/d.npz: no such file"),
        (folder / "notes.txt", ValueError, r"expected a file of \.npz, "),
    ):
        with pytest.raises(error, match=rf"\\x1b\[2J\\u202eevil.*{message}") as caught:
            load(path)
        assert str(caught.value).isprintable()


BROKEN = {  # files of a folder → message
    "not all stacked": ({"x": ACTOR | {"mean.bias": np.zeros((2, DA))}}, r"x\.npz: .*one number of stacked"),
    "objects": ({"x": ACTOR | {"mean.bias": np.array([None] * DA)}}, r"x\.npz: Object arrays cannot be loaded"),
    "diverged": ({"x": ACTOR | {"mean.bias": np.full(DA, np.nan)}}, "diverged, leave the file out"),
    "one name": ({"a": {k: x[None] for k, x in ACTOR.items()}, "a-000": ACTOR}, "2 .* 'a-000': .* rename their files"),
    "a log": ({"x": {"observations": np.zeros((2, 3))}}, r"x\.npz: a log, not a policy: move it"),
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
    for suffix in (*whole, ".zip", ".d3", ".pkl", ".safetensors", ".onnx", ".cleanrl_model"):
        content, path = whole.get(suffix, b""), tmp_path / f"cut{suffix}"
        parts = [content[:part] for part in (0, 1, len(content) // 2, max(len(content) - 1, 0))]
        for damaged in (*parts, b"\x80\x04N.", b"PK\3\4 and then nothing", random):
            path.write_bytes(damaged)
            with pytest.raises((ValueError, ImportError), match=rf"cut\{suffix}: "):
                next(iter(load(path).values()))(np.zeros((1, 4)))
