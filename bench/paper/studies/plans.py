"""Plans: the cells of each study at each scale, the most telling first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..scales import SCALES
from .cells import TASKS, Cell

SHORT_TASKS = tuple(task for task in TASKS if not task.endswith("full-replay"))  # of the study of data size
ONE_PER_GAME = ("hopper-medium", "walker2d-full-replay", "halfcheetah-medium-replay")
ESTIMATORS = ("sarsa-critic", "importance-weighting", "simulator", "fqe", "dual-dice")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the studies at one scale.

    Attributes:
        tasks: Tasks.
        seeds: Number of seeds.
        main: Subset size, clusters and steps of SOPR in every study but the frontier.
        frontier: Points of the frontier, the paper's last.
        precisions: Points that are also trained and scored in bf16.
        unvalidated: Points that are also trained without validation policies, on the last weights.
        estimators: Options of estimators; `{"settings": "panel"}` for those that `select` gives them.
        select: Options of `select`.
        rows: Rows of the study of data size.
        subsets: Subsets of a ranking in the study of subsets.
        known: Training policies of the study of their quality and number.
    """

    tasks: tuple[str, ...]
    seeds: int
    main: tuple[int, int, int]
    frontier: tuple[tuple[int, int, int], ...]
    precisions: tuple[tuple[int, int, int], ...]
    unvalidated: tuple[tuple[int, int, int], ...]
    estimators: dict[str, Any]
    select: dict[str, Any]
    rows: tuple[int, ...]
    subsets: int
    known: tuple[str, ...]


_KNOWN = ("poor-10", "mixed-10", "good-10", "mixed-5", "mixed-20")
SIZES = {
    "smoke": Sizes(
        tasks=("hopper-medium",),
        seeds=1,
        main=(32, 4, 3),
        frontier=((16, 2, 2), (32, 4, 3)),
        precisions=(),
        unvalidated=((16, 2, 2),),
        estimators={"updates": 3},
        select={"methods": "nearest policy + Gaussian process"},
        rows=(64, 128),
        subsets=5,
        known=("poor-3", "mixed-5"),
    ),
    "small": Sizes(
        tasks=TASKS,
        seeds=3,
        main=(1024, 16, 60),
        frontier=((256, 8, 60), (512, 16, 60), (1024, 16, 60), (1024, 16, 120), (2048, 32, 120), (16384, 256, 200)),
        precisions=((1024, 16, 60), (1024, 16, 120), (2048, 32, 120)),
        unvalidated=((1024, 16, 60), (1024, 16, 120)),
        estimators={"settings": "panel"},
        select={},
        rows=(4_000, 8_000, 16_000, 32_000),
        subsets=200,
        known=_KNOWN,
    ),
    "paper": Sizes(
        tasks=TASKS,
        seeds=3,
        main=(16384, 256, 200),
        frontier=((1024, 16, 60), (2048, 32, 120), (4096, 64, 200), (16384, 256, 200)),
        precisions=((16384, 256, 200),),
        unvalidated=((1024, 16, 60),),
        estimators={"updates": 200_000},
        select={},
        rows=(4_000, 8_000, 16_000, 32_000),
        subsets=200,
        known=_KNOWN,
    ),
}


def options_of(point: tuple[int, int, int], **more: Any) -> dict[str, Any]:
    """Return the options of SOPR at a point of the frontier."""
    return dict(zip(("subset_size", "clusters", "steps"), point, strict=True)) | more


def sopr(task: str, seed: int, point: tuple[int, int, int], method: str = "sopr-t", **more: Any) -> Cell:
    """Return a cell of SOPR; `more` are further options of its training."""
    return Cell(task, method, seed, options_of(point, **more))


def baseline(task: str, seed: int, method: str, sizes: Sizes) -> Cell:
    """Return a cell of a method that is not SOPR."""
    return Cell(task, method, seed, {"nearest-policy": {}, "select": sizes.select}.get(method, sizes.estimators))


def main(scale: str) -> list[Cell]:
    """List the cells of the main result."""
    sizes = SIZES[scale]
    cells = [baseline(task, 0, "nearest-policy", sizes) for task in sizes.tasks]
    for seed in range(sizes.seeds):
        for method in ("sopr-t", "sopr-mlp"):
            cells += [sopr(task, seed, sizes.main, method) for task in sizes.tasks]
        for method in (*ESTIMATORS, "select"):
            cells += [baseline(task, seed, method, sizes) for task in sizes.tasks]
    return cells


def encoder(scale: str) -> list[Cell]:
    """List the cells of transformer against MLP."""
    return [cell for cell in main(scale) if cell.method in ("sopr-t", "sopr-mlp")]


def frontier(scale: str) -> list[Cell]:
    """List the cells of quality against cost."""
    sizes = SIZES[scale]
    points = [
        (point, more) for point in sizes.frontier for more in ({}, *([_BF16] if point in sizes.precisions else []))
    ]
    *cheaper, paper = points
    variants = [(point, {"validation": False}) for point in sizes.unvalidated]
    points = [*cheaper, *variants, paper]
    return [sopr(task, seed, point, **more) for point, more in points for seed in (0, 1) for task in sizes.tasks]


_BF16 = {"precision": "bf16", "training_precision": "bf16"}


def subsets(scale: str) -> list[Cell]:
    """List the cells of the number of subsets in inference."""
    sizes = SIZES[scale]
    order = sorted(sizes.tasks, key=lambda task: task not in ONE_PER_GAME)
    options = options_of(sizes.main)
    return [Cell(task, "sopr-t", 0, options, repeats=5, rank_subsets=sizes.subsets) for task in order]


def data_size(scale: str) -> list[Cell]:
    """List the cells of the number of logged rows."""
    sizes = SIZES[scale]
    tasks = [task for task in SHORT_TASKS if task in sizes.tasks]
    cells = []
    for rows in sizes.rows:
        point = (min(sizes.main[0], rows), min(sizes.main[1], rows), sizes.main[2])
        cells += [Cell(task, "nearest-policy", 0, rows=rows) for task in tasks]
        cells += [Cell(task, "sopr-t", 0, options_of(point), rows=rows) for task in tasks]
        cells += [Cell(task, "sopr-mlp", 0, options_of(point), rows=rows) for task in tasks]
        cells += [Cell(task, method, 0, sizes.estimators, rows=rows) for method in ESTIMATORS for task in tasks]
        cells += [Cell(task, "select", 0, sizes.select, rows=rows) for task in tasks]
    return cells


def future(scale: str) -> list[Cell]:
    """List the cells of what the paper leaves to future work."""
    sizes = SIZES[scale]
    cells = []
    for loss in ("listwise", "mse"):
        cells += [sopr(task, 0, sizes.main, loss=loss) for task in sizes.tasks]
    for known in sizes.known:
        cells += [Cell(task, "sopr-t", 0, options_of(sizes.main), known=known) for task in sizes.tasks]
    return cells


def distance(scale: str) -> list[Cell]:
    """List the cells of the distance between training and test policies."""
    return [cell for cell in main(scale) if cell.method == "sopr-t"]


PLANS: dict[str, Callable[[str], list[Cell]]] = {
    "main": main,
    "data-size": data_size,
    "encoder": encoder,
    "subsets": subsets,
    "distance": distance,
    "time": main,
    "future": future,
    "frontier": frontier,
}
assert set(SIZES) == set(SCALES)
