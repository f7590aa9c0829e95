"""CPUs and memory that a process may use, read from a stand-in of the system's files."""

import math
from types import SimpleNamespace

import pytest
import torch

from sopr_fast import native
from sopr_fast.runtime import resources
from sopr_fast.runtime.resources import cpu_limit, free_memory

GROUP = "sys/fs/cgroup/"
MEMORY = 4_096_000
TWO_CORES = {"cpu.max": "150000 100000\n"}
USED = {"memory.max": "3000\n", "memory.current": "1000\n"}
NESTED = {"a/b/cpu.max": "800000 100000\n", "a/cpu.max": "30 10\n", "a/b/memory.max": "9\n", "memory.max": "8\n"}
CASES = {  # files of the groups, by name in the mount → CPUs and bytes
    "no files": ("0::/", {}, None, MEMORY),
    "no limits": ("0::/", {"cpu.max": "max 100000\n", "memory.max": "max\n"}, None, MEMORY),
    "garbage": ("garbage\n0::/", {"cpu.max": "garbage", "memory.max": "garbage"}, None, MEMORY),
    "limits": ("0::/", TWO_CORES | USED, 2, 2000),
    "more is used": ("0::/", {"memory.max": "3000\n", "memory.current": "5000\n"}, None, 0),
    "cached": ("0::/", USED | {"memory.stat": "anon 100\ninactive_file 400\n"}, None, 2400),
    "ancestors": ("0::/a/b", NESTED, 3, 8),
    "outside": ("0::/../other", {"../other/cpu.max": "1 1\n", "memory.max": "3000\n"}, None, 3000),
    "version 1": ("3:cpu:/box\n1:memory:/box", TWO_CORES, None, MEMORY),
}


@pytest.mark.parametrize(("group", "files", "cpus", "memory"), CASES.values(), ids=CASES)
def test_the_tightest_limits_count(group, files, cpus, memory, tmp_path):
    assert cpu_limit(tmp_path) is None and free_memory(tmp_path) == math.inf  # without any files
    meminfo = {"proc/meminfo": "MemTotal: 9000 kB\nMemFree: 3 kB\nMemAvailable:    4000 kB\n"}
    for name, text in ({f"{GROUP}{name}": text for name, text in files.items()} | meminfo).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text(group)
    assert (cpu_limit(tmp_path), free_memory(tmp_path)) == (cpus, memory)


def test_kernels_respect_the_cpu_limit(monkeypatch):
    monkeypatch.setattr(native.torch, "get_num_threads", lambda: 64)
    for limit, threads in ((3, 3), (None, 64)):
        monkeypatch.setattr(native, "_CPU_LIMIT", limit)
        assert native.threads() == threads


def test_tiles_take_a_sixteenth_of_the_memory_at_most(monkeypatch):
    for free, size in ((math.inf, 1000), (16_000, 1000), (1600, 100), (0, 0)):
        monkeypatch.setattr(resources, "free_memory", lambda free=free: free)
        assert resources.tile_bytes(1000) == size
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1600))
    assert resources.tile_bytes(1000, torch.device("cuda")) == 100  # the memory of the host does not matter
    assert resources.tile_bytes(70, torch.device("cpu")) == 0
