"""Stage 1: online SAC of SBX, its snapshots, and their returns."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from sopr_fast.runtime.progress import progress_bar

from .actors import Layers, read_stack, save_stack
from .games import make_environment
from .manifest import Task, is_made, write_manifest
from .rollouts import measure_returns, write_returns

_STEPS_AT_ONCE = 8  # environment steps, then as many updates in one compiled call: 1.25 times as fast as single ones


def train(task: Task) -> Path:
    """Train, save the snapshots, and return the path of `policies.npz`."""
    product, begin = task.folder / "policies.npz", time.monotonic()
    if is_made(task, product):
        return product
    # XLA reads its flags once, when jax is first imported.
    one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ.setdefault("XLA_FLAGS", one if task.threads == 1 else "")
    import jax
    from sbx import SAC

    scale = task.scale
    model = SAC(
        "MlpPolicy",
        make_environment(task.environment),
        seed=task.seed,
        learning_starts=scale.learning_starts,
        batch_size=scale.sac_batch,
        buffer_size=min(1_000_000, scale.sac_steps),
        train_freq=_STEPS_AT_ONCE,
        gradient_steps=_STEPS_AT_ONCE,
    )
    every, snapshots = scale.sac_steps // scale.snapshots, []
    with progress_bar(scale.sac_steps, f"SAC {task.environment}", "step", show=True) as bar:
        for _ in range(scale.snapshots):
            model.learn(every, reset_num_timesteps=False)
            snapshots.append(_layers(model))
            bar.update(every)
    save_stack(product, snapshots)
    steps = [every * (i + 1) for i in range(scale.snapshots)]
    library, device = "SBX SAC, defaults but for the batch", jax.default_backend()
    seconds = time.monotonic() - begin
    write_manifest(task, product, seconds, library=library, device=device, snapshot_steps=steps)
    return product


def measure(task: Task) -> Path:
    """Measure the returns of the snapshots, and return the path of `returns.csv`."""
    product, begin = task.folder / "returns.csv", time.monotonic()
    if not is_made(task, product):
        partial = task.folder / "returns.partial"
        actors = read_stack(task.folder / "policies.npz")
        resumed = partial.exists()
        measured = measure_returns(actors, task.environment, task.scale.rollouts, task.seed, partial, task.processes)
        every = task.scale.sac_steps // task.scale.snapshots
        write_returns(product, measured, steps=[every * (i + 1) for i in range(len(actors))])
        env_steps = round(measured[:, 2].sum() * task.scale.rollouts)
        write_manifest(task, product, None if resumed else time.monotonic() - begin, env_steps=env_steps)
        partial.unlink()
    return product


def _layers(model: Any) -> Layers:
    dense = model.policy.actor_state.params["params"]
    names = sorted(dense, key=lambda name: int(name.split("_")[1]))
    ours = [*(f"hidden_{i}" for i in range(len(names) - 2)), "mean", "log_std"]
    layers = {}
    for name, theirs in zip(ours, names, strict=True):
        layers[f"{name}.weight"] = np.asarray(dense[theirs]["kernel"]).T
        layers[f"{name}.bias"] = np.asarray(dense[theirs]["bias"])
    return layers
