"""d3rlpy's `.d3` files, which that library opens: they are pickles."""

from __future__ import annotations

from pathlib import Path

from ..inputs.policies.callables import RECURRENT, Called, adapt
from ..inputs.policies.policy_files import ReadingOptions
from ..runtime.containers import read_json
from ..runtime.extras import library
from ..runtime.pickles import read_pickle

_SEQUENCES = ("decision_transformer", "discrete_decision_transformer", "tacr")


def read(path: Path, options: ReadingOptions) -> list[Called]:
    """Read the model in a `.d3` file, if trusted."""
    if read_json(read_pickle(path)["config"].encode())["config"]["type"] in _SEQUENCES:
        raise ValueError(RECURRENT)
    if not options.trust:
        raise ValueError("a pickle, which is code: trust=True lets d3rlpy open it, if you trust its maker")
    return [adapt(options.name, library("d3rlpy", "d3rlpy").load_learnable(str(path)))]
