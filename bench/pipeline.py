"""Seconds by stage and peak memory of whole training and ranking runs at the paper's size.

    python bench/pipeline.py train                  # 30 policies, 200 steps, validation of 10 policies on 3 subsets
    python bench/pipeline.py rank                   # 10 policies on 200 subsets, actions and clustering included
    python bench/pipeline.py rank --policies 1000 --subsets 5
    python bench/pipeline.py train --device cuda    # on a GPU; seconds include the start of CUDA and of its libraries

Each command is one process. The paper's figures are those of its time tables (appendix A.2), on a P100.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from typing import Any

import halfcheetah
from workload import peak_megabytes

import sopr_fast
from sopr_fast import Config

# File and function of each stage; in training, only validation encodes.
STAGES = {"drawing": ("subsets.py", "draw"), "policies": ("acting.py", "collect")}
STAGES |= {"clustering": ("subsets.py", "clustered"), "training": ("training.py", "train")}
STAGES |= {"encoding": ("scoring.py", "score_grid")}
PAPER_SECONDS = {"train": "3,216 to 5,578", "rank": "490 to 1,010"}


def main() -> None:
    options, profile = _options(), cProfile.Profile()
    policies, returns, states = halfcheetah.policies(), halfcheetah.returns(), halfcheetah.states()
    names = list(policies)
    config = Config.paper(precision=options.precision)
    if options.stage == "train":
        known = {name: policies[name] for name in names[:30]}
        held_out = {name: policies[name] for name in names[30:40]}
        with sopr_fast.options(device=options.device), profile:
            sopr_fast.fit(known, states, returns[:30], validation=(held_out, returns[30:40]), config=config)
        what = f"train {len(known)} policies, {config.steps} steps"
    else:
        # The cost of a score does not depend on the weights, so one training step is enough.
        untrained = Config(**config.to_dict() | {"steps": 1, "subsets": 1})
        few = dict(list(policies.items())[-2:])
        with sopr_fast.options(device=options.device):
            model = sopr_fast.fit(few, states, returns[-2:], config=untrained)
        candidates = {f"{i}": policies[names[i % len(names)]] for i in range(options.policies)}
        with profile:
            model.rank(candidates, states, subsets=options.subsets)
        what = f"rank {len(candidates)} policies on {options.subsets} subsets"
    what += f" of {config.subset_size:,} states, {config.clusters} clusters, {config.precision}"
    stats: Any = pstats.Stats(profile)
    seconds = {(file.rpartition("/")[2], name): total for (file, _, name), (*_, total, _) in stats.stats.items()}
    stages = {stage: seconds[place] for stage, place in STAGES.items() if place in seconds}
    print(f"{what}: {stats.total_tt:.1f} s, peak {peak_megabytes():,} MB")
    print("  " + ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in stages.items()))
    print(f"  the paper: {PAPER_SECONDS[options.stage]} s (30 and 10 policies, 200 steps and subsets, one P100)")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("train", "rank"))
    parser.add_argument("--policies", type=int, default=10)
    parser.add_argument("--subsets", type=int, default=200)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
