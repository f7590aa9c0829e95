"""Cells: one method with one seed on one task, whose result is one file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sopr_fast.runtime.files import atomic_path

from ..games import LOGS

GAMES = ("halfcheetah", "hopper", "walker2d")
TASKS = tuple(f"{game}-{log}" for game in GAMES for log in LOGS)
TEST_SETS = ("I", "competent", "II", "foreign")


@dataclass(frozen=True)
class Cell:
    """What is run once.

    Attributes:
        task: Game and log, one of `TASKS`.
        method: A name in `methods.METHODS`.
        seed: Seed of everything random.
        options: Options of the method that differ from its own defaults.
        rows: Rows of the log that are used, chosen as in the paper's study of data size; None for all.
        known: Which training policies are used: "all", or "poor", "mixed" or "good" and their number.
        repeats: Rankings of `rank_subsets` subsets each; their scores by subset are not kept, only those of prefixes.
        rank_subsets: Subsets that a policy is scored on.
    """

    task: str
    method: str
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None
    known: str = "all"
    repeats: int = 1
    rank_subsets: int = 5

    @property
    def game(self) -> str:
        """Game of the task."""
        return self.task.split("-", 1)[0]

    @property
    def log(self) -> str:
        """Log of the task."""
        return self.task.split("-", 1)[1]

    @property
    def setting(self) -> str:
        """Everything but task and seed, as one word of a file name."""
        options = dict(self.options)
        parts = [self.method]
        size = [options.pop(name) for name in ("subset_size", "clusters", "steps") if name in options]
        parts += ["x".join(map(str, size))] if size else []
        parts += [f"{name}={value}" for name, value in sorted(options.items())]
        parts += [f"rows={self.rows}"] if self.rows else []
        parts += [f"known={self.known}"] if self.known != "all" else []
        parts += [f"repeats={self.repeats}x{self.rank_subsets}"] if self.repeats > 1 else []
        return ".".join(part.replace(" ", "-") for part in parts)

    def path(self, results: Path) -> Path:
        """Return the file of the result in a folder of results."""
        return results / "cells" / self.setting / f"{self.task}.{self.seed}.json"


def read(results: Path, cell: Cell) -> dict[str, Any] | None:
    """Return the result of a cell, or None if there is none.

    Raises:
        ValueError: The file holds the result of another cell.
    """
    path = cell.path(results)
    if not path.exists():
        return None
    result = json.loads(path.read_text())
    if result["cell"] != asdict(cell):
        raise ValueError(f"{path} holds the result of other settings: remove it")
    return result


def write(results: Path, cell: Cell, result: dict[str, Any]) -> None:
    """Write the result of a cell."""
    path = cell.path(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps({"cell": asdict(cell), **result}) + "\n")


def why_missing(results: Path, cell: Cell) -> str:
    """Return why a cell has no numbers, or "" if it has."""
    result = read(results, cell)
    return "not run" if result is None else result.get("gap", "")
