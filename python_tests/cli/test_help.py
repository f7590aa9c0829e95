"""`--help` of every program speaks to users, not to callers of its functions."""

import re
import shlex
from pathlib import Path

import pytest

from sopr_fast.cli import main as cli
from sopr_fast.estimators import Simulator

ROOT = Path(__file__).parents[2]
COMMANDS = ["", "demo", "fit", "rank", "evaluate", "select", "estimate", "info"]


def is_for_users(text):
    return text.startswith("usage: ") and not re.search(r"\b(Args|Returns|Raises|Warns|Attributes):\s", text)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_no_docstring(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    assert is_for_users(capsys.readouterr().out)


def example_of(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    return shlex.split(capsys.readouterr().out.rstrip().splitlines()[-1])


@pytest.mark.slow
def test_the_examples_run_on_the_files_of_the_demo(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = Simulator(updates=200, hidden=(32, 32))
    monkeypatch.setattr("sopr_fast.selection.predicting.Simulator", lambda: small)  # the default one takes a minute
    for command in COMMANDS[1:]:
        program, *arguments = example_of(command, capsys)
        assert program == "sopr-fast" and arguments[0] == command
        assert cli.main(arguments) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("slect", "no 'slect' (did you mean 'select'?)"),
        ("select --polices runs --log log.npz", "no option --polices (did you mean '--policies'?)"),
        ("fit --policies runs --loss pairwse", "no 'pairwse' (did you mean 'pairwise'?): choose pair"),
        ("rank", "the following arguments are required: --policies; see `sopr-fast rank --help`"),
    ],
)
def test_a_mistyped_word_gets_the_nearest_one(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments.split())
    error = capsys.readouterr().err
    assert ended.value.code == 2 and message in error and error.count("\n") == 1
