"""`--help` of every program speaks to users, not to callers of its functions."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from sopr_fast.cli import main as cli

ROOT = Path(__file__).parents[1]
COMMANDS = ["", "demo", "fit", "rank", "evaluate", "select", "estimate", "info"]
PROGRAMS = [
    path.relative_to(ROOT)
    for path in sorted((ROOT / "bench").rglob("*.py"))
    if "ArgumentParser(" in (text := path.read_text()) and "__main__" in text
]


def is_for_users(text):
    return text.startswith("usage: ") and not re.search(r"\b(Args|Returns|Raises|Warns|Attributes):\s", text)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_no_docstring(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    assert is_for_users(capsys.readouterr().out)


@pytest.mark.parametrize(
    "program, arguments",
    [(program, []) for program in PROGRAMS] + [(Path("bench/paper/__main__.py"), ["main"])],
    ids=lambda part: " ".join(part) if isinstance(part, list) else str(part),
)
def test_the_help_of_a_benchmark_is_no_docstring(program, arguments, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / program.parent))
    monkeypatch.setattr(sys, "argv", [str(program), *arguments, "--help"])
    module = str(program.with_suffix("")).replace("/", ".").removesuffix(".__main__")
    with pytest.raises(SystemExit):
        runpy.run_module(module, run_name="__main__")
    assert is_for_users(capsys.readouterr().out)
