"""`--help` of every command speaks to users, not to callers of its functions."""

import dataclasses
import re
import shlex

import pytest

from sopr_fast import Config
from sopr_fast.cli import main as cli
from sopr_fast.cli.flags import _PARAMETERS
from sopr_fast.estimators import Simulator
from sopr_fast.estimators.methods import DEFAULT_METHODS, METHODS
from sopr_fast.runtime.checks import descriptions

COMMANDS = ["", "demo", "fit", "rank", "evaluate", "select", "estimate", "info"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_no_docstring(command, help_of):
    shown = help_of(command)
    assert shown.startswith("usage: ") and not re.search(r"\b(Args|Returns|Raises|Warns|Attributes):\s", shown)


def test_help_shows_choices_and_defaults_of_every_option(help_of):
    shown = " ".join(help_of("fit").split())
    assert "--steps int updates; each scores training policies on one subset (default: 120)" in shown
    assert '--encoder {transformer,mlp} "transformer" (SOPR-T) or "mlp" (SOPR-MLP, paper section 4.4)' in shown
    described = descriptions(Config)
    for field in dataclasses.fields(Config):
        assert f"--{field.name.replace('_', '-')} " in shown and described[field.name] in shown


def test_the_help_names_every_method(help_of):
    shown = " ".join(help_of("evaluate").replace("'", "").split())
    assert f"{', '.join(METHODS)} (default: the first {len(DEFAULT_METHODS)})" in shown


def test_every_flag_is_one_of_a_command(help_of):
    shown = "".join(map(help_of, COMMANDS))
    flags = [f"--{parameter.replace('_', '-')}" for parameter in _PARAMETERS.split("|")]
    assert [flag for flag in flags if not re.search(rf"{flag}\b(?!-)", shown)] == []


@pytest.mark.slow
def test_the_examples_run_on_the_files_of_the_demo(tmp_path, monkeypatch, help_of, shell):
    monkeypatch.chdir(tmp_path)
    small = Simulator(updates=200, hidden=(32, 32))
    monkeypatch.setattr("sopr_fast.selection.values.Simulator", lambda: small)  # the default one takes a minute
    for command in COMMANDS[1:]:
        program, *arguments = shlex.split(help_of(command).rstrip().splitlines()[-1])
        assert program == "sopr-fast" and arguments[0] == command
        shell("", *arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("slect", "invalid choice: 'slect' (choose from "),
        ("select --polices runs --log log.npz", "no option --polices (did you mean '--policies'"),
        ("fit --policies runs --log log.npz", "no option --log: pass --states; see"),
        ("select --states log.npz", "no option --states: pass --log; see"),
        ("evaluate --simulator FQE", "no option --simulator here, but of other commands: leave it out"),
        ("rank --policies runs --returns r.csv", "no option --returns here, but of other commands: leave it out"),
        ("rank --steps 5", "no option --steps here, but of other commands: leave it out"),
        ("rank --model ''", "an empty argument, as of a variable that is not set: name the file"),
        ("select --checkpoints=", "an empty argument, as of a variable that is not set: name the file"),
        ("rank --policies runs --trust yes", "unexpected yes: leave it out, or quote a value of several words; see"),
        ("rank", "the following arguments are required: --policies; see `sopr-fast rank --help`"),
    ],
)
def test_a_mistyped_word_gets_the_nearest_one(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(shlex.split(arguments))
    error = capsys.readouterr().err
    assert ended.value.code == 2 and message in error and error.count("\n") == 1
