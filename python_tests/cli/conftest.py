import json
import shlex

import pytest

from sopr_fast.cli.main import main


@pytest.fixture
def shell(capsys):
    """Return a function that runs a command and returns what it printed, JSON read, or the errors of a failed one."""

    def run(command, *words, code=0):
        capsys.readouterr()
        words = [*shlex.split(command), *words]
        ended, (printed, run.errors) = main(words), capsys.readouterr()
        assert ended == code, run.errors
        return run.errors if code == 2 else json.loads(printed) if "--json" in words else printed

    return run


@pytest.fixture
def help_of(capsys):
    """Return a function that returns the help of a command."""

    def show(command):
        with pytest.raises(SystemExit):
            main([*command.split(), "--help"])
        return capsys.readouterr().out

    return show
