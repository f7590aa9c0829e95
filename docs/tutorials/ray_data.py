"""Let Ray's workers act for candidates; then rank these by their actions: MODEL LOG CANDIDATES TABLES."""

import sys
from pathlib import Path

import numpy as np
import ray

import sopr_fast


def act(batch: dict[str, np.ndarray], states: np.ndarray, tables: Path) -> dict[str, np.ndarray]:
    """Load candidates, act in the drawn states, and write a table of actions for each."""
    for path in batch["path"]:
        for name, policy in sopr_fast.load_policies(path).items():
            np.save(tables / f"{name}.npy", policy.act(states).numpy())
    return {"path": batch["path"]}


def rank(model: str, log: str, candidates: str, tables: str) -> sopr_fast.Ranking:
    subsets = sopr_fast.Subsets.draw(sopr_fast.load_log(log), 5, size=1024, clusters=16).over_drawn()
    files = ray.data.from_items([{"path": str(path)} for path in sorted(Path(candidates).iterdir())])
    shared = {"states": np.asarray(subsets.states), "tables": Path(tables).resolve()}
    files.map_batches(act, batch_size=64, fn_kwargs=shared).materialize()
    return sopr_fast.rank(tables, subsets, model=model)


if __name__ == "__main__":
    print(rank(*sys.argv[1:]))
