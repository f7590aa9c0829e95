"""What README says one can type, typed."""

import re
from functools import partial
from pathlib import Path

from support.problems import TINY

import sopr_fast
from sopr_fast import estimators, example
from sopr_fast.cli import main as cli

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_of_the_readme_runs(monkeypatch, capsys):
    simulator = estimators.Simulator(updates=1000, hidden=(64, 64))
    monkeypatch.setattr(sopr_fast, "fit", partial(sopr_fast.fit, config=TINY))
    monkeypatch.setattr(sopr_fast, "select", partial(sopr_fast.select, simulator=simulator))
    variables = {}
    selection, measuring, ranking = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(selection, variables)
    true = variables["true"]
    best = max(true, key=true.get)
    assert best in variables["selection"].verdict.policies
    assert capsys.readouterr().out.startswith("Measure ")
    exec(measuring, variables)
    assert capsys.readouterr().out.startswith(f"Deploy {best}; measured {true[best]:.0f}")
    assert variables["selection"].known.sum() <= 4
    exec(ranking, variables)
    candidates = list(example.policies())[1::10]
    assert sorted(variables["ranking"].names) == candidates
    printed = capsys.readouterr().out
    assert all(name in printed for name in candidates)
    shown = re.search(r"```\n(rank .*)\n", README)[1]
    assert printed.splitlines()[0].split() == shown.split()


def test_the_commands_of_the_readme_are_understood():
    [command] = re.findall(r"^sopr-fast (.*)$", README, re.MULTILINE)
    assert cli.make_parser().parse_args(command.split()).policies
