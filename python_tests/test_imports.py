"""What reading a log imports: nothing that takes seconds or hundreds of megabytes."""

import subprocess
import sys

SCRIPT = """
import sys, numpy as np, sopr_fast
log = {"observations": np.arange(40.0).reshape(20, 2), "actions": np.ones((20, 1)), "rewards": np.ones(20),
       "terminals": np.arange(20) % 5 == 4, "timeouts": np.zeros(20, bool)}
assert len(sopr_fast.load_log(log)) == 20
print(*(name for name in ("torch", "scipy", "matplotlib") if name in sys.modules))
"""


def test_reading_a_log_imports_no_torch():
    made = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert made.stdout == "\n"
