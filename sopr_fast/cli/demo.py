"""The embedded example end to end: learn from known policies, rank others, compare with their true returns."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, cast

import numpy as np

from .. import example
from ..reports import report
from ..results.numbers import Numbers
from ..results.tables import column, to_text
from ..runtime.files import check_place
from ..sopr.config import Config
from ..sopr.fitting import fit


def show_example(folder: Path) -> None:
    """Rank 10 policies of HalfCheetah by 30 others; write model, plot, report, and files for the examples of help."""
    folder.mkdir(parents=True, exist_ok=True)
    check_place(folder / "demo.safetensors")
    policies, states = example.policies(), example.states()
    names, true = np.array(list(policies)), dict(zip(policies, example.returns(), strict=True))
    parts = np.split(names[np.random.default_rng(0).permutation(50)], [30, 40])
    train, validation, unseen = ({name: policies[name] for name in part} for part in parts)

    config = Config(subset_size=2048, clusters=32, subsets=80, steps=80)
    print(f"HalfCheetah: {len(states):,} logged states, {len(train)} policies with known returns", flush=True)
    start = time.perf_counter()
    ranker = fit(train, states, true, validation=(validation, true), config=config)
    print(f"trained {config.steps} steps in {time.perf_counter() - start:.1f} s", flush=True)
    start = time.perf_counter()
    ranking = ranker.rank(unseen, states)
    print(f"ranked {len(unseen)} unseen policies in {time.perf_counter() - start:.1f} s\n")

    reached = np.array([true[name] for name in ranking.order])
    print(to_text([*ranking.cells(), column("true return", reached, Numbers(reached))]))
    print(f"\nSpearman {ranking.spearman(true):.3f}   regret@3 {ranking.regret(true, 3):.3f}")
    ranker.save(folder / "demo.safetensors")
    cast(Any, ranking.plot(true).figure).savefig(folder / "demo.png", dpi=150)
    report(ranking, folder / "demo.html", title="HalfCheetah", command="sopr-fast demo")
    shutil.copytree(example.PENDULUM, folder / "pendulum", dirs_exist_ok=True)
    print(
        f"\ndemo.safetensors, demo.png, demo.html and pendulum in {folder}. To choose among policies of offline RL:\n"
        f"sopr-fast select --policies {folder}/pendulum/policies --log {folder}/pendulum/log.npz"
    )
