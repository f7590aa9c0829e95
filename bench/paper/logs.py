"""Stage 2: the split of the snapshots, and the four logs of a game."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import numpy as np

from sopr_fast.runtime.files import atomic_path
from sopr_fast.runtime.progress import progress_bar

from .actors import Layers, read_stack
from .games import LOGS
from .manifest import Task, is_made, write_json, write_manifest
from .rollouts import Episode, read_return_means, roll_out, workers

_EPISODES_AT_ONCE = 20


def split(task: Task) -> Path:
    """Draw the training, validation and Test Set II policies, and choose the expert and medium policies.

    Returns the path of `split.json`, which holds positions in `policies.npz`.
    """
    product = task.folder / "split.json"
    if not is_made(task, product):
        returns = read_return_means(task.folder / "returns.csv")
        order = np.random.default_rng([task.seed, 2]).permutation(len(returns))
        count = task.scale.held_out
        expert, medium = choose_behaviour(returns)
        parts = np.split(order, [-2 * count, -count])
        named = zip(("train", "validation", "test_set_2"), parts, strict=True)
        write_json(
            product, {name: sorted(part.tolist()) for name, part in named} | {"expert": expert, "medium": medium}
        )
        write_manifest(task, product, 0.0)
    return product


def choose_behaviour(returns: np.ndarray) -> tuple[int, int]:
    """Return the position of the largest of the returns (S,), and of the earlier one closest to a third of it."""
    expert = int(returns.argmax())
    before = returns[: max(expert, 1)]
    return expert, int(np.abs(before - returns[expert] / 3).argmin())


def write_logs(task: Task) -> list[Path]:
    """Record logs of stochastic snapshots in D4RL's layout, and return their paths `logs/NAME.hdf5`.

    A replay holds equal shares of the snapshots in the order of training, up to the medium or to the last one.
    """
    chosen = json.loads((task.folder / "split.json").read_text())
    actors = read_stack(task.folder / "policies.npz")
    behaviours = {
        "expert": [chosen["expert"]],
        "medium": [chosen["medium"]],
        "medium-replay": range(chosen["medium"] + 1),
        "full-replay": range(len(actors)),
    }
    (task.folder / "logs").mkdir(exist_ok=True)
    products = []
    for index, name in enumerate(LOGS):
        product, begin = task.folder / "logs" / f"{name}.hdf5", time.monotonic()
        products.append(product)
        if not is_made(task, product):
            rows = _share(task.scale.log_steps, len(behaviours[name]))
            parts = [(actors[i], count, 100 * index + i) for i, count in zip(behaviours[name], rows, strict=True)]
            _write(task, product, _record(task, name, parts))
            write_manifest(task, product, time.monotonic() - begin, policies=list(behaviours[name]))
    return products


def _share(total: int, parts: int) -> list[int]:
    bounds = np.linspace(0, total, parts + 1).astype(int)
    return np.diff(bounds).tolist()


def _record(task: Task, name: str, parts: list[tuple[Layers, int, int]]) -> dict[str, np.ndarray]:
    columns: list[dict[str, np.ndarray]] = []
    run = partial(_record_part, environment=task.environment, seed=task.seed)
    with progress_bar(task.scale.log_steps, f"log {name}", "step", show=True) as bar:
        for part in workers(task.processes).imap(run, parts):
            columns.append(part)
            bar.update(len(part["rewards"]))
    return {key: np.concatenate([part[key] for part in columns]) for key in columns[0]}


def _record_part(part: tuple[Layers, int, int], environment: str, seed: int) -> dict[str, np.ndarray]:
    """Record `count` rows of one policy; the last episode may be cut off."""
    layers, count, stream = part
    episodes: list[Episode] = []
    while sum(len(episode.rewards) for episode in episodes) < count:
        drawn = np.random.default_rng([seed, 3, stream, len(episodes)]).integers(2**31, size=_EPISODES_AT_ONCE)
        episodes += roll_out(layers, environment, drawn.tolist(), stochastic=True)
    ends = np.zeros((2, sum(len(episode.rewards) for episode in episodes)), bool)
    for episode, end in zip(episodes, np.cumsum([len(episode.rewards) for episode in episodes]), strict=True):
        ends[0 if episode.terminal else 1, end - 1] = True
    ends[1, count - 1] |= not ends[0, count - 1]
    rows = {
        "observations": [episode.states[:-1] for episode in episodes],
        "next_observations": [episode.states[1:] for episode in episodes],
        "actions": [episode.actions for episode in episodes],
        "rewards": [episode.rewards.astype(np.float32) for episode in episodes],
        "infos/action_log_probs": [episode.log_probs for episode in episodes],
    }
    return {
        **{key: np.concatenate(values)[:count] for key, values in rows.items()},
        "terminals": ends[0, :count],
        "timeouts": ends[1, :count],
    }


def _write(task: Task, product: Path, columns: dict[str, np.ndarray]) -> None:
    import h5py

    with atomic_path(product) as temporary, h5py.File(temporary, "w") as file:
        for key, values in columns.items():
            chunk = (min(len(values), 1024), *values.shape[1:])
            file.create_dataset(key, data=values, chunks=chunk, compression="gzip", compression_opts=1)
        file["metadata/environment"] = task.environment
