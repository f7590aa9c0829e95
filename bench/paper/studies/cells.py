"""Cells of the studies: one method with one seed on one task; its numbers are rows of the study's CSV file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas

from ..games import LOGS

TASKS = tuple(f"{game}-{log}" for game in ("halfcheetah", "hopper", "walker2d") for log in LOGS)
MEASURES = ("spearman", "regret@1", "regret@3")
IDENTITY = ("task", "setting", "seed")
COLUMNS = (*IDENTITY, "test", "subsets", "repeat", *MEASURES, "distance", "fit", "rank", "gap")
ESTIMATORS = ("sarsa-critic", "importance-weighting", "simulator", "fqe", "dual-dice")
COUNTS = (1, 5, 10, 50, 100, 200)  # of subsets, in the study of subsets
STUDIES = {
    "main": "all methods on all test sets (sections 4.2 and 4.3); transformer against MLP, distance, seconds",
    "data-size": "4k to 32k logged rows (section 4.4)",
    "subsets": "1 to 200 subsets in inference (section 4.4)",
    "policy-share": "half of the training policies in each step, next to all",
    "future": "quality and number of training policies (section 5)",
}


@dataclass(frozen=True)
class Cell:
    """What is run once.

    Attributes:
        task: Game and log, one of `TASKS`.
        method: A name in `methods.LABELS`.
        seed: Seed of everything random.
        options: Options of the method that differ from its own defaults.
        rows: Rows of the log that are used, chosen as in the paper's study of data size; None for all.
        known: Which training policies are used: "all", or "poor", "mixed" or "good" and their number.
        repeats: Number of rankings; with several, the first `COUNTS` subsets of each are judged.
        subsets: Subsets that a policy is scored on.
    """

    task: str
    method: str
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None
    known: str = "all"
    repeats: int = 1
    subsets: int = 5

    @property
    def setting(self) -> str:
        """Everything but task and seed in one text."""
        options = dict(self.options)
        parts = [self.method]
        size = [options.pop(name) for name in ("subset_size", "clusters", "steps") if name in options]
        parts += ["x".join(map(str, size))] if size else []
        parts += [f"{name}={value}" for name, value in sorted(options.items())]
        parts += [f"rows={self.rows}"] if self.rows else []
        parts += [f"known={self.known}"] if self.known != "all" else []
        parts += [f"repeats={self.repeats}x{self.subsets}"] if self.repeats > 1 else []
        return " ".join(parts)

    @property
    def key(self) -> tuple[str, str, int]:
        """What identifies the cell's rows."""
        return self.task, self.setting, self.seed


def read(path: Path) -> pandas.DataFrame:
    """Return the rows of a study; `gap` is "" for cells that have numbers."""
    if not path.exists():
        return pandas.DataFrame(columns=[*COLUMNS])
    return pandas.read_csv(path, dtype={"gap": str}).fillna({"gap": ""})


@dataclass(frozen=True)
class Sizes:
    """Sizes of the studies at one scale.

    Attributes:
        tasks: Tasks.
        seeds: Number of seeds.
        point: Subset size, clusters and steps of SOPR.
        estimators: Options of estimators; `{"settings": "panel"}` for quick ones.
        select: Options of the simulator of `select`.
        rows: Rows of the study of data size.
        subsets: Subsets of a ranking in the study of subsets.
        known: Training policies of the study of their quality and number.
    """

    tasks: tuple[str, ...] = TASKS
    seeds: int = 3
    point: tuple[int, int, int] = (1024, 16, 60)
    estimators: dict[str, Any] = field(default_factory=lambda: {"settings": "panel"})
    select: dict[str, Any] = field(default_factory=dict)
    rows: tuple[int, ...] = (4_000, 8_000, 16_000, 32_000)
    subsets: int = 200
    known: tuple[str, ...] = ("poor-10", "mixed-10", "good-10", "mixed-5", "mixed-20")


SIZES = {
    "smoke": Sizes(
        tasks=("hopper-medium",),
        seeds=1,
        point=(32, 4, 3),
        estimators={"updates": 3},
        select={"updates": 3, "members": 1, "horizon": 5},
        rows=(64, 128),
        subsets=5,
        known=("poor-3", "mixed-5"),
    ),
    "small": Sizes(),
    "paper": Sizes(point=(16384, 256, 200), estimators={"updates": 200_000}),
}


def plan(study: str, scale: str) -> list[Cell]:
    """List the cells of a study."""
    sizes = SIZES[scale]
    sopr = dict(zip(("subset_size", "clusters", "steps"), sizes.point, strict=True))

    def every_method(task: str, seed: int, **more: Any) -> list[Cell]:
        made = [Cell(task, method, seed, sopr, **more) for method in ("sopr-t", "sopr-mlp")]
        made += [Cell(task, "nearest-policy", seed, **more)] if seed == 0 else []
        made += [Cell(task, method, seed, sizes.estimators, **more) for method in ESTIMATORS]
        return [*made, Cell(task, "select", seed, sizes.select, **more)]

    if study == "main":
        return [cell for seed in range(sizes.seeds) for task in sizes.tasks for cell in every_method(task, seed)]
    if study == "data-size":
        tasks = [task for task in sizes.tasks if not task.endswith("full-replay")]
        return [cell for rows in sizes.rows for task in tasks for cell in every_method(task, 0, rows=rows)]
    if study == "subsets":
        return [Cell(task, "sopr-t", 0, sopr, repeats=5, subsets=sizes.subsets) for task in sizes.tasks]
    if study == "policy-share":
        options = [sopr | {"steps": 2 * sizes.point[2], "policy_share": share} for share in (1.0, 0.5)]
        return [Cell(task, "sopr-t", seed, o) for seed in range(sizes.seeds) for o in options for task in sizes.tasks]
    return [Cell(task, "sopr-t", 0, sopr, known=known) for known in sizes.known for task in sizes.tasks]
