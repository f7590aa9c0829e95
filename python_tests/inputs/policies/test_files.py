"""Actors and actions from files, tables of actions, and the recipe of docs/scaling.md."""

import csv
import io
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from support.problems import TINY, ladder, log, training_gains, transitions
from torch import nn

import sopr_fast
from sopr_fast import example
from sopr_fast.cli.main import main as command
from sopr_fast.estimators.log import read
from sopr_fast.inputs.policies import Actor, collect, probe
from sopr_fast.inputs.policies import load_policies as load
from sopr_fast.inputs.policies.actor import Standardisation
from sopr_fast.sopr.subsets import Subsets

DS, DA, HIDDEN = 5, 3, 8


def make_layers(stack=()):
    rng = np.random.default_rng(0)
    widths = {"hidden_0": (HIDDEN, DS), "hidden_1": (HIDDEN, HIDDEN), "mean": (DA, HIDDEN), "log_std": (DA, HIDDEN)}
    arrays = {}
    for name, (out, width) in widths.items():
        arrays[f"{name}.weight"] = rng.normal(size=(*stack, out, width)).astype(np.float32) / 2
        arrays[f"{name}.bias"] = rng.normal(size=(*stack, out)).astype(np.float32) / 2
    return arrays


def oracle(arrays, states, i=(), activation=lambda x: np.maximum(x, 0)):
    x = states.double().numpy()
    for name in ("hidden_0", "hidden_1"):
        x = activation(x @ arrays[f"{name}.weight"][i].T.astype(float) + arrays[f"{name}.bias"][i])
    return torch.from_numpy(x @ arrays["mean.weight"][i].T.astype(float) + arrays["mean.bias"][i])


def test_stack_of_actors(tmp_path, states, capsys):
    arrays = make_layers(stack=(4,))
    np.savez(tmp_path / "sac.npz", **arrays)
    policies = list(load([tmp_path / "sac.npz"]).values())
    assert [p.name for p in policies] == ["sac-000", "sac-001", "sac-002", "sac-003"]
    source = torch.arange(len(states))
    together = collect(policies, states, source, probe(policies, states, source))
    for i, policy in enumerate(policies):
        expected = oracle(arrays, states, i).tanh()
        torch.testing.assert_close(together[i].double(), expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(together[i], policy.act(states))
    assert list(load({"run": tmp_path / "sac.npz"}))[1] == "run-001"
    assert command(["info", str(tmp_path / "sac.npz")]) == 0
    assert capsys.readouterr().out.splitlines()[3] == f"sac-003: states of width {DS}, actions of {DA}"


def test_a_single_actor_by_the_texts_in_its_file(tmp_path, states):
    arrays = make_layers()
    np.savez(tmp_path / "ppo.npz", activation="tanh", squash="none", **arrays)
    (policy,) = load(tmp_path / "ppo.npz").values()
    assert (policy.name, policy.state_dim, policy.action_dim) == ("ppo", DS, DA)
    expected = oracle(arrays, states, activation=np.tanh)
    torch.testing.assert_close(policy.act(states).double(), expected, atol=1e-5, rtol=1e-5)
    np.savez(tmp_path / "linear.npz", **{"mean.weight": np.ones((DA, DS)), "mean.bias": np.zeros(DA)})
    (policy,) = load({"run": tmp_path / "linear.npz"}).values()
    assert policy.name == "run"
    torch.testing.assert_close(policy.act(states), states.sum(1, keepdim=True).expand(-1, DA).tanh())


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
        np.savez(tmp_path / name, **make_layers())
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


def test_a_file_that_diverged_can_be_skipped(tmp_path):
    np.savez(tmp_path / "new.npz", **make_layers() | {"mean.bias": np.full(DA, np.nan, np.float32)})
    np.save(tmp_path / "old.npy", np.zeros((7, DA)))
    with pytest.raises(ValueError, match=r"if training diverged, leave the file out, in a folder by skip=True"):
        load(tmp_path)
    with pytest.warns(UserWarning, match="skipped .*new"):
        assert list(load(tmp_path, skip=True)) == ["old"]
    with pytest.raises(ValueError, match="no file needs stochastic=True: leave it out"):
        load({"called": lambda states: states}, stochastic=True)


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
    with pytest.warns(UserWarning) as skipped, pytest.raises(ValueError, match="evil: none of the 3 files .*such as "):
        load(folder, skip=True)
    for name, warning in zip((r"b\\n\.npz", r"cut\.pt", r"c\\x9b\.zip"), skipped, strict=True):
        message = str(warning.message)
        assert re.fullmatch(rf"skipped .*{escaped}/{name}: .*", message) and message.isprintable()
    np.savez(folder / "whole.npz", **make_layers())
    with pytest.warns(UserWarning, match="skipped"):
        assert list(load(folder, skip=True)) == ["whole"]
    with pytest.raises(FileNotFoundError, match=rf"{escaped}/d\.npz: no such file"):
        load(folder / "d.npz")


BROKEN = {  # files of a folder → message
    "not all stacked": ({"x": make_layers() | {"mean.bias": np.zeros((2, DA))}}, r"x\.npz: .*one number of stacked"),
    "other layers": ({"x": {"l1.weight": np.ones((2, 3)), "mu.weight": np.ones((3, 2))}}, "not say its network"),
    "objects": ({"x": make_layers() | {"mean.bias": np.array([None] * DA)}}, r"x\.npz: Object arrays cannot be loaded"),
    "one name": ({"a": make_layers((1,)), "a-000": make_layers()}, "2 policies .* 'a-000': .* rename their files"),
}


@pytest.mark.parametrize("files, message", BROKEN.values(), ids=BROKEN)
def test_broken_actors(tmp_path, files, message):
    for name, arrays in files.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_half_written_and_other_files(tmp_path):
    torch.save({"mean.weight": torch.zeros(3, 4)}, tmp_path / "whole.pt")
    np.savez(tmp_path / "whole.npz", **make_layers())
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


def test_a_log_of_another_width_names_the_policies_and_their_widths():
    policies = [Actor(name, [(torch.zeros(DA, n), torch.zeros(DA))]) for name, n in (("a", 5), ("b", 5), ("c", 4))]
    message = "have 4 columns, but 2 of 3 policies read another number: a reads 5, b reads 5; if the log is"
    with pytest.raises(ValueError, match=message):
        probe(policies, torch.zeros(20, 4), torch.arange(20))


def test_states_far_from_the_statistics_of_a_policy_are_questioned():
    states = torch.from_numpy(np.random.default_rng(0).normal(size=(300, 2))).float()
    layers, rows = [(torch.zeros(DA, 2), torch.zeros(DA))], torch.arange(300)
    for mean, count in ((0.0, 0), (20.0, 1)):
        statistics = Standardisation(torch.tensor([0.0, mean]), torch.ones(2))
        with warnings.catch_warnings(record=True, action="always") as caught:
            probe([Actor("a", layers, standardisation=statistics)], states, rows)
        assert sum("more than 5 standard deviations from the mean" in str(each.message) for each in caught) == count


@pytest.mark.parametrize(
    "factor, warns", [(1, False), (0.6, False), (0.5, True), (10, True), (0.1, True), ([1, 1, 57], True), (0, True)]
)
def test_logged_actions_in_other_units_are_questioned(factor, warns):
    random = np.random.default_rng(0)
    states, weights = random.normal(size=(400, DS)), random.normal(size=(4, DS, DA))
    policies = [lambda states, weight=weight: np.tanh(states @ weight) for weight in weights]
    actions = factor * np.tanh(states @ weights[0])
    logged = transitions(states, actions, np.ones(400), terminals=np.arange(400) % 20 == 19)
    with warnings.catch_warnings(record=True, action="always") as caught:
        read(policies, logged)
    assert any("if the units differ, scale the logged actions" in str(each.message) for each in caught) == warns


UNITS = "if the units differ, scale the logged actions"
LOGGED = {  # the log's actions of Pendulum, changed → what is said of them
    "as they are": (lambda a: a, None),
    "doubled": (lambda a: 2 * a, None),
    "moved a little": (lambda a: a + 0.5, None),
    "halved": (lambda a: a / 2, UNITS),
    "moved": (lambda a: a + 2, UNITS),
    "from 0 to 1": (lambda a: (a + 2) / 4, UNITS),
    "constant": (lambda a: 0 * a, UNITS),
}


@pytest.mark.parametrize("change, message", LOGGED.values(), ids=LOGGED)
def test_logged_actions_unlike_those_of_policies_are_questioned(change, message):
    policies, logged, _ = example.pendulum()
    with warnings.catch_warnings(record=True, action="always") as caught:
        read(policies, logged | {"actions": change(logged["actions"])})
    assert [str(message) in str(each.message) for each in caught] == [True] * (message is not None)


def test_values_of_actions_next_to_a_one_hot_log_are_questioned():
    states, chosen = np.random.default_rng(0).normal(size=(60, DS)), np.arange(60) % 4
    logged = transitions(states, np.eye(4)[chosen], np.ones(60), terminals=np.arange(60) % 20 == 19)
    net = nn.Linear(DS, 4)
    with pytest.warns(UserWarning, match="actions are one-hot, .* index of the largest and pass action_count=4"):
        read({"q": net}, logged)
    advised = load({"q": lambda states: net(torch.from_numpy(states)).argmax(1)}, action_count=4)
    with warnings.catch_warnings(action="error"):
        assert read(advised, logged)[1].kind == "discrete"


def test_a_table_larger_than_the_free_memory_is_refused(tmp_path, monkeypatch):
    pandas.DataFrame({"action": np.zeros(5000)}).to_parquet(tmp_path / "run.parquet", compression=None)
    monkeypatch.setattr("sopr_fast.inputs.files.free_memory", lambda: 100)
    with pytest.raises(MemoryError, match=r"run\.parquet: [\d,]+ bytes when read, larger than the free memory"):
        load(tmp_path)


def test_a_log_among_policies_is_told_as_such(tmp_path):
    table = pandas.DataFrame({"obs_0": [0.0, 1.0], "actions_0": [0.0, 1.0]})
    table.to_parquet(tmp_path / "with-states.parquet")
    assert len(load(tmp_path)) == 1
    table.assign(reward=0.0).to_parquet(tmp_path / "table.parquet")
    with pytest.raises(ValueError, match=r"table\.parquet: a log \(it holds 'reward'\), not a policy: move it out"):
        load(tmp_path)
    with pytest.warns(UserWarning, match="skipped .*a log"):
        assert len(load(tmp_path, skip=True)) == 1
    np.savez(tmp_path / "table.npz", observations=np.zeros((2, 3)), actions=np.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"table\.npz: a log \(it holds 'observations'\), not a policy"):
        load(tmp_path / "table.npz")


@pytest.mark.filterwarnings("ignore")
def test_workers_compute_actions_in_the_drawn_states_alone(tmp_path, monkeypatch, capsys):
    page, gains = (Path(__file__).parents[3] / "docs" / "scaling.md").read_text(), training_gains()
    ranker = sopr_fast.fit(ladder(gains), log(600), gains, config=TINY)
    blocks = dict(re.findall(r'^```python title="(\w+\.py)"\n(.*?)^```$', page, re.DOTALL | re.MULTILINE))
    for name, code in blocks.items():
        small = code.replace("size=1024", f"size={TINY.subset_size}")
        (tmp_path / name).write_text(small.replace("clusters=16", f"clusters={TINY.clusters}"))
    for folder in ("runs", "actions"):
        (tmp_path / folder).mkdir()
    for i in range(5):
        weight = np.random.default_rng(i).normal(size=(2, 4)).astype(np.float32)
        np.savez(tmp_path / f"runs/run-{i}.npz", **{"mean.weight": weight, "mean.bias": np.zeros(2, np.float32)})
    ranker.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "log.npy", log(600))
    monkeypatch.chdir(tmp_path)
    for arguments in (["draw.py"], ["work.py", "0", "2"], ["work.py", "1", "2"]):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run([sys.executable, *arguments], env=environment, check=True)
    options = ["--model", "model.safetensors", "--policies", "actions", "--states", "subsets.safetensors", "--csv"]
    assert command(["rank", *options]) == 0
    rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
    ranking = ranker.rank(load("runs"), Subsets.load("subsets.safetensors"))
    expected = dict(zip(ranking.names, ranking.scores.tolist(), strict=True))
    assert {row["policy"]: float(row["score"]) for row in rows} == expected
