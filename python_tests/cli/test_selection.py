"""`sopr-fast evaluate`, `select` and `estimate` on files."""

import csv
import json

import numpy as np
import pytest
from support.selection_problems import gains, log, true_values

import sopr_fast

POLICIES = gains(12)
RETURNS = true_values(POLICIES)
KNOWN = list(POLICIES)[:8]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with policies as arrays of actions, a log, and returns of all policies and of eight."""
    folder = tmp_path_factory.mktemp("selection")
    transitions = log()
    (folder / "policies").mkdir()
    for name, policy in POLICIES.items():
        np.save(folder / "policies" / f"{name}.npy", policy(transitions.states))
    parts = ("states", "actions", "rewards", "next_states", "terminals", "timeouts")
    np.savez(folder / "log.npz", **{part: getattr(transitions, part) for part in parts})
    for file, names in (("all.csv", POLICIES), ("known.csv", KNOWN)):
        with (folder / file).open("w", newline="") as opened:
            csv.writer(opened).writerows([("name", "return"), *((name, RETURNS[name]) for name in names)])
    return folder


INPUTS = "--policies policies --log log.npz"
NEAREST = "--methods NearestPolicy"


@pytest.fixture(autouse=True)
def folder(files, monkeypatch):
    """Go to the folder."""
    monkeypatch.chdir(files)
    return files


def test_evaluate_prints_a_table_or_json(shell, folder):
    evaluate = f"evaluate {INPUTS} --returns all.csv {NEAREST}"
    printed = shell(f"{evaluate} --cv 3")
    assert "3 folds of 12 policies" in printed and "NearestPolicy" in printed
    groups = folder / "groups.json"
    groups.write_text(json.dumps({name: "ab"[i % 2] for i, name in enumerate(POLICIES)}))
    content = shell(f"{evaluate} --cv 2 --groups groups.json --json")
    assert set(content["measures"]) == {"NearestPolicy"} and set(content["folds"]) == {"a", "b"}
    groups.write_text("\ufeff[]", encoding="utf-8")
    refused = shell(f"{evaluate} --groups groups.json", code=2)
    assert "groups must be by name, {policy: group}, got list" in refused


def test_select_takes_policies_without_a_return_for_candidates(shell):
    content = shell(f"select {INPUTS} --returns known.csv --json --incumbent {KNOWN[0]} --measure 2")
    known = dict(zip(content["table"]["policy"], content["table"]["known"], strict=True))
    assert known == {name: name in KNOWN for name in POLICIES}
    assert content["incumbent"] == KNOWN[0]
    lines = shell(f"select {INPUTS} --returns known.csv --measure 2").splitlines()
    assert lines[0].startswith(("Deploy ", "Keep ", "Measure "))
    assert lines[-1] == f"measure next: {', '.join(content['measure_next']) or 'nothing'}"


def test_later_returns_add_to_earlier_ones_and_replace_those_of_the_same_name(shell, folder):
    measured = {KNOWN[0]: 1e3, "right-10": 2e3}
    (folder / "measured.json").write_text(json.dumps(measured))
    table = shell(f"select {INPUTS} --json --returns known.csv measured.json")["table"]
    rows = zip(table["policy"], table["return"], table["known"], strict=True)
    known = {name: value for name, value, is_known in rows if is_known}
    assert known == pytest.approx({name: RETURNS[name] for name in KNOWN} | measured, rel=1e-3)


@pytest.fixture
def actors(tmp_path, folder, monkeypatch):
    """Return options of policies that act in any state, and of the log; go to their folder."""
    states, actions = log().states.shape[1], log().actions.shape[1]
    monkeypatch.chdir(tmp_path)
    for i in range(4):
        layer = {"mean.weight": np.full((actions, states), 0.2 * i), "mean.bias": np.zeros(actions)}
        np.savez(f"actor-{i}.npz", **layer)
    (tmp_path / "returns.csv").write_text("name,return\nactor-0,1\nactor-1,2\nactor-2,4\n")
    (tmp_path / "all.json").write_text(json.dumps({f"actor-{i}": i - 9 for i in range(4)}))
    return f"--policies actor-*.npz --log {folder / 'log.npz'}"


QUICK = "--set updates=5 hidden=8 members=2 horizon=3"


def test_the_exit_code_says_whether_to_measure_if_it_is_asked_for(shell, actors):
    for returns, kind, code in (("", "measure", 3), ("--returns all.json", "deploy", 0)):
        for option, expected in (("--exit-code", code), ("", 0)):
            assert shell(f"select {actors} {returns} {QUICK} {option} --json", code=expected)["verdict"] == kind
    refused = shell(f"select {actors} --exit-code --incumbent nobody", code=2)
    assert "the incumbent nobody is none of" in refused


def test_the_training_step_of_snapshots_counts_in_the_shell(shell, actors, tmp_path):
    (tmp_path / "steps.json").write_text(json.dumps({f"actor-{i}": 100 * (4 - i) for i in range(4)}))
    (tmp_path / "runs.json").write_text(json.dumps({f"actor-{i}": "run" for i in range(4)}))
    select, shares = f"select {actors} {QUICK} --json", "--progress steps.json --groups runs.json"
    plain, later = (shell(f"{select} {more}")["table"] for more in ("", shares))
    first, last = (dict(zip(table["policy"], table["return"], strict=True)) for table in (plain, later))
    assert last["actor-0"] - last["actor-3"] > first["actor-0"] - first["actor-3"]
    (tmp_path / "steps.json").write_text('{"actor-9": 1}')
    assert "progress: there is no policy 'actor-9'" in shell(f"{select} {shares}", code=2)
    assert "error: no.json: no such file" in shell(f"{select} --progress no.json", code=2)


def test_what_is_trained_is_kept_and_used_again_with_other_returns(shell, actors, tmp_path):
    shell(f"select {actors} {QUICK} --checkpoints kept")
    [file] = (tmp_path / "kept").glob("Simulator-*.safetensors")
    before = file.stat().st_mtime_ns
    shell(f"select {actors} {QUICK} --checkpoints kept --returns returns.csv")
    assert file.stat().st_mtime_ns == before


def test_a_bandit_s_method_is_chosen_and_set_in_the_shell(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    rows = np.column_stack([random.standard_normal(400), random.integers(2, size=400), random.integers(2, size=400)])
    np.savetxt("v.csv", np.c_[rows, np.full(400, 0.5)], "%g", ",", header="x,ad,click,p", comments="")
    (tmp_path / "acts").mkdir()
    for i in range(2):
        np.save(f"acts/p{i}.npy", (rows[:, 0] > i / 2).astype(int))
    inputs = "--policies acts --log v.csv --action-count 2 --max-episode-steps 1"
    inputs += " --columns states=x actions=ad rewards=click probabilities=p"
    methods = {"ImportanceWeighting": "", "DoublyRobust": "--simulator DoublyRobust --set discount=0.9"}
    for method, more in methods.items():
        assert method in shell(f"select {inputs} {more} --json")["table"]
        values = shell(f"estimate {inputs} --method {method} --json")
        assert values["method"] == method and values["names"] == ["p0", "p1"]


def test_estimate_runs_an_estimator_with_options(shell):
    content = shell(f"estimate {INPUTS} --method BehaviourQ --set updates=5 hidden=8 batch_size=16 --json")
    assert content["method"] == "BehaviourQ" and set(content["names"]) == set(POLICIES)
    assert len(content["diagnostics"]["curve"]["updates"]) == 5


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate --returns known.csv --methods magic", "no method 'magic'"),
        ("evaluate --returns known.csv --methods NearestPolicy --set updates=5", "--set sets options of the simulator"),
        ("select --returns known.csv --measure -1", "--measure must be an integer, 1 or more, got -1"),
        ("estimate --method select", "no method 'select'; choose from GaussianProcess(Simulator), "),
        ("estimate --method NearestPolicy", "NearestPolicy learns from known returns: ask `select` or `evaluate`"),
        ("estimate --method FQE --set speed=3", "--set speed=3: expected OPTION=VALUE"),
        ("estimate --method FQE --set updates=5 --set updates=6", "--set updates=6: expected OPTION=VALUE, each once"),
        (
            "select --columns states=a --columns states=b",
            "--columns states=a states=b: expected PART=NAME, such",
        ),
        ("estimate --method FQE --set updates=many", "updates must be an integer, 1 or more, got 'many'"),
        (
            "estimate --method FQE --set hidden=(32,",
            "hidden must be a sequence of widths (in the shell hidden=32,32), got",
        ),
        ("estimate --method SOPR --set config=3", "config must be a Config, got '3'"),
        ("estimate --method FQE --set updates=0", "updates must be an integer, 1 or more"),
    ],
)
def test_wrong_input_ends_with_one_line(shell, command, message):
    name, _, options = command.partition(" ")
    error = shell(f"{name} {INPUTS} {options}", code=2)
    assert message in error and error.count("\n") == 1


@pytest.fixture(scope="module")
def columns(files):
    """Write the log as a table with names of its own, in which a limit of 10 steps cuts; return these of its states."""
    with np.load(files / "log.npz") as arrays:
        number = np.arange(len(arrays["states"])) // 10
        rows = np.column_stack([arrays["states"], arrays["actions"][:, :1], arrays["rewards"], number])
    names = [f"x{i}" for i in range(rows.shape[1] - 3)]
    np.savetxt(files / "table.csv", rows, "%.17g", ",", header=",".join([*names, "push", "gain", "run"]), comments="")
    return f"--columns states={','.join(names)}"


OTHERS = "actions=push rewards=gain episodes=run"


@pytest.mark.parametrize(
    "command",
    [
        "info table.csv",
        f"evaluate --policies policies --log table.csv --returns all.csv {NEAREST} --cv 2 --json",
        "select --policies policies --log table.csv --returns known.csv --json",
        "estimate --policies policies --log table.csv --method BehaviourQ --set updates=2 --json",
    ],
)
def test_every_command_that_reads_a_log_takes_its_names_and_time_limit(shell, columns, command, monkeypatch):
    command = f"{command} {columns} --columns {OTHERS}"
    assert "pass --ends terminal or --ends cut" in shell(command, code=2)
    shell(f"{command} --ends cut")
    read, load_log = [], sopr_fast.load_log
    monkeypatch.setattr("sopr_fast.inputs.logs.load_log", lambda *a, **k: read.append(load_log(*a, **k)) or read[-1])
    shell(f"{command} --max-episode-steps 10")
    assert (np.diff(read[0].episodes) == 9).all()  # without next states, the last step of each is dropped


def test_states_of_a_table_have_names_of_their_own(shell, columns):
    fit = "fit --policies policies --returns all.csv --out m.safetensors --states table.csv"
    fit += " --steps 1 --width 16 --subsets 2 --subset-size 64 --clusters 4"
    for command in (fit, "rank --policies policies --model m.safetensors --states table.csv"):
        shell(f"{command} {columns}")
        shell(command, code=2)
        refused = shell(f"{command} {columns} {OTHERS}", code=2)
        assert "only states=NAME,… of a log in --states is read here" in refused
