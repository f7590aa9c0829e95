"""Kill saves and resumable runs at random moments, and compare what they leave with an uninterrupted run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import sopr_fast
from sopr_fast.runtime import checkpoints

from . import problem


@dataclass(frozen=True)
class Victim:
    """A run that is killed.

    Attributes:
        run: Does the work in a folder; goes on from what an earlier run left there.
        result: Reads the result from the folder, as bytes to compare.
    """

    run: Callable[[Path], None]
    result: Callable[[Path], bytes]


def _fit(folder: Path) -> None:
    problem.fit(folder / "run.safetensors").save(folder / "model.safetensors")


def _estimate(folder: Path) -> None:
    np.save(folder / "values.npy", problem.estimate(folder / "run.safetensors").values)


def _evaluate(folder: Path) -> None:
    _write_result(problem.evaluate(folder / "columns"), folder)


def _select(folder: Path) -> None:
    _write_result(problem.select(folder / "columns"), folder)


def _write_result(result: Any, folder: Path) -> None:
    values = {key: value for key, value in result.to_dict().items() if key != "seconds"}
    (folder / "result.json").write_text(json.dumps(values))


def _save(folder: Path) -> None:
    ranker = sopr_fast.load(folder.parent / "model.safetensors")
    for _ in range(3):
        ranker.save(folder / "model.safetensors")


def _bytes(name: str) -> Callable[[Path], bytes]:
    return lambda folder: (folder / name).read_bytes()


VICTIMS = {
    "fit": Victim(_fit, _bytes("model.safetensors")),
    "estimator": Victim(_estimate, _bytes("values.npy")),
    "evaluate": Victim(_evaluate, _bytes("result.json")),
    "select": Victim(_select, _bytes("result.json")),
    "save": Victim(_save, _bytes("model.safetensors")),
}


def kill(name: str, kills: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Kill a run `kills` times at moments spread over its whole length; start it again each time.

    Returns:
        Counts: kills, finished runs, finished runs whose result differs, unreadable files, failed runs, and files other
        than those of an uninterrupted run that are left when a run has finished.
    """
    victim, chance = VICTIMS[name], random.Random(seed)
    problem.fit().save(folder / "model.safetensors")
    reference = folder / "reference"
    reference.mkdir()
    begun = time.monotonic()
    assert _child(victim, reference) == 0, f"{name} fails without being killed"
    seconds = time.monotonic() - begun
    files = _files(reference)
    counts = {"kills": 0, "finished": 0, "differ": 0, "unreadable": 0, "failed": 0, "left": 0}
    attacked = folder / "attacked"
    attacked.mkdir()
    while counts["kills"] < kills:
        status = _child(victim, attacked, chance.uniform(0, 1.05 * seconds))
        if status == -signal.SIGKILL:
            counts["kills"] += 1
            counts["unreadable"] += _unreadable(attacked)
            continue
        counts["failed" if status else "finished"] += 1
        if not status:
            counts["differ"] += _digest(victim.result(attacked)) != _digest(victim.result(reference))
            counts["left"] += len(_files(attacked) - files)
        shutil.rmtree(attacked)
        attacked.mkdir()
    return counts


def _child(victim: Victim, folder: Path, seconds: float | None = None) -> int:
    """Run in a fork and kill it after `seconds`; return the exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            checkpoints._SECONDS_BETWEEN = 0.0
            victim.run(folder)
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


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
