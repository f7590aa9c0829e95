"""What README says one can type, typed."""

import re
from functools import partial
from pathlib import Path

from problems import TINY

import sopr_fast
from sopr_fast import example
from sopr_fast.cli import main as cli

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_of_the_readme_runs(monkeypatch, capsys):
    monkeypatch.setattr(sopr_fast, "fit", partial(sopr_fast.fit, config=TINY))
    variables = {}
    [block] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(block, variables)
    candidates = list(example.policies())[1::10]
    assert sorted(variables["ranking"].names) == candidates
    printed = capsys.readouterr().out
    assert all(name in printed for name in candidates)
    shown = re.search(r"```\n(rank .*)\n", README)[1]
    assert printed.splitlines()[0].split() == shown.split()


def test_the_commands_of_the_readme_are_understood():
    [command] = re.findall(r"^sopr-fast (.*)$", README, re.MULTILINE)
    assert cli._parser().parse_args(command.split()).policies
