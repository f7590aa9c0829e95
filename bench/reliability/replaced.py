"""Load a model while another process replaces it, and use loaded models while their file is overwritten."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import torch

import sopr_fast

from . import problem


def load_while_replaced(loads: int, folder: Path) -> dict[str, Any]:
    """Load `loads` times while a fork saves two models of different sizes in turn.

    Returns:
        Counts: loads, loads that raised, and models that equal neither of the two.
    """
    served, first, second = (folder / f"{name}.safetensors" for name in ("served", "first", "second"))
    problem.fit().save(first)
    problem.fit(seed=1).save(second, subsets=False)
    models = [sopr_fast.load(path) for path in (first, second)]
    shutil.copy(first, served)
    writer = os.fork()
    if writer == 0:
        while True:
            models[1].save(served, subsets=False)
            models[0].save(served)
    counts = {"loads": 0, "errors": 0, "wrong": 0}
    try:
        while counts["loads"] < loads:
            counts["loads"] += 1
            try:
                ranker = sopr_fast.load(served)
            except Exception:
                counts["errors"] += 1
                continue
            counts["wrong"] += not any(_is_equal(ranker, model) for model in models)
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    return counts


def rank_while_overwritten(times: int, folder: Path) -> dict[str, Any]:
    """Rank by a loaded model after its file was overwritten in place by a smaller one, each time in a fork.

    Returns:
        Counts: times, and forks that a signal ended or that gave other scores.
    """
    served, smaller = folder / "served.safetensors", folder / "smaller.safetensors"
    ranker = problem.fit()
    ranker.save(smaller, subsets=False)
    candidates = problem.policies(problem.GAINS[:4] + 0.01)
    expected = ranker.rank(candidates).scores
    counts = {"times": 0, "ended or wrong": 0}
    for _ in range(times):
        ranker.save(served)
        pid = os.fork()
        if pid == 0:
            loaded = sopr_fast.load(served)
            served.write_bytes(smaller.read_bytes())
            scores = loaded.rank(candidates).scores
            os._exit(int(not (scores == expected).all()))
        counts["times"] += 1
        counts["ended or wrong"] += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
    return counts


def _is_equal(ranker: sopr_fast.Ranker, other: sopr_fast.Ranker) -> bool:
    mine, theirs = ranker.model.state_dict(), other.model.state_dict()
    same = (ranker.subsets is None) == (other.subsets is None) and ranker.history == other.history
    return same and all(torch.equal(mine[name], theirs[name]) for name in theirs)
