"""Decide whether bf16 may be the default for scoring, from its errors on trained models.

    python bench/quality.py --subset-size 16384 --clusters 256 --splits 1 --models out/models --out out/full.json
    python bench/precision.py out/models/*.safetensors

Rule: the largest score error is at most 1 % of the standard deviation of scores over policies and 10 % of the median
standard error over subsets, and the order changes only for pairs closer than twice that error.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from workload import read_set

import sopr_fast
from sopr_fast import Subsets


def main() -> None:
    options = _options()
    policies, _, states = read_set(options.data)
    print(f"{'':<28}{'largest error':>14}{'of spread':>11}{'of error':>10}{'pairs swapped':>14}")
    for path in options.models:
        ranker = sopr_fast.load(path)
        size, clusters = ranker.config.subset_size, ranker.config.clusters
        subsets = Subsets.draw(states, options.subsets, size=size, clusters=clusters, seed=2000)
        fp32, bf16 = (
            sopr_fast.options(precision=precision)(ranker.rank)(policies, subsets=subsets)
            for precision in ("fp32", "bf16")
        )
        errors = np.abs(bf16.scores - fp32.scores)
        gaps = fp32.scores[:, None] - fp32.scores
        swapped = (gaps > 0) & (bf16.scores[:, None] - bf16.scores <= 0)
        beyond = swapped & (gaps > 2 * errors.max())
        largest = errors.max()
        of_spread, of_error = largest / fp32.scores.std(), largest / np.median(fp32.standard_errors)
        verdict = "allowed" if of_spread <= 0.01 and of_error <= 0.1 and not beyond.any() else "not allowed"
        print(
            f"{path.stem:<28}{largest:>14.2e}{of_spread:>11.3%}{of_error:>10.1%}{int(swapped.sum()):>14}   {verdict} "
            f"({len(policies)} policies, {options.subsets} subsets)",
            flush=True,
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, help="trained models")
    parser.add_argument("--data", type=Path, help="folder made by bench.paper (default: bench/halfcheetah)")
    parser.add_argument("--subsets", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
