"""Run cells one after the other; finished ones are kept, failures become gaps with a reason."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
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
    """Run the cells that have no result yet.

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
        if done is not None and not done.get("missing_input"):
            continue
        if time.monotonic() > end:
            print(f"out of time: {len(wanted) - i} cells were not looked at", flush=True)
            return
        begin = time.monotonic()
        result = _attempt(cell, sets, foreign)
        cells.write(results, cell, result | {"threads": threads, "versions": versions()})
        told = result.get("gap") or ", ".join(
            f"{name} {'undefined' if test['spearman'] is None else format(test['spearman'], '.2f')}"
            for name, test in result["tests"].items()
        )
        print(f"{cell.setting} {cell.task} {cell.seed}: {told}; {time.monotonic() - begin:.0f} s", flush=True)


def _attempt(cell: Cell, sets: Path, foreign: Path | None) -> dict[str, Any]:
    try:
        task = methods.read_task(cell, sets, foreign if cell.repeats == 1 else None)
    except FileNotFoundError as error:
        return {"gap": "missing input: " + _without_folder(error.filename or error, sets), "missing_input": True}
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
