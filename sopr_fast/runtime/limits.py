"""CPUs and memory that the process may use: its cgroup may allow less than the machine has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import torch

_ROOT = Path("/")
_SHARE = 16  # a tile takes at most this part of the memory


def cpu_limit(root: Path = _ROOT) -> int | None:
    """Return the CPU quota in whole processors, rounded up, or None without a quota.

    The tightest quota of the process's cgroup and its ancestors counts (`cpu.max` in version 2, `cpu.cfs_quota_us` in
    version 1).

    Args:
        root: Folder that contains `proc` and `sys`.
    """
    quotas = [_quota(_read(folder / "cpu.max")) for folder in _groups(root, "")]
    for folder in _groups(root, "cpu"):
        quotas.append(_quota(f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"))
    return min((math.ceil(quota) for quota in quotas if quota), default=None)


def free_memory(root: Path = _ROOT) -> float:
    """Return how many bytes this process can allocate, infinity where the system does not tell.

    The tightest limit of the process's cgroup and its ancestors counts, less what the group uses, except for files that
    it cached (`memory.max` in version 2, `memory.limit_in_bytes` in version 1).

    Args:
        root: Folder that contains `proc` and `sys`.
    """
    free = [1024 * _number(_entries(_read(root / "proc/meminfo")).get("MemAvailable:", ""), math.inf)]
    for version, limit, usage, cached in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for folder in _groups(root, version):
            most = _number(_read(folder / limit), math.inf)
            if most < math.inf:
                used = _number(_read(folder / usage)) - _number(_entries(_read(folder / "memory.stat")).get(cached, ""))
                free.append(max(0.0, most - max(0.0, used)))
    return min(free)


def tile_bytes(most: int, device: torch.device | None = None) -> int:
    """Return the size of a tile of work in bytes: `most`, or a sixteenth of the memory if that is less.

    Args:
        most: Size where memory is plentiful.
        device: Device that holds the tile. Of a GPU, the total memory counts, since it is known without waiting for the
            device. Otherwise, and by default, what this process can allocate counts.
    """
    if device is not None and device.type == "cuda":
        memory: float = torch.cuda.get_device_properties(device).total_memory
    else:
        memory = free_memory()
    return int(min(most, memory / _SHARE))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the process's cgroup and its ancestors.

    Args:
        root: Folder that contains `proc` and `sys`.
        controller: Controller of a version 1 hierarchy; empty for version 2.
    """
    mounts = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, names_and_path = line.partition(":")
        names, colon, path = names_and_path.partition(":")
        if not colon or controller not in names.split(","):
            continue
        mount = mounts / names
        if controller and not mount.is_dir():
            mount = mounts / controller
        group = PurePosixPath(path.lstrip("/"))
        # A container sees its own group as the root of the mount, under the path that it has outside.
        yield from (mount / folder for folder in (group, *group.parents) if ".." not in folder.parts)


def _quota(text: str) -> float | None:
    """Return quota / period, or None for "max", -1 or a missing file."""
    try:
        quota, period = map(int, text.split())
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _number(text: str, default: float = 0.0) -> float:
    return float(text) if text.strip().isdecimal() else default


def _entries(text: str) -> dict[str, str]:
    """Return the first value of every line by the line's first word."""
    return {words[0]: words[1] for words in map(str.split, text.splitlines()) if len(words) > 1}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
