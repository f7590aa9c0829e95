"""Run the study.

python -m bench.selection make     # policies, returns and logs of all tasks: about 40 minutes of two cores
python -m bench.selection study    # select on all of them, three seeds
python -m bench.selection table    # tables of both halves; writes the one in docs/how-well-it-ranks.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sopr_fast import estimators

from .make import make
from .study import SEEDS, run
from .table import correlations, decisions, results, update_page
from .tasks import TASKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["make", "study", "table"])
    parser.add_argument("--tasks", nargs="+", metavar="NAME", default=[task.environment for task in TASKS])
    parser.add_argument("--out", type=Path, default=Path("out/selection"), help="folder of runs (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    tasks = [task for task in TASKS if task.environment in options.tasks]
    if options.stage == "make":
        for task in tasks:
            make(task, options.out / task.environment.lower())
    elif options.stage == "study":
        made = [task for task in tasks if task.archive.exists()]
        run(made, options.out, estimators.Simulator(), tuple(options.seeds))
    else:
        for chooses, words in ((True, "Choosing"), (False, "Judging")):
            rows = results(chooses=chooses)
            print(f"{words} tasks, Spearman\n\n{correlations(rows)}\n")
            print(f"{words} tasks, `select`\n\n{decisions(rows)}\n")
        update_page(Path(__file__).parents[2] / "docs" / "how-well-it-ranks.md")


if __name__ == "__main__":
    main()
