"""Every operator on every other instruction-set level that this processor has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sopr_fast.runtime import native


def python(level: str, *arguments: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"SOPR_FAST_ISA": level}
    folder = Path(__file__).parents[1]
    return subprocess.run([sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True)


SCRIPT = """
from support.operators import CALLS, check
from support.segment_encoder import check_widths
from sopr_fast import build_info, ops

for name in CALLS:
    check(name)
check_widths(ops)
print(build_info()["instruction_set"])
"""


@pytest.mark.parametrize("level", [level for level in native._cpu.supported_isas if level != native._cpu.isa])
def test_every_operator_on_each_level(level):
    result = python(level, "-c", SCRIPT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [level]


def test_an_unknown_level_is_refused():
    result = python("avx1024", "-m", "sopr_fast")
    assert result.returncode != 0
    names = ", ".join(native._cpu.supported_isas)
    assert f"cannot be loaded: SOPR_FAST_ISA is 'avx1024', but this processor supports only: {names}" in result.stderr
    assert "build it" not in result.stderr
