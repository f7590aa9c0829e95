"""The command line on a tiny problem: twelve linear actors, better the larger their gain."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from sopr_fast import Config
from sopr_fast.cli.main import main
from sopr_fast.sopr.update import Update

TINY = (
    "--width 16 --low-layers 1 --low-feedforward 32 --high-layers 1 --high-heads 2 --high-feedforward 32 "
    "--subset-size 128 --clusters 8 --subsets 6 --steps 10 --warmup-steps 2"
)
GAINS = np.random.default_rng(1).permutation(np.linspace(0.1, 1.5, 12))


FIT = f"fit --policies gain.npz --returns returns.csv --states states.npy --out model.safetensors {TINY}"
RANK = "rank --model model.safetensors --policies gain.npz"
NAMES = [f"gain-{i:03d}" for i in range(12)]


@pytest.fixture
def files(tmp_path, monkeypatch):
    return write_files(tmp_path, monkeypatch)


def write_files(folder, monkeypatch):
    monkeypatch.chdir(folder)
    weight = np.random.default_rng(7).standard_normal((2, 4))
    np.savez("gain.npz", **{"mean.weight": GAINS[:, None, None] * weight, "mean.bias": np.zeros((12, 2))})
    np.save("states.npy", np.random.default_rng(0).standard_normal((600, 4)))
    pandas.Series(GAINS, NAMES, name="return").rename_axis("name").to_csv("returns.csv")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Bytes of a model that is trained on all twelve policies."""
    with pytest.MonkeyPatch.context() as patch:
        write_files(tmp_path_factory.mktemp("model"), patch)
        assert main(FIT.split()) == 0
        return Path("model.safetensors").read_bytes()


@pytest.fixture
def trained(files, model):
    (files / "model.safetensors").write_bytes(model)
    return files


OWN = """
import torch

def make_actor():
    return torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False))

def policies():
    return {f"gain-{i:03d}": lambda states, i=i: states[:, :2] * (i + 1) for i in range(12)}

named = policies()
"""


@pytest.mark.filterwarnings("ignore")
def test_policies_and_networks_of_the_users_own_files(files, monkeypatch, shell):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (files / "deploy").mkdir()
    (files / "deploy" / "own.py").write_text(OWN)
    (files / "runs").mkdir()
    for i, name in enumerate(NAMES):
        torch.save({"actor": {"0.weight": (i + 1) * torch.eye(2, 4)}}, f"runs/{name}.pt")
    models = []
    network = "runs/*.pt --module deploy.own:make_actor --key actor"
    for policies in ("deploy.own:policies", "deploy/own.py:named", network):
        shell(FIT.replace("gain.npz", policies))
        models.append((files / "model.safetensors").read_bytes())
    assert len(models) == 3 and len({*models}) == 1


def test_fit_says_what_it_trained(files, shell):
    assert "model.safetensors: trained on 12 policies" in shell(FIT)
    assert "%" not in shell.errors  # no bars outside a terminal


def test_rank_prints_a_table_or_json(trained, shell):
    np.savez("odd.npz", **{"mean.weight": np.full((1, 2, 4), 9.0), "mean.bias": np.zeros((1, 2))})
    ranking, names = f"{RANK} odd.npz", [*NAMES, "odd-000"]
    printed = shell(ranking)
    assert all(name in printed for name in names)
    content = shell(f"{ranking} --json")
    assert content["names"] == names and content["foreign"] == [False] * 12 + [True]
    assert shell(f"{ranking} --json --states states.npy --subsets 1")["standard_errors"] == [None] * 13


def test_options_go_before_the_settings_of_the_paper(files, monkeypatch):
    configs = []
    monkeypatch.setattr("sopr_fast.sopr.fitting.fit", lambda *_, config, **__: configs.append(config) or 1 / 0)
    for options in ("--paper --steps 7", "--width 32", ""):
        with pytest.raises(ZeroDivisionError):
            main([*FIT.removesuffix(TINY).split(), *options.split()])
    assert configs == [Config.paper(steps=7), Config(width=32), Config()]


def test_ctrl_c_says_how_to_resume(files, shell, monkeypatch):
    run = Update.run

    def interrupted(self, step):
        if step == 3:
            raise KeyboardInterrupt
        run(self, step)

    monkeypatch.setattr(Update, "run", interrupted)
    shell(f"{FIT} --checkpoint run", code=130)
    expected = "training was interrupted after 3 of 10 steps; run it again with checkpoint 'run' to resume"
    assert shell.errors == f"sopr-fast: interrupted: {expected}\n"
    monkeypatch.setattr(Update, "run", run)
    shell(f"{FIT} --checkpoint run")


WRONG = [
    (FIT, "--policies none.npz", "none.npz: no such file"),
    (FIT, "--out none/model.safetensors", "cannot write none/model.safetensors: the folder none does not exist"),
    (FIT, "--out .", "cannot write .: it is a folder"),
    (FIT, "--out states.npy", "--out states.npy: the file there is no model, and stays: choose another place"),
    (FIT, "--module none:make", "--module none:make: No module named 'none'; run this where none is, with what"),
    (FIT, "--module json:make_actor", "--module json:make_actor: json has no 'make_actor'"),
    (FIT, "--module json", "--module json: expected package.file:name or file.py:name"),
    (FIT, "--module ../none.py:make", "--module ../none.py:make: expected package.file:name or file.py:name, from the"),
    (FIT, "--policies rules.py", ", or rules.py:NAME in the shell; open others"),
    (RANK, "--report r.pdf", "a report is HTML, so its name must end in .html, got r.pdf"),
]


@pytest.mark.parametrize("command, options, message", WRONG)
def test_wrong_input_is_reported_in_one_line(trained, shell, command, options, message):
    Path("rules.py").write_text(OWN)
    error = shell(f"{command} {options}", code=2)
    assert error.startswith("sopr-fast: error: ") and message in error and error.count("\n") == 1


def test_a_ranking_can_be_printed_in_any_encoding(trained, monkeypatch):
    (trained / "gain.npz").rename("gänse.npz")
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert main(RANK.replace("gain", "gänse").split()) == 0
    sys.stdout.flush()
    assert rb"\xb1 error" in printed.getvalue() and rb"g\xe4nse-011" in printed.getvalue()


INFO = [sys.executable, "-c", "import sys; from sopr_fast.cli.main import main; sys.exit(main(['info']))"]
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_a_closed_pipe_is_silent():
    read, written = os.pipe()
    os.close(read)
    ended = subprocess.run(INFO, stdout=written, stderr=subprocess.PIPE, env=BUFFERED)
    os.close(written)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_report_outlives_the_reader_of_stdout(trained, monkeypatch):
    read, written = os.pipe()
    os.close(read)
    with open(written, "w", buffering=1) as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        assert main([*RANK.split(), "--report", "report.html"]) == 141
    report = (trained / "report.html").read_text(encoding="utf-8")
    assert "gain-011" in report and "sopr-fast rank --model model.safetensors" in report


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the platform has no /dev/full")
def test_a_full_disk_is_reported_in_one_line():
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(INFO, stdout=full, stderr=subprocess.PIPE, env=BUFFERED)
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"sopr-fast: error: ") and ended.stderr.count(b"\n") == 1


def test_info_and_usage(shell, capsys):
    assert "instruction_set" in shell("info")
    error = shell("info log.npz --columns states=x actions", code=2)
    assert "--columns states=x actions: expected PART=NAME, such as states=x,speed" in error
    for words in ("rank --policies p --subsets some", "", "fit"):
        with pytest.raises(SystemExit) as caught:
            main(words.split())
        assert caught.value.code == 2
    assert "argument --subsets: invalid int value: 'some'" in capsys.readouterr().err


def test_info_says_whether_policies_act_on_the_scales_of_a_log(tmp_path, monkeypatch, shell):
    monkeypatch.chdir(tmp_path)
    np.savez("gain.npz", **{"mean.weight": 5 * np.eye(2, 4), "mean.bias": np.zeros(2)})
    states = np.random.default_rng(0).standard_normal((60, 4))
    log = {"observations": states, "rewards": np.ones(60), "terminals": np.arange(60) % 20 == 19}
    other = "have other ranges, column 0: -2 to 2 and -1 to"
    for factor, said in ((1, "actions of 1 policy are on the scales of the log"), (2, other)):
        np.savez("log.npz", **log, actions=factor * np.tanh(5 * states[:, :2]), timeouts=np.zeros(60, bool))
        assert said in shell("info log.npz --policies gain.npz").splitlines()[-1] and not shell.errors
    np.save("states.npy", states)
    assert "actions and rewards are needed too: --columns" in shell("info states.npy --policies gain.npz", code=2)


@pytest.mark.slow
def test_demo_ranks_unseen_policies_and_chooses_one(tmp_path, shell):
    printed = shell(f"demo --out {tmp_path}")
    assert float(printed.split("Spearman ")[1].split()[0]) > 0.8
    assert "Deploy cql-4000; measured -207" in printed
    assert f"{tmp_path / 'demo.png'} is a file" in shell(f"demo --out {tmp_path / 'demo.png'}", code=2)
    written = {"demo.safetensors", "demo.png", "demo.html", "selection.html", "pendulum"}
    assert {path.name for path in tmp_path.iterdir()} == written
