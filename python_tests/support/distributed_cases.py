"""What each of several processes does in tests: `torchrun -m support.distributed_cases FUNCTION ARGUMENT…`."""

import os
import signal
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch.distributed as dist
from support.problems import TINY, ladder, log, training_gains
from support.selection_problems import DISCOUNT, gains, true_values
from support.selection_problems import log as transitions

import sopr_fast
from sopr_fast import estimators
from sopr_fast.cli.main import leave, main
from sopr_fast.runtime import checkpoints, distributed
from sopr_fast.runtime.distributed import Group
from sopr_fast.runtime.tensor_files import fingerprint
from sopr_fast.selection import evaluate

RANK = int(os.environ.get("RANK", "0"))
TIMEOUT = 240  # seconds, far more than any of these tests needs
STEPS = 6
WIDE = replace(TINY, width=32, high_feedforward=256)  # gradients that are scattered, not gathered
CONFIGS = [
    replace(WIDE, steps=STEPS),
    replace(TINY, steps=STEPS, encoder="mlp"),
]
KNOWN = ladder(training_gains(19))
RETURNS = dict(zip(KNOWN, training_gains(19), strict=True))
HELD_OUT = ladder([0.21, 0.52])


def fit(config=CONFIGS[0], policies=KNOWN, states=None, **options):
    states = log() if states is None else states
    return sopr_fast.fit(policies, states, RETURNS, config=config, **options)


def results(folder: Path) -> list[str]:
    """Return fingerprints of losses, rankings and values, which each begin with a name; model files are in the folder.

    Policies are fewer than processes, which share the batches of states and the subsets, and more.
    """
    lines = []

    def note(name: str, *arrays) -> None:
        lines.append(f"{name} {fingerprint(*map(np.asarray, arrays))}")

    for i, config in enumerate(CONFIGS):
        ranker = fit(config, validation=(HELD_OUT, [0.21, 0.52]))
        ranker.save(folder / f"{i}.safetensors")
        note("losses", ranker.history["loss"])
        for candidates in ([0.3], [0.3, 0.4], [0.21, 0.3, 0.4, 0.52]):
            with sopr_fast.options(batch_size=100):
                ranking = ranker.rank(ladder(candidates), log())
            note("ranking", ranking.subset_scores, ranking.scores, ranking.distances)
    small = {"updates": 8, "hidden": (8,)}
    methods = [
        estimators.BehaviourQ(**small, discount=DISCOUNT),
        estimators.FQE(**small, discount=DISCOUNT),
        estimators.NearestPolicy(),
        estimators.SOPR(replace(TINY, steps=2)),
    ]
    known, logged = gains(12, first=20), transitions()
    returns = true_values(known)
    for method in methods:
        for policies in (gains(19), gains(2, first=3)):
            found = method.estimate(policies, logged, known=known, returns=returns)
            note(method.name, found.values, found.standard_errors)
    named = {method.name: method for method in methods}
    columns = evaluate(known, logged, returns, methods=named, cv=3, checkpoints=folder / "columns")
    for name, values in columns.values.items():
        note(f"evaluate {name}", values)
    simulator = estimators.Simulator(**small, members=2)
    selection = sopr_fast.select(known | gains(3), logged, returns, simulator=simulator)
    note("select", selection.to_pandas()["return"])
    return lines


def same_bits(folder: str) -> None:
    lines = results(Path(folder))
    if dist.get_rank() == 0:
        print("\n".join(lines))


def command(*arguments: str) -> None:
    """Run `sopr-fast`, of which the second process is killed in the third step of training."""
    sum_blocks, steps = Group.sum_blocks, iter(range(1, 100))

    def killed(self, *arguments):
        if next(steps) == 3 and RANK == 1:  # gradients are summed once a step
            os.kill(os.getpid(), signal.SIGKILL)
        return sum_blocks(self, *arguments)

    Group.sum_blocks = killed
    checkpoints._SECONDS_BETWEEN = -1.0  # after each step: torchrun may end the others before they write the last
    leave(main(arguments))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    function, *arguments = sys.argv[1:]
    if function == "command":
        command(*arguments)
    distributed.start()
    globals()[function](*arguments)
    distributed.stop()
    leave(0)
