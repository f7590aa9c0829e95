"""The embedded example end to end: train on 30 policies, rank 10 others, compare with their true returns."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, cast

import numpy as np

from .. import example
from ..reports import report
from ..runtime.files import check_place
from ..sopr.config import Config
from ..sopr.fitting import fit


def demo(folder: Path, *, quick: bool = False) -> None:
    """Print a ranking next to the true returns; write the model, the ranking, a plot and a report.

    Args:
        folder: Folder to write to; made if it does not exist.
        quick: Train a quarter of the steps.
    """
    folder.mkdir(parents=True, exist_ok=True)
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
        true,
        states,
        validation=({name: policies[name] for name in validation}, true),
        config=config,
    )
    print(f"trained {steps} steps in {time.perf_counter() - start:.1f} s", flush=True)
    start = time.perf_counter()
    ranking = ranker.rank({name: policies[name] for name in unseen}, states)
    print(f"ranked {len(unseen)} unseen policies in {time.perf_counter() - start:.1f} s\n")

    frame = ranking.to_pandas().reset_index()[["rank", "policy", "score", "standard_error"]]
    frame["true return"] = [true[name] for name in frame["policy"]]
    frame["true rank"] = frame["true return"].rank(ascending=False).astype(int)
    print(frame.to_string(index=False, float_format="{:,.4g}".format))
    print(f"\nSpearman {ranking.spearman(true):.3f}   regret@3 {ranking.regret(true, 3):.3f}")
    ranker.save(folder / "demo.safetensors")
    (folder / "demo.json").write_text(json.dumps(ranking.to_dict(), indent=1))
    written = ["demo.safetensors", "demo.json"]
    try:
        cast(Any, ranking.plot(true).figure).savefig(folder / "demo.png", dpi=150)
        command = f"sopr-fast demo{' --quick' if quick else ''}"
        report(ranking, folder / "demo.html", returns=true, title="HalfCheetah", command=command)
        written += ["demo.png", "demo.html"]
    except ImportError as error:
        print(f"no plot and no report: {error}")
    print(f"{', '.join(written)} in {folder}")
