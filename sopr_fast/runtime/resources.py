"""CPUs and memory that the process may use: its control group may allow less than the machine has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_ROOT = Path("/")
_SHARE = 16  # a tile takes at most this part of the memory


def cpu_limit(root: Path = _ROOT) -> int | None:
    """Return the tightest CPU quota of the control groups in whole processors, rounded up, or None without a quota."""
    quotas = []
    for folder in _groups(root):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if _number(quota) and _number(period):
            quotas.append(math.ceil(_number(quota) / _number(period)))
    return min(quotas, default=None)


def free_memory(root: Path = _ROOT) -> float:
    """Return how many bytes this process can allocate; infinity if that is unknown.

    The tightest limit of the control groups counts, minus what the group uses, except for cached files.
    """
    free = [1024 * _number(_entries(root / "proc/meminfo").get("MemAvailable:", ""), math.inf)]
    for folder in _groups(root):
        most = _number(_read(folder / "memory.max"), math.inf)
        cached = _number(_entries(folder / "memory.stat").get("inactive_file", ""))
        free.append(max(0.0, most - max(0.0, _number(_read(folder / "memory.current")) - cached)))
    return min(free)


def tile_bytes(most: int, device: torch.device | None = None) -> int:
    """Return the size of a tile of work in bytes: `most`, or a sixteenth of the memory if that is less.

    On a GPU the total memory counts, which is known without waiting; otherwise what this process can allocate.
    """
    if device is not None and device.type == "cuda":
        import torch

        memory: float = torch.cuda.get_device_properties(device).total_memory
    else:
        memory = free_memory()
    return int(min(most, memory / _SHARE))


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the process's control group (version 2) and its ancestors."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            group = PurePosixPath(line[3:].lstrip("/"))
            # A container sees its own group as the root of the mount, under the path that it has outside.
            yield from (root / "sys/fs/cgroup" / each for each in (group, *group.parents) if ".." not in each.parts)


def _number(text: str, default: float = 0.0) -> float:
    return float(text) if text.strip().isdecimal() else default


def _entries(path: Path) -> dict[str, str]:
    """Return the first value of each line by the first word of the line."""
    return {words[0]: words[1] for words in map(str.split, _read(path).splitlines()) if len(words) > 1}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
