"""Check the statistics of selection on public scores of off-policy estimators.

    python -m bench.selection.public_scores --scores FOLDER --out out/public-scores.json

FOLDER holds rl_unplugged.csv, d4rl.csv and cartpole_swingup_actions.npz. Each study of each task is written to the file
when it is done, and not computed again. Tables (Markdown) and plots (PNG) are written beside the file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sopr_fast.runtime.files import atomic_path

from . import plots, studies, tables
from .scores import Task, read_cartpole, read_d4rl, read_rl_unplugged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, required=True, help="folder of the public scores")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of results; tables and plots go beside it")
    parser.add_argument("--tables", action="store_true", help="only write tables and plots of the results so far")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    if not options.tables:
        for study, task in _work(options.scores):
            key = f"{study.__name__}/{task.name}"
            if key in results:
                continue
            print(key, flush=True)
            results[key] = [{name: _plain(value) for name, value in row.items()} for row in study(task)]
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(options.out) as temporary:
                temporary.write_text(json.dumps(results))
    text = tables.write(results)
    options.out.with_suffix(".md").write_text(text)
    plots.save(results, options.out.with_suffix(""))
    print(text)


def _work(folder: Path) -> list[tuple[Callable[[Task], list[studies.Row]], Task]]:
    unplugged, cartpole, snapshots = read_rl_unplugged(folder), read_cartpole(folder), read_d4rl(folder)
    work = [
        (study, task)
        for study in (studies.ordering, studies.prediction, studies.priors, studies.measuring)
        for task in unplugged
    ]
    work += [(studies.measuring, cartpole), (studies.distances, cartpole)]
    return work + [(studies.snapshots, task) for task in snapshots]


def _plain(value: object) -> object:
    """Turn a NumPy number into one that JSON holds; NaN into None."""
    if isinstance(value, int | str | bool) or value is None:
        return value
    number = float(np.asarray(value))
    return number if np.isfinite(number) else None


if __name__ == "__main__":
    main()
