"""Stage 4: action distance of both test sets to the training policies (Eq. 3 of the paper)."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import numpy as np
import torch

from sopr_fast.inputs.logs.states import as_states
from sopr_fast.inputs.policies import Policy, collect, load, probe
from sopr_fast.ranking.metrics import policy_distance
from sopr_fast.runtime.files import atomic_path

from .manifest import Task, is_made, write_manifest
from .offline import chosen_logs


def write_distances(task: Task) -> list[Path]:
    """Write the mean, minimum and maximum distance of each test set to its nearest training policies.

    Distances are measured on states of each log.

    Args:
        task: Game, scale and folder.

    Returns:
        Paths `distances/LOG.csv`.
    """
    split = json.loads((task.folder / "split.json").read_text())
    online = list(load(task.folder / "policies.npz").values())
    training = [online[i] for i in split["train"]]
    (task.folder / "distances").mkdir(exist_ok=True)
    products = []
    for log in chosen_logs(task):
        product, begin = task.folder / "distances" / f"{log}.csv", time.monotonic()
        products.append(product)
        if is_made(product):
            continue
        tests = {
            "I": list(load(task.folder / "test_set_1" / log / "policies.npz").values()),
            "II": [online[i] for i in split["test_set_2"]],
        }
        states, source = _sample(task, task.folder / "logs" / f"{log}.hdf5")
        with atomic_path(product) as temporary, temporary.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["test_set", "policies", "mean", "min", "max"])
            for name, policies in tests.items():
                distances = _distances(training, policies, states, source)
                numbers = (f"{value:.6g}" for value in (distances.mean(), distances.min(), distances.max()))
                writer.writerow([name, len(policies), *numbers])
        write_manifest(task, product, time.monotonic() - begin)
    return products


def _sample(task: Task, path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    log = as_states(path)
    count = min(task.scale.distance_states, len(log))
    source = np.sort(np.random.default_rng([task.seed, 5]).choice(len(log), count, replace=False))
    return torch.from_numpy(log.read(source)), torch.from_numpy(source)


def _distances(train: list[Policy], test: list[Policy], states: torch.Tensor, source: torch.Tensor) -> np.ndarray:
    layout = probe(train, states, source)
    columns = (collect(policies, states, source, layout).numpy() for policies in (train, test))
    return policy_distance(*columns)[0]
