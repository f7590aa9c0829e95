"""Returns from files, folders of runs, and data frames."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ...runtime.checks import check_integer
from ...runtime.text import escaped_errors, printable
from ..logs.files import check_regular
from . import evaluations, tensorboard
from .tables import read_csv, read_frame, read_json
from .values import Returns

_SEEN = 5


def is_source(returns: Any) -> bool:
    """Return whether `read_returns` reads this: a path, or a data frame (not one of its columns)."""
    return isinstance(returns, str | os.PathLike) or (hasattr(returns, "columns") and hasattr(returns, "__getitem__"))


@escaped_errors()
def read_returns(
    source: Any,
    names: list[str],
    *,
    tag: str | None = None,
    rollouts: int | None = None,
    skipped: Sequence[str] = (),
    by_name: bool = False,
) -> Returns:
    """Return name and return of policies, with standard errors where the source has them.

    - A CSV file or data frame has a column `name` or `policy` and a column `return` or `return_mean`, in any case.
      Without a header, the first two columns of a file are these; the first column may lack a name, as a pandas index
      does. Standard errors are a column `return_se`, or `return_std` (over a policy's rollouts) and `rollouts`.
    - A JSON file (`.json`) holds an object of name and return, or of name and a list of the returns of rollouts; or a
      list in the order of the names. Here and in tables, a single rollout gets the standard deviation that the
      rollouts of the other policies have in common.
    - `evaluations.npz` of Stable-Baselines3's `EvalCallback`, or a TensorBoard event file; or a folder with such files,
      of which each policy gets that of its own folder: `runs/ppo_1/evaluations.npz` for "ppo_1/best_model" in `runs`,
      the nearest one above it. A policy named `…_100000_steps` gets the evaluation nearest to that step, one whose name
      contains "best" the highest one, one other policy the last one (see `evaluations.choose`). Of these, files of the
      first kind come before event files.

    Args:
        source: Path of a file or folder, or a data frame.
        names: Names of the policies. Where a CSV file has none of them, its integers are positions among them,
            counted from 0.
        tag: Tag of the returns in event files; by default the first of `tensorboard.TAGS` that a file has.
        rollouts: Number of rollouts behind each return of a table, in place of its column.
        skipped: Files of policies that were left out of the names, so that positions are refused.
        by_name: Refuse positions in a CSV file and lists in a JSON file: the user does not know the order of names.

    Raises:
        FileNotFoundError: There is no such file.
        TypeError: A data frame has no returns or no names.
        ValueError: The file has another layout, or no policy's folder has returns; the message names the file.

    Warns:
        UserWarning: Standard deviations have no number of rollouts, or names of policies do not say which evaluation
            is theirs.
    """
    if rollouts is not None:
        rollouts = check_integer("rollouts", rollouts, 1)
    if not isinstance(source, str | os.PathLike):
        return read_frame(source, rollouts)
    path = Path(source)
    if rollouts is not None and (path.is_dir() or path.suffix.lower() in (".json", ".npz")):
        raise ValueError(f"{path}: rollouts are for tables with a column return_std; leave them out")
    if path.is_dir():
        return _of_folder(path, names, tag)
    check_regular(path)
    if path.suffix.lower() == ".npz":
        return evaluations.choose(evaluations.read(path), names)
    if tensorboard.is_event_file(path):
        return evaluations.choose(tensorboard.read([path], tag), names)
    if path.suffix.lower() == ".json":
        return read_json(path, names, by_name)
    return read_csv(path, names, rollouts, skipped, by_name)


def _of_folder(folder: Path, names: list[str], tag: str | None) -> Returns:
    """Return the returns of policies from the runs in a folder and below it."""
    runs: dict[PurePosixPath, Callable[[], evaluations.Evaluations]] = {}
    events: dict[Path, list[Path]] = {}
    for file in sorted(folder.rglob("*")):
        if tensorboard.is_event_file(file) and file.is_file():
            events.setdefault(file.parent, []).append(file)
    for parent, files in events.items():
        runs[_relative(parent, folder)] = lambda files=files: tensorboard.read(files, tag)  # type: ignore[misc]
    for file in sorted(folder.rglob("evaluations.npz")):
        runs[_relative(file.parent, folder)] = lambda file=file: evaluations.read(file)  # type: ignore[misc]
    if not runs:
        raise ValueError(
            f"{printable(folder)}: no returns: expected evaluations.npz or TensorBoard event files in it or below it"
        )
    policies: dict[PurePosixPath, list[str]] = {}
    for name in names:
        place = PurePosixPath(name)
        run = next((run for run in (place, *place.parents) if run in runs), None)
        if run is not None:
            policies.setdefault(run, []).append(name)
    if not policies:
        seen = ", ".join(str(run) for run in list(runs)[:_SEEN])
        more = f" and {len(runs) - _SEEN} more" if len(runs) > _SEEN else ""
        raise ValueError(
            f"{printable(folder)}: its returns lie in {printable(seen)}{more}, and no policy does; pass the folder "
            f"to which their names are relative, such as {names[0]!r}"
        )
    returns = Returns()
    for run, of_run in policies.items():
        chosen = evaluations.choose(runs[run](), of_run, str(run))
        returns.update(chosen)
        returns.errors.update(chosen.errors)
    return returns


def _relative(path: Path, folder: Path) -> PurePosixPath:
    return PurePosixPath(path.relative_to(folder).as_posix())
