"""What README says one can type, typed."""

import re
from functools import partial
from pathlib import Path

import h5py
import numpy as np
from problems import TINY

import sopr_fast
from sopr_fast import example
from sopr_fast.cli import main as cli
from sopr_fast.estimators import FQE

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sopr_fast, "fit", partial(sopr_fast.fit, config=TINY))
    monkeypatch.setattr(sopr_fast, "select", partial(sopr_fast.select, methods={"FQE": FQE(hidden=(8,), updates=3)}))
    states = example.states()[:600]
    with h5py.File("log.hdf5", "w") as file:
        file["observations"] = states
        file["actions"] = example.policies()["halfcheetah-020"](states)
        file["rewards"] = states[:, 8]
        file["terminals"] = file["timeouts"] = np.arange(len(states)) % 50 == 49
    variables = {}
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, variables)
    candidates = list(example.policies())[1::10]
    assert sorted(variables["ranking"].names) == candidates
    assert set(variables["selection"].measure_next(2)) <= set(candidates)
    assert all(name in capsys.readouterr().out for name in candidates[:1])


def test_the_commands_of_the_readme_are_understood():
    commands = re.findall(r"^sopr-fast (.*)$", README, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["fit", "rank"]
    for command in commands:
        assert cli._parser().parse_args(command.split()).policies
