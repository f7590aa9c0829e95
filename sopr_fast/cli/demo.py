"""The embedded examples end to end: rank policies by known ones, choose one by a log, compare with true returns."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, cast

import numpy as np

from .. import example
from ..estimators import Simulator
from ..reports import report
from ..results.numbers import Numbers
from ..results.tables import column, to_text
from ..runtime.files import check_place, make_folder
from ..selection import select
from ..sopr.config import Config
from ..sopr.fitting import fit


def show_example(folder: Path) -> None:
    """Rank unseen policies by known ones, choose one by a log; write a model, plots, reports and the log's files."""
    make_folder(folder, "the examples are written")
    check_place(folder / "demo.safetensors")
    _rank(folder)
    _choose(folder)
    shutil.copytree(example.PENDULUM, folder / "pendulum", dirs_exist_ok=True)
    print(f"\ndemo.safetensors, demo.png, demo.html, selection.html and pendulum in {folder}")


def _rank(folder: Path) -> None:
    """Rank 10 policies of HalfCheetah by 30 others."""
    policies, states = example.policies(), example.states()
    names, true = np.array(list(policies)), dict(zip(policies, example.returns(), strict=True))
    parts = np.split(names[np.random.default_rng(0).permutation(50)], [30, 40])
    train, validation, unseen = ({name: policies[name] for name in part} for part in parts)

    config = Config(subsets=60, steps=60)
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


def _choose(folder: Path) -> None:
    """Choose among 8 policies of offline RL on Pendulum, and measure what the verdicts name."""
    policies, log, true = example.pendulum()
    print(f"\nPendulum: {len(log['rewards']):,} logged rows, {len(policies)} policies, no known return", flush=True)
    start = time.perf_counter()
    selection = select(policies, log, simulator=Simulator(updates=2000, hidden=(128, 128)))
    print(f"valued {len(policies)} policies in {time.perf_counter() - start:.1f} s\n")
    print(selection)
    while selection.verdict.kind == "measure":
        selection = selection.update({name: true[name] for name in selection.verdict.policies})
        print(f"\n{selection.verdict}")
    report(selection, folder / "selection.html", title="Pendulum", command="sopr-fast demo")
