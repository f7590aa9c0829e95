"""Every operator on every other instruction-set level that this processor has."""

import pytest
from support.python import python

from sopr_fast import native

SCRIPT = """
from support.operators import CALLS, check
from support.encoder_problems import check_widths
from sopr_fast import build_info, ops

for name in CALLS:
    check(name)
check_widths(ops)
print(build_info()["instruction_set"])
"""


@pytest.mark.parametrize("level", [level for level in native._cpu.supported_isas if level != native._cpu.isa])
def test_every_operator_on_each_level(level):
    result = python("-c", SCRIPT, env={"SOPR_FAST_ISA": level})
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [level]


def test_an_unknown_level_is_refused():
    result = python("-m", "sopr_fast", env={"SOPR_FAST_ISA": "avx1024"})
    assert result.returncode != 0
    names = ", ".join(native._cpu.supported_isas)
    assert f"cannot be loaded: SOPR_FAST_ISA is 'avx1024', but this processor supports only: {names}" in result.stderr
    assert "build it" not in result.stderr
