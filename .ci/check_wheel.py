"""Check an installed wheel: where it lies, what its kernels are, and that a small model ranks the embedded policies."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

import sopr_fast
from sopr_fast import example

folder = Path(sopr_fast.__file__).parent
assert "site-packages" in folder.parts, f"{folder} is not an installed package"
info = sopr_fast.build_info()
assert Path(info["modules"]["_cpu"]).parent == folder, info["modules"]
print(f"sopr_fast {info['version']}, torch {info['torch']}, numpy {np.__version__}, {info['instruction_set']}")

policies, returns, states = example.policies(), example.returns(), example.states()
names = list(policies)
known, candidates = ({name: policies[name] for name in part} for part in (names[::2], names[1::10]))
config = sopr_fast.Config(subset_size=512, clusters=16, subsets=40, steps=40)
ranker = sopr_fast.fit(known, states, returns[::2], config=config)
with warnings.catch_warnings(action="ignore", category=sopr_fast.ForeignPolicyWarning):
    ranking = ranker.rank(candidates)
print(ranking)
correlation = ranking.spearman(dict(zip(names, returns, strict=True)))
assert correlation > 0.5, f"rank correlation {correlation:.2f} on {len(candidates)} candidates"
print("the wheel works")
