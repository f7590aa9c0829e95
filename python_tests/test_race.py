"""Races of the benchmarks: the fixture `contend`, run on benchmarks in a temporary folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"
CLOCK = """
seconds = 0

def read():
    return seconds

def advance(by):
    global seconds
    seconds += by
"""
RACE = """
import clock

def test_one_peer_raises(contend, monkeypatch):
    def broken():
        raise RuntimeError("no such kernel\\nand more")

    monkeypatch.setattr("time.perf_counter", clock.read)
    contend(lambda: clock.advance(1), {"broken": broken, "slow": lambda: clock.advance(3)}, rounds=2)

def test_interrupted(contend):
    calls = []

    def late():
        calls.append(0)
        if len(calls) > 1:
            raise KeyboardInterrupt

    contend(lambda: None, {"late": late}, rounds=2)
"""


def test_a_broken_peer_and_an_interrupt_keep_the_other_numbers(tmp_path):
    pytest.importorskip("pytest_benchmark", reason="not installed")
    shutil.copy(BENCH / "conftest.py", tmp_path)
    (tmp_path / "clock.py").write_text(CLOCK)
    (tmp_path / "test_all.py").write_text(RACE)
    command = ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--rootdir=.", "--benchmark-json=race.json"]
    command.append("--benchmark-timer=clock.read")
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = outside | {"PYTHONPATH": os.pathsep.join([str(BENCH), *filter(None, sys.path)]), "CXX": "false"}
    made = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    broken, slow = ([line for line in made.stdout.splitlines() if name in line] for name in ("  broken", "  slow"))
    assert "no such kernel" in broken[0] and "and more" not in broken[0], made.stdout + made.stderr
    assert len(slow) == 1
    [row] = json.loads((tmp_path / "race.json").read_text())["benchmarks"]
    assert row["extra_info"]["contenders"]["slow"]["ratio"] == 3
    assert row["extra_info"]["failed"] == {"broken": "RuntimeError: no such kernel"}
