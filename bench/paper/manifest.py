"""Beside every product, what made it: so that a stage is not run twice, nor mixed with another's settings."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sopr_fast.runtime.files import atomic_path

from .games import Game
from .scales import Scale

_PACKAGES = ("sopr_fast", "numpy", "torch", "gymnasium", "mujoco", "sbx-rl", "stable_baselines3", "jax", "d3rlpy")


@dataclass(frozen=True)
class Task:
    """One game at one scale, and where its products go."""

    game: Game
    scale: Scale
    folder: Path
    seed: int = 0
    processes: int = 2
    threads: int = 1
    checkpoint_seconds: float = 600
    device: str = "cpu"

    def settings(self) -> dict[str, Any]:
        return {"environment": self.game.environment, "seed": self.seed, **asdict(self.scale)}


def claim(task: Task) -> None:
    """Makes the folder this task's, so that nothing of other settings is mixed in or gone on with.

    Raises:
        ValueError: it holds products of other settings.
    """
    task.folder.mkdir(parents=True, exist_ok=True)
    path, wanted = task.folder / "settings.json", task.settings()
    made = json.loads(path.read_text()) if path.exists() else wanted
    if changed := [key for key in wanted if made.get(key) != wanted[key]]:
        key = changed[0]
        raise ValueError(
            f"{task.folder} was begun with {key} {made.get(key)!r}, not {wanted[key]!r}: choose another --out"
        )
    write_json(path, wanted)


def is_made(product: Path) -> bool:
    """Whether a product is there whole: its manifest comes last."""
    return product.exists() and _beside(product).exists()


def write_manifest(task: Task, product: Path, seconds: float | None, **more: Any) -> None:
    """Settings, versions, machine and seconds, as `PRODUCT.json`; None if seconds of killed attempts are not known."""
    found = {
        "settings": task.settings(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}",
        "processes": task.processes,
        "threads": task.threads,
        "device": task.device,
        "seconds": None if seconds is None else round(seconds, 1),
        **more,
    }
    write_json(_beside(product), found)


def read_manifest(product: Path) -> dict[str, Any]:
    return json.loads(_beside(product).read_text())


def write_json(path: Path, value: Any) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n")


def _beside(product: Path) -> Path:
    return product.with_name(product.name + ".json")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
