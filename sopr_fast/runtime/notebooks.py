"""Whether the process is the kernel of a notebook."""

from __future__ import annotations

import sys


def in_notebook() -> bool:
    """Return True if IPython's kernel runs this process, so that what cells return and plot is shown."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and "IPKernelApp" in shell.config
