"""Messages of the library name parameters; on the command line they name flags."""

import re
from pathlib import Path

import pytest

import sopr_fast
from sopr_fast.cli.flags import with_flags

MESSAGES = {
    "read only with trust=True, if you trust its maker": "read only with --trust, if you trust its maker",
    "by load_log(…, columns={'rewards': …})": "by --columns rewards=…",
    "sopr_fast.load_log(…, columns={'terminals': 'a', 'dones': 'b'}), or": "--columns terminals=a dones=b, or",
    "pass sopr_fast.load_log(…, max_episode_steps=…).": "pass --max-episode-steps ….",
    "load_returns(…, columns={'return': 'r'}).": "--return-columns return=r.",
    "pass Config(subset_size=…, clusters=…)": "pass --subset-size … --clusters …",
    "pass columns={'episodes': ['id', 'agent']} and ends='cut'": "pass --columns episodes=id,agent and --ends cut",
    "pass returns=…, or by load_log(…, columns={'rewards': …})": "pass --returns …, or by --columns rewards=…",
    "a--b.npz: pass load_log(…, ends='cut')": "a--b.npz: pass --ends cut",
    "pass returns=…, or simulator='BehaviourQ'": "pass --returns …, or --simulator BehaviourQ",
    "pass model=…, or set SOPR_FAST_MODEL": "pass --model …, or set SOPR_FAST_MODEL",
    "--columns states=x actions: expected PART=NAME": "--columns states=x actions: expected PART=NAME",
    "load_policies('a.pt', module=make, key='x')": "--module package.file:make --key x",
    "policy 'a' has 2 rows": "policy 'a' has 2 rows",
}


@pytest.mark.parametrize("message", MESSAGES)
def test_parameters_become_flags(message):
    assert with_flags(message) == MESSAGES[message]


def test_only_the_command_line_names_flags():
    root = Path(sopr_fast.__file__).parent
    files = [path for path in root.rglob("*.py") if path.parent.name != "cli"]
    named = re.compile(r"\(--[a-z]")
    assert [path for path in files if named.search(path.read_text(encoding="utf-8"))] == []
