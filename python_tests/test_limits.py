"""CPUs and memory that a process may use, read from a stand-in of the system's files."""

import math
from types import SimpleNamespace

import pytest
import torch

from sopr_fast.runtime import limits, native
from sopr_fast.runtime.limits import cpu_limit, free_memory


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ("0::/", {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ("0::/", {}, None),
        (
            "0::/a/b",
            {
                "sys/fs/cgroup/a/b/cpu.max": "800000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/cpu.max": "max 100000\n",
            },
            3,
        ),
        (
            "3:cpu,cpuacct:/box\n1:memory:/box",
            {
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        ("garbage\n0::/", {"sys/fs/cgroup/cpu.max": "garbage"}, None),
    ],
)
def test_cpu_limit_is_the_tightest_quota(group, files, expected, tmp_path):
    write(tmp_path, {"proc/self/cgroup": group, **files})
    assert cpu_limit(tmp_path) == expected


def test_kernels_respect_the_cpu_limit(monkeypatch):
    monkeypatch.setattr(native.torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(native, "_CPU_LIMIT", 3)
    assert native.threads() == 3
    monkeypatch.setattr(native, "_CPU_LIMIT", None)
    assert native.threads() == 64


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemFree: 3 kB\nMemAvailable:    4000 kB\n"}  # 4,096,000 bytes
V1 = "12:hugetlb:/\n4:memory:/docker/box\n0::/"


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/", {}, 4_096_000),
        ("0::/", {"sys/fs/cgroup/memory.max": "max\n"}, 4_096_000),
        ("0::/", {"sys/fs/cgroup/memory.max": "9000000\n"}, 4_096_000),
        ("0::/", {"sys/fs/cgroup/memory.max": "garbage"}, 4_096_000),
        ("0::/../other", {"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/other/memory.max": "1"}, 3000),
        ("0::/", {"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.current": "1000\n"}, 2000),
        ("0::/", {"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.current": "5000\n"}, 0),
        (
            "0::/",
            {
                "sys/fs/cgroup/memory.max": "3000\n",
                "sys/fs/cgroup/memory.current": "1000\n",
                "sys/fs/cgroup/memory.stat": "anon 100\ninactive_file 400\n",
            },
            2400,
        ),
        (
            "0::/a/b",
            {
                "sys/fs/cgroup/a/b/memory.max": "9000\n",
                "sys/fs/cgroup/a/memory.max": "5000\n",
                "sys/fs/cgroup/a/memory.current": "4000\n",
                "sys/fs/cgroup/memory.max": "max\n",
            },
            1000,
        ),
        (
            V1,
            {
                "sys/fs/cgroup/memory/docker/box/memory.limit_in_bytes": "7000\n",
                "sys/fs/cgroup/memory/docker/box/memory.usage_in_bytes": "6000\n",
                "sys/fs/cgroup/memory/docker/box/memory.stat": "inactive_file 1\ntotal_inactive_file 500\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            1500,
        ),
        (V1, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "7000\n"}, 7000),  # of a container without a namespace
        ("", {"sys/fs/cgroup/memory.max": "1\n"}, 4_096_000),
    ],
)
def test_free_memory_is_the_tightest_limit_less_what_is_used(group, files, expected, tmp_path):
    write(tmp_path, {"proc/self/cgroup": group, **MEMINFO, **files})
    assert free_memory(tmp_path) == expected


def test_no_files_mean_no_limits(tmp_path):
    assert cpu_limit(tmp_path) is None and free_memory(tmp_path) == math.inf


def test_tiles_take_a_sixteenth_of_the_free_memory_at_most(monkeypatch):
    for free, size in ((math.inf, 1000), (16_000, 1000), (1600, 100), (0, 0)):
        monkeypatch.setattr(limits, "free_memory", lambda free=free: free)
        assert limits.tile_bytes(1000) == size


def test_tiles_of_a_gpu_take_a_sixteenth_of_its_memory(monkeypatch):
    """The host's memory does not matter."""
    monkeypatch.setattr(limits, "free_memory", lambda: 0.0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1600))
    assert limits.tile_bytes(1000, torch.device("cuda")) == 100
    assert limits.tile_bytes(70, torch.device("cuda")) == 70
    assert limits.tile_bytes(70, torch.device("cpu")) == 0
