"""Returns that runs of Stable-Baselines3 measured of their policies at several steps, `evaluations.npz`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from ...runtime.containers import open_archive
from ...runtime.files import check_regular, reading
from ...runtime.text import list_names


def read_evaluations(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the rollouts of each policy by name; a run's best model has none if the checkpoint of its step has them.

    The returns lie in a file, or in files of the runs in a folder. There, each policy gets them from the file of its
    own folder, or the nearest one above it: `runs/ppo_1/evaluations.npz` for "ppo_1/best_model" in `runs`. Policies are
    named as callbacks name them: "…_1600_steps" of step 1600, and "best_model".
    """
    files = {PurePosixPath(): path}
    if path.is_dir():
        files = {PurePosixPath(file.parent.relative_to(path)): file for file in sorted(path.rglob("evaluations.npz"))}
    if not files:
        raise ValueError("no returns: expected evaluations.npz of runs in it or below it")
    policies: dict[PurePosixPath, list[str]] = {}
    for name in names:
        place = PurePosixPath(name)
        if (run := next((run for run in (place, *place.parents) if run in files), None)) is not None:
            policies.setdefault(run, []).append(name)
    returns: dict[str, np.ndarray] = {}
    for run, of_run in policies.items():
        steps, results = _read(files[run])
        returns |= {name: results[row] for name, row in _choose(steps, results, of_run, str(run)).items()}
    if not returns:
        raise ValueError(
            f"none of its evaluations, in {list_names([*map(str, files)])}, belongs to {list_names(names)}: policies "
            "are named by the folder of their run, relative to this one, and as callbacks name them, "
            "'model_1000_steps' or 'best_model'; give other returns by name"
        )
    return returns


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return steps (T,) and the returns of rollouts (T, R) in a file that `EvalCallback` writes."""
    check_regular(path)
    with reading(path, "the evaluations of EvalCallback (give others as .csv or .json)"), open_archive(path) as archive:
        steps, results = (archive.array(f"{name}.npy").astype(np.float64) for name in ("timesteps", "results"))
        if results.ndim == 3 and results.shape[2] == 1:  # of environments that return arrays of one reward
            results = results[:, :, 0]
        if results.ndim != 2 or 0 in results.shape or steps.shape != results.shape[:1]:
            shapes = f"timesteps {steps.shape} and results {results.shape}"
            raise ValueError(f"{shapes}, expected (T,) and (T, rollouts) or (T, rollouts, 1)")
        if not np.isfinite(results).all():
            raise ValueError("its results are not finite")
    return steps, results


def _choose(steps: np.ndarray, results: np.ndarray, names: Sequence[str], run: str) -> dict[str, int]:
    """Return the row of results (T, R) for policies of a run, by steps (T,); the best model may be a copy of one."""
    rows: dict[str, int] = {}
    for name in names:
        number = re.fullmatch(r"(?:.*_)?([0-9]+)_steps", PurePosixPath(name).name)
        if number and (places := np.flatnonzero(steps == float(number[1]))).size:
            rows[name] = int(places[-1])
    best, copies = int(results.mean(1).argmax()), [name for name in names if PurePosixPath(name).name == "best_model"]
    folders = sorted({str(PurePosixPath(name).parent) for name in rows})
    if several := next((each for each in (folders, copies) if len(each) > 1), None):
        raise ValueError(
            f"{run}/evaluations.npz: its returns could be those of {list_names(several)}: pass the folder that "
            "contains all runs, each with its own evaluations.npz"
        )
    return rows if best in rows.values() else rows | dict.fromkeys(copies, best)
