"""Every operator on every instruction-set level that this processor has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sopr_fast.runtime import native


def python(level: str, *arguments: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"SOPR_FAST_ISA": level}
    folder = Path(__file__).parent
    return subprocess.run([sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("level", native._cpu.supported_isas)
def test_every_operator_on_each_level(level):
    result = python(level, "operators.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [level]


def test_an_unknown_level_is_refused():
    result = python("avx1024", "-m", "sopr_fast")
    assert result.returncode != 0
    names = ", ".join(native._cpu.supported_isas)
    assert f"cannot be loaded: SOPR_FAST_ISA is 'avx1024', but this processor supports only: {names}" in result.stderr
    assert "build it" not in result.stderr
