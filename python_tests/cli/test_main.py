"""The command line on a tiny problem: twelve linear actors, better the larger their gain."""

import csv
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sopr_fast import Config, load
from sopr_fast.cli.main import main
from sopr_fast.runtime.checks import descriptions
from sopr_fast.sopr import training

TINY = (
    "--width 16 --low-layers 1 --low-feedforward 32 --high-layers 1 --high-heads 2 --high-feedforward 32 "
    "--subset-size 128 --clusters 8 --subsets 6 --steps 10 --warmup-steps 2"
)
GAINS = np.random.default_rng(1).permutation(np.linspace(0.1, 1.5, 12))


@pytest.fixture
def files(tmp_path, monkeypatch):
    return write_files(tmp_path, monkeypatch)


def write_files(folder, monkeypatch):
    monkeypatch.chdir(folder)
    weight = np.random.default_rng(7).standard_normal((2, 4))
    np.savez("gain.npz", **{"mean.weight": GAINS[:, None, None] * weight, "mean.bias": np.zeros((12, 2))})
    np.save("states.npy", np.random.default_rng(0).standard_normal((600, 4)))
    write_returns("returns.csv", range(12))
    return folder


def write_returns(path, positions):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([["name", "return"], *([f"gain-{i:03d}", GAINS[i]] for i in positions)])


def fit(*options):
    files = "--policies gain.npz --returns returns.csv --states states.npy --out model.safetensors"
    return main([*f"fit {files} {TINY}".split(), *options])


def rank(*options):
    return main(["rank", "--model", "model.safetensors", "--policies", "gain.npz", *options])


OWN = """
import numpy as np
import torch

def make_actor():
    return torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False))

def policies():
    return {f"gain-{i:03d}": lambda states, i=i: states[:, :2] * (i + 1) for i in range(12)}

named = policies()
"""


@pytest.mark.filterwarnings("ignore")
def test_policies_and_networks_of_the_users_own_files(files, monkeypatch, capsys):
    import torch

    monkeypatch.setattr(sys, "path", [*sys.path])
    (files / "deploy").mkdir()
    (files / "deploy" / "own.py").write_text(OWN)
    (files / "runs").mkdir()
    for i in range(12):
        torch.save({"actor": {"0.weight": (i + 1) * torch.eye(2, 4)}}, files / "runs" / f"gain-{i:03d}.pt")
    models = []
    for policies in (
        ["deploy.own:policies"],
        ["deploy/own.py:named"],
        ["runs/*.pt", "--module", "deploy.own:make_actor", "--key", "actor"],
    ):
        assert fit("--policies", *policies) == 0, capsys.readouterr().err
        models.append((files / "model.safetensors").read_bytes())
    assert models[0] == models[1] == models[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Bytes of a model that is trained on all twelve policies."""
    with pytest.MonkeyPatch.context() as patch:
        write_files(tmp_path_factory.mktemp("model"), patch)
        assert fit() == 0
        return Path("model.safetensors").read_bytes()


@pytest.fixture
def trained(files, model):
    (files / "model.safetensors").write_bytes(model)
    return files


def test_fit_says_what_it_trained(files, capsys):
    assert fit() == 0
    out, err = capsys.readouterr()
    assert "model.safetensors: trained on 12 policies" in out and "%" not in err  # no bars outside a terminal
    assert main(["info", "model.safetensors"]) == 0
    out = capsys.readouterr().out
    assert "12 policies" in out and "subset_size          128" in out and "training      did not collapse\n" in out
    ranker = load("model.safetensors")
    ranker.history["collapsed"] = True
    ranker.save("model.safetensors")
    assert main(["info", "model.safetensors"]) == 0
    out, err = capsys.readouterr()
    assert "training      collapsed: a ranking means nothing\n" in out and "scores all policies alike" in err


def test_rank_prints_a_table_json_or_csv(trained, capsys):
    np.savez("odd.npz", **{"mean.weight": np.full((1, 2, 4), 9.0), "mean.bias": np.zeros((1, 2))})
    names = [*(f"gain-{i:03d}" for i in range(12)), "odd-000"]

    def ranked(*options):
        assert rank("--policies", "gain.npz", "odd.npz", *options) == 0
        return capsys.readouterr().out

    assert all(name in ranked() for name in names)
    content = json.loads(ranked("--json"))
    assert content["names"] == names and content["foreign"] == [False] * 12 + [True]
    rows = {row["policy"]: row for row in csv.DictReader(ranked("--csv").splitlines())}
    assert [row["rank"] for row in rows.values()] == [str(i) for i in range(1, 14)]
    assert [float(rows[name]["distance"]) for name in names] == content["distances"]
    assert [rows[name]["foreign"] for name in names] == ["False"] * 12 + ["True"]
    assert json.loads(ranked("--json", "--states", "states.npy", "--subsets", "1"))["standard_errors"] == [None] * 13


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


def test_validation_by_name_and_returns_of_json(files, capsys):
    (files / "returns.json").write_text(json.dumps({f"gain-{i:03d}": GAINS[i] for i in range(12)}))
    for returns in ("returns.csv", "returns.json"):
        assert fit("--validation", "gain-002", "gain-005", "--returns", returns, "--out", f"{returns}.model") == 0
    assert "trained on 10 policies" in capsys.readouterr().out
    assert (files / "returns.csv.model").read_bytes() == (files / "returns.json.model").read_bytes()
    assert len(load("returns.csv.model").history["validation_rank_correlation"]) == 10


def test_ctrl_c_says_how_to_resume(files, capsys, monkeypatch):
    step = training._Trainer.step

    def interrupted(self):
        if self.at.step == 3:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(training._Trainer, "step", interrupted)
    assert fit("--checkpoint", "run") == 130
    expected = "training was interrupted after 3 of 10 steps; run it again with checkpoint 'run' to resume"
    assert capsys.readouterr().err == f"sopr-fast: interrupted: {expected}\n"
    monkeypatch.setattr(training._Trainer, "step", step)
    assert fit("--checkpoint", "run") == 0


def test_hostile_names_are_escaped_everywhere_but_in_json(trained, capsys):
    files = trained
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


def test_files_that_are_no_model_are_named(files, capsys):
    assert main(["info", "returns.csv"]) == 2
    assert "no array 'observations'" in capsys.readouterr().err
    (files / "policy.zip").write_bytes(b"PK" * 50)
    assert main(["info", "policy.zip"]) == 2
    error = capsys.readouterr().err
    assert "policy.zip is not a whole safetensors file" in error and "; info describes models and logs\n" in error


def test_help_shows_choices_and_defaults_of_every_option(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--steps int updates; each scores training policies on one subset (default: 120)" in text
    assert '--loss {pairwise,listwise,mse} "pairwise" (paper section 3.2), "listwise" (ListNet) or "mse"' in text
    described = descriptions(Config)
    for field in dataclasses.fields(Config):
        assert f"--{field.name.replace('_', '-')} " in text and described[field.name] in text


WRONG = [
    (fit, "--policies none.npz", "none.npz: no such file"),
    (fit, "--returns none.csv", "none.csv: no such file"),
    (fit, "--states none.npy", "none.npy: no such file"),
    (fit, "--out none/model.safetensors", "cannot write none/model.safetensors: the folder none does not exist"),
    (fit, "--out .", "cannot write .: it is a folder"),
    (fit, "--out states.npy", "--states and --out name one file, states.npy: choose another for --out"),
    (fit, "--policies . --out gain.npz", "--out gain.npz is a file in the folder of --policies: choose another place"),
    (fit, "--checkpoint ./gain.npz", "--policies and --checkpoint name one file, gain.npz: choose another"),
    (fit, "--checkpoint ./model.safetensors", "--out and --checkpoint name one file, model.safetensors: choose"),
    (fit, "--out returns.csv/model", "cannot write returns.csv/model: Not a directory"),
    (fit, "--checkpoint returns.csv/model", "cannot write returns.csv/model: Not a directory"),
    (fit, "--validation gain-99", "--validation: no policy 'gain-99' (did you mean"),
    (fit, "--activation none", "activation"),
    (fit, "--key actor", "nothing under --key actor, its keys are mean"),
    (fit, "--module none:make", "No module named 'none'"),
    (fit, "--module json:make_actor", "--module json:make_actor: json has no 'make_actor'"),
    (fit, "--module json", "--module json: expected package.file:name"),
    (fit, "--policies json:loads gain.npz", "--policies json:loads: names an object of Python, which must"),
    (fit, "--clusters 129", "clusters"),
    (fit, "--dropout 1", "dropout"),
    (fit, "--subset-size 601", "subset_size"),
    (rank, "--model none", "none: no such file, expected a model of sopr_fast"),
    (rank, "--states wide.npy", "5"),
    (rank, "--report model.safetensors", "--model and --report name one file, model.safetensors: choose another"),
    (rank, "--report nowhere/r.html", "cannot write nowhere/r.html: the folder nowhere does not exist"),
    (rank, "--report r.pdf", "a report is HTML, so its name must end in .html, got r.pdf"),
    (rank, "--model gain.npz", "gain.npz is not a whole safetensors file, so no model"),
    (rank, "--report .", "cannot write .: it is a folder"),
    (rank, "--policies short.npy", "'short' has actions for 599 states, the data has 600"),
    (
        rank,
        "--policies narrow.npz",
        "the model's states have 4 columns, but 1 of 1 policies read another number: narrow",
    ),
    (rank, "--policies .", "model.safetensors: a model, subsets or a checkpoint of sopr_fast, not a policy"),
    (rank, "--subsets 100", "cannot take 100 subsets: there are 5; pass the log"),
    (rank, "--policies wrong.pt --trust", "policy 'wrong' raised RuntimeError"),
]


@pytest.mark.parametrize("command, options, message", WRONG)
def test_wrong_input_is_reported_in_one_line(trained, capsys, command, options, message):
    np.save("wide.npy", np.zeros((600, 5)))
    np.save("short.npy", np.zeros((599, 2)))
    torch.save(torch.nn.Linear(7, 2), "wrong.pt")
    np.savez("narrow.npz", **{"mean.weight": np.ones((2, 3)), "mean.bias": np.zeros(2)})
    assert command(*options.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("sopr-fast: error: ") and message in error and error.count("\n") == 1


def test_a_ranking_can_be_printed_in_any_encoding(trained, monkeypatch):
    (trained / "gain.npz").rename("gänse.npz")
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert rank("--policies", "gänse.npz") == 0
    sys.stdout.flush()
    assert rb"\xb1 error" in printed.getvalue() and rb"g\xe4nse-011" in printed.getvalue()


INFO = [sys.executable, "-c", "import sys; from sopr_fast.cli.main import main; sys.exit(main(['info']))"]
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_a_closed_pipe_is_no_failure():
    read, written = os.pipe()
    os.close(read)
    ended = subprocess.run(INFO, stdout=written, stderr=subprocess.PIPE, env=BUFFERED)
    os.close(written)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_report_outlives_the_reader_of_stdout(trained, monkeypatch):
    read, written = os.pipe()
    os.close(read)
    with open(written, "w", buffering=1) as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        assert rank("--report", "report.html") == 0
    report = (trained / "report.html").read_text(encoding="utf-8")
    assert "gain-011" in report and "sopr-fast rank --model model.safetensors" in report


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the platform has no /dev/full")
def test_a_full_disk_is_reported_in_one_line():
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(INFO, stdout=full, stderr=subprocess.PIPE, env=BUFFERED)
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"sopr-fast: error: ") and ended.stderr.count(b"\n") == 1


def test_info_and_usage(capsys):
    assert main(["info"]) == 0
    assert "instruction_set" in capsys.readouterr().out
    assert main(["info", "log.npz", "--columns", "states=x", "actions"]) == 2
    assert "--columns states=x actions: expected PART=NAME, such as states=x,speed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["rank", "--policies", "p", "--subsets", "some"])
    assert "argument --subsets: invalid int value: 'some'" in capsys.readouterr().err
    for arguments in [[], ["fit"], ["rank", "--model", "m", "--policies", "p", "--json", "--csv"]]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2


def test_info_says_whether_policies_act_on_the_scales_of_a_log(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("gain.npz", **{"mean.weight": 5 * np.eye(2, 4), "mean.bias": np.zeros(2)})
    states = np.random.default_rng(0).standard_normal((60, 4))
    log = {"observations": states, "rewards": np.ones(60), "terminals": np.arange(60) % 20 == 19}
    for factor, said in (
        (1, "1 policies act on the scales of the log"),
        (2, "have other ranges, column 0: -2 to 2 and -1 to"),
    ):
        actions = factor * np.tanh(5 * states[:, :2])
        np.savez("log.npz", **log, actions=actions, timeouts=np.zeros(60, bool))
        assert main(["info", "log.npz", "--policies", "gain.npz"]) == 0
        printed = capsys.readouterr()
        assert said in printed.out.splitlines()[-1] and not printed.err


@pytest.mark.slow
def test_demo_ranks_unseen_policies(tmp_path, capsys):
    assert main(["demo", "--quick", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert float(out.split("Spearman ")[1].split()[0]) > 0.8
    files = {"demo.safetensors", "demo.json", "demo.png", "demo.html", "selection.html", "pendulum"}
    assert {path.name for path in tmp_path.iterdir()} == files
    first = re.search("no known return: Measure (.*), 20 episodes each", out)[1]
    assert set(first.split(" and ")) == {"cql-4000", "iql-4000"}  # the two best of eight
    assert "two more measured: Deploy cql-4000; measured -207." in out


def test_files_that_cannot_be_read_are_skipped_on_request(files, capsys):
    (files / "bad.npz").write_bytes(b"no archive")
    assert fit("--policies", "gain.npz", "bad.npz") == 2
    assert "bad.npz" in capsys.readouterr().err
    assert fit("--policies", "gain.npz", "bad.npz", "--skip") == 0
    assert "warning: skipped bad.npz: " in capsys.readouterr().err
