"""`sopr-fast evaluate`, `select` and `estimate` on files."""

import csv
import json
import re
import warnings

import numpy as np
import pytest
from support.selection_problems import gains, log, true_values

import sopr_fast
from sopr_fast.cli.main import main
from sopr_fast.estimators.methods import DEFAULT_METHODS, METHODS
from sopr_fast.sopr.config import Config

CONFIG = Config(width=16, low_layers=1, high_layers=1, high_heads=2, subset_size=64, clusters=4, subsets=5, steps=5)
POLICIES = gains(12)
RETURNS = true_values(POLICIES)
KNOWN = list(POLICIES)[:8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
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


def run(folder, command, returns, *more):
    """Run a command and return its exit code."""
    arguments = [command, "--policies", str(folder / "policies"), "--log", str(folder / "log.npz")]
    return main([*arguments, *(["--returns", str(folder / returns)] if returns else []), *more])


NEAREST = ("--methods", "NearestPolicy")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Give arrays of actions, which no simulator can roll out, a small SOPR-T."""
    monkeypatch.setattr("sopr_fast.Config.small", lambda states=0: CONFIG)


def test_evaluate_prints_a_table_or_json(folder, capsys, tmp_path):
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps({name: "ab"[i % 2] for i, name in enumerate(POLICIES)}))
    assert run(folder, "evaluate", "all.csv", *NEAREST, "--cv", "3") == 0
    out = capsys.readouterr().out
    assert "3 folds of 12 policies" in out and "NearestPolicy" in out
    assert run(folder, "evaluate", "all.csv", *NEAREST, "--cv", "2", "--groups", str(groups), "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert set(content["measures"]) == {"random", "group"} and set(content["groups"]) == {"a", "b"}
    groups.write_text("\ufeff[]", encoding="utf-8")
    assert run(folder, "evaluate", "all.csv", *NEAREST, "--groups", str(groups)) == 2
    assert "groups are in order, but policies come from files: give groups by their" in capsys.readouterr().err


def test_select_takes_policies_without_a_return_for_candidates(folder, capsys):
    assert run(folder, "select", "known.csv", "--json", "--incumbent", KNOWN[0], "--measure", "2") == 0
    content = json.loads(capsys.readouterr().out)
    known = dict(zip(content["table"]["policy"], content["table"]["known"], strict=True))
    assert known == {name: name in KNOWN for name in POLICIES}
    assert content["incumbent"] == KNOWN[0]
    assert run(folder, "select", "known.csv", "--measure", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(("Deploy ", "Keep ", "Measure "))
    assert lines[-1] == f"measure next: {', '.join(content['measure_next']) or 'nothing'}"


def test_later_returns_add_to_earlier_ones_and_replace_those_of_the_same_name(folder, tmp_path, capsys):
    measured = {KNOWN[0]: 1e3, "right-10": 2e3}
    (tmp_path / "measured.json").write_text(json.dumps(measured))
    files = (str(folder / "known.csv"), str(tmp_path / "measured.json"))
    assert run(folder, "select", None, "--json", "--returns", *files) == 0
    captured = capsys.readouterr()
    table = json.loads(captured.out)["table"]
    rows = zip(table["policy"], table["return"], table["known"], strict=True)
    known = {name: value for name, value, is_known in rows if is_known}
    assert known == pytest.approx({name: RETURNS[name] for name in KNOWN} | measured, rel=1e-3)
    assert f"measured.json: replaces the returns of {KNOWN[0]}\n" in captured.err


@pytest.mark.parametrize("command", [("select",), ("estimate", "--method", "NearestPolicy")])
def test_returns_of_other_names_are_refused_or_named(folder, capsys, command):
    (folder / "others.csv").write_text("name,return\nother-00,1\nother-01,2\n")
    (folder / "empty.csv").write_text("name,return\n")
    (folder / "typo.csv").write_text((folder / "known.csv").read_text() + "rigth-00,1\n")
    for file, code, messages in (
        ("others.csv", 2, ("no policy has a return: ", "others.csv names other-00, other-01", "names are relative to")),
        ("empty.csv", 2, ("empty.csv: no returns in it",)),
        ("typo.csv", 0, ("typo.csv has returns of rigth-00, but no policies of these names were given",)),
    ):
        assert run(folder, command[0], file, *command[1:]) == code
        error = capsys.readouterr().err
        assert all(message in error for message in messages)


@pytest.fixture
def actors(tmp_path, folder):
    """Return options of policies that act in any state, and of the log."""
    states, actions = log().states.shape[1], log().actions.shape[1]
    for i in range(4):
        layer = {"mean.weight": np.full((actions, states), 0.2 * i), "mean.bias": np.zeros(actions)}
        np.savez(tmp_path / f"actor-{i}.npz", **layer)
    (tmp_path / "returns.csv").write_text("name,return\nactor-0,1\nactor-1,2\nactor-2,4\n")
    return ["--policies", *map(str, sorted(tmp_path.glob("*.npz"))), "--log", str(folder / "log.npz")]


QUICK = ("--set", "updates=5", "hidden=8", "members=2", "horizon=3")


def test_the_exit_code_says_whether_to_measure_if_it_is_asked_for(actors, tmp_path, capsys):
    every = {f"actor-{i}": i for i in range(4)}
    (tmp_path / "all.json").write_text(json.dumps(every))
    for returns, kind, code in (((), "measure", 3), (("--returns", str(tmp_path / "all.json")), "deploy", 0)):
        for option, expected in ((["--exit-code"], code), ([], 0)):
            assert main(["select", *actors, *returns, *QUICK, *option, "--json"]) == expected
            assert json.loads(capsys.readouterr().out)["verdict"] == kind
    capsys.readouterr()
    assert main(["select", *actors, "--log", "missing.npz", "--exit-code", "--incumbent", "nobody"]) == 2
    assert "the incumbent nobody is none of" in capsys.readouterr().err
    assert main(["select", *actors, *QUICK, "--exclude", "actor-1", "actor-2", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["table"]["policy"]) == {"actor-0", "actor-3"}


def test_what_is_trained_is_kept_by_default_and_used_again_with_other_returns(actors, tmp_path, capsys, cache):
    trained = []
    for more in ([], ["--returns", str(tmp_path / "returns.csv")], ["--set", "updates=6", *QUICK[2:]]):
        assert main(["select", *actors, *(QUICK if "--set" not in more else []), *more]) == 0
        said = capsys.readouterr().err
        kept = re.search(r"what was trained is kept in (\S+); --checkpoints names another", said)
        trained += (cache.parent / kept[1]).glob("Simulator-*.safetensors")
    assert trained[0] == trained[1] != trained[2]
    before = trained[0].stat().st_mtime_ns
    few = ["--returns", str(tmp_path / "returns.csv")]
    assert main(["evaluate", *actors, *few, *QUICK, "--methods", "Simulator"]) == 2
    assert main(["select", *actors, *QUICK]) == 0 and trained[0].stat().st_mtime_ns == before


@pytest.mark.parametrize("command", ["select", "evaluate"])
def test_no_folder_is_made_or_named_if_nothing_is_trained(folder, command, capsys, cache):
    before = set(cache.glob("*/*"))
    assert run(folder, command, "all.csv", *(NEAREST if command == "evaluate" else ())) == 0
    assert "kept in" not in capsys.readouterr().err and set(cache.glob("*/*")) == before


def test_a_bandit_s_method_is_chosen_and_set_in_the_shell(tmp_path, capsys):
    random = np.random.default_rng(0)
    rows = np.column_stack([random.standard_normal(400), random.integers(2, size=400), random.integers(2, size=400)])
    np.savetxt(tmp_path / "v.csv", np.c_[rows, np.full(400, 0.5)], "%g", ",", header="x,ad,click,p", comments="")
    (tmp_path / "acts").mkdir()
    for i in range(2):
        np.save(tmp_path / "acts" / f"p{i}.npy", (rows[:, 0] > i / 2).astype(int))
    inputs = ["--policies", str(tmp_path / "acts"), "--log", str(tmp_path / "v.csv"), "--action-count", "2"]
    inputs += ["--columns", "states=x", "actions=ad", "rewards=click", "probabilities=p", "--max-episode-steps", "1"]
    methods = {"ImportanceWeighting": [], "DoublyRobust": ["--simulator", "Doubly-Robust", "--set", "folds=2"]}
    for method, more in methods.items():
        assert main(["select", *inputs, *more, "--json"]) == 0
        assert method in json.loads(capsys.readouterr().out)["table"]
    estimate = ["estimate", *inputs, "--method", "importance weighting", "DoublyRobust"]
    assert main([*estimate, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert set(content) == {"policies", *methods} and set(content["policies"]) == {"p0", "p1"}
    for method, several in methods.items():
        name = "ImportanceWeighting" if not several else "DoublyRobust"
        assert main([*estimate[:-2], method, "--json"]) == 0
        alone = json.loads(capsys.readouterr().out)
        assert alone["method"] == name
        values = dict(zip(alone["names"], alone["values"], strict=True))
        assert [values[policy] for policy in content["policies"]] == pytest.approx(content[method]["value"])
        assert content[method]["low"] < content[method]["value"] < content[method]["high"]
    assert main(estimate) == 0
    out = capsys.readouterr().out
    assert out.startswith("policy  ImportanceWeighting") and " ± 0.0" in out
    assert main([*estimate, "--set", "folds=2"]) == 2
    assert "--set belongs to one --method: leave it out, or name one method" in capsys.readouterr().err
    assert main([*estimate, "NearestPolicy"]) == 2
    assert "NearestPolicy learns from known returns: leave it out" in capsys.readouterr().err


def test_the_help_names_every_method(capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("'", "").split())
    assert f"{', '.join(METHODS)} (default: the first {len(DEFAULT_METHODS)})" in shown


def test_estimate_runs_an_estimator_with_options_or_known_returns(folder, capsys):
    options = ("--set", "updates=5", "hidden=8", "batch_size=16")
    assert run(folder, "estimate", None, "--method", "fqe", *options, "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["method"] == "FQE"
    assert set(content["names"]) == set(POLICIES)
    assert len(content["diagnostics"]["curve"]["updates"]) == 5
    assert run(folder, "estimate", "known.csv", "--method", "NearestPolicy", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert set(content["names"]) == set(POLICIES) - set(KNOWN)
    for value in content["values"]:
        assert min(abs(value - RETURNS[name]) for name in KNOWN) < 1e-9
    assert run(folder, "estimate", "known.csv", "--method", "NearestPolicy") == 0
    out = capsys.readouterr().out
    assert "Estimates of 4 policies" in out and all(name in out for name in content["names"])


@pytest.mark.parametrize(
    ("command", "returns", "more", "message"),
    [
        ("evaluate", "known.csv", ("--methods", "magic"), "no method 'magic'"),
        ("select", "known.csv", ("--measure", "-1"), "--measure must be 0 or more, got -1"),
        ("select", "known.csv", ("--incumbent", "nobody"), "the incumbent nobody"),
        ("estimate", None, ("--method", "select"), "no method 'select'; choose from GaussianProcess(Simulator), "),
        ("estimate", "all.csv", ("--method", "NearestPolicy"), "there are 12 and 0"),
        ("estimate", None, ("--method", "NearestPolicy"), "there are 0 and 12"),
        ("estimate", "all.csv", ("--method", "fqe"), "--method FQE learns from no returns: leave --returns out"),
        ("estimate", None, ("--method", "fqe", "--set", "speed=3"), "--set speed=3: expected OPTION=VALUE"),
        ("estimate", None, ("--method", "fqe", "--set", "updates=many"), "'many' is no value of updates"),
        ("estimate", None, ("--method", "SOPR", "--set", "config=3"), "--set config=3: '3' is no value of config: "),
        ("estimate", None, ("--method", "fqe", "--set", "updates=0"), "updates must be an integer, 1 or more"),
        ("select", None, ("--log", "s.safetensors", "--columns", "states=x"), "s.safetensors holds no log: leave --c"),
    ],
)
def test_wrong_input_ends_with_one_line(folder, capsys, command, returns, more, message):
    assert run(folder, command, returns, *more) == 2
    assert message in capsys.readouterr().err


def test_estimate_compares_the_simulator_with_known_returns(actors, capsys, tmp_path):
    """All policies are valued, the known ones too."""
    options = ("--method", "Simulator", *QUICK, "--json")
    with warnings.catch_warnings(action="ignore"):
        assert main(["estimate", *actors, "--returns", str(tmp_path / "returns.csv"), *options]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["names"]) == 4 and -1 <= printed["diagnostics"]["known_order"] <= 1


@pytest.mark.parametrize("command", ["select", "evaluate"])
def test_reports_name_their_command(folder, capsys, tmp_path, command):
    report, more = tmp_path / "it's a report.html", NEAREST if command == "evaluate" else ()
    assert run(folder, command, "known.csv", *more, "--report", str(report)) == 0
    assert f"sopr-fast {command} --policies" in report.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def table(folder):
    """Return the log as a table with names of its own and without next states, in which a limit of 10 steps cuts."""
    with np.load(folder / "log.npz") as arrays:
        number = np.arange(len(arrays["states"])) // 10
        columns = [*arrays["states"].T, arrays["actions"][:, 0], arrays["rewards"], number]
        width = arrays["states"].shape[1]
    states = [f"x{i}" for i in range(width)]
    text = "\n".join(",".join(map(repr, map(float, row))) for row in zip(*columns, strict=True))
    (folder / "table.csv").write_text(f"{','.join(states)},push,gain,run\n{text}\n")
    return folder / "table.csv", f"states={','.join(states)}", ["actions=push", "rewards=gain", "episodes=run"]


@pytest.mark.parametrize(
    "command",
    [
        ("info",),
        ("evaluate", "--returns", "all.csv", *NEAREST, "--cv", "2", "--json"),
        ("select", "--returns", "known.csv", "--json"),
        ("estimate", "--method", "FQE", "--set", "updates=2", "--json"),
    ],
)
def test_every_command_that_reads_a_log_takes_its_names_and_time_limit(folder, table, command, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    path, states, others = table
    options = ["--columns", states, *others, "--max-episode-steps", "10", "--sort", "run"]
    read, load_log = [], sopr_fast.load_log
    monkeypatch.setattr("sopr_fast.inputs.logs.load_log", lambda *a, **k: read.append(load_log(*a, **k)) or read[-1])
    inputs = [str(path)] if command[0] == "info" else ["--policies", "policies", "--log", str(path)]
    assert main([command[0], *inputs, *command[1:], *options]) == 0
    assert (np.diff(read[0].episodes) == 9).all()  # without next states, the last step of each is dropped
    capsys.readouterr()
    assert main([command[0], *inputs, *command[1:], *options, "--rows", "100"]) == 0
    assert len(read[-1]) == 99
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert main([command[0], *inputs, *command[1:], "--columns", states, *others]) == 2
    assert "pass --ends terminal or --ends cut" in capsys.readouterr().err
    assert main([command[0], *inputs, *command[1:], "--columns", states, *others, "--ends", "cut"]) == 0


@pytest.mark.parametrize("command", ["fit", "rank"])
def test_states_of_a_table_have_names_of_their_own(folder, table, command, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    path, states, others = table
    few = ["--steps", "1", "--width", "16", "--subsets", "2", "--subset-size", "64", "--clusters", "4"]
    fit = ["fit", "--policies", "policies", "--returns", "all.csv", "--out", "m.safetensors", *few]
    rank = ["rank", "--policies", "policies", "--model", "m.safetensors"]
    if command == "rank":
        assert main([*fit, "--states", "log.npz"]) == 0
    given = fit if command == "fit" else rank
    assert main([*given, "--states", str(path)]) == 2
    assert main([*given, "--states", str(path), "--columns", states]) == 0
    capsys.readouterr()
    assert main([*given, "--states", str(path), "--columns", states, *others]) == 2
    assert "only states=NAME,… of a log in --states is read here" in capsys.readouterr().err
