"""Returns that a run measured of its policy at several steps, such as those in `evaluations.npz`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..data.files import check_regular, reading
from ..policies.readers.archives import open_archive, read_members
from ..runtime.text import printable
from .values import Returns, of_rollouts

_STEP = re.compile(r"(?:.*_)?(\d+)_steps|(?:model|checkpoint|ckpt|step|iter)[_-]?(\d+)", re.IGNORECASE)
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
        means, errors = zip(*map(of_rollouts, results), strict=True)
    return Evaluations(str(path), steps, np.array(means), np.array(errors))


def choose(evaluations: Evaluations, names: list[str]) -> Returns:
    """Return the return of each policy of a run: at the step in its name, the best one, or the last one.

    A name with a step that lies farther than half the distance between evaluations from any of them gets none.
    """
    returns, steps = Returns(), evaluations.steps
    for name in names:
        stem = name.rpartition("/")[2]
        if match := _STEP.fullmatch(stem):
            step = int(match[1] or match[2])
            row = int(np.argmin(np.abs(steps - step)))
            gap = np.diff(steps).max() / 2 if len(steps) > 1 else 0
            if abs(steps[row] - step) > gap:
                continue
        else:
            row = int(np.argmax(evaluations.returns)) if "best" in stem.lower() else len(steps) - 1
        returns[name] = float(evaluations.returns[row])
        if np.isfinite(evaluations.errors[row]):
            returns.errors[name] = float(evaluations.errors[row])
    return returns


def _array(content: bytes) -> np.ndarray:
    import io

    array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"an array of dtype {array.dtype}, expected numbers")
    return array.astype(np.float64)
