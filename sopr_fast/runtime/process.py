"""What this process is: one of several, the kernel of a notebook."""

from __future__ import annotations

import sys


def is_first() -> bool:
    """Return whether this process writes, prints and shows progress for its group; torch is not imported for this."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    return distributed.get_rank() == 0


def in_notebook() -> bool:
    """Return True if IPython's kernel runs this process, so that what cells return and plot is shown."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and "IPKernelApp" in shell.config
