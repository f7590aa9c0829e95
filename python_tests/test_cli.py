"""The command line on a tiny problem: twelve linear actors, better the larger their gain."""

import csv
import dataclasses
import errno
import io
import json
import os
import re
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sopr_fast import Config, load
from sopr_fast.cli import options as cli_options
from sopr_fast.cli.main import main
from sopr_fast.inputs.policies import actor
from sopr_fast.sopr import training

TINY = (
    "--width 16 --low-layers 1 --low-feedforward 32 --high-layers 1 --high-heads 2 --high-feedforward 32 "
    "--subset-size 128 --clusters 8 --subsets 6 --steps 10 --warmup-steps 2"
)
GAINS = np.random.default_rng(1).permutation(np.linspace(0.1, 1.5, 12))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Relative paths of a run's files, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    weight = np.random.default_rng(7).standard_normal((2, 4))
    np.savez("gain.npz", **{"mean.weight": GAINS[:, None, None] * weight, "mean.bias": np.zeros((12, 2))})
    np.save("states.npy", np.random.default_rng(0).standard_normal((600, 4)))
    write_returns("returns.csv", range(12))
    return tmp_path


def write_returns(path, positions):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([["name", "return"], *([f"gain-{i:03d}", GAINS[i]] for i in positions)])


def fit(*options):
    files = "--policies gain.npz --returns returns.csv --states states.npy --out model.safetensors"
    return main([*f"fit {files} {TINY}".split(), *options])


def rank(*options):
    return main(["rank", "--model", "model.safetensors", "--policies", "gain.npz", *options])


def test_fit_then_rank(files, capsys, monkeypatch):
    assert fit() == 0
    out, err = capsys.readouterr()
    assert "model.safetensors: trained on 12 policies" in out and "%" not in err  # no bars outside a terminal
    assert main(["info", "model.safetensors", "--columns", "states=x"]) == 2
    assert "model.safetensors is a model: leave --columns out" in capsys.readouterr().err

    states, actions = np.load("states.npy"), np.zeros((600, 2), np.float32)
    np.savez("log.npz", observations=states, actions=actions, rewards=np.zeros(600), next_observations=states)
    assert rank("--plot", "ranking.png", "--report", "ranking.html", "--log", "log.npz") == 0
    assert "covered by the log" in (files / "ranking.html").read_text(encoding="utf-8")
    assert "sopr-fast rank --model model.safetensors" in (files / "ranking.html").read_text(encoding="utf-8")
    table = capsys.readouterr().out
    assert all(f"gain-{i:03d}" in table for i in range(12))
    with monkeypatch.context() as patch:
        patch.setattr("sopr_fast.estimators.covered_shares", lambda *_: pytest.fail("no model, but long work"))
        assert (
            main(["rank", "--model", "none", "--policies", "gain.npz", "--report", "r.html", "--log", "log.npz"]) == 2
        )
    assert "No such file or directory: 'none'" in capsys.readouterr().err
    assert (files / "ranking.png").read_bytes().startswith(b"\x89PNG")
    assert rank("--plot", "ranking", "--json") == 0
    assert (files / "ranking").read_bytes().startswith(b"\x89PNG") and capsys.readouterr().out

    assert rank("--json", "--states", "states.npy", "--subsets", "1") == 0
    ranking = json.loads(capsys.readouterr().out)
    assert sorted(ranking["order"]) == [f"gain-{i:03d}" for i in range(12)]
    assert ranking["standard_errors"] == [None] * 12

    assert "win_probability" not in ranking
    assert rank("--json", "--win-probability") == 0
    assert np.shape(json.loads(capsys.readouterr().out)["win_probability"]) == (12, 12)

    assert rank("--json") == 0
    distances = json.loads(capsys.readouterr().out)["distances"]
    assert rank("--csv") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert {row["policy"]: float(row["distance"]) for row in rows} == {
        f"gain-{i:03d}": value for i, value in enumerate(distances)
    }
    np.savez("odd.npz", **{"mean.weight": np.full((1, 2, 4), 9.0), "mean.bias": np.zeros((1, 2))})
    for form in ("--json", "--csv"):
        assert rank(form, "--policies", "gain.npz", "odd.npz") == 0
    ranking, rows = capsys.readouterr().out.split("\n}\n")
    foreign = {row["policy"]: row["foreign"] for row in csv.DictReader(rows.splitlines())}
    assert foreign == {f"gain-{i:03d}": "False" for i in range(12)} | {"odd-000": "True"}
    assert json.loads(ranking + "}")["foreign"] == [False] * 12 + [True]
    assert rank("--csv", "--subsets", "2", "--precision", "bf16") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["rank"] for row in rows] == [str(i) for i in range(1, 13)]
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)

    assert main(["info", "model.safetensors"]) == 0
    out = capsys.readouterr().out
    assert "12 policies" in out and "subset_size          128" in out


def test_rank_adds_subsets_until_the_top_is_settled(files, capsys):
    assert fit() == 0
    assert rank("--states", "states.npy", "--subsets", "auto", "--most", "7") == 0
    out = capsys.readouterr().out
    assert re.search(r"\nthe best is (not )?settled after [57] subsets\n$", out)
    top = ["12", "--confidence", "0.999999999", "--most", "20"]
    assert rank("--json", "--states", "states.npy", "--subsets", "auto", "--top", *top) == 0
    ranking = json.loads(capsys.readouterr().out)
    assert ranking["settled"] or np.shape(ranking["subset_scores"]) == (12, 20)
    assert rank("--subsets", "auto", "--confidence", "1") == 2
    assert "confidence" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        rank("--subsets", "many")


def test_options_go_before_the_settings_of_the_paper(files, capsys, monkeypatch):
    configs = []
    monkeypatch.setattr("sopr_fast.sopr.fitting.fit", lambda *_, config, **__: configs.append(config) or 1 / 0)
    for options in (["--paper", "--steps", "7"], ["--width", "32", "--class-token"], []):
        with pytest.raises(ZeroDivisionError):
            main(["fit", "--policies", "gain.npz", "--returns", "returns.csv", "--states", "states.npy",
                  "--out", "x.safetensors", *options])  # fmt: skip
    expected = [Config.paper(steps=7), Config(width=32, class_token=True), Config()]
    assert configs == expected


def test_stochastic_files_act_by_their_distributions(files, capsys):
    zeros = {"log_std.weight": np.zeros((12, 2, 4)), "log_std.bias": np.zeros((12, 2))}
    np.savez("gain.npz", **np.load("gain.npz"), **zeros)
    for options, kind in (((), "action, 2 columns"), (("--stochastic",), "gaussian, 2 columns")):
        assert fit(*options) == 0 == rank(*options)
        capsys.readouterr()
        assert main(["info", "model.safetensors"]) == 0
        assert kind in capsys.readouterr().out


def test_validation_by_file_or_by_name_is_the_same(files, capsys):
    assert fit("--validation", "gain-002", "gain-005") == 0
    by_name = load_file("model.safetensors")
    write_returns("returns.csv", [i for i in range(12) if i not in (2, 5)])
    write_returns("validation.csv", [2, 5])
    assert fit("--validation-returns", "validation.csv") == 0
    by_file = load_file("model.safetensors")
    assert all(torch.equal(by_file[key], value) for key, value in by_name.items())
    assert "trained on 10 policies" in capsys.readouterr().out


def test_policies_without_a_return_are_left_out(files, capsys):
    write_returns("returns.csv", range(11))
    assert fit() == 0
    out, err = capsys.readouterr()
    assert "trained on 11 policies" in out
    assert (
        "sopr-fast: warning: policies without a return are left out: returns hold nothing for policy 'gain-011'" in err
    )


def test_returns_may_be_json(files, capsys):
    (files / "returns.json").write_text(json.dumps({f"gain-{i:03d}": GAINS[i] for i in range(12)}))
    assert fit() == 0
    expected = load_file("model.safetensors")
    assert fit("--returns", "returns.json") == 0
    assert all(torch.equal(expected[key], value) for key, value in load_file("model.safetensors").items())


def test_ctrl_c_says_how_to_resume(files, capsys, monkeypatch):
    step = training._Trainer.step

    def interrupted(self):
        if self.at.step == 3:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(training._Trainer, "step", interrupted)
    assert fit("--checkpoint", "run") == 130
    expected = (
        "sopr-fast: interrupted: training was interrupted after 3 of 10 steps; run it again with checkpoint 'run' to "
        "resume\n"
    )
    assert capsys.readouterr().err == expected
    monkeypatch.setattr(training._Trainer, "step", step)
    assert fit("--checkpoint", "run") == 0


def test_ctrl_c_before_training_is_one_line(files, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("sopr_fast.sopr.fitting.probe", interrupted)
    assert fit() == 130
    assert capsys.readouterr().err == "sopr-fast: interrupted\n"


def test_hostile_names_are_escaped_everywhere_but_in_json(files, capsys):
    assert fit() == 0
    hostile = "\x1b[2J\u202eevil"
    (files / "gain.npz").rename(files / f"{hostile}.npz")
    capsys.readouterr()
    for form in ((), ("--csv",)):
        assert rank("--policies", f"{hostile}.npz", *form) == 0
        out, err = capsys.readouterr()
        assert r"\x1b[2J\u202eevil-003" in out and r"\x1b[2J\u202eevil" in err
        assert (out + err).replace("\n", "").isprintable()
    assert rank("--policies", f"{hostile}.npz", "--json") == 0
    assert f"{hostile}-003" in json.loads(capsys.readouterr().out)["names"]
    assert rank("--policies", f"{hostile}.zip") == 2
    assert capsys.readouterr().err.replace("\n", "").isprintable()


def test_info_tells_of_a_collapse(files, capsys):
    assert fit() == 0
    capsys.readouterr()
    for collapsed, text in ((False, "did not collapse"), (True, "collapsed: a ranking means nothing")):
        ranker = load("model.safetensors")
        ranker.history["collapsed"] = collapsed
        ranker.save("model.safetensors")
        assert main(["info", "model.safetensors"]) == 0
        out, err = capsys.readouterr()
        assert f"training      {text}\n" in out
        assert ("scores all policies alike" in err) == collapsed


def test_what_is_no_model_is_told(files, capsys):
    assert main(["info", "returns.csv"]) == 2
    assert "no array 'observations'" in capsys.readouterr().err
    (files / "policy.zip").write_bytes(b"PK" * 50)
    assert main(["info", "policy.zip"]) == 2
    error = capsys.readouterr().err
    assert "policy.zip is not a whole safetensors file" in error and "; info describes models and logs\n" in error


def test_a_model_in_the_folder_of_policies_is_told(files, capsys):
    assert fit() == 0
    capsys.readouterr()
    assert rank("--policies", ".") == 2
    assert "model.safetensors: a model, subsets or a checkpoint of sopr_fast, not a policy" in capsys.readouterr().err


def test_help_needs_no_torch():
    script = """
import sys
from sopr_fast.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print("torch" in sys.modules, "numpy" in sys.modules)
"""
    for command in ([], ["fit"], ["rank"]):
        ended = subprocess.run([sys.executable, "-c", script, *command, "--help"], capture_output=True, text=True)
        assert ended.returncode == 0 and ended.stdout.endswith("False False\n"), ended.stderr


def test_help_shows_choices_and_defaults_of_every_option(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--loss {pairwise,listwise,mse} training loss (default: pairwise)" in text
    for field in dataclasses.fields(Config):
        assert f"--{field.name.replace('_', '-')} " in text and field.metadata["help"] in text


def test_json_holds_no_infinities():
    value = {"a": [1.5, float("nan"), (float("inf"), "x", True, None)], "b": {"c": -float("inf")}}
    assert cli_options.without_nan(value) == {"a": [1.5, None, [None, "x", True, None]], "b": {"c": None}}


def test_the_command_line_offers_every_activation():
    assert set(cli_options.ACTIVATIONS) == set(actor.ACTIVATIONS)


@pytest.mark.parametrize(
    "options, message",
    [
        ("--policies none.npz", "none.npz: no such file"),
        ("--returns none.csv", "none.csv: no such file"),
        ("--states none.npy", "none.npy: no such file"),
        ("--out none/model.safetensors", "cannot write none/model.safetensors: the folder none does not exist"),
        ("--out .", "cannot write .: it is a folder"),
        ("--out states.npy", "--out would replace states.npy, which --states reads: choose another file"),
        ("--checkpoint ./gain.npz", "--checkpoint would replace gain.npz, which --policies reads"),
        ("--checkpoint ./model.safetensors", "--out and --checkpoint would write one file, model.safetensors: choose"),
        ("--validation gain-99", "--validation: no return of 'gain-99' in returns.csv"),
        ("--validation gain-002 gain-005 gain-77 --returns more.csv", "--validation: no policy 'gain-77' (nearest"),
        ("--validation-returns returns.csv", "policy 'gain-000' is in both returns.csv and returns.csv"),
        ("--validation-returns others.csv", "no policy has a return in others.csv: it names other, the policies"),
        ("--clusters 129", "clusters"),
        ("--dropout 1", "dropout"),
        ("--encoder mlp --low-heads 2", "SOPR-MLP has no attention heads: leave --low-heads or --encoder mlp out"),
        ("--subset-size 601", "subset_size"),
        ("--states drawn.safetensors", "--states drawn.safetensors holds clustered subsets: leave --subset-size out"),
    ],
)
def test_fit_reports_wrong_input_in_one_line(files, capsys, options, message):
    (files / "more.csv").write_text((files / "returns.csv").read_text() + "gain-77,1\n")
    (files / "others.csv").write_text("name,return\nother,1\n")
    assert fit(*options.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("sopr-fast: error: ") and message in error and error.count("\n") == 1


def test_rank_reports_wrong_input_in_one_line(files, capsys):
    assert rank() == 2
    assert "model.safetensors" in capsys.readouterr().err
    assert fit() == 0
    np.save("wide.npy", np.zeros((600, 5)))
    np.save("short.npy", np.zeros((599, 2)))
    torch.save(torch.nn.Linear(7, 2), "wrong.pt")
    capsys.readouterr()
    for options, message in [
        ("--states wide.npy", "5"),
        ("--log log.npz", "--log is used only by a report: add --report FILE"),
        ("--report model.safetensors", "--report would replace model.safetensors, which --model reads: choose another"),
        ("--plot a.html --report a.html", "--plot and --report would write one file, a.html: choose another"),
        ("--top 1", "--top is used only by --subsets auto: add --subsets auto, or leave --top out"),
        ("--subsets 3 --confidence 0.8", "--confidence is used only by --subsets auto"),
        ("--seed 0", "--seed draws subsets of logged states: add --states FILE of a log, or leave --seed out"),
        ("--seed 1 --states subsets.safetensors", "--seed draws subsets of logged states"),
        ("--seed 1 --states states.npy --subsets subsets.safetensors", "--seed draws subsets of logged states"),
        ("--subsets 3 --most 4", "--most is used only by --subsets auto"),
        ("--win-probability --csv", "--win-probability is printed only in JSON: add --json"),
        ("--policies short.npy", "'short' has actions for 599 states, the data has 600"),
        ("--subsets 100", "100 subsets"),
        ("--policies wrong.pt --trust", "policy 'wrong' raised RuntimeError"),
    ]:
        assert rank(*options.split()) == 2
        error = capsys.readouterr().err
        assert error.startswith("sopr-fast: error: ") and message in error and error.count("\n") == 1


def test_a_ranking_can_be_printed_in_any_encoding(files, monkeypatch):
    assert fit() == 0
    (files / "gain.npz").rename(files / "gänse.npz")
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert rank("--policies", "gänse.npz") == 0
    sys.stdout.flush()
    assert rb"\xb1 error" in printed.getvalue() and rb"g\xe4nse-011" in printed.getvalue()


def test_policies_are_named_relative_to_their_common_folder(files, capsys):
    weight = np.load("gain.npz")["mean.weight"]
    for run, gain in (("a/runA", 2), ("a/runB", 3), ("b/runA", 4)):
        (files / run).mkdir(parents=True)
        np.savez(f"{run}/best_model.npz", **{"mean.weight": weight[gain], "mean.bias": np.zeros(2)})
    assert fit() == 0

    def ranked(*paths):
        capsys.readouterr()
        assert rank("--json", "--policies", *paths) == 0
        return json.loads(capsys.readouterr().out)["names"]

    assert ranked("a") == ["runA/best_model", "runB/best_model"]
    assert ranked("a/runA", "b/runA/best_model.npz") == ["a/runA/best_model", "b/runA/best_model"]
    assert ranked("a/runB", "gain.npz") == ["a/runB/best_model", *(f"gain-{i:03d}" for i in range(12))]


INFO = [sys.executable, "-c", "import sys; from sopr_fast.cli.main import main; sys.exit(main(['info']))"]
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_a_closed_pipe_is_no_failure():
    read, written = os.pipe()
    os.close(read)
    ended = subprocess.run(INFO, stdout=written, stderr=subprocess.PIPE, env=BUFFERED)
    os.close(written)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_report_outlives_the_reader_of_stdout(files, monkeypatch):
    pytest.importorskip("matplotlib")
    assert fit() == 0
    read, written = os.pipe()
    os.close(read)
    with open(written, "w", buffering=1) as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        assert rank("--report", "report.html", "--plot", "plot.png") == 0
    assert "gain-011" in (files / "report.html").read_text(encoding="utf-8") and (files / "plot.png").stat().st_size


def test_fit_keeps_the_model_where_the_disk_is_full(files, capsys, monkeypatch):
    (files / "tmp").mkdir()
    fsync, calls = os.fsync, []

    def fill(descriptor):
        calls.append(descriptor)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(tempfile, "tempdir", str(files / "tmp"))
    monkeypatch.setattr(os, "fsync", fill)
    assert fit() == 2
    (kept,) = (files / "tmp").iterdir()
    message = f"cannot write model.safetensors: No space left on device; the trained model is in {kept} instead"
    assert message in capsys.readouterr().err
    assert main(["info", str(kept)]) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the platform has no /dev/full")
def test_a_full_disk_is_reported_in_one_line():
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(INFO, stdout=full, stderr=subprocess.PIPE, env=BUFFERED)
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"sopr-fast: error: ") and ended.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        ("nowhere/ranking.png", "cannot write nowhere/ranking.png: the folder nowhere does not exist"),
        (".", "cannot write .: it is a folder"),
        ("ranking.doc", "cannot plot to ranking.doc: expected a file of .eps, "),
    ],
)
def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_read(files, capsys, plot, message):
    assert rank("--plot", plot) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--out", "--checkpoint"])
def test_a_file_that_cannot_be_written_is_refused_before_any_state_is_read(files, capsys, monkeypatch, option):
    monkeypatch.setattr("sopr_fast.sopr.fitting.load_states", None)
    assert fit(option, "returns.csv/model") == 2
    assert capsys.readouterr().err == "sopr-fast: error: cannot write returns.csv/model: Not a directory\n"


def test_a_plot_without_matplotlib_is_refused_before_anything_is_read(files, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert rank("--plot", "ranking.png") == 2
    assert "plot needs matplotlib: pip install 'sopr_fast[plot]'" in capsys.readouterr().err
    assert rank("--report", "ranking.html") == 2
    assert "a report needs matplotlib: pip install 'sopr_fast[plot]'" in capsys.readouterr().err


def test_info_and_usage(capsys):
    assert main(["info"]) == 0
    assert "instruction_set" in capsys.readouterr().out
    assert main(["info", "log.npz", "--columns", "states=x", "actions"]) == 2
    assert "--columns states=x actions: expected PART=NAME, such as states=x,speed" in capsys.readouterr().err
    assert main(["info", "--columns", "states=x"]) == 2
    assert "--columns is an option of a log: add its path, or leave --columns out" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["rank", "--policies", "p", "--subsets", "some"])
    assert "argument --subsets: 'some' is no number, auto, or .safetensors file" in capsys.readouterr().err
    for arguments in [[], ["fit"], ["rank", "--model", "m", "--policies", "p", "--json", "--csv"]]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2


@pytest.mark.slow
def test_demo_ranks_unseen_policies(tmp_path, capsys):
    assert main(["demo", "--quick", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert float(out.split("Spearman ")[1].split()[0]) > 0.8
    assert {path.name for path in tmp_path.iterdir()} == {
        "demo.safetensors",
        "demo.json",
        "demo.png",
        "demo.html",
    }


def test_files_that_cannot_be_read_are_skipped_on_request(files, capsys):
    (files / "bad.npz").write_bytes(b"no archive")
    assert fit("--policies", "gain.npz", "bad.npz") == 2
    assert "bad.npz" in capsys.readouterr().err
    assert fit("--policies", "gain.npz", "bad.npz", "--skip") == 0
    assert "warning: skipped bad.npz: " in capsys.readouterr().err
