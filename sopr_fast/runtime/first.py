"""Which of several processes speaks for all."""

import sys


def is_first() -> bool:
    """Return whether this process writes, prints and shows progress; torch is not imported for this."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    return distributed.get_rank() == 0
