"""Run the cells of a study one after the other; finished ones are kept, failures become gaps with a reason."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sopr_fast.ranking.metrics import regret_at_k, spearman

from . import methods
from .cells import Cell, read, write

_MISSING = "missing input: "


def run_cells(
    cells: Sequence[Cell], path: Path, *, sets: Path, foreign: Path | None = None, seconds: float = float("inf")
) -> None:
    """Run the cells that have no rows yet, and those whose input was missing; rows of others are kept.

    Args:
        cells: The cells.
        path: CSV file of the study.
        sets: Folder of the games at one scale.
        foreign: Folder with policies of other authors, or None.
        seconds: No further cell is begun after these.
    """
    end = time.monotonic() + seconds
    rows = read(path)
    done = {_key(row) for row in rows if not row.get("gap", "").startswith(_MISSING)}
    for cell in cells:
        if cell.key in done:
            continue
        if time.monotonic() > end:
            print("out of time", flush=True)
            return
        own = _attempt(cell, sets, foreign)
        identity = dict(zip(("task", "setting", "seed"), cell.key, strict=True))
        rows = [row for row in rows if _key(row) != cell.key] + [identity | row for row in own]
        write(path, rows)
        print(*cell.key, own[0].get("gap") or {row["test"]: row["spearman"] for row in own}, flush=True)


def _key(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["task"], row["setting"], row["seed"]


def _attempt(cell: Cell, sets: Path, foreign: Path | None) -> list[dict[str, Any]]:
    """Return the rows of a cell: a row for each test set, or one with a gap."""
    try:
        task = methods.read_task(cell, sets, foreign)
    except FileNotFoundError as error:
        return [{"gap": _MISSING + str(error.filename or error).replace(f"{sets}/", "")}]
    try:
        result = methods.run(cell, task)
    except (ValueError, RuntimeError, MemoryError) as error:
        return [{"gap": f"{type(error).__name__}: {error}".replace(f"{sets}/", "")}]
    return [{"gap": result["gap"]}] if "gap" in result else judge(result, task)


def judge(result: dict[str, Any], task: methods.Task) -> list[dict[str, Any]]:
    """Return rank correlations and regrets of each test set and number of subsets."""
    rows = []
    for count, repeat, names, scores in result["scores"]:
        by_name = dict(zip(names, np.asarray(scores).tolist(), strict=True))
        for test, (policies, returns) in task.tests.items():
            own = np.array([by_name[name] for name in policies])
            order = float(spearman(returns, own))
            row = {"test": test, "subsets": count, "repeat": repeat, "spearman": None if np.isnan(order) else order}
            row |= {f"regret@{k}": float(regret_at_k(returns=returns, scores=own, k=k)) for k in (1, 3)}
            if "distances" in result:
                row["distance"] = float(np.mean([result["distances"][name] for name in policies]))
            rows.append(row | {"fit": result["fit"], "rank": result.get("rank")})
    return rows
