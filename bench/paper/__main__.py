"""Command line of the stages: `python -m bench.paper STAGE --game hopper --scale smoke`, see README.md."""

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
from .studies.command import STUDIES
from .studies.command import main as run_study

STAGES = {
    "sac": "train online SAC and save snapshots",
    "returns": "measure the returns of the snapshots",
    "split": "choose the training, validation and Test Set II policies, the expert and the medium policy",
    "logs": "record the logs expert, medium, medium-replay and full-replay",
    "offline": "train BEAR, CQL and CRR on every log",
    "test-sets": "measure the returns of offline snapshots and choose Test Set I",
    "distances": "compare test policies with training policies (Eq. 3)",
    "models": "train SOPR-T on the game's snapshots",
    "scores": "rank both test sets with the trained models",
    "all": "run all stages above",
    "competent": "train policies of cheaper algorithms on every log and choose a test set of competent ones",
    "table": "print the scores and distances of all games at this scale",
    "summary": "print the steps, seconds and returns of all games at this scale",
    "speed": "print the environment steps per second of rollouts with the last snapshot",
}

_READ_ONLY = ("table", "summary", "speed")
_USE_LOGS = ("offline", "test-sets", "distances", "models", "scores", "all", "competent")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage or all of them. Finished products are kept; interrupted stages resume.

    Args:
        arguments: Command line without the program; `sys.argv[1:]` if None.

    Returns:
        Exit status: 0, or 2 after an error message.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments and arguments[0] in STUDIES:
        return run_study(arguments)
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
        if options.stage in _USE_LOGS:
            chosen_logs(task)  # fail before hours of work
        if options.stage not in _READ_ONLY:
            claim(task)
        for stage in [options.stage] if options.stage != "all" else list(STAGES)[: list(STAGES).index("all")]:
            for product in _run(stage, task):
                print(f"{stage}: {product}" if isinstance(product, Path) else product, flush=True)
    except FileNotFoundError as error:
        # Errors of our own loaders have no filename but a full message.
        problem = f"{error.filename} does not exist" if error.filename else error
        print(f"error: {problem}: run the stage that makes it first", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"error: {error}: install the stages' packages with pip install '.[paper]'", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(stage: str, task: Task) -> list[Path | str]:
    # Imported here because the stages need jax and d3rlpy, the options do not.
    from . import competent, distances, logs, offline, sac, scores, tables

    stages = {
        "sac": lambda: [sac.train(task)],
        "returns": lambda: [sac.measure(task)],
        "split": lambda: [logs.split(task)],
        "logs": lambda: logs.write_logs(task),
        "offline": lambda: offline.train_all(task),
        "competent": lambda: competent.train_all(task),
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
        description="Make training, validation and test sets as in the paper. For studies on them, see README.md.",
        epilog="stages: " + "; ".join(f"{stage}: {text}" for stage, text in STAGES.items()),
    )
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--game", default="hopper", help="hopper, halfcheetah or walker2d, by any name of gym or d4rl")
    parser.add_argument("--scale", choices=SCALES, default="smoke")
    parser.add_argument("--out", type=Path, default=Path("out/paper"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="processes for rollouts")
    parser.add_argument("--threads", type=int, default=1, help="threads for training")
    parser.add_argument("--checkpoint-seconds", type=float, default=600, help="seconds between checkpoints of training")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help="for offline training (default: cuda if torch sees a GPU)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
