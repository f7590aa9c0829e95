"""Command line of the stages and studies: `python -m bench.paper STAGE --game hopper --scale smoke`, see README.md."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from .games import GAMES
from .manifest import Task, claim
from .scales import SCALES
from .studies.cells import STUDIES, plan

STAGES = {
    "sac": "train online SAC and save snapshots",
    "returns": "measure the returns of the snapshots",
    "split": "choose the training, validation and Test Set II policies, the expert and the medium policy",
    "logs": "record the logs expert, medium, medium-replay and full-replay",
    "offline": "train BEAR, CQL and CRR on every log",
    "test-sets": "measure the returns of offline snapshots and choose Test Set I",
    "all": "run all stages above",
    "competent": "train policies of cheaper algorithms on every log and choose a test set of competent ones",
}
_STUDIES = {**STUDIES, "studies": "all studies above", "page": "write the main table into docs/how-well-it-ranks.md"}
_HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one stage, one study or all of them. Finished products and cells are kept; interrupted ones resume.

    Args:
        arguments: Command line without the program; `sys.argv[1:]` if None.
    """
    options = _options(arguments)
    if options.stage in _STUDIES:
        _run_studies(options)
    else:
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        _run_stages(options)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    named = {**STAGES, **_STUDIES}
    parser = argparse.ArgumentParser(
        prog="python -m bench.paper",
        description="Make training, validation and test sets as in the paper, and run studies on them, see README.md.",
        epilog="; ".join(f"{name}: {text}" for name, text in named.items()),
    )
    parser.add_argument("stage", choices=named)
    parser.add_argument("--scale", choices=SCALES, default="smoke")
    parser.add_argument("--threads", type=int, default=1, help="threads for training")
    stages = parser.add_argument_group("stages")
    stages.add_argument("--game", choices=GAMES, default="hopper")
    stages.add_argument("--out", type=Path, default=Path("out/paper"))
    stages.add_argument("--processes", type=int, default=2, help="processes for rollouts")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    stages.add_argument("--device", default=device, help="for offline training (default: cuda if torch sees a GPU)")
    studies = parser.add_argument_group("studies")
    studies.add_argument("--sets", type=Path, default=_HERE / "sets", help="folder of the stages' products")
    studies.add_argument("--results", type=Path, default=_HERE / "results", help="folder of the results")
    studies.add_argument("--foreign", type=Path, help="folder with policies of other authors, a further test set")
    studies.add_argument("--cells", nargs="*", help="only cells whose name contains one of these")
    return parser.parse_args(arguments)


def _run_stages(options: argparse.Namespace) -> None:
    # Imported here because the stages need jax and d3rlpy, the options do not.
    from . import competent, logs, offline, sac

    task = Task(
        game=options.game,
        scale=SCALES[options.scale],
        folder=options.out / options.scale / GAMES[options.game].lower(),
        processes=options.processes,
        threads=options.threads,
        device=options.device,
    )
    claim(task)
    stages = {
        "sac": lambda: [sac.train(task)],
        "returns": lambda: [sac.measure(task)],
        "split": lambda: [logs.split(task)],
        "logs": lambda: logs.write_logs(task),
        "offline": lambda: offline.train_all(task),
        "test-sets": lambda: offline.collect_test_sets(task),
        "competent": lambda: competent.train_all(task),
    }
    for stage in [options.stage] if options.stage != "all" else list(STAGES)[: list(STAGES).index("all")]:
        for product in stages[stage]():
            print(f"{stage}: {product}", flush=True)


def _run_studies(options: argparse.Namespace) -> None:
    """Run the cells of studies that have no result yet, then write tables."""
    from .studies import running, tables

    torch.set_num_threads(options.threads)
    results = options.results / options.scale
    if options.stage == "page":
        tables.update_page(_HERE.parents[1] / "docs" / "how-well-it-ranks.md", results)
        return
    for study in STUDIES if options.stage == "studies" else [options.stage]:
        cells = plan(study, options.scale)
        if options.cells is not None:
            cells = [cell for cell in cells if any(part in " ".join(map(str, cell.key)) for part in options.cells)]
        running.run_cells(cells, results / f"{study}.csv", sets=options.sets / options.scale, foreign=options.foreign)
        print(tables.write(study, results), flush=True)


if __name__ == "__main__":
    main()
