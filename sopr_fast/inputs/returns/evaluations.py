"""Returns that a run of Stable-Baselines3 measured of its policy at several steps, `evaluations.npz`."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from ...runtime.archives import open_archive, read_members
from ...runtime.text import printable
from ...runtime.warn import warn
from ..logs.files import check_regular, reading
from ..logs.keys import list_names

_NEAR = 0.01  # of the distance between evaluations: more than the environments that step at once
_LABEL = re.compile(r"(?<![a-z])(?:seed|run|v)[_-]?\d+")  # a number that is no step
_WORDS = "model|checkpoint|ckpt|steps?|iter|iteration|itr?|update|epoch|ep|episode|policy|actor|agent"
_NUMBER = re.compile(rf"(?<![a-z\d])(?:{_WORDS})?(\d[a-z\d]*)")
_LAST = re.compile(r"(?<![a-z])(?:final|last|latest)(?![a-z])")
_ARRAYS = ("timesteps", "results")
_SEEN = 5

Results = dict[str, np.ndarray]  # returns of the rollouts, by name


def of_folder(folder: Path, names: Sequence[str]) -> Results:
    """Return the returns of policies from the runs in a folder and below it.

    Each policy gets them from `evaluations.npz` in its own folder, or the nearest one above it:
    `runs/ppo_1/evaluations.npz` for "ppo_1/best_model" in `runs`.

    Raises:
        ValueError: There are no evaluations, or no policy lies beside some.

    Warns:
        UserWarning: See `choose`.
    """
    files = {PurePosixPath(file.parent.relative_to(folder)): file for file in sorted(folder.rglob("evaluations.npz"))}
    if not files:
        raise ValueError(f"{printable(folder)}: no returns: expected evaluations.npz of runs in it or below it")
    policies: dict[PurePosixPath, list[str]] = {}
    for name in names:
        place = PurePosixPath(name)
        if (run := next((run for run in (place, *place.parents) if run in files), None)) is not None:
            policies.setdefault(run, []).append(name)
    if not policies:
        seen = ", ".join(str(run) for run in list(files)[:_SEEN])
        raise ValueError(
            f"{printable(folder)}: its returns lie in {printable(seen)}, and no policy does; pass the folder to which "
            f"their names are relative, such as {names[0]!r}"
        )
    returns: Results = {}
    for run, of_run in policies.items():
        returns |= choose(files[run], *read(files[run]), of_run, str(run))
    return returns


def of_file(path: Path, names: Sequence[str]) -> Results:
    """Return the returns of the policies of one run, see `choose`."""
    return choose(path, *read(path), names)


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return steps (T,) and the returns of rollouts (T, R) in a file that `EvalCallback` writes.

    Raises:
        ValueError: The file is damaged, or of another content.
    """
    check_regular(path)
    with reading(path, "the evaluations of Stable-Baselines3's EvalCallback"):
        with open_archive(path) as archive:
            names = archive.namelist()
            if missing := [name for name in _ARRAYS if f"{name}.npy" not in names]:
                raise ValueError(f"no array {missing[0]!r}, only {printable(', '.join(names[:6]))}")
            members = read_members(archive, [f"{name}.npy" for name in _ARRAYS])
        steps, results = (_array(members[f"{name}.npy"]) for name in _ARRAYS)
        if results.ndim != 2 or 0 in results.shape or steps.shape != results.shape[:1]:
            raise ValueError(f"timesteps {steps.shape} and results {results.shape}, expected (T,) and (T, rollouts)")
        if not np.isfinite(results).all():
            raise ValueError("its results are not finite")
    return steps, results


def choose(path: Path, steps: np.ndarray, results: np.ndarray, names: Sequence[str], run: str = "") -> Results:
    """Return the returns of each policy of a run: those of its own step, the best ones, or the last ones.

    A policy with a step in its name, such as "rl_model_1000_steps", "model_1000" or "ppo_1000_a", gets the evaluation
    of that step, or none. A difference of 1 % of the distance between evaluations is allowed, since several
    environments step at once. Of the names without a step, one with "best" in it gets the best evaluation, and one
    other, without a number or with "final", "last" or "latest", gets the last one.

    Args:
        path: File of the evaluations.
        steps: (T,) steps.
        results: (T, R) returns of rollouts.
        names: Names of the policies.
        run: A policy of this name is named by its run, so that a number in it is no step.

    Warns:
        UserWarning: Policies have no evaluation of their own.
    """
    rows: dict[str, int] = {}
    claims: dict[str, list[str]] = {"best": [], "last": []}
    gap = np.diff(np.unique(steps)).min() if len(np.unique(steps)) > 1 else steps[0]
    for name in names:
        stem = "" if name == run else _LABEL.sub("", name.rpartition("/")[2].lower())
        numbers = _NUMBER.findall(stem)
        distances = [np.abs(steps - float(number)) for number in numbers if number.isdecimal()]
        own = {int(each.argmin()) for each in distances if each.min() <= _NEAR * gap}
        if len(own) == 1:
            rows[name] = own.pop()
        elif not own and not stem.endswith("steps"):
            kind = "best" if "best" in stem else "last" if not numbers or _LAST.search(stem) else ""
            claims.get(kind, []).append(name)
    for kind, row in (("best", int(results.mean(1).argmax())), ("last", len(steps) - 1)):
        if len(claims[kind]) == 1:
            rows[claims[kind][0]] = row
    if without := [name for name in names if name not in rows]:
        warn(
            f"{printable(path)}: policies without an evaluation of their own get no return: {list_names(without)}; a "
            f"step in the name chooses it, as in 'model_{steps[-1]:.0f}'"
        )
    return {name: results[rows[name]] for name in names if name in rows}


def _array(content: bytes) -> np.ndarray:
    array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"an array of dtype {array.dtype}, expected numbers")
    return array.astype(np.float64)
