"""`python -m bench.paper STAGE --game hopper --scale smoke`: one command per stage, see README.md."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from .games import find_game
from .manifest import Task, claim
from .offline import chosen_logs
from .scales import SCALES

STAGES = {
    "sac": "train online SAC and keep snapshots",
    "returns": "measure the returns of the snapshots",
    "split": "choose training, validation and Test Set II, expert and medium",
    "logs": "record expert, medium, medium-replay and full-replay",
    "offline": "train BEAR, CQL and CRR on every log",
    "test-sets": "measure the returns of offline snapshots and choose Test Set I",
    "distances": "compare test policies with training policies (Eq. 3)",
    "models": "train SOPR-T on the game's snapshots",
    "scores": "rank both test sets with it",
    "all": "all of these",
    "table": "print scores and distances of all games at this scale",
    "summary": "print steps, seconds and returns of all games at this scale",
    "speed": "print environment steps a second of rollouts with the last snapshot",
}

_READERS = ("table", "summary", "speed")  # these make nothing
_ON_LOGS = ("offline", "test-sets", "distances", "models", "scores", "all")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one stage, or all; what is made already is left alone, what was begun goes on."""
    options = _options(arguments)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    try:
        game, scale = find_game(options.game), SCALES[options.scale]
        task = Task(
            game=game,
            scale=scale,
            folder=options.out / options.scale / game.environment.lower(),
            seed=options.seed,
            processes=options.processes,
            threads=options.threads,
            checkpoint_seconds=options.checkpoint_seconds,
            device=options.device,
        )
        if options.stage in _ON_LOGS:
            chosen_logs(task)  # refuses others before hours of work
        if options.stage not in _READERS:
            claim(task)
        for stage in [options.stage] if options.stage != "all" else list(STAGES)[: list(STAGES).index("all")]:
            for product in _run(stage, task):
                print(f"{stage}: {product}" if isinstance(product, Path) else product, flush=True)
    except FileNotFoundError as error:
        lacking = f"{error.filename} is not there" if error.filename else error  # our loaders say it all themselves
        print(f"error: {lacking}: run the stage that makes it first", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"error: {error}: the stages need pip install '.[paper]'", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(stage: str, task: Task) -> list[Path | str]:
    # Each imports what it alone needs, jax or d3rlpy, when it runs.
    from . import distances, logs, offline, sac, scores, tables

    stages = {
        "sac": lambda: [sac.train(task)],
        "returns": lambda: [sac.measure(task)],
        "split": lambda: [logs.split(task)],
        "logs": lambda: logs.write_logs(task),
        "offline": lambda: offline.train_all(task),
        "test-sets": lambda: offline.collect_test_sets(task),
        "distances": lambda: distances.write_distances(task),
        "models": lambda: scores.train_models(task),
        "scores": lambda: scores.write_scores(task),
        "table": lambda: [tables.table(task.folder.parent)],
        "summary": lambda: [tables.summary(task.folder.parent)],
        "speed": lambda: [sac.speed_of_last(task)],
    }
    return stages[stage]()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.paper",
        description="Make the paper's sets.",
        epilog="stages: " + "; ".join(f"{stage}: {text}" for stage, text in STAGES.items()),
    )
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--game", default="hopper", help="hopper, halfcheetah, walker2d, or a gym or d4rl name of one")
    parser.add_argument("--scale", choices=SCALES, default="smoke")
    parser.add_argument("--out", type=Path, default=Path("out/paper"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="for rollouts")
    parser.add_argument("--threads", type=int, default=1, help="for training")
    parser.add_argument("--checkpoint-seconds", type=float, default=600, help="between savings of a training")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help="for offline training; cuda if torch sees one, else cpu")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
