"""Messages of the library name parameters; on the command line they name flags."""

import re
from pathlib import Path

import pytest

import sopr_fast
from sopr_fast.cli import main as cli
from sopr_fast.cli.flags import with_flags

MESSAGES = {
    "read only with trust=True, if you trust its maker": "read only with --trust, if you trust its maker",
    "by load_log(…, columns={'rewards': …})": "by --columns rewards=…",
    "sopr_fast.load_log(…, columns={'terminals': 'a', 'dones': 'b'}), or": "--columns terminals=a dones=b, or",
    "pass sopr_fast.load_log(…, max_episode_steps=…).": "pass --max-episode-steps ….",
    "load_returns(…, columns={'return': 'r'}).": "--return-columns return=r.",
    "pass Config(subset_size=…, clusters=…)": "pass --subset-size … --clusters …",
    "pass columns={'episodes': ['id', 'agent']} and sort=['id', 'step']": (
        "pass --columns episodes=id,agent and --sort id,step"
    ),
    "pass returns=…, or simulator='BehaviourQ'": "pass --returns …, or --simulator BehaviourQ",
    "pass model=…, or set SOPR_FAST_MODEL": "pass --model …, or set SOPR_FAST_MODEL",
    "--columns states=x actions: expected PART=NAME": "--columns states=x actions: expected PART=NAME",
    "load_policies('a.pt', module=make, key='x')": "--module package.file:make --key x",
    "policy 'a' has 2 rows": "policy 'a' has 2 rows",
}


@pytest.mark.parametrize("message", MESSAGES)
def test_parameters_become_flags(message):
    assert with_flags(message) == MESSAGES[message]


def test_every_flag_is_one_of_a_command(capsys):
    from sopr_fast.cli.flags import _OTHERS, _PARAMETERS

    shown = ""
    for command in ("fit", "rank", "evaluate", "select", "estimate"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        shown += capsys.readouterr().out
    flags = [f"--{parameter.replace('_', '-')}" for parameter in _PARAMETERS.split("|")] + list(_OTHERS.values())
    assert [flag for flag in flags if not re.search(rf"{flag}\b(?!-)", shown)] == []


def test_only_the_command_line_names_flags():
    root = Path(sopr_fast.__file__).parent
    files = [path for path in root.rglob("*.py") if path.parent.name not in ("cli", "selection")]
    named = re.compile(r"\(--[a-z]")
    assert [path for path in files if named.search(path.read_text(encoding="utf-8"))] == []


def test_an_error_on_the_command_line_names_the_flag(tmp_path, capsys):
    (tmp_path / "p.torchscript").write_bytes(b"")
    command = ["rank", "--policies", str(tmp_path / "p.torchscript"), "--states", "x.npy"]
    assert cli.main(command) == 2
    assert "no model: pass --model …, or set SOPR_FAST_MODEL" in capsys.readouterr().err
