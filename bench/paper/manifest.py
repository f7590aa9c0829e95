"""Manifests: what each product was made with, so that no stage repeats work or mixes settings."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sopr_fast.runtime.files import atomic_path

from .games import GAMES
from .scales import Scale

_PACKAGES = ("sopr_fast", "numpy", "torch", "gymnasium", "mujoco", "sbx-rl", "stable_baselines3", "jax", "d3rlpy")


@dataclass(frozen=True)
class Task:
    """One game at one scale.

    Attributes:
        game: One of `GAMES`.
        scale: Sizes of all stages.
        folder: Where the products are written.
        seed: Seed of all stages.
        processes: Number of processes for rollouts.
        threads: Number of threads for training.
        device: Torch device for offline training.
    """

    game: str
    scale: Scale
    folder: Path
    seed: int = 0
    processes: int = 2
    threads: int = 1
    device: str = "cpu"

    @property
    def environment(self) -> str:
        """Gymnasium's name of the environment."""
        return GAMES[self.game]

    def settings(self) -> dict[str, Any]:
        """Return the settings that decide what the products contain."""
        return {"environment": self.environment, "seed": self.seed, **asdict(self.scale)}


def claim(task: Task) -> None:
    """Reserve the folder for a task.

    Raises:
        ValueError: The folder holds products of other settings.
    """
    task.folder.mkdir(parents=True, exist_ok=True)
    path, settings = task.folder / "settings.json", task.settings()
    before = json.loads(path.read_text()) if path.exists() else settings
    for key, value in settings.items():
        if before.get(key) != value:
            raise ValueError(
                f"{task.folder} was started with {key} {before.get(key)!r}, not {value!r}: choose another --out"
            )
    write_json(path, settings)


def is_made(task: Task, product: Path) -> bool:
    """Return whether a product is complete. Its manifest is written last."""
    return product.exists() and _name(task, product) in _manifests(task)


def write_manifest(task: Task, product: Path, seconds: float | None, **fields: Any) -> None:
    """Add settings, versions, machine, seconds and further fields of a product to `manifests.json` of its game.

    Seconds are None if they include a killed attempt of unknown duration.
    """
    manifest = {
        "settings": task.settings(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}",
        "processes": task.processes,
        "threads": task.threads,
        "device": task.device,
        "seconds": None if seconds is None else round(seconds, 1),
        **fields,
    }
    write_json(task.folder / "manifests.json", _manifests(task) | {_name(task, product): manifest})


def read_manifest(task: Task, product: Path) -> dict[str, Any]:
    """Return the manifest of a product; FileNotFoundError is raised if it has none."""
    manifest = _manifests(task).get(_name(task, product))
    if manifest is None:
        raise FileNotFoundError(2, "no manifest", str(product))
    return manifest


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON, replacing the file at once."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n")


def _name(task: Task, product: Path) -> str:
    return product.relative_to(task.folder).as_posix()


def _manifests(task: Task) -> dict[str, Any]:
    path = task.folder / "manifests.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
