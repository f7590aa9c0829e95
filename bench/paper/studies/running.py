"""Run cells one after the other; finished ones are kept, failures become gaps with a reason."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..manifest import versions
from ..scores import MEASURES
from . import cells, methods
from .cells import Cell


def run_cells(
    wanted: Sequence[Cell],
    *,
    sets: Path,
    results: Path,
    foreign: Path | None = None,
    seconds: float = float("inf"),
    threads: int = 1,
) -> None:
    """Run the cells that have no result yet, and finished ones on test sets that they have not ranked.

    Args:
        wanted: The cells, the most wanted first.
        sets: Folder of the games at one scale.
        results: Folder of the results at this scale.
        foreign: Folder with policies of other authors, or None.
        seconds: No further cell is begun after these.
        threads: Threads of torch, written to the results.
    """
    end = time.monotonic() + seconds
    for i, cell in enumerate(wanted):
        done = cells.read(results, cell)
        finished = done is not None and not done.get("missing_input")
        unranked = _unranked(done, cell, sets, foreign) if finished else []
        if finished and not unranked:
            continue
        if time.monotonic() > end:
            print(f"out of time: {len(wanted) - i} cells were not looked at", flush=True)
            return
        begin = time.monotonic()
        whole = not finished or cell.method == "select"  # what `select` says of a candidate depends on all others
        new = _attempt(cell, sets, foreign, None if whole else unranked)
        new |= {"threads": threads, "versions": versions()}
        if finished and "gap" in new:
            result = done | {"test_gaps": done.get("test_gaps", {}) | dict.fromkeys(unranked, new["gap"])}
        else:
            result = new if whole else _add(done, new)
        cells.write(results, cell, result)
        told = new.get("gap") or ", ".join(
            f"{name} {'undefined' if test['spearman'] is None else format(test['spearman'], '.2f')}"
            for name, test in new["tests"].items()
        )
        print(f"{cell.setting} {cell.task} {cell.seed}: {told}; {time.monotonic() - begin:.0f} s", flush=True)


def _unranked(done: dict[str, Any], cell: Cell, sets: Path, foreign: Path | None) -> list[str]:
    """Return the test sets that a finished cell has not ranked, or that were made again since."""
    if "gap" in done:
        return []
    try:
        returns = methods.read_returns(cell, sets, foreign if cell.repeats == 1 else None)
    except FileNotFoundError:  # the sets are elsewhere
        return []
    known = {name: test["returns"] for name, test in done["tests"].items()} | done.get("test_gaps", {})
    if cell.method == "select" and (lost := known.keys() - returns.keys()):
        print(
            f"{cell.setting} {cell.task} {cell.seed}: kept, since {', '.join(sorted(lost))} would be lost", flush=True
        )
        return []
    return [
        name
        for name, values in returns.items()
        if name not in done.get("test_gaps", {}) and known.get(name) != _rounded(values).tolist()
    ]


def _add(done: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return a finished result with the numbers on further test sets."""
    tests = {name: test | {"versions": new["versions"]} for name, test in new["tests"].items()}
    return done | {"tests": done["tests"] | tests}


def _attempt(cell: Cell, sets: Path, foreign: Path | None, tests: Sequence[str] | None) -> dict[str, Any]:
    """Run a cell on some test sets, None for all; return its numbers or a gap."""
    try:
        task = methods.read_task(cell, sets, foreign if cell.repeats == 1 else None)
    except FileNotFoundError as error:
        return {"gap": "missing input: " + _without_folder(error.filename or error, sets), "missing_input": True}
    if tests is not None:
        task = replace(task, tests={name: task.tests[name] for name in tests})
    try:
        result = methods.run(cell, task)
        return result if "gap" in result else judge(result, task)
    except (ValueError, RuntimeError, MemoryError) as error:
        return {"gap": f"{type(error).__name__}: {_without_folder(error, sets)}"}


def judge(result: dict[str, Any], task: methods.Task) -> dict[str, Any]:
    """Return the result with rank correlations and regrets of each test set in place of flat scores."""
    scores, distances, prefixes = (result.pop(key, None) for key in ("scores", "distances", "prefixes"))
    tests = {}
    for name, (policies, returns) in task.tests.items():
        own, returns = _rounded(scores[policy] for policy in policies), _rounded(returns)
        test = _measures(returns, own)
        if distances is not None:
            test["distance"] = float(np.mean([distances[policy] for policy in policies]))
        if prefixes is not None:
            test["prefixes"] = {
                count: [_measures(returns, np.array([one[policy] for policy in policies])) for one in repeats]
                for count, repeats in prefixes.items()
            }
        test["scores"], test["returns"] = own.tolist(), returns.tolist()
        tests[name] = test
    return result | {"tests": tests}


def _rounded(values: Iterable[float]) -> np.ndarray:
    """Return values as a file keeps them, so that measures are those of the file."""
    return np.array([float(f"{value:.7g}") for value in values])


def _measures(returns: np.ndarray, scores: np.ndarray) -> dict[str, float | None]:
    """Return the measures; None for one that is undefined, such as a rank correlation of equal scores."""
    values = {name: float(measure(returns, scores)) for name, measure in MEASURES.items()}
    return {name: None if np.isnan(value) else value for name, value in values.items()}


def _without_folder(text: object, folder: Path) -> str:
    """Return a message with paths relative to the folder, so that results do not depend on where it is."""
    return str(text).replace(f"{folder}/", "")
