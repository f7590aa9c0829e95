"""Command line of the studies: `python -m bench.paper STUDY --scale small`, see README.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
SETS = Path(__file__).parents[1] / "sets"
PAGE = Path(__file__).parents[3] / "docs" / "results.md"
STUDIES = {
    "main": "all methods on both test sets (sections 4.2 and 4.3)",
    "data-size": "4k to 32k logged rows (section 4.4)",
    "encoder": "transformer against MLP (section 4.4)",
    "subsets": "1 to 200 subsets in inference (section 4.4)",
    "distance": "distance of test policies beside the rank correlation on them (Eq. 3)",
    "time": "seconds of training and inference beside the paper's (appendix A.2)",
    "future": "losses, features, quality and number of training policies (section 5)",
    "frontier": "quality against cost",
    "studies": "all studies above, then the page",
    "page": "write docs/results.md from the results",
}


def main(arguments: Sequence[str]) -> int:
    """Run one study or all of them: cells that have no result yet, then tables and plots.

    Args:
        arguments: Command line without the program.

    Returns:
        Exit status: 0, or 2 after an error message.
    """
    options = _options(arguments)
    import torch

    from . import page, plans, plots, running, tables

    torch.set_num_threads(options.threads)
    results, sets = options.results / options.scale, options.sets / options.scale
    source = tables.Source(options.scale, results, sets)
    chosen = list(plans.PLANS) if options.study in ("studies", "page") else [options.study]
    cells = [cell for study in chosen for cell in plans.PLANS[study](options.scale)]
    if options.cells:
        cells = [
            cell for cell in cells if any(part in f"{cell.setting} {cell.task} {cell.seed}" for part in options.cells)
        ]
    try:
        if options.study != "page" and not options.tables_only:
            running.run_cells(
                cells,
                sets=sets,
                results=results,
                foreign=options.foreign,
                seconds=options.seconds,
                threads=options.threads,
            )
        for study in chosen:
            tables.write(study, tables.build(study, source), results)
            plots.write_plot(study, source, results)
            print(f"{results / study}.md", flush=True)
        if options.study in ("studies", "page"):
            page.write_page(source, options.page)
            print(options.page)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.paper",
        description="Run one study or all of them: cells that have no result yet, then tables and plots.",
        epilog="studies: " + "; ".join(f"{study}: {text}" for study, text in STUDIES.items()),
    )
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--scale", choices=("smoke", "small", "paper"), default="smoke")
    parser.add_argument(
        "--sets", type=Path, default=SETS, help="folder of the stages' products (default: the small sets)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--foreign", type=Path, help="folder with policies of other authors, a third test set")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further cell after these")
    parser.add_argument("--cells", nargs="*", help="only cells whose name contains one of these")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--page", type=Path, default=PAGE, help="page to write")
    parser.add_argument("--tables-only", action="store_true", help="run nothing")
    return parser.parse_args(arguments)
