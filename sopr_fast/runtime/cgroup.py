"""CPU quota of the process's cgroup, which the number of processors does not tell."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath


def cpu_limit(root: Path = Path("/")) -> int | None:
    """Return the CPU quota in whole processors, rounded up, or None without a quota.

    The tightest quota of the process's cgroup and its ancestors counts (`cpu.max` in version 2, `cpu.cfs_quota_us` in
    version 1).

    Args:
        root: Folder that contains `proc` and `sys`.
    """
    quotas = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, controllers_and_path = line.partition(":")
        controllers, colon, path = controllers_and_path.partition(":")
        if not colon:
            continue
        group = PurePosixPath(path.lstrip("/"))
        if not controllers:
            mount = root / "sys/fs/cgroup"
            quotas += [_quota(_read(mount / folder / "cpu.max")) for folder in (group, *group.parents)]
        elif "cpu" in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controllers
            mount = mount if mount.is_dir() else root / "sys/fs/cgroup/cpu"
            for folder in (group, *group.parents):
                quota, period = (_read(mount / folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
                quotas.append(_quota(f"{quota} {period}"))
    return min((math.ceil(quota) for quota in quotas if quota), default=None)


def _quota(text: str) -> float | None:
    """Return quota / period, or None for "max", -1 or a missing file."""
    try:
        quota, period = map(int, text.split())
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
