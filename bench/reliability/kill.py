"""Kill saves and resumable runs at random moments, and compare what they leave with an uninterrupted run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sopr_fast
from sopr_fast.runtime import checkpoints

from . import problem


def _fit(folder: Path) -> None:
    problem.fit(folder / "run.safetensors").save(folder / "model.safetensors")


def _estimate(folder: Path) -> None:
    np.save(folder / "values.npy", problem.estimate(folder / "run.safetensors").values)


def _evaluate(folder: Path) -> None:
    _write_result(problem.evaluate(folder / "columns"), folder)


def _select(folder: Path) -> None:
    _write_result(problem.select(folder / "columns"), folder)


def _write_result(result: Any, folder: Path) -> None:
    (folder / "result.json").write_text(json.dumps(result.to_dict()))


def _save(folder: Path) -> None:
    ranker = sopr_fast.load(folder.parent / "model.safetensors")
    for _ in range(3):
        ranker.save(folder / "model.safetensors")


VICTIMS: dict[str, tuple[Callable[[Path], None], str]] = {  # work in a folder, and the file of its result there
    "fit": (_fit, "model.safetensors"),
    "estimator": (_estimate, "values.npy"),
    "evaluate": (_evaluate, "result.json"),
    "select": (_select, "result.json"),
    "save": (_save, "model.safetensors"),
}


def kill(name: str, kills: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Kill a run `kills` times at moments spread over its whole length; start it again each time.

    Returns:
        Counts: kills, finished runs, finished runs whose result differs, unreadable files, and failed runs.
    """
    (run, result), chance = VICTIMS[name], random.Random(seed)
    problem.fit().save(folder / "model.safetensors")
    reference = folder / "reference"
    reference.mkdir()
    begun = time.monotonic()
    assert _child(run, reference) == 0, f"{name} fails without being killed"
    seconds = time.monotonic() - begun
    counts = {"kills": 0, "finished": 0, "differ": 0, "unreadable": 0, "failed": 0}
    attacked = folder / "attacked"
    attacked.mkdir()
    while counts["kills"] < kills:
        status = _child(run, attacked, chance.uniform(0, 1.05 * seconds))
        if status == -signal.SIGKILL:
            counts["kills"] += 1
            counts["unreadable"] += _unreadable(attacked)
            continue
        counts["failed" if status else "finished"] += 1
        if not status:
            counts["differ"] += (attacked / result).read_bytes() != (reference / result).read_bytes()
        shutil.rmtree(attacked)
        attacked.mkdir()
    return counts


def _child(run: Callable[[Path], None], folder: Path, seconds: float | None = None) -> int:
    """Run in a fork and kill it after `seconds`; return the exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            checkpoints._SECONDS_BETWEEN = 0.0
            run(folder)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if seconds is not None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(min(0.002, seconds))
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _unreadable(folder: Path) -> int:
    """Return how many models and columns in the folder cannot be read; the next run reads checkpoints."""
    count = 0
    for path in [*folder.glob("model.safetensors"), *folder.glob("columns/*.json")]:
        try:
            json.loads(path.read_text()) if path.suffix == ".json" else sopr_fast.load(path)
        except (OSError, ValueError):
            count += 1
    return count
