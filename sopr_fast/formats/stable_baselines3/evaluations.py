"""Returns that runs of Stable-Baselines3 measured of their policies at several steps, `evaluations.npz`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from ...inputs.files import check_regular, reading
from ...runtime.text import list_names, printable
from ...runtime.warn import warn

_NEAR = 0.01  # of the distance between evaluations: more than the environments that step at once
_LABEL = re.compile(r"(?<![a-z])(?:seed|run|v)[_-]?\d+")  # a number that is no step
_WORDS = "model|checkpoint|ckpt|steps?|iter|iteration|itr?|update|epoch|ep|episode|policy|actor|agent"
_NUMBER = re.compile(rf"(?<![a-z\d])(?:{_WORDS})?(\d[a-z\d]*)")
_LAST = re.compile(r"(?<![a-z])(?:final|last|latest)(?![a-z])")


def read_evaluations(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the rollouts of each policy by name; a run's best model has none if the checkpoint of its step has them.

    The returns lie in a file, or in files of the runs in a folder. There, each policy gets them from the file of its
    own folder, or the nearest one above it: `runs/ppo_1/evaluations.npz` for "ppo_1/best_model" in `runs`.
    """
    files = {PurePosixPath(): path}
    if path.is_dir():
        files = {PurePosixPath(file.parent.relative_to(path)): file for file in sorted(path.rglob("evaluations.npz"))}
    if not files:
        raise ValueError(f"{printable(path)}: no returns: expected evaluations.npz of runs in it or below it")
    policies: dict[PurePosixPath, list[str]] = {}
    for name in names:
        place = PurePosixPath(name)
        if (run := next((run for run in (place, *place.parents) if run in files), None)) is not None:
            policies.setdefault(run, []).append(name)
    if not policies:
        raise ValueError(
            f"{printable(path)}: its returns lie in {list_names([*map(str, files)])}, and no policy does; pass the "
            f"folder to which their names are relative, such as {names[0]!r}"
        )
    returns: dict[str, np.ndarray] = {}
    best: list[str] = []
    for run, of_run in policies.items():
        steps, results = _read(files[run])
        rows, copies = _choose(steps, results, of_run, str(run))
        returns |= {name: results[row] for name, row in rows.items()}
        best += copies
    if without := [name for of_run in policies.values() for name in of_run if name not in {*returns, *best}]:
        warn(
            f"{path}: no evaluation belongs to {list_names(without)}, so select takes them as candidates unless they "
            f"have other returns; a policy's name holds its evaluation's step, such as 'model_{steps[-1]:.0f}'"
        )
    return returns


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return steps (T,) and the returns of rollouts (T, R) in a file that `EvalCallback` writes."""
    check_regular(path)
    with reading(path, "the evaluations of Stable-Baselines3's EvalCallback"):
        with np.load(path, allow_pickle=False) as arrays:
            if missing := [name for name in ("timesteps", "results") if name not in arrays]:
                found = f"no array {missing[0]!r}, only {list_names(arrays.files)}"
                raise ValueError(f"{path}: {found}; of returns by name, pass dict(numpy.load(path))")
            steps, results = arrays["timesteps"].astype(np.float64), arrays["results"].astype(np.float64)
        if results.ndim != 2 or 0 in results.shape or steps.shape != results.shape[:1]:
            raise ValueError(f"timesteps {steps.shape} and results {results.shape}, expected (T,) and (T, rollouts)")
        if not np.isfinite(results).all():
            raise ValueError("its results are not finite")
    return steps, results


def _choose(steps: np.ndarray, results: np.ndarray, names: Sequence[str], run: str) -> tuple[dict[str, int], list[str]]:
    """Return the row of results (T, R) for each policy of a run, by steps (T,), and best ones whose row is taken.

    A difference of 1 % of the distance between evaluations is allowed, since several environments step at once. In a
    policy that is named by its run, a number is no step.
    """
    rows: dict[str, int] = {}
    first: dict[int, str] = {}
    claims: dict[str, list[str]] = {"best": [], "last": [], "": []}
    distinct = np.unique(steps)
    gap = np.diff(distinct).min() if len(distinct) > 1 else distinct[0]
    for name in names:
        folder, _, stem = name.rpartition("/")
        stem = "" if name == run else _LABEL.sub("", stem.lower())
        numbers = _NUMBER.findall(stem)
        distances = [np.abs(steps - float(number)) for number in numbers if number.isdecimal()]
        own = {int(each.argmin()) for each in distances if each.min() <= _NEAR * gap}
        if len(own) == 1:
            rows[name] = own.pop()
            if (other := first.setdefault(rows[name], name)).rpartition("/")[0] != folder:
                raise ValueError(
                    f"{run}/evaluations.npz: that of step {steps[rows[name]]:.0f} could be that of {other!r} and of "
                    f"{name!r}: pass the folder that contains all runs, each with its own evaluations.npz"
                )
        elif not own and not stem.endswith("steps"):
            claims["best" if "best" in stem else "last" if not numbers or _LAST.search(stem) else ""].append(name)
    copies: list[str] = []
    for kind, row in (("last", len(steps) - 1), ("best", int(results.mean(1).argmax()))):
        claim = claims[kind][0] if len(claims[kind]) == 1 else ""
        if claim and row not in first:
            rows[claim] = row
        elif claim and kind == "best":
            copies.append(claim)
    return rows, copies
