"""Tables of the finished products of a scale, in Markdown. Cells of missing products are empty."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .games import LOGS
from .manifest import read_manifest
from .offline import ALGORITHMS


def summary(scale_folder: Path) -> str:
    """Format steps, seconds and returns.

    Args:
        scale_folder: Folder of the games.

    Returns:
        A table of the games' snapshots, one of the offline training on every log, and one of the competent policies.
    """
    games = [["game", "SAC steps", "seconds", "worst", "medium", "expert", "rollout steps"]]
    trained = [f"{algorithm} {what}" for algorithm in ALGORITHMS for what in ("updates", "seconds")]
    logs = [["log", "rows", *trained, "smallest return", "largest return", "smallest chosen", "largest chosen"]]
    for game in sorted(path for path in scale_folder.iterdir() if (path / "settings.json").exists()):
        sac, split = _manifest(game / "policies.npz"), _json(game / "split.json")
        returns = _returns(game / "returns.csv")
        behaviour = [returns[split[name]] if split and returns else None for name in ("medium", "expert")]
        numbers = [sac.get("snapshot_steps", [None])[-1], sac.get("seconds"), min(returns, default=None), *behaviour]
        numbers.append(_manifest(game / "returns.csv").get("env_steps"))
        games.append([game.name, *map(_number, numbers)])
        for log in LOGS:
            numbers = [_manifest(game / "logs" / f"{log}.hdf5").get("settings", {}).get("log_steps")]
            for algorithm in ALGORITHMS:
                manifest = _manifest(game / "offline" / log / f"{algorithm}.npz")
                numbers += [manifest.get("snapshot_updates", [None])[-1], manifest.get("seconds")]
            for name in ("all.csv", "returns.csv"):
                returns = _returns(game / "test_set_1" / log / name)
                numbers += [min(returns, default=None), max(returns, default=None)]
            logs.append([f"{game.name} {log}", *map(_number, numbers)])
    return "\n\n".join(map(_markdown, (games, logs, _competent(scale_folder))))


def _competent(scale_folder: Path) -> list[list[str]]:
    """Return a row per log: returns and seconds of every family, and the best return next to the best snapshot's."""
    folders = sorted(path.parent for path in scale_folder.glob("*/competent/*/all.csv"))
    trained = {folder: _returns_by_family(folder) for folder in folders}
    families = list(dict.fromkeys(family for returns in trained.values() for family in returns))
    head = [f"{family} {what}" for family in families for what in ("smallest return", "largest return", "seconds")]
    lines = [["log", "best snapshot", *head, "rollouts, seconds", "largest / best snapshot"]]
    for folder, returns in trained.items():
        game = folder.parents[1]
        best, numbers = max(_returns(game / "returns.csv"), default=None), []
        for family in families:
            seconds = _manifest(folder / f"{family}.npz").get("seconds")
            numbers += [min(returns[family]), max(returns[family]), seconds] if family in returns else [None] * 3
        numbers.append(_manifest(folder / "policies.npz").get("seconds"))
        share = None if best is None else max(map(max, returns.values())) / best
        lines.append([f"{game.name} {folder.name}", *map(_number, [best, *numbers]), _number(share, ".2f")])
    return lines


def _returns_by_family(folder: Path) -> dict[str, list[float]]:
    returns: dict[str, list[float]] = {}
    for row in _read(folder / "all.csv"):
        returns.setdefault(row["algorithm"], []).append(float(row["return_mean"]))
    return returns


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    header, *rows = lines
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))


def _number(value: float | None, form: str = ",.0f") -> str:
    return "" if value is None else f"{value:{form}}"


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _returns(path: Path) -> list[float]:
    return [float(row["return_mean"]) for row in _read(path)]


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _manifest(product: Path) -> dict[str, Any]:
    try:
        return read_manifest(product)
    except FileNotFoundError:
        return {}
