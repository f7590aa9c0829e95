"""The embedded examples end to end: rank policies, choose among policies of offline RL, compare with true returns."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any, cast

import numpy as np

from .. import example
from ..estimators import Simulator
from ..reports import report
from ..results.numbers import Numbers
from ..results.ranking import ranks_of
from ..results.tables import column, to_text
from ..runtime.files import check_place
from ..selection import select
from ..sopr.config import Config
from ..sopr.fitting import fit


def show_examples(folder: Path, *, quick: bool = False) -> None:
    """Print a ranking and a selection next to the true returns; write them, a model, reports and the files of a log."""
    folder.mkdir(parents=True, exist_ok=True)
    command = f"sopr-fast demo{' --quick' if quick else ''}"
    written = [*_rank(folder, command, quick), *_select(folder, command), "pendulum"]
    shutil.copytree(example.PENDULUM, folder / "pendulum", dirs_exist_ok=True)  # for the examples of `--help`
    print(f"\n{', '.join(written)} in {folder}")


def _rank(folder: Path, command: str, quick: bool) -> list[str]:
    """Train on 30 policies of HalfCheetah and rank 10 others."""
    check_place(folder / "demo.safetensors")
    policies, returns, states = example.policies(), example.returns(), example.states()
    names = np.array(list(policies))
    true = dict(zip(names, returns, strict=True))
    train, validation, unseen = np.split(names[np.random.default_rng(0).permutation(50)], [30, 40])

    steps = 20 if quick else 80
    config = Config(subset_size=2048, clusters=32, subsets=steps, steps=steps)
    print(f"HalfCheetah: {len(states):,} logged states, {len(train)} policies with known returns", flush=True)
    start = time.perf_counter()
    ranker = fit(
        {name: policies[name] for name in train},
        states,
        true,
        validation=({name: policies[name] for name in validation}, true),
        config=config,
    )
    print(f"trained {steps} steps in {time.perf_counter() - start:.1f} s", flush=True)
    start = time.perf_counter()
    ranking = ranker.rank({name: policies[name] for name in unseen}, states)
    print(f"ranked {len(unseen)} unseen policies in {time.perf_counter() - start:.1f} s\n")

    reached = np.array([true[name] for name in ranking.order])
    cells = [column("true return", reached, Numbers(returns)), column("true rank", ranks_of(reached), "{:.0f}".format)]
    print(to_text([*ranking.cells(), *cells]))
    print(f"\nSpearman {ranking.spearman(true):.3f}   regret@3 {ranking.regret(true, 3):.3f}")
    ranker.save(folder / "demo.safetensors")
    (folder / "demo.json").write_text(json.dumps(ranking.to_dict(), indent=1))
    frame = ranking.to_pandas()[["policy", "score", "standard_error", "foreign"]].assign(**{"true return": reached})
    frame["standard_error"] = frame["standard_error"].astype(object).mask(frame.pop("foreign"), "foreign")
    shown = frame.to_json(orient="records")
    figure = cast(Any, ranking.plot(true).figure)
    figure.savefig(folder / "demo.png", dpi=150, metadata={"Description": shown})
    report(ranking, folder / "demo.html", title="HalfCheetah", command=command)
    return ["demo.safetensors", "demo.json", "demo.png", "demo.html"]


def _select(folder: Path, command: str) -> list[str]:
    """Choose among policies of offline RL, first without a known return, then with three."""
    policies, log, true = example.pendulum()
    print(f"\nPendulum: {len(log['rewards']):,} logged rows, {len(policies)} policies of offline RL", flush=True)
    selection = select(policies, log, simulator=Simulator(updates=1000, hidden=(64, 64)))
    cells = selection.cells()[:4]
    reached = column("true return", [true[name] for name in cells[0].texts], Numbers([*true.values()]))
    print(to_text([*cells, reached]))
    print(f"\nno known return: {selection.verdict}")
    selection = selection.update({name: true[name] for name in ("bc-1000", "td3bc-1000", "cql-1000")})
    print(f"three known returns: {selection.verdict}")
    selection = selection.update({name: true[name] for name in selection.measure_next(2)})
    print(f"two more measured: {selection.verdict}")
    report(selection, folder / "selection.html", title="Pendulum", command=command)
    return ["selection.html"]
