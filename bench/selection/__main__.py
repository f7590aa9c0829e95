"""Run the study.

python -m bench.selection make     # trains policies, writes logs and measures returns
python -m bench.selection study    # select on all of them
python -m bench.selection table    # writes the tables in docs/how-well-it-ranks.md
python -m bench.selection peers    # select and what users have otherwise, on offline policies; writes their table there
python -m bench.selection measured # as select learns from measured episodes
python -m bench.selection games    # select on the paper's games, whose logs `python -m bench.paper logs` makes
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sopr_fast.estimators import Simulator

from . import peers
from .make import make
from .study import RESULTS, SEEDS, of_games, of_measured, run
from .table import update_page
from .tasks import LOGS, SETS, TASKS

DEFAULT = Simulator()
PAGE = Path(__file__).parents[2] / "docs" / "how-well-it-ranks.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["make", "study", "table", "peers", "measured", "games"])
    tasks = {task.environment: task for task in TASKS}
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=list(tasks))
    parser.add_argument("--logs", nargs="+", choices=LOGS, default=LOGS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--members", type=int, default=DEFAULT.members, help="networks of a simulator")
    parser.add_argument("--updates", type=int, default=DEFAULT.updates, help="of simulators")
    parser.add_argument("--hidden", type=int, nargs="+", default=DEFAULT.hidden, help="widths of their hidden layers")
    parser.add_argument("--out", type=Path, default=Path("out/selection"), help="folder of runs (default: %(default)s)")
    parser.add_argument(
        "--sets", type=Path, default=Path("bench/paper/sets/small"), help="games (default: %(default)s)"
    )
    parser.add_argument("--foreign", type=Path, help="folder with policies of other authors, for games")
    options = parser.parse_args()
    chosen = [tasks[name] for name in options.tasks]
    if options.stage == "make":
        for task in chosen:
            make(task, options.out / task.name)
    elif options.stage == "study":
        made = [task for task in chosen if (SETS / task.name).exists()]
        simulator = Simulator(updates=options.updates, hidden=tuple(options.hidden), members=options.members)
        results = RESULTS if simulator == DEFAULT else options.out / "results.csv"
        run(made, options.logs, options.seeds, options.out, simulator, results)
    elif options.stage == "peers":
        peers.run(chosen, options.logs)
        peers.update_page(PAGE)
    elif options.stage == "measured":
        found = of_measured(chosen, options.seeds, options.out).groupby("chooses")[["returns", "episodes"]]
        print(found.agg(["mean", "sem"]).round(2).to_string())
    elif options.stage == "games":
        columns, by = ["spearman", "regret@1", "coverage"], ["kind", "known"]
        means = of_games(options.sets, options.out, options.foreign).groupby([*by, "game", "log"])[columns].mean()
        print(means.round(2).to_string(), means.groupby(by).agg(["mean", "sem"]).round(2).to_string(), sep="\n\n")
    else:
        update_page(PAGE)


if __name__ == "__main__":
    main()
