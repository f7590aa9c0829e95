"""Let Ray's workers act for candidates; then rank these by their actions: MODEL LOG CANDIDATES TABLES."""

import sys
from pathlib import Path

import numpy as np
import ray

import sopr_fast


def act(batch: dict[str, np.ndarray], states: np.ndarray, tables: Path) -> dict[str, np.ndarray]:
    """Load candidates, act in the states, and write a table of actions for each."""
    for path in batch["path"]:
        for name, policy in sopr_fast.load_policies(path).items():
            np.save(tables / f"{name}.npy", policy.act(states).numpy())
    return {"path": batch["path"]}


def rank(model: str, log: str, candidates: str, tables: str) -> sopr_fast.Ranking:
    states = np.load(log, mmap_mode="r")[::4]  # as many as the workers shall act in, twice a subset or more
    files = ray.data.from_items([{"path": str(path)} for path in sorted(Path(candidates).iterdir())])
    shared = {"states": np.array(states), "tables": Path(tables).resolve()}
    files.map_batches(act, batch_size=64, fn_kwargs=shared).materialize()
    return sopr_fast.rank(tables, states, model=model)


if __name__ == "__main__":
    print(rank(*sys.argv[1:]))
