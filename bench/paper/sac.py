"""Stage 1: online SAC of SBX, its snapshots, and their returns.

Checkpoints hold the replay buffer; a resumed run begins a new episode.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from sopr_fast.runtime.progress import progress_bar

from .actors import Layers, read_stack, save_stack
from .games import make_environment
from .manifest import Task, is_made, write_json, write_manifest
from .rollouts import measure_returns, write_returns

_STEPS_AT_ONCE = 8  # environment steps, then as many updates in one compiled call: 1.25 times as fast as single ones


def train(task: Task) -> Path:
    """Train, save the snapshots, and return the path of `policies.npz`.

    Raises:
        ValueError: The scale spaces its snapshots so that training cannot stop there.
    """
    product, folder = task.folder / "policies.npz", task.folder / "sac"
    if is_made(product):
        return product
    every = task.scale.sac_steps // task.scale.snapshots
    if every % _STEPS_AT_ONCE:
        raise ValueError(f"snapshots come every {every} steps, which must be a multiple of {_STEPS_AT_ONCE}")
    (folder / "snapshots").mkdir(parents=True, exist_ok=True)
    steps = [every * (i + 1) for i in range(task.scale.snapshots)]
    seconds = _train(task, folder, steps)
    save_stack(product, [read_stack(_snapshot(folder, step))[0] for step in steps])
    import jax

    library, device = "SBX SAC, defaults but for the batch", jax.default_backend()
    write_manifest(task, product, seconds, library=library, device=device, snapshot_steps=steps)
    shutil.rmtree(folder)
    return product


def measure(task: Task) -> Path:
    """Measure the returns of the snapshots, and return the path of `returns.csv`."""
    product, begin = task.folder / "returns.csv", time.monotonic()
    if not is_made(product):
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


def _train(task: Task, folder: Path, snapshot_steps: list[int]) -> float:
    """Start or resume training until all snapshots exist; return the seconds of all attempts."""
    # XLA reads its flags once, when jax is first imported.
    one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ.setdefault("XLA_FLAGS", one if task.threads == 1 else "")
    from stable_baselines3.common.callbacks import BaseCallback

    total, begin = task.scale.sac_steps, time.monotonic()
    model, before = _load(task, folder) or (_new(task), 0.0)

    class Snapshots(BaseCallback):
        saved = time.monotonic()

        def _on_rollout_start(self) -> None:
            step = self.model.num_timesteps
            bar.update(step - bar.n)
            if step in snapshot_steps:
                save_stack(_snapshot(folder, step), [_layers(self.model)])
            if step and time.monotonic() - self.saved >= task.checkpoint_seconds:
                _save(self.model, folder, before + time.monotonic() - begin)
                self.saved = time.monotonic()

        def _on_step(self) -> bool:
            return True

    with progress_bar(total, f"SAC {task.environment}", "step", show=True, initial=model.num_timesteps) as bar:
        if model.num_timesteps < total:
            model.learn(total - model.num_timesteps, callback=Snapshots(), reset_num_timesteps=False)
        save_stack(_snapshot(folder, total), [_layers(model)])
    return before + time.monotonic() - begin


def _snapshot(folder: Path, step: int) -> Path:
    return folder / "snapshots" / f"{step:09d}.npz"


def _new(task: Task) -> Any:
    from sbx import SAC

    return SAC(
        "MlpPolicy",
        make_environment(task.environment),
        seed=task.seed,
        learning_starts=task.scale.learning_starts,
        batch_size=task.scale.sac_batch,
        buffer_size=min(1_000_000, task.scale.sac_steps),
        train_freq=_STEPS_AT_ONCE,
        gradient_steps=_STEPS_AT_ONCE,
    )


def _layers(model: Any) -> Layers:
    dense = model.policy.actor_state.params["params"]
    names = sorted(dense, key=lambda name: int(name.split("_")[1]))
    ours = [*(f"hidden_{i}" for i in range(len(names) - 2)), "mean", "log_std"]
    layers = {}
    for name, theirs in zip(ours, names, strict=True):
        layers[f"{name}.weight"] = np.asarray(dense[theirs]["kernel"]).T
        layers[f"{name}.bias"] = np.asarray(dense[theirs]["bias"])
    return layers


def _save(model: Any, folder: Path, seconds: float) -> None:
    """Save all that a run needs to resume, as `checkpoint-STEPS`; delete older ones when it is whole."""
    whole = folder / f"checkpoint-{model.num_timesteps:09d}"
    if whole.exists():  # what this run went on from
        return
    part = folder / "unfinished"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    model.save(part / "model.zip")
    model.save_replay_buffer(part / "replay.pkl")
    write_json(part / "state.json", {"seconds": seconds})
    part.rename(whole)
    for other in folder.glob("checkpoint-*"):
        if other != whole:
            shutil.rmtree(other)
    print(f"saved at step {model.num_timesteps}", flush=True)


def _load(task: Task, folder: Path) -> tuple[Any, float] | None:
    """Return the model and seconds of the latest checkpoint, or None without one."""
    checkpoints = sorted(folder.glob("checkpoint-*"))
    if not checkpoints:
        return None
    from sbx import SAC

    model = SAC.load(checkpoints[-1] / "model.zip", env=make_environment(task.environment))
    model.load_replay_buffer(checkpoints[-1] / "replay.pkl")
    return model, json.loads((checkpoints[-1] / "state.json").read_text())["seconds"]
