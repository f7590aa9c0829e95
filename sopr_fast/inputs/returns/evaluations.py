"""Returns that a run measured of its policy at several steps, such as those in `evaluations.npz`."""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...runtime.archives import open_archive, read_members
from ...runtime.text import printable
from ...runtime.warn import warn
from ..logs.files import check_regular, reading
from ..logs.keys import list_names
from .values import Returns

_STEP = re.compile(r"(?:.*_)?(\d+)_steps|(?:model|checkpoint|ckpt|step|iter)[_-]?(\d+)")
_LABEL = re.compile(r"(?<![a-z])(?:seed|run|v)[_-]?\d+")  # a number that is no step
_WORDS = "model|checkpoint|ckpt|steps?|iter|iteration|itr?|update|epoch|ep|episode|policy|actor|agent"
_NUMBER = re.compile(rf"(?<![a-z\d])(?:{_WORDS})?(\d[a-z\d]*)")
_LAST = re.compile(r"(?<![a-z])(?:final|last|latest)(?![a-z])")
_ARRAYS = ("timesteps", "results")


@dataclass(frozen=True)
class Evaluations:
    """Returns of one run.

    Attributes:
        where: File of the run.
        steps: (T,) steps, ascending.
        returns: (T,) means over rollouts.
        errors: (T,) standard errors; NaN where unknown.
    """

    where: str
    steps: np.ndarray
    returns: np.ndarray
    errors: np.ndarray


def read(path: Path) -> Evaluations:
    """Read the file that Stable-Baselines3's `EvalCallback` writes: `timesteps` (T,) and `results` (T, rollouts).

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
    rollouts = results.shape[1]
    errors = results.std(1, ddof=1) / math.sqrt(rollouts) if rollouts > 1 else np.full(len(results), math.nan)
    return Evaluations(str(path), steps, results.mean(1), errors)


def choose(evaluations: Evaluations, names: list[str], run: str = "") -> Returns:
    """Return the return of each policy of a run: at the step in its name, the best one, or the last one.

    The step of a name like `…_1000_steps` or `model_1000` may lie at most half the distance between evaluations from
    one of them; else the policy gets none. The same holds for any other number that stands alone, as in `ppo_1000_a`.
    Of the names without such a number, one may contain "best". Of the rest, one may be that of the last policy; with
    "final", "last" or "latest" in it, numbers that are no steps do not matter.

    Args:
        evaluations: Evaluations of the run.
        names: Names of the policies.
        run: A policy of this name is named by its run, so that a number in it is no step.

    Warns:
        UserWarning: Names do not say which evaluation is theirs; these policies get none.
    """
    rows: dict[str, int] = {}
    best, last, doubtful = [], [], []
    for name in names:
        stem = "" if name == run else name.rpartition("/")[2].lower()
        match = _STEP.fullmatch(stem)
        numbers = [match[1] or match[2]] if match else _NUMBER.findall(_LABEL.sub("", stem))
        near = _rows(evaluations.steps, [number for number in numbers if number.isdecimal()])
        if len(near) == 1:
            rows[name] = near.pop()
        elif match:
            continue
        elif near:
            doubtful.append(name)
        elif "best" in stem:
            best.append(name)
        elif not numbers or _LAST.search(stem):
            last.append(name)
        else:
            doubtful.append(name)
    for claimants, row in ((best, int(np.argmax(evaluations.returns))), (last, len(evaluations.steps) - 1)):
        if len(claimants) == 1:
            rows[claimants[0]] = row
        else:
            doubtful += claimants
    if doubtful:
        warn(
            f"{evaluations.where}: policies are left out whose names do not say which evaluation is theirs: "
            f"{list_names(doubtful)}; put steps into the names, as in 'model_{evaluations.steps[-1]:.0f}'"
        )
    returns = Returns()
    for name, row in rows.items():
        returns[name] = float(evaluations.returns[row])
        if np.isfinite(evaluations.errors[row]):
            returns.errors[name] = float(evaluations.errors[row])
    return returns


def _rows(steps: np.ndarray, numbers: list[str]) -> set[int]:
    """Return the evaluations at these steps; if there are none, those within half the distance between evaluations."""
    distances = [np.abs(steps - float(number)) for number in numbers]
    gap = np.diff(steps).max() / 2 if len(steps) > 1 else 0
    exact, near = ({int(np.argmin(each)) for each in distances if each.min() <= limit} for limit in (0, gap))
    return exact or near


def _array(content: bytes) -> np.ndarray:
    array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"an array of dtype {array.dtype}, expected numbers")
    return array.astype(np.float64)
