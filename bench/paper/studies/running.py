"""Run the cells of a study one after the other; finished ones are kept, failures become gaps with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from sopr_fast.results.metrics import regret_at_k, spearman
from sopr_fast.runtime.files import atomic_path

from . import methods
from .cells import COLUMNS, IDENTITY, Cell, read


def run_cells(cells: Sequence[Cell], path: Path, *, sets: Path, foreign: Path | None = None) -> None:
    """Run the cells that have no rows yet.

    Args:
        cells: The cells.
        path: CSV file of the study.
        sets: Folder of the games at one scale.
        foreign: Folder with policies of other authors, or None.

    Raises:
        FileNotFoundError: A product of the stages is missing.
    """
    rows = read(path)
    done = set(zip(*(rows[name] for name in IDENTITY), strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    for cell in cells:
        if cell.key in done:
            continue
        own = pandas.DataFrame(_attempt(cell, sets, foreign), columns=[*COLUMNS])
        own[[*IDENTITY]] = cell.key
        rows = pandas.concat([rows, own]) if len(rows) else own
        with atomic_path(path) as temporary:
            rows.to_csv(temporary, index=False, float_format="%.4g", lineterminator="\n")
        print(own[["task", "setting", "seed", "test", "spearman", "gap"]].to_string(header=False), flush=True)


def _attempt(cell: Cell, sets: Path, foreign: Path | None) -> list[dict[str, Any]]:
    """Return the rows of a cell: a row for each test set, or one that says why the method failed."""
    task = methods.read_task(cell, sets, foreign)
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
            row = {"test": test, "subsets": count, "repeat": repeat, "spearman": float(spearman(returns, own))}
            row |= {f"regret@{k}": float(regret_at_k(returns=returns, scores=own, k=k)) for k in (1, 3)}
            if "distances" in result:
                row["distance"] = float(np.mean([result["distances"][name] for name in policies]))
            rows.append(row | {"fit": result["fit"], "rank": result.get("rank")})
    return rows
