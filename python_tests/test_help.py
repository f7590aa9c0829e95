"""`--help` of every program speaks to users, not to callers of its functions."""

import re
from pathlib import Path

import pytest

from sopr_fast.cli import main as cli

ROOT = Path(__file__).parents[1]
COMMANDS = ["", "demo", "fit", "rank", "evaluate", "select", "estimate", "info"]


def is_for_users(text):
    return text.startswith("usage: ") and not re.search(r"\b(Args|Returns|Raises|Warns|Attributes):\s", text)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_no_docstring(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    assert is_for_users(capsys.readouterr().out)
